"""Where the keys of a TOML document are: line and column of each, which `tomllib` does not tell.

The document has to be valid: it was read by `tomllib` before, so nothing is checked here, and what is not a key is only
passed over. Every key that `tomllib` finds has a place, under the path by which its value is found there: texts for
tables, numbers for the elements of arrays. The place is that of the whole key as it is written, so of the `l` of
`log.retention.ms`, quotes included.

Pure; for whoever reads a config file and has to say where a mistake is.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\]|\\.)*"')
_LITERAL = re.compile(r"'[^']*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\r\n]+")
"""A number, a boolean, a date: they have none of these in them."""


@dataclass(frozen=True, slots=True)
class TomlPlace:
    """Both counted from 1; the column in characters."""

    line: int
    column: int


def find_places(text: str) -> dict[Path, TomlPlace]:
    """The place of every key, also of those that only lead to another (`log` in `log.retention.ms`)."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._places: dict[Path, TomlPlace] = {}
        self._elements: dict[Path, int] = {}  # of arrays of tables: how many there are so far

    def scan(self) -> dict[Path, TomlPlace]:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._heading()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._places

    def _heading(self) -> Path:
        """`[a.b]` or `[[a.b]]`: the path of what follows."""
        many = self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        self._skip(_SPACE)
        start = self._at
        path: Path = ()
        for part in self._key():
            path = self._inside((*path, part))
            self._note(path, start)
        self._at += 2 if many else 1
        if not many:
            return path
        if isinstance(path[-1], int):  # what `_inside` found is the element before this one
            path = path[:-1]
        number = self._elements.get(path, 0)
        self._elements[path] = number + 1
        return (*path, number)

    def _inside(self, path: Path) -> Path:
        """An array of tables means its last element, when something below it is named."""
        number = self._elements.get(path)
        return path if number is None else (*path, number - 1)

    def _pair(self, table: Path) -> None:
        """`a.b = value`, at the top or in an inline table."""
        start = self._at
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        """The parts of a dotted key; leaves off behind it and the space that follows."""
        parts = []
        while True:
            parts.append(self._part())
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1
            self._skip(_SPACE)

    def _part(self) -> str:
        first = self._text[self._at : self._at + 1]
        if first == '"':
            raw = self._skip(_BASIC)
            return str(tomllib.loads(f"key = {raw}")["key"]) if "\\" in raw else raw[1:-1]
        if first == "'":
            return self._skip(_LITERAL)[1:-1]
        return self._skip(_BARE)

    def _value(self, path: Path) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline(path)
        elif first == '"':
            self._skip(_LONG_BASIC if self._text.startswith('"""', self._at) else _BASIC)
        elif first == "'":
            self._skip(_LONG_LITERAL if self._text.startswith("'''", self._at) else _LITERAL)
        else:
            self._skip(_PLAIN)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        self._skip(_BLANK)
        while not self._text.startswith("]", self._at):
            self._value((*path, number))
            number += 1
            self._skip(_BLANK)
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip(_BLANK)
        self._at += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        self._skip(_SPACE)
        while not self._text.startswith("}", self._at):
            self._pair(path)
            self._skip(_SPACE)
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip(_SPACE)
        self._at += 1

    def _note(self, path: Path, start: int) -> None:
        if isinstance(path[-1], int):
            path = path[:-1]
        line = bisect_right(self._lines, start)
        self._places.setdefault(path, TomlPlace(line, start - self._lines[line - 1] + 1))

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not valid TOML at character {self._at}")
        self._at = found.end()
        return found[0]
