"""The reference page has every command and option, and no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from tests.support.server import ROOT
from waystation.cli.main import build_parser

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text()


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every long option and every command, at any depth."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name
                yield from options(inner)
        yield from (text for text in action.option_strings if text.startswith("--"))


@pytest.mark.parametrize("word", sorted(set(options(build_parser()))))
def test_the_page_explains_everything(word: str) -> None:
    assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", PAGE)


def test_the_page_invents_nothing() -> None:
    known = set(options(build_parser()))
    assert not set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - known


@pytest.mark.parametrize("page", ["docs/reference/command-line.md", "docs/guide/getting-started.md"])
def test_a_page_ends_with_its_limits(page: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert headings[-1] == "Limits"
