"""Where to begin in a topic, as people say it, and the offset that this means in a partition.

`earliest`, `latest`, an offset, `-N` (the last N of each partition), a time (ISO 8601, or `@` and epoch milliseconds)
or an age (a duration with its unit: that long ago). What is before a partition's first record means its first, what is
after its last means its end. Used by the command line through the client, and by the protocols that reset groups.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.durations import parse_ms
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.topics.partitions.partition import Partition

LONGEST = 40


class StartPosition(msgspec.Struct, frozen=True):
    """A place to begin. `value` is the offset, the count or the epoch milliseconds."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    value: int = 0


def parse_start(text: str, now_ms: int) -> StartPosition:
    """Reads what a person wrote; raises Invalid that lists what would do."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    if text in ("earliest", "beginning"):
        return StartPosition("earliest")
    if text in ("latest", "end"):
        return StartPosition("latest")
    if text.isdecimal():
        return StartPosition("offset", int(text))
    if text.startswith("-") and text[1:].isdecimal():
        return StartPosition("last", int(text[1:]))
    if text.startswith("@") and text[1:].isdecimal():
        return StartPosition("time", int(text[1:]))
    try:
        return StartPosition("time", now_ms - parse_ms(text))
    except Invalid:
        pass
    try:
        return StartPosition("time", round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise Invalid(
            f"{text!r} is not a position: write earliest, latest, an offset, -N (the last N), a time like"
            " 2026-03-01T12:00 or @1772366400000, or an age like 15m"
        ) from None


def offset_of(start: StartPosition, partition: Partition) -> int:
    """The offset in this partition."""
    first, end = partition.start_offset, partition.visible_offset
    if start.kind == "earliest":
        return first
    if start.kind == "latest":
        return end
    if start.kind == "time":
        found = partition.find_time(max(0, start.value))
        return end if found is None else found[0]
    wanted = start.value if start.kind == "offset" else end - start.value
    return min(max(wanted, first), end)
