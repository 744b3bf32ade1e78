"""The W3C `traceparent` header of a message: whose trace it belongs to. Pure.

What is not exactly as the recommendation has it is no trace, and nobody is told: the header is the sender's, and goes
on to the consumer as it is, whatever it says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

HEADER = "traceparent"
STATE_HEADER = "tracestate"
SAMPLED = 1
MAX_STATE = 512
"""Characters of `tracestate` that have to be passed on; what is longer is left out of the spans."""

_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The span of the sender that a message comes from."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""


def read_parent(value: object, state: object = None) -> Parent | None:
    """The sender's span if the header says that its trace is sampled; None otherwise."""
    text = as_text(value)
    found = None if text is None else _SHAPE.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    trace_id, span_id, bits = int(trace, 16), int(span, 16), int(flags, 16)
    if not trace_id or not span_id or not bits & SAMPLED:
        return None
    known = as_text(state) or ""
    return Parent(trace_id, span_id, bits, known if len(known) <= MAX_STATE else "")


def parent_of(headers: Mapping[str, Any]) -> Parent | None:
    """The same for a message's headers."""
    return read_parent(headers.get(HEADER), headers.get(STATE_HEADER))


def as_text(value: object) -> str | None:
    """Header values are text, or bytes where a Kafka client has sent them; of several with one name the last counts."""
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode("ascii")
        except UnicodeDecodeError:
            return None
    return None
