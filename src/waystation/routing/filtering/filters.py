"""Filter expressions: `headers.region = 'eu' and json.total > 100`. Compiled once, then a closure per message.

A filter comes from strangers. So it is parsed by hand and never evaluated as Python; its length and depth are limited;
nothing in it takes more than linear time in the message; and whatever is wrong with it is FilterSyntax at once, which
says at which character. A message cannot make a compiled filter fail: what is not there is missing, and a comparison
with something missing is false. The language is described in docs/guide/routing.md. Pure; anyone may use it.
"""

from __future__ import annotations

from waystation.errors import FilterSyntax
from waystation.message import Message
from waystation.routing.filtering.grammar import Parser
from waystation.routing.filtering.subject import Subject
from waystation.routing.filtering.tokens import syntax_error

MAX_FILTER_CHARS = 4_096
"""Longer ones are lists in disguise, and each is kept in memory for as long as somebody uses it."""

__all__ = ["MAX_FILTER_CHARS", "Filter", "FilterSyntax", "Subject", "compile_filter"]


class Filter:
    """A compiled filter. It has no state of its own: any number of messages may be put before it."""

    __slots__ = ("accepts", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise FilterSyntax(f"filter: a filter is a text, not {type(text).__name__}", 0)
        if len(text) > MAX_FILTER_CHARS:
            raise syntax_error(f"{len(text)} characters are too many, the limit is {MAX_FILTER_CHARS}", text, 0)
        if not text.strip():
            raise FilterSyntax("filter: it is empty; leave it out to take every message", 0)
        self.text = text
        self.accepts = Parser(text).parse()
        """For those who put one `Subject` before many filters."""

    def matches(self, message: Message, *, topic: str = "", routing_key: str = "") -> bool:
        return self.accepts(Subject(message, topic, routing_key))

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def compile_filter(text: str) -> Filter:
    """Raises FilterSyntax, which says what is wrong and at which character."""
    return Filter(text)
