"""A TOML file and where its keys are, which `tomllib` does not tell: whoever reads one has to say where a mistake is.

`tomllib` reads the text; then it is known to be valid, so the search for places checks nothing, and what is not a key
is only passed over. Every key that `tomllib` finds has a place, under the path by which its value is found there: texts
for tables, numbers for the elements of arrays. The place is that of the whole key as it is written, so of the `l` of
`log.retention.ms`, quotes included.

For the config file and pipeline files.
"""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_right
from typing import Any

import msgspec

from waystation.errors import Invalid

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
_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
"""How `tomllib` ends its sentences."""


class TomlPlace(msgspec.Struct, frozen=True):
    """Both counted from 1; the column in characters."""

    line: int
    column: int


class TomlInvalid(Invalid):
    """The text is not TOML: what is wrong, without the place, and the place."""

    def __init__(self, text: str, place: TomlPlace) -> None:
        super().__init__(f"not valid TOML: {text}")
        self.place = place


class TomlFile:
    """What a file says, and where. The keys of `places` are also those that only lead to another (`log` in
    `log.retention.ms`)."""

    def __init__(self, text: str) -> None:
        """Raises TomlInvalid."""
        try:
            self.content: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _invalid(text, str(error)) from None
        scanner = _Scanner(text.replace("\r\n", "\n"))
        scanner.scan()
        self.places = scanner.places
        self._elements = scanner.elements
        self._texts = scanner.texts

    def line(self, path: Path) -> int:
        """The line of a key or an element; of what surrounds it, where it is not in the file itself."""
        while path:
            place = self.places.get(path) or self._elements.get(path)
            if place is not None:
                return place.line
            path = path[:-1]
        return 1

    def line_within(self, path: Path, line: int) -> int:
        """The line of the file on which a line of a text stands, both counted from 1."""
        return self._texts.get(path, self.line(path)) + line - 1


def read_toml(path: str | os.PathLike[str]) -> TomlFile:
    """Reads a file; TomlInvalid, or OSError if it cannot be read at all."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TomlInvalid("it is not UTF-8 text", TomlPlace(data.count(b"\n", 0, error.start) + 1, 1)) from None
    return TomlFile(text)


def _invalid(text: str, said: str) -> TomlInvalid:
    """`tomllib` writes the place into its sentence."""
    found = _WHERE.search(said)
    what = _WHERE.sub("", said)
    if found is not None and found[1]:
        return TomlInvalid(what, TomlPlace(int(found[1]), int(found[2])))
    lines = text.split("\n")
    return TomlInvalid(f"{what}, at the end of the file", TomlPlace(len(lines), len(lines[-1]) + 1))


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self.places: dict[Path, TomlPlace] = {}
        self.elements: dict[Path, TomlPlace] = {}
        self.texts: dict[Path, int] = {}  # of texts: the line on which the first character of the value stands
        self._counts: dict[Path, int] = {}  # of arrays of tables: how many there are so far

    def scan(self) -> None:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._heading()
            else:
                self._pair(table)
            self._skip(_BLANK)

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
            self.places[path] = self._place(start)  # it may have been named before, by a table in it
            return path
        if isinstance(path[-1], int):  # what `_inside` found is the element before this one
            path = path[:-1]
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        self.elements[(*path, number)] = self._place(start)
        return (*path, number)

    def _inside(self, path: Path) -> Path:
        """An array of tables means its last element, when something below it is named."""
        number = self._counts.get(path)
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
        if first in ("'", '"'):
            long = self._text.startswith(3 * first, self._at)
            self.texts[path] = self._place(self._at).line + (long and self._text.startswith("\n", self._at + 3))
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
            self.elements[(*path, number)] = self._place(self._at)
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
        self.places.setdefault(path, self._place(start))

    def _place(self, start: int) -> TomlPlace:
        line = bisect_right(self._lines, start)
        return TomlPlace(line, start - self._lines[line - 1] + 1)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not valid TOML at character {self._at}")
        self._at = found.end()
        return found[0]
