"""How large a micro-batch is: the bytes of `maxBytesPerTrigger` at most, the rows of `minRowsPerTrigger` at least.

Sizes are those of the stored batches, compressed as they are. The beginning of what is next is looked at; if the limit
lies within that, the answer is exact to a batch, else it is reckoned from how many bytes the offsets there take. At
least one batch of each partition is let through, or a limit below a batch's size would stop the query for ever.
"""

from __future__ import annotations

import time

from waystation.log.batches.batch import scan
from waystation.spark.reading.fetch_wire import Fetch, FetchedPartition
from waystation.spark.reading.fetching import Cluster
from waystation.spark.reading.planning import Offsets

LOOK_BYTES = 1024 * 1024


class Minimum:
    """Whether there is enough for a batch, or the last one is long enough ago. What is there at the start is."""

    def __init__(self, rows: int, delay_s: float) -> None:
        self._rows = rows
        self._delay_s = delay_s
        self._last_s: float | None = None

    def is_reached(self, begin: Offsets, ends: Offsets) -> bool:
        """Asked for the next batch; if so, it begins now."""
        now_s = time.monotonic()
        rows = sum(max(0, ends[one] - at) for one, at in begin.items())
        if self._last_s is not None and rows < self._rows and now_s - self._last_s < self._delay_s:
            return False
        self._last_s = now_s
        return True


def within_bytes(cluster: Cluster, committed: bool, begin: Offsets, ends: Offsets, most: int) -> Offsets:
    """The ends, brought nearer so that about `most` bytes are between."""
    moving = [one for one, at in begin.items() if ends[one] > at]
    if not moving:
        return ends
    found = dict(ends)
    each = max(1, most // len(moving))
    for one in moving:
        fetch = Fetch({one: begin[one]}, committed, max_bytes=min(each, LOOK_BYTES), max_wait_ms=0)
        answer = cluster.fetch(fetch)[one]
        if not answer.error:
            found[one] = min(ends[one], _reach(answer, begin[one], each, ends[one]))
    return found


def _reach(answer: FetchedPartition, start: int, most: int, end: int) -> int:
    taken = 0
    at = start
    for _, header in scan(memoryview(answer.data)[: answer.begin + answer.size], answer.begin):
        if taken and taken + header.size > most:
            return at
        taken += header.size
        at = header.last_offset + 1
    if at <= start:
        return end  # nothing is stored there
    if taken >= most:
        return at
    return max(at, start + (at - start) * most // taken)
