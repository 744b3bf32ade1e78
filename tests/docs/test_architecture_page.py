"""ARCHITECTURE.md names files and functions that exist, and its walks go where the code goes."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from typing import NamedTuple

import pytest

from tests.support.server import ROOT

PAGE = ROOT / "ARCHITECTURE.md"
SOURCES = ROOT / "src" / "waystation"

_NAMED = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")
_ROOM = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_WALK = re.compile(r"^### (?P<title>.+) \((?P<count>\d+) steps\)$", re.MULTILINE)
_STEP = re.compile(r"^(?P<number>\d+)\. `(?P<file>[\w/]+\.py):(?P<name>[\w.]+)`")
BY_NO_NAME = {"__call__", "__init__"}
"""Are called by what holds the object, or by its class."""


class Step(NamedTuple):
    """A function that a walk passes through. `begins`: it is the first of its list, which something else starts."""

    number: int
    file: str
    name: str
    begins: bool


@cache
def functions(file: str) -> dict[str, str]:
    """The sources of a file's functions and classes, by their names within it."""
    path = (ROOT if file.startswith(("src/", "tests/", "docs/")) else SOURCES) / file
    if not path.is_file():
        return {}
    text = path.read_text()
    found: dict[str, str] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + inner.name] = ast.get_source_segment(text, inner) or ""
                walk(inner, f"{prefix}{inner.name}.")
            else:
                walk(inner, prefix)

    walk(ast.parse(text), "")
    return found


def missing(text: str) -> list[str]:
    """Files and functions in the page that do not exist."""
    named = [(file, name) for file, name in _NAMED.findall(text)]
    return [
        f"{file}:{name}" if name else file
        for file, name in named
        if (not functions(file) and not (SOURCES / file).is_file() and not (ROOT / file).is_file())
        or (name and name not in functions(file))
    ]


def walks(text: str) -> dict[str, tuple[int, list[Step]]]:
    """By title: how many steps the heading says, and the steps."""
    parts = _WALK.split(text.partition("\n## Limits")[0])[1:]
    return {title: (int(count), steps(body)) for title, count, body in zip(*[iter(parts)] * 3, strict=True)}


def steps(body: str) -> list[Step]:
    found: list[Step] = []
    begins = True
    for line in body.splitlines():
        if step := _STEP.match(line):
            found.append(Step(int(step["number"]), step["file"], step["name"], begins))
            begins = False
        elif line and not line.startswith(" "):
            begins = True
    return found


def leaps(walk: list[Step]) -> list[str]:
    """Steps whose names are in no step before them: nothing there calls them."""
    found: list[str] = []
    for at, step in enumerate(walk):
        called = step.name.rpartition(".")[2]
        before = (functions(one.file).get(one.name, "") for one in walk[:at])
        if step.begins or called in BY_NO_NAME:
            continue
        if not any(re.search(rf"\b_*{re.escape(called.lstrip('_'))}\b", source) for source in before):
            found.append(f"{step.number}. {step.file}:{step.name}")
    return found


def test_files_and_functions_exist() -> None:
    assert missing(PAGE.read_text()) == []


def test_what_does_not_exist_is_found() -> None:
    wrong = ["log/nowhere.py", "log/log.py:Log.no_such_function", "log/nowhere.py:Log.append"]
    right = ["log/log.py", "log/log.py:Log.append", "protocols/kafka/connection.py:KafkaConnection._slot.answer"]
    assert missing("\n".join(f"`{span}`" for span in chain(wrong, right))) == wrong


@pytest.mark.parametrize("title", walks(PAGE.read_text()))
def test_each_step_of_a_walk_is_called_by_an_earlier_one(title: str) -> None:
    count, walk = walks(PAGE.read_text())[title]
    assert [step.number for step in walk] == list(range(1, count + 1))
    assert leaps(walk) == []


def test_a_step_that_nothing_calls_is_found() -> None:
    walk = steps(
        "1. `log/log.py:Log.append`\n2. `log/log.py:Log._write`\n3. `log/log.py:Log.roll`\n4. `log/log.py:Log.synced`"
    )
    assert leaps(walk) == ["4. log/log.py:Log.synced"]


def test_there_are_the_four_walks() -> None:
    assert len(walks(PAGE.read_text())) == 4


def test_every_room_is_on_the_map() -> None:
    rooms = {path.name for path in SOURCES.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert set(_ROOM.findall(PAGE.read_text())) == rooms
