"""A binding: this target gets what comes to that exchange, if the key or the arguments say so.

Two bindings are the same if exchange, target, key and arguments are; arguments are compared by their canonical bytes
(msgpack, names in order), which are also what the catalog keeps. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from waystation.errors import Invalid

QUEUE = "queue"
TOPIC = "topic"
EXCHANGE = "exchange"
_KINDS = (QUEUE, TOPIC, EXCHANGE)

MATCH = "x-match"
"""The argument that says how many of the headers have to agree."""

MAX_KEY_BYTES = 255
"""Of a routing key and of a binding's key. AMQP has no room for more."""

MAX_ARGUMENTS_BYTES = 64 * 1024
"""Of the arguments of a binding or an exchange together."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")

Identity = tuple[str, str, bytes]
"""Of a binding within its exchange: target, key, arguments."""


class Binding(msgspec.Struct, frozen=True, eq=False):
    """Compared and hashed as the object that it is: the table has one of each `identity`."""

    exchange: str
    target: str
    key: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    canonical: bytes = b"\x80"
    durable: bool = True
    kind: str = ""
    name: str = ""
    """Of the target: told apart here once, not for every message. Not for the caller to say."""

    def __post_init__(self) -> None:
        kind, name = split_target(self.target)
        force_setattr(self, "kind", kind)
        force_setattr(self, "name", name)

    @property
    def identity(self) -> Identity:
        return self.target, self.key, self.canonical


def split_target(target: str) -> tuple[str, str]:
    """(kind, name) of `queue:jobs`, `topic:orders` or `exchange:audit`."""
    kind, colon, name = target.partition(":")
    if kind not in _KINDS or not colon or not name:
        raise Invalid(f"target: {target[:60]!r} is none; write queue:NAME, topic:NAME or exchange:NAME")
    return kind, name


def check_key(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"routing_key: it cannot be written as UTF-8 ({error.reason})") from error
    if size > MAX_KEY_BYTES:
        raise Invalid(f"routing_key: it has {size} bytes, the limit is {MAX_KEY_BYTES}")


def is_condition(argument: str) -> bool:
    """Whether an argument of a binding says which messages pass: a header's name, `x-match`, `filter`. What else begins
    with `x-` is a note to somebody, as in RabbitMQ."""
    return argument == MATCH or not argument.startswith("x-")


def canonical_arguments(arguments: dict[str, Any]) -> bytes:
    """Raises Invalid if they are not something that can be kept."""
    try:
        data = _encoder.encode(arguments)
        read_arguments(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"arguments: they cannot be stored ({error})") from error
    if len(data) > MAX_ARGUMENTS_BYTES:
        raise Invalid(f"arguments: they have {len(data)} bytes, the limit is {MAX_ARGUMENTS_BYTES}")
    return data


def read_arguments(canonical: bytes) -> dict[str, Any]:
    return msgspec.msgpack.decode(canonical, type=dict[str, Any])
