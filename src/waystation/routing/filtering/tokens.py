"""A filter's text cut into tokens, each with its place in the text. Pure; for the grammar beside it.

A field with its path (`json.items[0].sku`, `headers.x-src`, `headers['a b']`) is one token. A name may hold dashes,
since there is no arithmetic in which they could mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isinf
from typing import Literal, NamedTuple

from waystation.errors import FilterSyntax
from waystation.routing.filtering.subject import Step

KEYWORDS = frozenset({"and", "or", "not", "in", "like", "exists", "true", "false", "null"})

Kind = Literal["field", "word", "text", "number", "sign", "end"]

_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)")
_INDEX = re.compile(r"\[ *(-?[0-9]{1,9}) *\]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![A-Za-z0-9_.])")
_SIGN = re.compile(r"<=|>=|<>|!=|==|[=<>(),]")
_SHOWN = 60
_MOST_DIGITS = 300


class Token(NamedTuple):
    kind: Kind
    at: int
    text: str  # as written; for a field: its root
    value: str | float | int = 0  # of a text or a number
    steps: tuple[Step, ...] = ()  # of a field


def syntax_error(what: str, text: str, at: int) -> FilterSyntax:
    """Says what is wrong and shows where."""
    first = max(0, min(at - _SHOWN // 2, len(text) - _SHOWN))
    shown = "".join(char if char.isprintable() else " " for char in text[first : first + _SHOWN])
    return FilterSyntax(f"filter: {what}, at character {at + 1}:\n  {shown}\n  {' ' * (at - first)}^", at)


def tokens_of(text: str) -> Iterator[Token]:
    """All of them, and one more that is the end."""
    at = _skip(text, 0)
    while at < len(text):
        token, at = _next(text, at)
        yield token
        at = _skip(text, at)
    yield Token("end", len(text), "the end")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _next(text: str, at: int) -> tuple[Token, int]:
    if text[at] in "'\"":
        value, end = _quoted(text, at)
        return Token("text", at, text[at:end], value), end
    if found := _SIGN.match(text, at):
        return Token("sign", at, found[0]), found.end()
    if text[at] == "-" or "0" <= text[at] <= "9":
        return _number(text, at)
    if found := _NAME.match(text, at):
        steps, end = _steps(text, found.end())
        if not steps and found[0].lower() in KEYWORDS:
            return Token("word", at, found[0].lower()), end
        return Token("field", at, found[0], steps=steps), end
    raise syntax_error(f"{text[at]!r} means nothing here", text, at)


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A text in single or double quotes; a quote inside is written twice, as in SQL."""
    quote = text[at]
    end = text.find(quote, at + 1)
    while end >= 0 and text[end + 1 : end + 2] == quote:
        end = text.find(quote, end + 2)
    if end < 0:
        raise syntax_error("this text has no end; a quote is missing", text, at)
    return text[at + 1 : end].replace(quote * 2, quote), end + 1


def _number(text: str, at: int) -> tuple[Token, int]:
    found = _NUMBER.match(text, at)
    if found is None:
        raise syntax_error("this is not a number; names begin with a letter, write text in quotes", text, at)
    if len(found[0]) > _MOST_DIGITS or isinf(float(found[0])):
        raise syntax_error("this number is too large", text, at)
    value = float(found[0]) if found[1] or found[2] else int(found[0])
    return Token("number", at, found[0], value), found.end()


def _steps(text: str, at: int) -> tuple[tuple[Step, ...], int]:
    steps: list[Step] = []
    while text[at : at + 1] in (".", "["):
        if found := _STEP.match(text, at):
            steps.append(found[1])
            at = found.end()
        elif found := _INDEX.match(text, at):
            steps.append(int(found[1]))
            at = found.end()
        else:
            name, at = _named_step(text, at)
            steps.append(name)
    return tuple(steps), at


def _named_step(text: str, at: int) -> tuple[str, int]:
    """`['any name']` or `."any name"`."""
    bracket = text[at] == "["
    begin = _skip(text, at + 1) if bracket else at + 1
    if text[begin : begin + 1] not in ("'", '"'):
        what = "a number or a name in quotes belongs in here" if bracket else "a name belongs behind the dot"
        raise syntax_error(what, text, min(begin, len(text)))
    name, end = _quoted(text, begin)
    if bracket:
        end = _skip(text, end)
        if text[end : end + 1] != "]":
            raise syntax_error("the closing ] is missing", text, end)
        end += 1
    return name, end
