"""A consistent-hash exchange: each message to one of the bindings, the same routing key always to the same.

A binding's key is its weight: a target of weight 2 gets twice the share of one of weight 1. Instead of the routing key,
a header (`hash-header`) or a property (`hash-property`: `message_id`, `correlation_id` or `timestamp`) can be what is
hashed; messages without it all go the same way.

The targets' points lie on a ring, `POINTS_PER_WEIGHT` for each unit of weight, and a message belongs to the first point
at or behind its own hash. So a target that comes takes its share from all others in proportion, one that goes leaves
its share to them, and no message moves between two targets that stay. The points follow from the targets' names alone:
the same after a restart, and on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Any

import msgspec

from waystation.errors import Invalid
from waystation.message import Message
from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject, plain

KIND = "x-consistent-hash"
HEADER = "hash-header"
PROPERTY = "hash-property"
PROPERTIES = ("message_id", "correlation_id", "timestamp")

POINTS_PER_WEIGHT = 128
"""Shares of equal weights differ by about a tenth with this many; a point costs some 40 bytes."""
MAX_WEIGHT = 1_000
"""To find the points of such a target takes 80 ms, which is as long as the loop should ever be kept."""

_DIGEST = Struct("<8Q")
_DIGESTS_PER_WEIGHT = POINTS_PER_WEIGHT // 8
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class HashExchange(Exchange):
    reads_arguments = (HEADER, PROPERTY)
    reads_one_key = True

    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        super().__init__(name, settings)
        self._header = settings.arguments.get(HEADER)
        self._property = settings.arguments.get(PROPERTY)
        _check_arguments(self._header, self._property)
        self.reads_messages = self._header is not None or self._property is not None
        self._by_target: dict[str, dict[Binding, int]] = {}
        self._owners: dict[int, str] = {}
        self._ring: list[int] = []
        self._came: dict[int, None] = {}
        self._went = False

    def check(self, key: str, arguments: dict[str, Any]) -> None:
        super().check(key, arguments)
        _weight(key)

    def _admit(self, binding: Binding) -> None:
        weight = _weight(binding.key)
        same_target = self._by_target.setdefault(binding.target, {})
        before = max(same_target.values(), default=0)
        same_target[binding] = weight
        for point in _points(binding.target, before, weight):
            if point not in self._owners:
                self._owners[point] = binding.target
                self._came[point] = None

    def _dismiss(self, binding: Binding) -> None:
        same_target = self._by_target[binding.target]
        before = same_target.pop(binding)
        for point in _points(binding.target, max(same_target.values(), default=0), before):
            if self._owners.get(point) == binding.target:
                del self._owners[point]
                self._came.pop(point, None)
                self._went = True
        if not same_target:
            del self._by_target[binding.target]

    def match(self, subject: Subject) -> Iterable[Binding]:
        if not self._owners:
            return ()
        ring = self._in_order()
        at = bisect_left(ring, _hash(self._hashed(subject)))
        target = self._owners[ring[at if at < len(ring) else 0]]
        return (next(iter(self._by_target[target])),)

    def _in_order(self) -> list[int]:
        """Points are put in order when someone asks: a thousand bindings in a row cost one sort."""
        if self._went:  # some may have come again since
            self._ring = [point for point in self._ring if point in self._owners and point not in self._came]
            self._went = False
        if self._came:
            self._ring += sorted(self._came)
            self._ring.sort()  # two runs that are in order: a merge
            self._came = {}
        return self._ring

    def _hashed(self, subject: Subject) -> bytes:
        if self._header is not None:
            return _bytes_of(subject.message.headers.get(self._header))
        if self._property is not None:
            return _bytes_of(_property(subject.message, self._property))
        return subject.routing_key.encode()


def _check_arguments(header: object, prop: object) -> None:
    if header is not None and prop is not None:
        raise Invalid(f"arguments: {HEADER} and {PROPERTY} exclude each other; choose one")
    if header is not None and not isinstance(header, str):
        raise Invalid(f"arguments: {HEADER} is the name of a header, not {str(header)[:60]!r}")
    if prop is not None and prop not in PROPERTIES:
        raise Invalid(f"arguments: {PROPERTY} is one of {', '.join(PROPERTIES)}, not {str(prop)[:60]!r}")


def _weight(key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) < 10 and 1 <= int(key) <= MAX_WEIGHT:
        return int(key)
    raise Invalid(
        f"key: of a binding to an {KIND} exchange it is the weight, a whole number from 1 to {MAX_WEIGHT}, not {key!r}"
    )


def _points(target: str, above: int, weight: int) -> Iterable[int]:
    """The points of the units of weight from `above` to `weight`."""
    for number in range(above * _DIGESTS_PER_WEIGHT, weight * _DIGESTS_PER_WEIGHT):
        yield from _DIGEST.unpack(blake2b(f"{number}:{target}".encode(), digest_size=_DIGEST.size).digest())


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _property(message: Message, name: str) -> object:
    if name == "message_id":
        return message.id
    return message.correlation_id if name == "correlation_id" else message.timestamp_ms


def _bytes_of(value: object) -> bytes:
    """Alike for values that look alike to other protocols: a header that crossed a topic is text."""
    value = plain(value)
    if isinstance(value, str):
        return value.encode(errors="replace")
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value).encode()
    return b"" if value is None else _encode(value)
