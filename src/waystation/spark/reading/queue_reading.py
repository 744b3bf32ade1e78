"""A queue as a stream: `queue=jobs`. Messages are read, and acked when their batch is committed.

The driver's stream reader is the queue's one consumer. It claims messages for a batch and writes down which they are
(`queue_offsets`); tasks read them by their tags; when Spark asks for the next batch, this one is done, and its messages
are acked. Until then they stay in the queue: after a crash of a task, of the driver or of the broker the same batch has
the same messages again. With a sink that knows a batch when it sees it again, each message has its effect exactly once.

Invariants: nothing is acked before Spark has committed its batch. A batch that is read again has the same rows, or it
fails, or (failOnDataLoss=false) says in the log which are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from waystation.errors import Expired, Invalid
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.protocol import Command, DescribeQueue, EntriesAnswer, Peek, Peeked, QueueInfo, ReadEntries
from waystation.queues.ledger.runs import add_run, without
from waystation.spark.links.login_options import LOGIN_OPTIONS, lowered, read_servers
from waystation.spark.links.native_link import NativeLink, link_to_any
from waystation.spark.links.retrying import patiently
from waystation.spark.options import (
    DEFAULT_RETRY_S,
    SOURCE_OPTIONS,
    SourceOptions,
    check_names,
    read_flag,
    read_positive,
    read_seconds,
    read_values,
)
from waystation.spark.reading.queue_claims import QueueClaims
from waystation.spark.reading.queue_offsets import QueueOffset, split
from waystation.spark.reading.queue_rows import QUEUE_SCHEMA, record_batch
from waystation.spark.reading.ranges import Task, raw_schema, with_decoded
from waystation.spark.reading.schemas import arrow_schema, source_schema
from waystation.spark.reading.source_metrics import queue_report
from waystation.spark.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    check_tells_start,
)
from waystation.spark.values.json_values import infer_type
from waystation.spark.values.value_formats import VALUE_OPTIONS
from waystation.spark.worker_errors import without_traceback
from waystation.spark.workers import settle

T = TypeVar("T")

log = event_logger("waystation.spark")

MOST_ROWS = 1_000_000
"""Messages in one batch at most: Spark keeps all that it says of them in one file."""
WAIT_MS = 1000
"""How long to wait for something new before Spark is told that there is nothing."""
TASK_ROWS = 50_000
"""One more task for every so many rows."""
PEEKED = 1000
"""Messages that are looked at at once, without taking them."""
ASKED_RUNS = 10_000

QUEUE_OPTIONS = (
    "servers",
    "queue",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "valueFormat",
    "valueSchema",
    *VALUE_OPTIONS,
    "mode",
    "retryTimeout",
    *LOGIN_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What a reader of a queue is told: the queue, and what it has in common with a reader of topics."""

    queue: str
    base: SourceOptions


def read_queue_options(given: Mapping[str, str]) -> QueueOptions:
    """Checked options of a source that reads a queue; raises Invalid."""
    for name in given:
        if name.lower() in {one.lower() for one in SOURCE_OPTIONS} - {one.lower() for one in QUEUE_OPTIONS}:
            spelled = next(one for one in SOURCE_OPTIONS if one.lower() == name.lower())
            raise Invalid(
                f"{spelled} is for topics, and queue={given.get('queue', '')} reads a queue, which has neither offsets"
                " nor groups: leave one of them out"
            )
    check_names(given, QUEUE_OPTIONS)
    options = lowered(given)
    base = SourceOptions(
        servers=read_servers(options),
        max_rows=read_positive(options, "maxRowsPerTrigger"),
        max_bytes=read_positive(options, "maxBytesPerTrigger"),
        min_partitions=read_positive(options, "minPartitions"),
        fail_on_data_loss=read_flag(options, "failOnDataLoss", True),
        **read_values(options),
        retry_s=read_seconds(options, "retryTimeout", DEFAULT_RETRY_S),
    )
    return QueueOptions(options["queue"], base)


def schema(given: Mapping[str, str]) -> StructType | str:
    """The columns, where the user gives none."""
    options = read_queue_options(given)
    return source_schema(options.base, QUEUE_SCHEMA, lambda base: _inferred(options))


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    options = read_queue_options(given)
    return QueueStreamReader(options, arrow_schema(schema, options.base, QUEUE_SCHEMA))


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    options = read_queue_options(given)
    return QueueTableReader(options, arrow_schema(schema, options.base, QUEUE_SCHEMA))


