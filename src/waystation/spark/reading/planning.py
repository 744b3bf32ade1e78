"""What to read next, as plain data: positions in a stream, ranges for tasks, limits.

A stream's offset (`Position`) says more than how far the query is:

- `initial`: where each partition was begun. Spark asks for the initial offset again when the first batch is replayed;
  "latest" would have moved by then. What the first batch's end carries counts, so nothing is lost. It also says where a
  partition that came later was begun.
- `ids`: which topic it is. One that was deleted and re-created under its name is another topic.
- `lost`: how many offsets were deleted before they were read, where the user allows that.

Invariant: the same position is always the same text (keys are sorted), since Spark compares texts. Pure; for readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from waystation.errors import Invalid
from waystation.spark.options import Partition

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition: what one task reads."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Position:
    """How far a streaming query is."""

    offsets: Offsets = field(default_factory=dict)
    initial: Offsets = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    lost: Offsets = field(default_factory=dict)

    def copy(self) -> Position:
        return Position(dict(self.offsets), dict(self.initial), dict(self.ids), dict(self.lost))

    def drop(self, topic: str) -> None:
        """Forgets a topic that was deleted."""
        for offsets in (self.offsets, self.initial, self.lost):
            for partition in [one for one in offsets if one[0] == topic]:
                del offsets[partition]
        self.ids.pop(topic, None)

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; keys are in order at every level."""
        found: dict[str, Any] = {"ids": dict(sorted(self.ids.items())), "initial": nested(self.initial)}
        if self.lost:
            found["lost"] = nested(self.lost)
        found["offsets"] = nested(self.offsets)
        return found

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Position:
        try:
            return Position(
                flat(found["offsets"]), flat(found["initial"]), dict(found["ids"]), flat(found.get("lost", {}))
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Invalid(
                f"the checkpoint's offset {str(dict(found))[:200]} is not one of the waystation source for topics: the"
                " checkpoint belongs to another query; give this one a checkpointLocation of its own"
            ) from None


def nested(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(offsets.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        found.setdefault(topic, {})[str(index)] = offset
    return found


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(index)): int(at) for topic, indexes in offsets.items() for index, at in indexes.items()}


def ranges_between(start: Position, end: Position) -> list[Range]:
    """What is between two positions of one query.

    A start that says another initial offset than the end was asked for again (the first batch is replayed) or does not
    know the partition yet: what the end says counts.
    """
    found = []
    for partition, to in sorted(end.offsets.items()):
        begun = end.initial.get(partition, 0)
        known = partition in start.offsets and start.initial.get(partition) == begun
        same_topic = start.ids.get(partition[0]) == end.ids.get(partition[0])
        at = start.offsets[partition] if known and same_topic else begun
        if at < to:
            found.append(Range(*partition, at, to))
    return found


def split(ranges: Iterable[Range], at_least: int | None, most: int | None = None) -> list[Range]:
    """The same offsets in at least so many ranges, if there are that many, and each of at most `most`; large ranges are
    split first."""
    whole = [part for one in ranges if one.size > 0 for part in _cut(one, -(-one.size // (most or one.size)))]
    if at_least is None or len(whole) >= at_least or not whole:
        return whole
    total = sum(one.size for one in whole)
    parts = [max(1, one.size * at_least // total) for one in whole]
    while sum(parts) < at_least:
        largest = max(range(len(whole)), key=lambda i: whole[i].size / parts[i])
        if whole[largest].size <= parts[largest]:
            break
        parts[largest] += 1
    found = []
    for one, count in zip(whole, parts, strict=True):
        found += _cut(one, count)
    return found


def _cut(one: Range, count: int) -> list[Range]:
    cuts = [one.start + one.size * i // count for i in range(count + 1)]
    return [Range(one.topic, one.partition, a, b) for a, b in pairwise(cuts) if a < b]


def share(available: Mapping[Partition, int], limit: int, turn: int = 0) -> Offsets:
    """How much of a limit each partition gets: equal shares, and what one does not need goes to the others.

    So no partition starves behind a busy one. Where the limit is smaller than the number of partitions, `turn` says
    which of them are first.
    """
    left = {partition: amount for partition, amount in sorted(available.items()) if amount > 0}
    found = dict.fromkeys(left, 0)
    while left and limit > 0:
        each = limit // len(left)
        if each == 0:
            names = list(left)
            for i in range(limit):
                found[names[(turn + i) % len(names)]] += 1
            break
        for partition in list(left):
            given = min(each, left[partition])
            found[partition] += given
            limit -= given
            left[partition] -= given
            if not left[partition]:
                del left[partition]
    return found
