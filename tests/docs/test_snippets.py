"""The code in the README and the docs runs as it stands, against a real broker.

In a guide or a reference each block stands for itself. A recipe (how-to, operations, getting started) is a story: all
its blocks, of whatever language, in their order, in one folder, on a broker that has seen nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import SNIPPET_S, Block, blocks, pointed_at, run_block
from tests.support.server import ROOT, Server

DOCS = ROOT / "docs"
STARTED = DOCS / "guide" / "getting-started.md"
GUIDES = [
    ROOT / "README.md",
    *(page for page in sorted((DOCS / "guide").glob("*.md")) if page != STARTED),
    *sorted((DOCS / "reference").glob("*.md")),
]
STORIES = [STARTED, *sorted((DOCS / "how-to").glob("*.md")), *sorted((DOCS / "operations").glob("*.md"))]
RUN = ("python", "sh run", "console run")

SNIPPETS = [
    pytest.param(
        block,
        id=f"{page.stem}-{number}",
        marks=pytest.mark.skipif(block.missing is not None, reason=f"{block.missing} is not installed"),
    )
    for page in GUIDES
    for number, block in enumerate((block for block in blocks(page) if block.info in RUN), 1)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("docs")) as server:
        yield server


@pytest.mark.parametrize("block", SNIPPETS)
def test_a_snippet_runs_as_it_stands(server: Server, tmp_path: Path, block: Block) -> None:
    failure = run_block(block, tmp_path, server.addresses)
    assert failure is None, f"{failure}\n{server.tail()}"


@pytest.mark.timeout(SNIPPET_S * 4)
@pytest.mark.parametrize(
    "page", [page for page in STORIES if any(block.info in RUN for block in blocks(page))], ids=lambda page: page.stem
)
def test_a_story_runs_from_its_beginning_to_its_end(tmp_path: Path, page: Path) -> None:
    folder = tmp_path / "story"
    folder.mkdir()
    with Server(tmp_path / "server") as server:
        for block in blocks(page):
            if block.missing is None:
                failure = run_block(block, folder, server.addresses)
                assert failure is None, f"{failure}\n{server.tail()}"


def test_addresses_are_found_in_every_spelling() -> None:
    addresses = {"kafka": "127.0.0.1:1", "amqp": "127.0.0.1:2", "http": "127.0.0.1:3"}
    text = 'localhost:9092 ("127.0.0.1", 9092) nc localhost 9092 amqp://guest@127.0.0.1:5672/ localhost:8080/v1 :80800'
    moved = '127.0.0.1:1 ("127.0.0.1", 1) nc 127.0.0.1 1 amqp://guest@127.0.0.1:2/ 127.0.0.1:3/v1 :80800'
    assert pointed_at(text, addresses) == moved


def test_what_is_shown_must_be_what_is_printed(tmp_path: Path) -> None:
    addresses = {"kafka": "127.0.0.1:1"}
    assert run_block(Block("console run", "$ echo one two\none …\n$ true\n"), tmp_path, addresses) is None
    assert "instead of" in str(run_block(Block("console run", "$ echo one\ntwo\n"), tmp_path, addresses))
    assert "ended with 1" in str(run_block(Block("sh run", "false\ntrue\n"), tmp_path, addresses))
    assert run_block(Block("sh", "false\n"), tmp_path, addresses) is None


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_every_page_ends_with_its_limits(page: Path) -> None:
    """Decisions are the exception: they end with what else was considered."""
    headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)
    if page.parent.name == "decisions":
        assert "Considered" in page.read_text() or "considered" in page.read_text()
    else:
        assert headings[-1].startswith("Limits")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", without_code(page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert broken == []
