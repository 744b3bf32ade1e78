"""Which part of a topic a query's filters leave: topics, partitions, offsets and times.

Spark hands over what is joined by AND, and applies every filter again to what it gets. So this may leave rows in that a
filter takes out, and never the other way round: what it does not understand, it passes over. Pure; for batch reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_HIGHEST = 2**63 - 1


@dataclass(slots=True)
class PushedFilters:
    """What can be left out is what is not in here."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    lowest_partition: int = 0
    highest_partition: int = _HIGHEST
    first: int = 0
    last: int = _HIGHEST
    """Offsets, both included."""
    since_us: int | None = None
    until_us: int | None = None
    """Times in microseconds, both included."""

    def has(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.lowest_partition <= partition <= self.highest_partition
        )

    @property
    def since_ms(self) -> int | None:
        """The first whole millisecond that is wanted."""
        return None if self.since_us is None else -(-self.since_us // 1000)


def wanted_by(filters: Iterable[Any]) -> PushedFilters:
    """Reads pyspark's filters (`pyspark.sql.datasource.Filter`)."""
    wanted = PushedFilters()
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        if len(column) == 1 and hasattr(one, "value"):
            _narrow(wanted, type(one).__name__, column[0], one.value)
    return wanted


def _narrow(wanted: PushedFilters, kind: str, column: str, value: Any) -> None:
    if kind in ("EqualTo", "EqualNullSafe"):
        values = [value]
    elif kind == "In":
        values = [one for one in value if one is not None]
    else:
        if kind in ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"):
            _bound(wanted, kind, column, value)
        return
    if column == "topic" and all(isinstance(one, str) for one in values):
        wanted.topics = set(values) if wanted.topics is None else wanted.topics & set(values)
    elif column == "partition" and all(type(one) is int for one in values):
        wanted.partitions = set(values) if wanted.partitions is None else wanted.partitions & set(values)
    elif values and all(_number(column, one) is not None for one in values):
        _bound(wanted, "GreaterThanOrEqual", column, min(values))
        _bound(wanted, "LessThanOrEqual", column, max(values))


def _bound(wanted: PushedFilters, kind: str, column: str, value: Any) -> None:
    number = _number(column, value)
    if number is None:
        return
    if kind.startswith("Greater"):
        lowest = number if kind.endswith("OrEqual") else number + 1
        if column == "partition":
            wanted.lowest_partition = max(wanted.lowest_partition, lowest)
        elif column == "offset":
            wanted.first = max(wanted.first, lowest)
        else:
            wanted.since_us = lowest if wanted.since_us is None else max(wanted.since_us, lowest)
        return
    highest = number if kind.endswith("OrEqual") else number - 1
    if column == "partition":
        wanted.highest_partition = min(wanted.highest_partition, highest)
    elif column == "offset":
        wanted.last = min(wanted.last, highest)
    else:
        wanted.until_us = highest if wanted.until_us is None else min(wanted.until_us, highest)


def _number(column: str, value: Any) -> int | None:
    """The number that a column is compared with; None if it is nothing that we compare."""
    if column in ("partition", "offset"):
        return value if type(value) is int else None
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        whole = value.replace(microsecond=0)
        return round(whole.timestamp()) * 1_000_000 + value.microsecond
    return None
