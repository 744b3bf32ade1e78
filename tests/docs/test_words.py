"""Words that users would not search for stay out of README, docs and the help of the command line.

Each word has the number of times that it may still occur. The number may only go down: where it is 0, the word is out
for good. After a page was rewritten, `python -m tests.docs.test_words` lowers the numbers below to what there is, and
prints where the words are that are left. Code blocks and code spans do not count: a name in the API keeps its name.

Not in the table are words that are wrong only in one of their senses (`kept`, `goes`, `kill`): their number could never
be 0. `docs/reference/glossary.md` has the words to use.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.server import ROOT
from waystation.cli.main import build_parser


class Word(NamedTuple):
    """What not to say, as a regular expression; what to say; how often it may still occur in pages, and in the help."""

    pattern: str
    say: str
    pages: int
    help: int


# One line each: the numbers are written by the command above.
WORDS = (
    Word(r"\bdoors?\b", "protocol, listener, port", 4, 0),
    Word(r"\bheld\b(?! back)", "in flight", 7, 0),
    Word(r"\bhold times?\b|\bholds? (?:has |have )?(?:ended|ran out|run out)", "visibility timeout", 2, 0),
    Word(r"\bheld back\b", "blocked", 0, 0),
    Word(r"\bpark(?:s|ed|ing)?\b", "delayed; waiting for retry", 10, 0),
    Word(r"\btaken in\b", "enqueued", 0, 0),
    Word(r"\bwithout a word\b", "without acknowledging; unchanged", 2, 0),
    Word(r"\bhand(?:s|ed|ing)? out\b", "delivered", 1, 0),
    Word(r"\bgiv(?:e|es|en|ing) back\b", "requeued, released", 1, 0),
    Word(r"\bcomes? again\b", "is redelivered", 1, 0),
    Word(r"\b(?:is|are|was|were) gone\b", "is deleted; is closed", 2, 0),
    Word(r"\bverdicts?\b", "acknowledgement, settling", 7, 0),
    Word(r"\bstor(?:y|ies)\b|(?<!x-)\bdeaths?\b", "failure history", 1, 0),
    Word(r"(?<!dead[\s-])\bletters?\b", "dead letter", 6, 0),
    Word(r"\bthe dead\b(?!.letter)", "dead letters", 1, 0),
    Word(r"\bs(?:end|ends|ent|ending) back\b", "redriven", 0, 0),
    Word(r"(?<!back[\s-])\bpressure\b", "resource alarm", 0, 0),
    Word(r"\bpresence\b", "connections", 0, 0),
    Word(r"\bdesks?\b", "dispatcher, service", 0, 0),
    Word(r"\btimetables?\b", "timer wheel", 0, 0),
    Word(r"\btall(?:y|ies)\b", "delivery counts", 0, 0),
    Word(r"\bhearts?\b", "broker, core", 0, 0),
    Word(r"\banew\b", "again; re-created", 1, 0),
    Word(r"\bmend(?:s|ed|ing)?\b", "fixed", 0, 0),
    Word(r"\bfor ever\b", "forever", 2, 0),
    Word(r"\bso (?:many|much|often|long)\b", "this many; maximum number of", 7, 1),
    Word(r"\bin a blink\b", "in under half a second", 0, 0),
    Word(r"\bnames, not walls\b", "namespaces that do not isolate tenants", 0, 0),
    Word(r"\bin its pocket\b", "prefetched", 0, 0),
    Word(r"\bsaid by\b", "chosen by", 0, 0),
    Word(r"\bwhoever\b", "anyone who; the one who", 3, 0),
)

PAGES = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_NOT_PROSE = re.compile(
    r"^(?P<indent> *)```.*?^(?P=indent)```$|`[^`\n]*(?:\n[^`\n]+)?`|<!--.*?-->|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE
)
_ROW = re.compile(
    r'^    Word\((?P<pattern>r"[^\n]*?"), (?P<say>"[^"\n]*"), (?P<pages>\d+), (?P<help>\d+)\),$', re.MULTILINE
)


class Text(NamedTuple):
    """A page without its code, or a sentence of the help."""

    where: str
    prose: str


def prose(text: str) -> str:
    """A page without its code, comments and targets of links; every line stays on its line."""
    return _NOT_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


@cache
def pages() -> tuple[Text, ...]:
    return tuple(Text(str(page.relative_to(ROOT)), prose(page.read_text())) for page in PAGES)


@cache
def helps() -> tuple[Text, ...]:
    """Each sentence once, though many commands have the same options."""
    written = [(text, parser.prog) for parser in parsers(build_parser()) for text in sentences(parser)]
    return tuple(Text(f"{prog} --help", text) for text, prog in dict(reversed(written)).items())


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """It and those of its commands, at any depth."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def sentences(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What a person wrote: usage and metavars are names, and lines of an epilog that are indented are examples."""
    written = [parser.description, *re.findall(r"^(?! ).+$", parser.epilog or "", re.MULTILINE)]
    written += [action.help for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    yield from (prose(text) for text in written if text and text != argparse.SUPPRESS)


def found(word: Word, texts: Iterable[Text]) -> list[str]:
    """Once for each time: the page, the line and what stands there. A space may be the end of a line."""
    spaces = re.sub(r"(\(\?<![^)]*\))|( )", lambda part: part[1] or r"\s+", word.pattern)
    wanted = re.compile(spaces, re.IGNORECASE)
    return [
        f"{text.where}:{text.prose.count(chr(10), 0, hit.start()) + 1}: {' '.join(hit[0].split())}"
        for text in texts
        for hit in wanted.finditer(text.prose)
    ]


@pytest.mark.parametrize("word", WORDS, ids=[word.pattern for word in WORDS])
def test_an_old_word_does_not_come_back_into_the_pages(word: Word) -> None:
    places = found(word, pages())
    assert len(places) <= word.pages, f"say {word.say!r}; it is in\n" + "\n".join(places)


@pytest.mark.parametrize("word", WORDS, ids=[word.pattern for word in WORDS])
def test_an_old_word_does_not_come_back_into_the_help(word: Word) -> None:
    places = found(word, helps())
    assert len(places) <= word.help, f"say {word.say!r}; it is in\n" + "\n".join(places)


def test_code_is_not_prose_and_a_line_keeps_its_number() -> None:
    text = "a door\n```sh\na door\n```\nthe `door`, [this door](door.md)\n- x\n  ```\n  door\n  ```\n"
    page = Text("page", prose(text + "then it comes\n  again\n"))
    assert found(Word(r"\bdoors?\b", "protocol", 0, 0), [page]) == ["page:1: door", "page:5: door"]
    assert found(Word(r"(?<!x )\bcomes again\b", "is redelivered", 0, 0), [page]) == ["page:10: comes again"]


def test_every_row_can_be_lowered() -> None:
    rows = [ast.literal_eval(row["pattern"]) for row in _ROW.finditer(Path(__file__).read_text())]
    assert rows == [word.pattern for word in WORDS]
    assert any(parser.prog.endswith("queues put") for parser in parsers(build_parser()))


def lower() -> None:
    """Writes into this file how often each word is left, where that is less than before."""
    by_pattern = {word.pattern: word for word in WORDS}

    def lowered(row: re.Match[str]) -> str:
        word = by_pattern[ast.literal_eval(row["pattern"])]
        in_pages, in_help = found(word, pages()), found(word, helps())
        for place in (*in_pages, *in_help):
            print(f"{place} (say: {word.say})")
        counts = min(word.pages, len(in_pages)), min(word.help, len(in_help))
        return f"    Word({row['pattern']}, {row['say']}, {counts[0]}, {counts[1]}),"

    file = Path(__file__)
    file.write_text(_ROW.sub(lowered, file.read_text()))


if __name__ == "__main__":
    lower()
