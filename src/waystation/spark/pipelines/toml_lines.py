"""On which line each key of a TOML text stands; `tomllib` does not tell.

It reads a text that `tomllib` has accepted, so it looks for structure alone: headers, keys, and where values end. A
path is what leads to a value: `("source", "orders", "topics", 0)`. Pure; used by `reading.py`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_PLAIN = re.compile(r"[^\s,\]}#]+")
_QUOTES = ('"""', "'''", '"', "'")


class TomlLines:
    """Lines by path, counted from 1."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._keys: dict[Path, int] = {}
        self._contents: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        self._read()

    def of(self, path: Path) -> int:
        """The line of the key; of what surrounds it, where it is not in the text itself."""
        while path and path not in self._keys:
            path = path[:-1]
        return self._keys.get(path, 1)

    def of_content(self, path: Path, line: int = 1) -> int:
        """The line of the file on which the given line of a text value stands."""
        return self._contents.get(path, self.of(path)) + line - 1

    # -- statements ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        table: Path = ()
        while self._skip_blank():
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line()
        many = self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        path = self._resolve(self._dotted())
        self._at = self._text.index("]", self._at) + (2 if many else 1)
        if many:
            number = self._counts.get(path, 0)
            self._counts[path] = number + 1
            self._keys.setdefault(path, line)
            path = (*path, number)
        self._note(path, line)
        return path

    def _resolve(self, names: list[str]) -> Path:
        """A header inside an array of tables means its last table."""
        path: Path = ()
        for number, name in enumerate(names):
            path = (*path, name)
            if path in self._counts and number < len(names) - 1:
                path = (*path, self._counts[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._dotted())
        self._note(path, line)
        self._at = self._text.index("=", self._at) + 1
        self._space()
        self._value(path)

    def _note(self, path: Path, line: int) -> None:
        for length in range(1, len(path)):
            self._keys.setdefault(path[:length], line)
        self._keys[path] = line

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, path: Path) -> None:
        first = self._text[self._at]
        if first in "\"'":
            self._contents[path] = self._string()[1]
        elif first == "[":
            self._items(path, "]", self._element)
        elif first == "{":
            self._items(path, "}", self._member)
        else:
            plain = _PLAIN.match(self._text, self._at)
            self._at = plain.end() if plain else self._at + 1
            # A date and a time of day may have a blank between them.
            time = re.compile(r" \d\d:[\d:.Z+-]+").match(self._text, self._at)
            self._at = time.end() if time else self._at

    def _items(self, path: Path, end: str, read: Callable[[Path, int], None]) -> None:
        self._at += 1
        number = 0
        while self._skip_blank() and self._text[self._at] != end:
            if self._text[self._at] == ",":
                self._at += 1
                continue
            read(path, number)
            number += 1
        self._at += 1

    def _element(self, path: Path, number: int) -> None:
        self._keys[(*path, number)] = self._line()
        self._value((*path, number))

    def _member(self, path: Path, number: int) -> None:
        self._pair(path)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _dotted(self) -> list[str]:
        names = []
        while True:
            self._space()
            names.append(self._name())
            self._space()
            if not self._text.startswith(".", self._at):
                return names
            self._at += 1

    def _name(self) -> str:
        if self._text[self._at] in "\"'":
            return self._string()[0]
        bare = _BARE.match(self._text, self._at)
        if bare is None:  # tomllib would not have taken it
            self._at += 1
            return ""
        self._at = bare.end()
        return bare[0]

    def _string(self) -> tuple[str, int]:
        """A string's value, and the line on which its content begins."""
        start = self._at
        quote = next(quote for quote in _QUOTES if self._text.startswith(quote, start))
        at = start + len(quote)
        line = self._line()
        if len(quote) == 3 and self._text.startswith(("\n", "\r\n"), at):
            line += 1
        while not self._text.startswith(quote, at):
            at += 2 if self._text[at] == "\\" and quote[0] == '"' else 1
        at += len(quote)
        while len(quote) == 3 and self._text.startswith(quote[0], at):  # a text may end with quotes of its own
            at += 1
        self._at = at
        value: dict[str, Any] = tomllib.loads(f"value = {self._text[start:at]}")
        return str(value["value"]), line

    def _skip_blank(self) -> bool:
        """Goes on to the next character that means something; False at the end."""
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text[self._at].isspace():
                self._at += 1
            else:
                return True
        return False

    def _space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
