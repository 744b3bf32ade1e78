"""What `observe/tracing.py` says of messages, and to whom: the interface of whatever sends spans. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from waystation.observe.traceparent import Parent

Value = str | int | bool
Attributes = dict[str, Value]


class Span(Protocol):
    """A span that was begun."""

    def add(self, attributes: Attributes) -> None: ...

    def end(self, at_ns: int, failure: str = "") -> None:
        """`failure`: what went wrong, as a word or a sentence without anything of the message."""


class Spans(Protocol):
    """Where spans go."""

    def begin(self, name: str, parent: Parent | Span, at_ns: int, attributes: Attributes, *, serves: bool) -> Span:
        """`serves`: somebody outside is waiting for it, or gets something."""

    def close(self) -> None:
        """Sends what is left. Blocks: for a thread."""


class DurableLog(Protocol):
    """A log, as far as it matters whether it is durable."""

    @property
    def durable_offset(self) -> int: ...

    @property
    def failure(self) -> Exception | None: ...


class Traced(NamedTuple):
    """A message that asks to be traced."""

    parent: Parent
    id: str | None
    size: int
    offset: int  # a record's, or an entry's


class TracedPlace(NamedTuple):
    """Where messages come from, and who gets them."""

    kind: str  # queue, topic, subscription
    name: str
    protocol: str
    consumer: str = ""
    group: str = ""


def about(name: str, kind: str, place: str, destination: str, protocol: str) -> Attributes:
    """What is known of an operation. `messaging.…` are the names of OpenTelemetry's conventions."""
    return {
        "messaging.system": "waystation",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
        "waystation.destination.kind": place,
        "waystation.door": protocol,
    }


def describe(known: Attributes, traced: Traced, partition: int) -> None:
    """Adds what is known of the message."""
    known["messaging.message.body.size"] = traced.size
    if traced.id is not None:
        known["messaging.message.id"] = traced.id
    if partition >= 0:
        known["messaging.destination.partition.id"] = str(partition)
    if traced.offset >= 0:
        known["waystation.offset"] = traced.offset
