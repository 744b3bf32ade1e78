"""The pages at the root, for contributors and for who upgrades, name only what there is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.server import ROOT

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")
PRESENT = tuple(page for page in PAGES if page != "CHANGELOG.md")
"""Those that speak of the tree as it is; a changelog has names of what is no more."""
TOPS = ("src", "tests", "docs", "examples", "benchmarks", "requirements", "scripts", "deploy")
MADE = {"build/docs"}
"""By `make`."""
OTHERS = {"Any", "DescribeConfigs"}
"""Names that look like ours, and are Python's or Kafka's."""

_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PATH = re.compile(rf"(?:{'|'.join(TOPS)})(?:/[\w.*-]+)*")
_FILE = re.compile(r"[\w*]+\.(?:py|json|md|toml)")
_NAME = re.compile(r"(?:[\w.]+\.)?(\w+)\(\)|((?:[A-Z][a-z]+)+)|([A-Z_]{4,})")
_DOCUMENT = re.compile(r"\b[A-Z]{3,}\.md\b")
_ELSEWHERE = re.compile(r"\bDESIGN\b|\b[Dd]ocument (?:0|zero)\b|\bFEATURES [A-Z]\d|\(rule \d\)")
_DEFINED = re.compile(r"^(?:    )?(?:async )?(?:def|class) (\w+)|^([A-Z][A-Z_]+)\b.* = ", re.MULTILINE)


@cache
def defined() -> frozenset[str]:
    """Functions, classes and tables of the code and its tests, by name."""
    sources = [path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")]
    return frozenset(name for path in sources for pair in _DEFINED.findall(path.read_text()) for name in pair if name)


def is_there(span: str) -> bool:
    """Of what stands in a code span: whether it is a file or a name of ours that is there, or neither."""
    if _PATH.fullmatch(span):
        return any(ROOT.glob(span)) or span in MADE
    if _FILE.fullmatch(span):
        return any(True for top in TOPS for _ in (ROOT / top).rglob(span)) or any(ROOT.glob(span))
    if name := _NAME.fullmatch(span):
        return bool(defined() & set(name.groups())) or span in OTHERS
    return True


@pytest.mark.parametrize("page", PRESENT)
def test_files_and_names_of_the_code_that_a_page_mentions_are_there(page: str) -> None:
    spans = _SPAN.findall(_FENCE.sub("", (ROOT / page).read_text()))
    assert [span for span in spans if not is_there(span)] == []


def test_what_is_not_there_is_found() -> None:
    wrong = ["tests/nowhere", "src/waystation/doors/kafka.py", "familys.py", "no_such_function()", "NO_SUCH_TABLE"]
    right = [
        "tests/support",
        "registry.py",
        "test_pika_*.py",
        "settings.text()",
        "HANDLERS",
        "TopicSettings",
        "call.make",
    ]
    assert [span for span in (*wrong, *right) if not is_there(span)] == wrong


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_changelog_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [tuple(int(part) for part in heading.split(".")) for heading in headings[1:]]
    assert headings[0] == "Unreleased"
    assert versions == sorted(versions, reverse=True)


def test_nothing_in_the_tree_refers_to_a_document_that_is_not_in_it() -> None:
    """Contributors have the repository and nothing else."""
    sources = [
        path for top in TOPS for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".md", ".toml", ".js")
    ]
    sources += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    known = {path.name for path in sources if path.suffix == ".md"}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        if path != Path(__file__)
        for name in [*_DOCUMENT.findall(path.read_text()), *_ELSEWHERE.findall(path.read_text())]
        if name not in known
    ]
    assert missing == []