def _inferred(options: QueueOptions) -> pa.StructType:
    """The type of the JSON values that are in the queue now."""
    found = _ask_once(options, Peek(queue=options.queue, count=PEEKED), list[Peeked])
    if not found:
        raise Invalid(
            f"valueFormat=json: queue {options.queue!r} has no messages to infer a schema from; give the option"
            " valueSchema, for instance 'id INT, name STRING'"
        )
    return infer_type(peeked.delivered.message.payload for peeked in found)


def _ask_once(options: QueueOptions, command: Command, kind: type[T]) -> T:
    """On a connection for this one question."""

    def ask() -> T:
        link = link_to_any(options.base.servers, "spark")
        try:
            return link.ask(command, kind)
        finally:
            link.close()

    return patiently(ask, options.base.servers, options.base.retry_s)


@dataclass
class RunsPartition(InputPartition):
    """What one task reads."""

    runs: Sequence[Run]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue on and on. One object of this lives in the driver's Python process; copies read in the workers."""

    def __init__(self, options: QueueOptions, schema: pa.Schema) -> None:
        check_tells_start("a queue as a stream")
        self._options = options
        self._schema = schema
        self._claims: QueueClaims | None = None
        self._planned: QueueOffset | None = None
        self._done = -1  # the last batch that was acked
        self._left: int | None = None  # messages that a query which is to end has still to take
        self._counted = 0  # the last batch that was taken off them

    # -- what Spark calls in the driver --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return QueueOffset(self._options.queue).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.base.max_rows is not None:
            return ReadMaxRows(self._options.base.max_rows)
        if self._options.base.max_bytes is not None:
            return ReadMaxBytes(self._options.base.max_bytes)
        return ReadAllAvailable()

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        """As many messages as there are now are taken, the urgent ones first. What a batch that is not done claims
        again, or a batch that is done and not acked, is among them: it is taken off when Spark names it."""
        self._left = self._queue.waiting()

    @without_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = QueueOffset.from_json(start, self._options.queue)
        planned = self._planned
        if planned is not None and planned.batch == begin.batch + 1 and planned.number == self._queue.number():
            return planned.to_json()  # it was not begun
        self._finish(begin)
        runs = self._claim(limit)
        if not runs:
            return start
        self._planned = QueueOffset(begin.queue, begin.batch + 1, self._queue.number(), tuple(runs))
        self._take_off(self._planned.batch, self._planned.count)
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What a person wants to know of the source: Spark shows it as it is."""
        return queue_report(self._options.queue, self._queue.seen(), self._queue.retries)

    @without_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offset = QueueOffset.from_json(end, self._options.queue)
        have = self._still_there(offset)
        self._take_off(offset.batch, sum(count for _, count in have))
        wanted = max(self._options.base.min_partitions or 1, -(-offset.count // TASK_ROWS))
        return [RunsPartition(runs) for runs in split(have, wanted)]

    @without_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        self._finish(QueueOffset.from_json(end, self._options.queue))

    def stop(self) -> None:
        if self._claims is not None:
            self._claims.close()

    # -- batches -------------------------------------------------------------------------------------------------------

    @property
    def _queue(self) -> QueueClaims:
        if self._claims is None:
            base = self._options.base
            self._claims = QueueClaims(base.servers, self._options.queue, base.retry_s)
        return self._claims

    def _finish(self, offset: QueueOffset) -> None:
        """The batch is committed: its messages are done."""
        if offset.batch <= self._done or not offset.runs:
            return
        if self._is_same_queue(offset):
            self._take_off(offset.batch, self._queue.ack(offset.runs))
        self._done = offset.batch

    def _claim(self, limit: ReadLimit) -> list[Run]:
        base = self._options.base
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else MOST_ROWS
        if self._left is not None:
            count = min(count, self._left)
            if count <= 0:
                return []
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else base.max_bytes or 0
        wait_ms = WAIT_MS if self._left is None else 0
        return self._queue.claim(min(count, MOST_ROWS), max_bytes, wait_ms)

    def _take_off(self, batch: int, count: int) -> None:
        if self._left is not None and batch > self._counted:
            self._left -= count
            self._counted = batch

    def _is_same_queue(self, offset: QueueOffset) -> bool:
        """Whether these tags still mean the same messages. Else what was not read of that queue went with it."""
        if offset.number == self._queue.number():
            return True
        what = f"queue {self._options.queue!r} was deleted and re-created while the query was reading it"
        if self._options.base.fail_on_data_loss:
            raise Expired(
                f"{what}, and what was not read of it is lost: start the query with a new checkpoint, or set"
                " failOnDataLoss=false to continue with the new one"
            )
        log.warning("queue.recreated", "{loss}; going on with the new one", queue=self._options.queue, loss=what)
        return False

    def _still_there(self, offset: QueueOffset) -> list[Run]:
        runs = list(offset.runs)
        have = self._queue.claim_these(runs) if self._is_same_queue(offset) else []
        missing = without(runs, have)
        if missing:
            lose(self._options, missing)
        return have

    # -- what tasks do -------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RunsPartition):
            raise Invalid("this is a partition of another source")
        settle()
        with without_traceback():
            for rows in read_rows(self._options, partition.runs):
                yield as_columns(self._options, self._schema, rows)


@dataclass
class CountPartition(InputPartition):
    """How many messages to look at."""

    count: int


class QueueTableReader(DataSourceReader):
    """What is in a queue now, whatever its state, in the order of tags; nothing is taken. One task reads it."""

    def __init__(self, options: QueueOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @without_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        info = _ask_once(self._options, DescribeQueue(queue=self._options.queue), QueueInfo)
        return [CountPartition(info.ready + info.parked + info.held)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, CountPartition):
            raise Invalid("this is a partition of another source")
        left, after = partition.count, -1
        while left > 0:
            wanted = Peek(queue=self._options.queue, count=min(left, PEEKED), after=after)
            rows = [peeked.delivered for peeked in _ask_once(self._options, wanted, list[Peeked])]
            if not rows:
                return
            yield as_columns(self._options, self._schema, rows)
            left, after = left - len(rows), rows[-1].tag


def as_columns(options: QueueOptions, schema: pa.Schema, rows: Sequence[Delivered]) -> pa.RecordBatch:
    """Messages as Spark expects them."""
    raw = raw_schema(schema)
    batch = record_batch(rows, options.queue, raw)
    return batch if raw == schema else with_decoded(Task(options.base, schema), batch)


def read_rows(options: QueueOptions, runs: Sequence[Run]) -> Iterator[list[Delivered]]:
    """All messages of these runs, some thousands at a time."""
    link: NativeLink | None = None
    base = options.base

    def ask(wanted: list[Run]) -> EntriesAnswer:
        nonlocal link
        try:
            link = link or link_to_any(base.servers, "spark")
            return link.ask(ReadEntries(queue=options.queue, runs=wanted), EntriesAnswer)
        except OSError:
            if link is not None:
                link.close()
            link = None
            raise

    try:
        left = list(runs)
        while left:
            asked = left[:ASKED_RUNS]
            found = patiently(lambda: ask(asked), base.servers, base.retry_s)  # noqa: B023  # called before it changes
            answered = asked if found.next is None else _before(asked, found.next)
            missing = without(answered, _tags(found.messages))
            if missing:
                lose(options, missing)
            if found.messages:
                yield found.messages
            left = without(left, answered)
    finally:
        if link is not None:
            link.close()


def lose(options: QueueOptions, missing: Sequence[Run]) -> None:
    """Messages of a batch were deleted before it was done."""
    count = sum(count for _, count in missing)
    first, last = missing[0][0], sum(missing[-1]) - 1
    what = (
        f"{count} messages of a batch are not in queue {options.queue!r} any more (tags {first} to {last}): while the"
        " query was away they expired, were purged, or somebody else took them"
    )
    if options.base.fail_on_data_loss:
        raise Expired(
            f"{what}; whether their batch had its effect before is not known: start the query with a new checkpoint,"
            " or set failOnDataLoss=false to go on without them"
        )
    log.warning("messages.lost", "{loss}; going on without them", queue=options.queue, count=count, loss=what)


def _tags(messages: Sequence[Delivered]) -> list[Run]:
    runs: list[Run] = []
    for delivered in messages:
        add_run(runs, delivered.tag, 1)
    return runs


def _before(runs: Sequence[Run], tag: int) -> list[Run]:
    return [(first, min(count, tag - first)) for first, count in runs if first < tag]
