"""Words that users would not search for stay out of the docs, the command line, the dashboard, errors and log lines.

Each word has the number of times that it may still occur. The number may only go down: where it is 0, the word is out
for good. After a page was rewritten, `python -m tests.docs.test_words` lowers the numbers below to what there is, and
prints where the words are that are left. Code blocks and code spans do not count: a name in the API keeps its name. Of
the dashboard's scripts and of our modules, strings are read, and only those that are text: a string of one word without
a capital letter may be a name (`"held"`, `"door"`), and names stay.

Not in the table are words that are wrong only in one of their senses (`kept`, `goes`, `kill`): their number could never
be 0. `docs/reference/glossary.md` has the words to use.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.server import ROOT
from waystation.cli.main import build_parser


class Word(NamedTuple):
    """What not to say, as a regular expression; what to say; how often it may still occur in pages, in the help, in the
    dashboard, and in the strings of modules: errors, log lines, descriptions."""

    pattern: str
    say: str
    pages: int
    help: int
    dashboard: int
    strings: int


# One line each: the numbers are written by the command above.
WORDS = (
    Word(r"\bdoors?\b", "protocol, listener, port", 4, 0, 0, 1),
    Word(r"\bheld\b(?! back)", "in flight", 7, 0, 0, 0),
    Word(r"\bhold times?\b|\bholds? (?:has |have )?(?:ended|ran out|run out)", "visibility timeout", 2, 0, 0, 0),
    Word(r"\bheld back\b", "blocked", 0, 0, 0, 0),
    Word(r"\bpark(?:s|ed|ing)?\b", "delayed; waiting for retry", 10, 0, 0, 0),
    Word(r"\btaken in\b", "enqueued", 0, 0, 0, 0),
    Word(r"\bwithout a word\b", "without acknowledging; unchanged", 2, 0, 0, 0),
    Word(r"\bhand(?:s|ed|ing)? out\b", "delivered", 1, 0, 0, 0),
    Word(r"\bgiv(?:e|es|en|ing) back\b", "requeued, released", 1, 0, 0, 0),
    Word(r"\bcomes? again\b", "is redelivered", 1, 0, 0, 0),
    Word(r"\b(?:is|are|was|were) gone\b", "is deleted; is closed", 0, 0, 0, 0),
    Word(r"\bverdicts?\b", "acknowledgement, settling", 7, 0, 0, 2),
    Word(r"\bstor(?:y|ies)\b|(?<!x-)\bdeaths?\b", "failure history", 1, 0, 0, 0),
    Word(r"(?<!dead[\s-])\bletters?\b", "dead letter", 6, 0, 0, 5),
    Word(r"\bthe dead\b(?!.letter)", "dead letters", 1, 0, 0, 0),
    Word(r"\bs(?:end|ends|ent|ending) back\b", "redriven", 0, 0, 0, 0),
    Word(r"(?<!back[\s-])\bpressure\b", "resource alarm", 0, 0, 0, 0),
    Word(r"\bpresence\b", "connections", 0, 0, 0, 0),
    Word(r"\bdesks?\b", "dispatcher, service", 0, 0, 0, 0),
    Word(r"\btimetables?\b", "timer wheel", 0, 0, 0, 0),
    Word(r"\btall(?:y|ies)\b", "delivery counts", 0, 0, 0, 0),
    Word(r"\bhearts?\b", "broker, core", 0, 0, 0, 0),
    Word(r"\banew\b", "again; re-created", 1, 0, 0, 0),
    Word(r"\bmend(?:s|ed|ing)?\b", "fixed", 0, 0, 0, 0),
    Word(r"\bfor ever\b", "forever", 2, 0, 0, 0),
    Word(r"\bso (?:many|much|often|long)\b", "this many; maximum number of", 7, 0, 0, 0),
    Word(r"\bin a blink\b", "in under half a second", 0, 0, 0, 0),
    Word(r"\bnames, not walls\b", "namespaces that do not isolate tenants", 0, 0, 0, 0),
    Word(r"\bin its pocket\b", "prefetched", 0, 0, 0, 0),
    Word(r"\bsaid by\b", "chosen by", 0, 0, 0, 0),
    Word(r"\bthrow(?:s|n|ing)? away\b", "deleted", 1, 0, 0, 0),
    Word(r"\b(?:some|no)body holds\b", "in flight", 1, 0, 0, 0),
    Word(r"\blook here\b", "1 warning", 0, 0, 0, 0),
    Word(r"\bwhat is in it\b", "messages", 1, 0, 0, 0),
    Word(r"\btakes at once\b", "prefetch", 0, 0, 0, 0),
    Word(r"\bwhoever\b", "anyone who; the one who", 3, 0, 0, 0),
)

PAGES = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_NOT_PROSE = re.compile(
    r"^(?P<indent> *)```.*?^(?P=indent)```$|`[^`\n]*(?:\n[^`\n]+)?`|<!--.*?-->|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE
)
_ROW = re.compile(
    r'^    Word\((?P<pattern>r"[^\n]*?"), (?P<say>"[^"\n]*"), (?P<counts>\d+, \d+, \d+, \d+)\),$', re.MULTILINE
)
SOURCE = ROOT / "src" / "waystation"
DASHBOARD = SOURCE / "protocols" / "http" / "dashboard"
_COMMENT = re.compile(r"^\s*//[^\n]*|\s// [^\n]*|/\*.*?\*/|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LITERALS = {
    ".js": re.compile(r'"(?P<plain>(?:[^"\\\n]|\\.)*)"|`(?P<template>[^`]*)`'),
    ".html": re.compile(r'"(?P<plain>[^"]*)"|>(?P<html>[^<>]+)<'),
}


class Text(NamedTuple):
    """A page without its code, a sentence of the help, or a string."""

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


@cache
def dashboard() -> tuple[Text, ...]:
    files = sorted(path for path in DASHBOARD.rglob("*") if path.suffix in (".js", ".html"))
    return tuple(Text(str(file.relative_to(ROOT)), shown(file.read_text(), file.suffix)) for file in files)


def shown(script: str, suffix: str = ".js") -> str:
    """What of a script or a page may be seen, every line on its line: literals that are text, without expressions.
    A literal within the expression of another one is not read, which is good enough to notice a word."""
    blank = list(re.sub(r"[^\n]", " ", script))
    code = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), script)
    for literal in _LITERALS[suffix].finditer(code):
        kind = literal.lastgroup or ""
        text = re.sub(r"\$\{[^}]*\}?", lambda expression: re.sub(r"[^\n]", " ", expression[0]), literal[kind])
        if is_text(text):
            blank[literal.start(kind) : literal.end(kind)] = text
    return "".join(blank)


def is_text(string: str) -> bool:
    """Not a name: more than one word, or with a capital letter at its beginning."""
    return len(string.split()) > 1 or string[:1].isupper()


@cache
def strings() -> tuple[Text, ...]:
    """What modules may say: their strings without docstrings, and without those of several lines (SQL, scripts)."""
    return tuple(
        Text(f"{file.relative_to(ROOT)}:{line}", prose(string))
        for file in sorted(SOURCE.rglob("*.py"))
        for line, string in literals(file.read_text())
        if is_text(string) and "\n" not in string.strip()
    )


def literals(module: str) -> Iterator[tuple[int, str]]:
    """Strings with their lines; an f-string is one, without its expressions."""
    within: set[ast.AST] = set()
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Expr):
            within.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            within.update(node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield node.lineno, "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in within:
            yield node.lineno, node.value


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


@pytest.mark.parametrize("word", WORDS, ids=[word.pattern for word in WORDS])
def test_an_old_word_does_not_come_back_into_the_dashboard(word: Word) -> None:
    places = found(word, dashboard())
    assert len(places) <= word.dashboard, f"say {word.say!r}; it is in\n" + "\n".join(places)


@pytest.mark.parametrize("word", WORDS, ids=[word.pattern for word in WORDS])
def test_an_old_word_does_not_come_back_into_errors_and_log_lines(word: Word) -> None:
    places = found(word, strings())
    assert len(places) <= word.strings, f"say {word.say!r}; it is in\n" + "\n".join(places)


def test_of_scripts_and_modules_what_is_shown_is_read() -> None:
    door = Word(r"\bdoors?\b", "protocol", 0, 0, 0, 0)
    script = 'get("door"); // a door\n/** a door */ title("Door", `by ${door} the door`);\nh("p", "no door");\n'
    assert found(door, [Text("x.js", shown(script))]) == ["x.js:2: Door", "x.js:2: door", "x.js:3: door"]
    page = '<a class="a door" id="door">the door</a>\n<!-- a door -->\n'
    assert found(door, [Text("x.html", shown(page, ".html"))]) == ["x.html:1: door", "x.html:1: door"]
    module = '"""A door."""\nNAME = "door"\nraise Invalid(f"the {name} door is shut")\nlogger.info("Doors: %d", 1)\n'
    said = [Text(f"x.py:{line}", string) for line, string in literals(module) if is_text(string)]
    assert sorted(found(door, said)) == ["x.py:3:1: door", "x.py:4:1: Doors"]


def test_code_is_not_prose_and_a_line_keeps_its_number() -> None:
    text = "a door\n```sh\na door\n```\nthe `door`, [this door](door.md)\n- x\n  ```\n  door\n  ```\n"
    page = Text("page", prose(text + "then it comes\n  again\n"))
    assert found(Word(r"\bdoors?\b", "protocol", 0, 0, 0, 0), [page]) == ["page:1: door", "page:5: door"]
    assert found(Word(r"(?<!x )\bcomes again\b", "is redelivered", 0, 0, 0, 0), [page]) == ["page:10: comes again"]


def test_every_row_can_be_lowered() -> None:
    rows = [ast.literal_eval(row["pattern"]) for row in _ROW.finditer(Path(__file__).read_text())]
    assert rows == [word.pattern for word in WORDS]
    assert any(parser.prog.endswith("queues put") for parser in parsers(build_parser()))


def lower() -> None:
    """Writes into this file how often each word is left, where that is less than before."""
    by_pattern = {word.pattern: word for word in WORDS}

    def lowered(row: re.Match[str]) -> str:
        word = by_pattern[ast.literal_eval(row["pattern"])]
        places = [found(word, texts) for texts in (pages(), helps(), dashboard(), strings())]
        for place in itertools.chain(*places):
            print(f"{place} (say: {word.say})")
        counts = [min(now, len(left)) for now, left in zip(word[2:], places, strict=True)]
        return f"    Word({row['pattern']}, {row['say']}, {', '.join(map(str, counts))}),"

    file = Path(__file__)
    file.write_text(_ROW.sub(lowered, file.read_text()))


if __name__ == "__main__":
    lower()
