"""Patterns over names: `orders.*.eu`, `orders.#`, or a regular expression over the whole name.

In a wildcard pattern words are divided by dots; `*` stands for exactly one word and `#` for any number of them, none
included, as in AMQP. The empty name has no words. Neither kind of pattern can hold the loop up: wildcards are matched
in at most (words of the pattern) x (words of the name) steps, regular expressions in linear time. Pure; anyone may
use it. For many wildcard patterns at once there is `index.PatternIndex`.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol

from waystation.errors import InvalidPattern
from waystation.routing.matching.regex import Regex

MAX_WILDCARD_CHARS = 1_024

Syntax = Literal["wildcard", "regex"]


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def text(self) -> str: ...

    def matches(self, name: str) -> bool: ...


def compile_pattern(text: str, syntax: Syntax = "wildcard") -> Pattern:
    """Raises InvalidPattern, which says what is wrong."""
    if syntax == "regex":
        return RegexPattern(text)
    if syntax != "wildcard":
        raise InvalidPattern(f"syntax: {syntax!r} is neither 'wildcard' nor 'regex'")
    words = check_wildcard(text)
    return WildcardPattern(text, words) if "*" in words or "#" in words else NamePattern(text)


def fixed_part(text: str, syntax: str = "wildcard") -> tuple[tuple[str, ...], str | None]:
    """What is known of the names that a pattern matches: single names, and what all others begin with (None: there are
    no others). For whoever has to allow all of them."""
    if syntax == "regex":
        Regex(text)  # what is none is said to be none, whoever asks
        grouped = _GROUPED.fullmatch(text)
        if grouped is not None and _is_regex(grouped[2]):
            return (), _ESCAPED.sub(r"\1", grouped[1])
        found = _PLAIN.match(text)
        prefix = "" if found is None or "|" in text else found[0]
        return (), prefix[:-1] if text[len(prefix) : len(prefix) + 1] in _REPEATS else prefix
    words = words_of(text)
    wild = [at for at, word in enumerate(words) if word in ("*", "#")]
    if syntax != "wildcard" or not wild:
        return (text,), None
    before = words[: wild[0]]
    prefix = "".join(f"{word}." for word in before)
    nothing_more = all(word == "#" for word in words[wild[0] :])  # they may stand for no word at all
    return ((".".join(before),) if before and nothing_more else ()), prefix


def regex_behind(prefix: str, regex: str) -> str:
    """An expression for the names that begin so, and of which the rest matches. It is compared with whole names: where
    it says where they begin, it means where the rest does. One that is none by itself stays so: a parenthesis too many
    would end the group that it is put into, and what follows would be about all names."""
    if not regex or not _is_regex(regex):
        return regex
    return f"{re.escape(prefix)}(?:{_BEGINNING.sub(lambda found: found[0].removesuffix('^'), regex)})"


def _is_regex(text: str) -> bool:
    try:
        Regex(text)
    except InvalidPattern:
        return False
    return True


_BEGINNING = re.compile(r"(?:^|(?<!\\)[(|])\^")
"""An anchor at the beginning of an expression, or of an alternative of it, as librdkafka writes several."""
_GROUPED = re.compile(r"((?:[A-Za-z0-9_-]|\\[^A-Za-z0-9])+)\(\?:(.*)\)", re.DOTALL)
"""As `regex_behind` makes them. What is between the parentheses has to be an expression by itself: then it is one
group, and all that it matches is behind what stands before."""
_ESCAPED = re.compile(r"\\(.)")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_REPEATS = ("*", "?", "{", "+")


def words_of(name: str) -> list[str]:
    """`a.b` has two words, `a.` has two, the second empty, and the empty name has none."""
    return name.split(".") if name else []


def check_wildcard(text: str) -> list[str]:
    """The words of a pattern that somebody subscribes by. In a word of several characters `*` and `#` are a mistake:
    no topic's name can have them."""
    if not text:
        raise InvalidPattern("a pattern is empty; '#' matches every name")
    if len(text) > MAX_WILDCARD_CHARS:
        raise InvalidPattern(f"the pattern has {len(text)} characters, the limit is {MAX_WILDCARD_CHARS}")
    words = words_of(text)
    for word in words:
        if len(word) > 1 and ("*" in word or "#" in word):
            raise InvalidPattern(
                f"{text[:60]!r} is not a valid pattern: '*' and '#' stand for whole words, {word[:60]!r} is more"
                " than that; use the regex syntax for parts of words"
            )
    return words


class NamePattern:
    """A pattern without wildcards."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def matches(self, name: str) -> bool:
        return name == self.text


class WildcardPattern:
    """`*` and `#`. The parts between `#`s are found one after the other, each as early as possible."""

    __slots__ = ("_words", "text")

    def __init__(self, text: str, words: list[str] | None = None) -> None:
        self.text = text
        self._words = words_of(text) if words is None else words

    def matches(self, name: str) -> bool:
        words, names = self._words, words_of(name)
        at = here = 0  # in the pattern, in the name
        back = -1  # behind the last `#`: where to go on when it takes one word more
        taken = 0
        while here < len(names):
            if at < len(words) and words[at] == "#":
                at += 1
                back, taken = at, here
            elif at < len(words) and words[at] in ("*", names[here]):
                at += 1
                here += 1
            elif back >= 0:
                taken += 1
                at, here = back, taken
            else:
                return False
        return all(word == "#" for word in words[at:])


class RegexPattern:
    """A regular expression. A name that would keep too many alternatives open is not matched (and never slow)."""

    __slots__ = ("_regex", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._regex = Regex(text)

    def matches(self, name: str) -> bool:
        try:
            return self._regex.matches(name)
        except InvalidPattern:
            return False
