"""The Python in the README and the guides runs as it stands, against a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.server import ROOT, Server

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DEFAULTS = {"kafka": "127.0.0.1:9092", "amqp": "127.0.0.1:5672"}
"""Where the pages say that a broker is."""

NEEDS = re.compile(r"^# needs: (\S+)$", re.MULTILINE)
"""The first line of a snippet that runs only where an extra is installed names a module of it."""
SNIPPET_S = 90
SPARK_S = 280
"""Spark alone takes half a minute to start where others work too."""


def missing(code: str) -> str | None:
    """The module that a snippet needs and that is not installed here."""
    needed = NEEDS.match(code)
    return needed[1] if needed and find_spec(needed[1]) is None else None


SNIPPETS = [
    pytest.param(
        code,
        id=f"{page.stem}-{number}",
        marks=pytest.mark.skipif(missing(code) is not None, reason=f"{missing(code)} is not installed"),
    )
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("docs")) as server:
        yield server


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs_as_it_stands(server: Server, tmp_path: Path, code: str) -> None:
    for door, address in DEFAULTS.items():
        code = code.replace(address, server.addresses[door])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=SPARK_S if "# needs: pyspark" in code else SNIPPET_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{server.tail()}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_page_ends_with_its_limits(page: Path) -> None:
    """Decisions are the exception: they end with what else was considered."""
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    if page.parent.name == "decisions":
        assert "Considered" in page.read_text() or "considered" in page.read_text()
    else:
        assert headings[-1].startswith("Limits")


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
