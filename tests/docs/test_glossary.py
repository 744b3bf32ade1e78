"""The glossary can be searched by eye, and the names of ours in it are names that the code has."""

from __future__ import annotations

import re

from tests.support.server import ROOT

PAGE = ROOT / "docs" / "reference" / "glossary.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, ...]]:
    """Word, in Waystation, Kafka, RabbitMQ, SQS; without the heads."""
    return list(ROW.findall(PAGE.read_text()))[2:]


def test_words_are_in_alphabetical_order_and_each_is_there_once() -> None:
    words = [word for word, *_ in rows()]
    assert len(words) > 50
    assert words == sorted(set(words))


def test_names_of_our_api_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {name for _, ours, *_ in rows() for name in re.findall(r"`(?:waystation\.)?([\w.-]+?)`", ours)}
    assert "hold_ms" in named
    assert {name for name in named if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)} == set()


def test_a_system_without_the_thing_has_a_dash_and_no_empty_cell() -> None:
    assert [word for word, *cells in rows() if not all(cell.strip() for cell in cells)] == []
