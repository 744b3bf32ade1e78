"""What a stream tells of itself beside its offsets: its name, lag in rows and seconds, bytes, loss, retries.

Spark asks a Python source for nothing of the kind (its `metrics` are for sources of Java), but shows what
`reportLatestOffset` says as it is: in `StreamingQueryProgress.sources[i].latestOffset`. So it stands there, under
`source` and `metrics`; `progress.py` reads it. In the driver's Python process; nothing here fails or delays a query:
what cannot be found out is left out, and the broker is asked every two seconds at most.
"""

from __future__ import annotations

import json
import time
from typing import Any

from waystation.errors import WaystationError
from waystation.log.batches.batch import CONTROL, LOG_APPEND_TIME, scan
from waystation.protocol import DescribeTopic, QueueInfo, TopicInfo
from waystation.spark.links.native_link import link_to_any
from waystation.spark.options import Partition, SourceOptions
from waystation.spark.reading.fetch_wire import Fetch
from waystation.spark.reading.fetching import Cluster
from waystation.spark.reading.planning import Offsets, Position

SOURCE = "source"
METRICS = "metrics"

AGES_EVERY_S = 2.0
SIZES_EVERY_S = 30.0
MOST_LOOKED_AT = 8
"""Partitions whose oldest unread batch is looked at: those that are farthest behind."""
MOST_TOPICS = 100
"""Topics whose sizes are asked for."""


class TopicMetrics:
    """Of a stream of topics."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._begin: Offsets = {}
        self._end = Position()
        self._aged_at = -AGES_EVERY_S
        self._oldest_ms: int | None = None
        self._sized_at = -SIZES_EVERY_S
        self._row_bytes: dict[Partition, float] = {}

    def planned(self, begin: Offsets, end: Position) -> None:
        """The batch that comes next."""
        self._begin, self._end = begin, end

    def report(self, cluster: Cluster, ends: Offsets) -> dict[str, Any]:
        """What is known now; `ends` are those of the partitions."""
        behind = {one: ends[one] - at for one, at in self._end.offsets.items() if ends.get(one, 0) > at}
        found: dict[str, Any] = {"lagRows": sum(behind.values()), "retries": cluster.retries}
        found["lost"] = sum(self._end.lost.values())
        try:
            self._look(cluster, behind)
        except (WaystationError, OSError):
            self._oldest_ms = None
        if not behind:
            found["lagMs"] = 0
        elif self._oldest_ms is not None:
            found["lagMs"] = max(0, time.time_ns() // 1_000_000 - self._oldest_ms)
        if self._row_bytes:
            found["bytes"] = round(sum(self._row_bytes.get(one, 0.0) * rows for one, rows in self._rows().items()))
        return {SOURCE: describe(self._options), METRICS: dict(sorted(found.items()))}

    def _rows(self) -> Offsets:
        starts = {**self._end.initial, **self._begin}
        return {one: at - starts.get(one, at) for one, at in self._end.offsets.items()}

    def _look(self, cluster: Cluster, behind: Offsets) -> None:
        now = time.monotonic()
        if now - self._sized_at >= SIZES_EVERY_S:
            self._sized_at = now
            self._row_bytes = self._sizes()
        if not behind:
            self._oldest_ms = None
        elif now - self._aged_at >= AGES_EVERY_S:
            self._aged_at = now
            farthest = sorted(behind, key=behind.__getitem__, reverse=True)[:MOST_LOOKED_AT]
            ages = [self._timestamp(cluster, one) for one in farthest]
            self._oldest_ms = min((age for age in ages if age is not None), default=None)

    def _timestamp(self, cluster: Cluster, one: Partition) -> int | None:
        """When the first batch that is not read was written; its records are as old or younger."""
        answer = cluster.try_fetch(Fetch({one: self._end.offsets[one]}, self._options.committed, 1, 0))[one]
        for _, header in scan(memoryview(answer.data)[: answer.begin + answer.size], answer.begin):
            if not header.attributes & CONTROL:
                return header.max_timestamp if header.attributes & LOG_APPEND_TIME else header.base_timestamp
        return None

    def _sizes(self) -> dict[Partition, float]:
        """Bytes of a row on the broker's disk, on average."""
        link = link_to_any(self._options.servers, "spark")
        try:
            found: dict[Partition, float] = {}
            for topic in sorted({topic for topic, _ in self._end.offsets})[:MOST_TOPICS]:
                for index, (start, end, size) in enumerate(link.ask(DescribeTopic(topic=topic), TopicInfo).partitions):
                    found[topic, index] = size / max(1, end - start)
            return found
        finally:
            link.close()


def queue_report(queue: str, info: QueueInfo | None, retries: int) -> dict[str, Any]:
    """Of a stream of a queue. What is in a batch is in flight, and not counted as waiting."""
    found: dict[str, Any] = {"retries": retries}
    if info is not None:
        found["lagRows"] = info.ready
        if not info.ready:
            found["lagMs"] = 0
        elif info.oldest_ms is not None:
            found["lagMs"] = max(0, time.time_ns() // 1_000_000 - info.oldest_ms)
    return {SOURCE: f"queue {queue}", METRICS: dict(sorted(found.items()))}


def describe(options: SourceOptions) -> str:
    """What is read, in short."""
    if options.pattern is not None:
        return f"pattern {options.pattern}"
    if options.assign:
        return f"assign {json.dumps({topic: list(some) for topic, some in options.assign.items()}, sort_keys=True)}"
    return f"topic {','.join(options.topics)}"
