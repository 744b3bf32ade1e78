"""Topics as a stream: how far there is to read, what is new, what is deleted.

One object of this lives in Spark's driver-side Python process for as long as the query runs; copies of it read ranges
in the workers. `latestOffset` is asked all the time: where nothing is new, it waits at the broker until something is
(at most a second), so an idle query costs next to nothing.

Invariants: what was once given as the end of a batch can be read again as long as the broker has it (see `planning`);
nothing is passed over without an error or, where the user said so, a count in the offset and a line in the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waystation.errors import Expired, WaystationError
from waystation.observe.events import event_logger
from waystation.spark.options import SourceOptions
from waystation.spark.reading.batch import RangePartition, read_partition
from waystation.spark.reading.fetch_wire import Fetch, Topic
from waystation.spark.reading.fetching import Cluster, cluster_at
from waystation.spark.reading.finding import (
    check_topics,
    earliest,
    find_topics,
    is_meant,
    latest,
    partitions_of,
    resolve,
)
from waystation.spark.reading.limits import Minimum, within_bytes
from waystation.spark.reading.planning import Offsets, Position, Range, nested, ranges_between, share, split
from waystation.spark.reading.ranges import Task, expired_text
from waystation.spark.reading.source_metrics import TopicMetrics
from waystation.spark.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    Told,
    check_limits,
)
from waystation.spark.worker_errors import without_traceback

log = event_logger("waystation.spark")

WAIT_MS = 1000
"""How long to wait for something new before Spark is told that there is nothing."""
HOLD_S = 0.1
"""How often it is looked whether there are enough rows for a batch."""
LOOK_EVERY_S = 1.0
"""How often topics and partitions are looked for that came or went."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics on and on."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        check_limits(
            maxRowsPerTrigger=options.max_rows,
            maxBytesPerTrigger=options.max_bytes,
            minRowsPerTrigger=options.min_rows,
        )
        self._options = options
        self._schema = schema
        self._told = Told()
        self._initial: Position | None = None
        self._target: Offsets | None = None
        self._ends: Offsets = {}
        self._topics: dict[str, Topic] = {}
        self._looked = -LOOK_EVERY_S
        self._published: Offsets = {}
        self._metrics = TopicMetrics(options)
        self._complained = ""
        self._minimum = None if options.min_rows is None else Minimum(options.min_rows, options.trigger_delay_s)

    # -- what Spark calls -------------------------------------------------------------------------------------------

    @without_traceback()
    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            options, cluster = self._options, self._cluster
            topics = self._look(cluster, check=True)
            partitions = partitions_of(options, topics)
            offsets = resolve(cluster, options, options.starting, partitions, "startingOffsets")
            self._initial = Position(offsets, dict(offsets), {name: topic.id for name, topic in topics.items()})
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        cluster = self._cluster
        self._target = latest(cluster, self._options, partitions_of(self._options, self._look(cluster)))

    @without_traceback()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        cluster = self._cluster
        start = self._told.start(start, self.initialOffset)
        begin = Position.from_json(start)
        self._publish(cluster, begin.offsets)
        end, ends = self._see(cluster, begin)
        nothing_new = self._target is None and all(ends[one] <= at for one, at in end.offsets.items())
        if nothing_new and self._wait(cluster, end.offsets):
            end, ends = self._see(cluster, begin)
        until_s = time.monotonic() + WAIT_MS / 1000
        while self._is_too_little(end.offsets, ends):
            if time.monotonic() >= until_s:
                return start
            time.sleep(HOLD_S)
            end, ends = self._see(cluster, begin)
        self._count_lost(cluster, end, ends)
        end.offsets = self._limited(cluster, end.offsets, ends, limit or ReadAllAvailable())
        self._metrics.planned(begin.offsets, end)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the partitions end, and what a person wants to know of the source: Spark shows it as it is."""
        if not self._ends:
            return None
        return {"offsets": nested(self._ends), **self._metrics.report(self._cluster, self._ends)}

    @without_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._told.planned(end)
        ranges = ranges_between(Position.from_json(start), Position.from_json(end))
        return [RangePartition(one) for one in split(ranges, self._options.min_partitions, self._options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(Task(self._options, self._schema), partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Progress is published by `latestOffset`: this call comes a batch late, and not at all for the last one."""

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> Cluster:
        return cluster_at(self._options.servers, self._options.retry_s)

    def _see(self, cluster: Cluster, begin: Position) -> tuple[Position, Offsets]:
        """The position with all that is known of topics now, and where they end.

        What is new was looked at after the topics were: one may have been re-created in between, under its old name.
        """
        while True:
            position = self._known(cluster, begin)
            ends = self._newest(cluster, position)
            if all(ends[one] <= at for one, at in position.offsets.items()):
                return position, ends
            topics = self._look(cluster, now=True)
            if all(name in topics and topics[name].id == known for name, known in position.ids.items()):
                return position, ends

    def _look(self, cluster: Cluster, *, now: bool = False, check: bool = False) -> dict[str, Topic]:
        if now or check or time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._topics = find_topics(cluster, self._options)
            self._looked = time.monotonic()
        if check:
            check_topics(cluster, self._options, self._topics, streaming=True)
        return self._topics

    def _known(self, cluster: Cluster, begin: Position) -> Position:
        """The position with what is new and without what is deleted; new partitions are read from their beginning."""
        position = begin.copy()
        topics = self._look(cluster)
        for name, known in begin.ids.items():
            topic = topics.get(name)
            if topic is None or topic.id != known:
                self._lose_topic(begin, name, recreated=topic is not None)
                position.drop(name)
        fresh = [one for one in partitions_of(self._options, topics) if one not in position.offsets]
        if self._target is not None:
            fresh = [one for one in fresh if one in self._target]
        if fresh:
            begun = earliest(cluster, fresh)
            position.offsets.update(begun)
            position.initial.update(begun)
            position.ids.update({name: topics[name].id for name, _ in begun})
        return position

    def _lose_topic(self, begin: Position, name: str, *, recreated: bool) -> None:
        what = f"topic {name!r} was deleted{' and re-created' if recreated else ''} while the query was reading it"
        if recreated:
            what += ", or servers names another cluster than before"
        if not is_meant(self._options, name):
            what = f"the checkpoint is of a query that read topic {name!r}, and this one does not"
        if self._options.fail_on_data_loss:
            raise Expired(
                f"{what}, and what was not read of it is lost: start the query with a new checkpoint, or set"
                " failOnDataLoss=false to go on without it"
            )
        at = ", ".join(f"partition {p} at offset {at}" for (t, p), at in sorted(begin.offsets.items()) if t == name)
        log.warning(
            "topic.lost",
            "{loss} ({position}); going on without what was not read of it",
            topic=name,
            loss=what,
            position=at,
        )

    def _newest(self, cluster: Cluster, position: Position) -> Offsets:
        """Where the partitions end now; for a query that is to stop there, where they ended when it began."""
        found = latest(cluster, self._options, position.offsets)
        self._ends = found
        ends = {one: found.get(one, at) for one, at in position.offsets.items()}
        if self._target is None:
            return ends
        return {one: max(position.offsets[one], min(end, self._target.get(one, 0))) for one, end in ends.items()}

    def _wait(self, cluster: Cluster, positions: Offsets) -> bool:
        """Until something is new, for a second at most; whether something is."""
        if not positions:
            time.sleep(WAIT_MS / 1000)
            return False
        answers = cluster.fetch(Fetch(positions, self._options.committed, max_bytes=1, max_wait_ms=WAIT_MS))
        return any(answer.size or answer.error for answer in answers.values())

    def _is_too_little(self, begin: Offsets, ends: Offsets) -> bool:
        """Whether to wait for more rows. A query that is to stop at what is there now takes it as it is."""
        return self._target is None and self._minimum is not None and not self._minimum.is_reached(begin, ends)

    def _count_lost(self, cluster: Cluster, position: Position, ends: Offsets) -> None:
        """Looks whether retention was quicker than the query, and goes on behind the gap if the user wants that."""
        moving = [one for one, at in position.offsets.items() if ends[one] > at]
        for one, oldest in earliest(cluster, moving).items():
            at = position.offsets[one]
            if oldest <= at:
                continue
            if self._options.fail_on_data_loss:
                raise Expired(expired_text(Range(*one, at, max(oldest, ends[one])), oldest))
            position.lost[one] = position.lost.get(one, 0) + oldest - at
            position.offsets[one] = oldest
            log.warning(
                "offsets.lost",
                "topic {topic!r} partition {partition}: {count} offsets ({first} to {last}) were deleted before they"
                " were read, {in_all} in all; going on",
                topic=one[0],
                partition=one[1],
                count=oldest - at,
                first=at,
                last=oldest - 1,
                in_all=position.lost[one],
            )

    def _limited(self, cluster: Cluster, begin: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        ends = {one: max(at, ends[one]) for one, at in begin.items()}
        if isinstance(limit, ReadMaxRows):
            given = share({one: ends[one] - at for one, at in begin.items()}, limit.max_rows, sum(begin.values()))
            ends = {one: at + given.get(one, 0) for one, at in begin.items()}
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if most is not None and not isinstance(limit, ReadAllAvailable):
            ends = within_bytes(cluster, self._options.committed, begin, ends, most)
        return ends

    # -- progress ---------------------------------------------------------------------------------------------------

    def _publish(self, cluster: Cluster, offsets: Offsets) -> None:
        """What the query has behind it, as the group's offsets: lag shows wherever groups are shown.

        The query does not read them, so a refusal is only mentioned.
        """
        group = self._options.group
        changed = {one: at for one, at in offsets.items() if self._published.get(one) != at}
        if group is None or not changed:
            return
        try:
            refused = sorted({code for code in cluster.commit(group, changed).values() if code})
            trouble = f"Kafka errors {refused}: is it a group with members?" if refused else ""
        except WaystationError as error:
            trouble = str(error)
        if not trouble:
            self._published.update(changed)
        elif trouble != self._complained:
            log.warning(
                "progress.not_published",
                "progress cannot be published as offsets of the group {group!r}: {error}",
                group=group,
                error=trouble,
            )
        self._complained = trouble
