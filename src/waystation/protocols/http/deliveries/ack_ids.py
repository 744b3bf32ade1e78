"""Ack ids: what is in flight, for clients that have no connection of their own.

A source is a feed of the heart with the messages that were given out from it. An ack id names the life of the listener,
the source, the message and the very delivery; so an id of a delivery whose visibility timeout ended, that was settled,
was given to somebody else since or belongs to an earlier life of the broker is told apart, and nothing is done with it.

What a source remembers is bounded: what was not settled long after its visibility timeout must have ended is
forgotten. Times are of the monotonic clock, as visibility timeouts are.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from waystation.broker.access.types import Feed, Receipt, Verdict
from waystation.errors import Conflict
from waystation.message import Delivered, Run
from waystation.observe.meters import ProtocolMeter

FORGET_AFTER_MS = 60_000
"""Beyond twice the visibility timeout: it is renewed by `touch`, and a clock is not exact."""

_ID = struct.Struct(">IIQQ")  # life of the listener, source, delivery, tag: 24 bytes, 32 characters


class _Given(NamedTuple):
    serial: int
    forget_ms: int


class AckIdSource:
    """A feed, and what was given out of it. `place`: `queue:NAME` or `subscription:NAME`."""

    __slots__ = ("feed", "given", "number", "place", "users", "visibility_timeout_ms")

    def __init__(self, number: int, place: str, feed: Feed, visibility_timeout_ms: int) -> None:
        self.number = number
        self.place = place
        self.feed = feed
        self.visibility_timeout_ms = visibility_timeout_ms
        self.given: dict[int, _Given] = {}
        self.users = 0  # calls that wait for messages of it


class Outcome(NamedTuple):
    """What became of a verdict on ack ids."""

    settled: int
    unknown: list[str]
    receipts: list[Receipt]


class AckIds:
    """All sources of a listener. `life`: a number that no other life of the listener has (most likely)."""

    def __init__(self, life: int, meter: ProtocolMeter | None = None) -> None:
        self._life = life
        self._meter = meter or ProtocolMeter("http")
        self._sources: dict[int, AckIdSource] = {}
        self._numbers = 0
        self._serials = 0

    def add(self, place: str, feed: Feed, visibility_timeout_ms: int) -> AckIdSource:
        self._numbers += 1
        source = self._sources[self._numbers] = AckIdSource(self._numbers, place, feed, visibility_timeout_ms)
        return source

    def drop(self, source: AckIdSource) -> None:
        """The source goes; what was in flight to it is redelivered to others."""
        if self._sources.pop(source.number, None) is not None:
            source.feed.close()

    def close(self) -> None:
        for source in list(self._sources.values()):
            self.drop(source)

    def give(
        self, source: AckIdSource, delivered: Delivered, now_ms: int, visibility_timeout_ms: int | None = None
    ) -> str:
        """The ack id of a delivery."""
        self._serials += 1
        forget_ms = now_ms + 2 * (visibility_timeout_ms or source.visibility_timeout_ms) + FORGET_AFTER_MS
        source.given[delivered.tag] = _Given(self._serials, forget_ms)
        packed = _ID.pack(self._life, source.number, self._serials, delivered.tag)
        return urlsafe_b64encode(packed).decode()

    def sweep(self, now_ms: int) -> list[AckIdSource]:
        """Forgets what must have ended; returns the sources that have nothing left."""
        for source in self._sources.values():
            over = [tag for tag, given in source.given.items() if given.forget_ms < now_ms]
            for tag in over:
                del source.given[tag]
        return [source for source in self._sources.values() if not source.given]

    def settle(
        self,
        ack_ids: Sequence[str],
        verdict: Verdict,
        *,
        place: str | None = None,
        source: AckIdSource | None = None,
        delay_ms: int | None = None,
        error: str | None = None,
    ) -> Outcome:
        """A verdict on all messages that these ids still name. `place`, `source`: ids of others are unknown."""
        known, unknown = self._sort(ack_ids, place, source)
        receipts: list[Receipt] = []
        settled = 0
        for owner, ids in known.items():
            done = owner.feed.settle(verdict, runs_of(ids), delay_ms=delay_ms, error=error)
            lost = set(_tags(done.unknown))
            unknown += [ids[tag] for tag in lost if tag in ids]
            settled += len(ids) - len(lost)
            self._meter.settled(verdict.value, len(ids) - len(lost))
            for tag in ids:
                owner.given.pop(tag, None)
            if done.receipt is not None:
                receipts.append(done.receipt)
        return Outcome(settled, unknown, receipts)

    def touch(
        self,
        ack_ids: Sequence[str],
        visibility_timeout_ms: int | None,
        now_ms: int,
        *,
        place: str | None = None,
        source: AckIdSource | None = None,
    ) -> Outcome:
        """More time for the messages that these ids still name."""
        known, unknown = self._sort(ack_ids, place, source)
        settled = 0
        for owner, ids in known.items():
            lost = set(_tags(owner.feed.touch(runs_of(ids), visibility_timeout_ms)))
            for tag, ack_id in ids.items():
                if tag in lost:
                    unknown.append(ack_id)
                    owner.given.pop(tag, None)
                    continue
                settled += 1
                forget_ms = now_ms + 2 * (visibility_timeout_ms or owner.visibility_timeout_ms) + FORGET_AFTER_MS
                owner.given[tag] = owner.given[tag]._replace(forget_ms=forget_ms)
        return Outcome(settled, unknown, [])

    def _sort(
        self, ack_ids: Iterable[str], place: str | None, source: AckIdSource | None
    ) -> tuple[dict[AckIdSource, dict[int, str]], list[str]]:
        """Which of the ids still name a message, by source and tag, and which do not."""
        known: dict[AckIdSource, dict[int, str]] = {}
        unknown: list[str] = []
        for ack_id in ack_ids:
            found = self._find(ack_id)
            owner = None if found is None else found[0]
            if (
                found is None
                or owner is None
                or (source or owner) is not owner
                or (place or owner.place) != owner.place
            ):
                unknown.append(ack_id)
            else:
                known.setdefault(owner, {})[found[1]] = ack_id
        return known, unknown

    def _find(self, ack_id: str) -> tuple[AckIdSource, int] | None:
        try:
            life, number, serial, tag = _ID.unpack(urlsafe_b64decode(ack_id.encode()))
        except (ValueError, struct.error):
            return None
        source = self._sources.get(number)
        if life != self._life or source is None:
            return None
        given = source.given.get(tag)
        return (source, tag) if given is not None and given.serial == serial else None


def check_any(outcome: Outcome) -> None:
    """Raises Conflict if nothing at all was settled."""
    if not outcome.settled:
        several = len(outcome.unknown) > 1
        raise Conflict(
            f"{'none of these ack ids has' if several else 'this ack id does not have'} a message in flight any more:"
            " it was settled, its visibility timeout ended, or it never was; nothing was done"
        )


def runs_of(tags: Iterable[int]) -> list[Run]:
    """Tags as (first, how many) pairs."""
    runs: list[Run] = []
    for tag in sorted(tags):
        if runs and runs[-1][0] + runs[-1][1] == tag:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((tag, 1))
    return runs


def _tags(runs: Iterable[Run]) -> Iterable[int]:
    return (tag for first, count in runs for tag in range(first, first + count))
