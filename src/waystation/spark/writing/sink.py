"""The streaming sink: each micro-batch is in the topics and queues exactly once, or not at all.

Every task stages its rows in a transaction of its own and leaves it open on the broker. When all tasks are done, the
driver asks the broker to commit all of them by one record, under the query's name and with the batch's number as the
sequence (`transactions/decisions.py`). So:

* a batch that is replayed after a crash was either not committed, and nothing of it is seen, or it was, and the broker
  refuses its number: the tasks find that out before they write, and the commit once more;
* a task that runs twice, or goes on after its job has given it up, stages under a name of its own, which no commit
  asks for; the commit aborts it;
* a batch that fails, or is stopped, aborts what its tasks have staged, and no task of that run can begin any more;
* a driver that is killed leaves stages that nobody asks for: the query's next commit aborts them, or their timeout.

Spark makes a new writer for each batch, pickles it, and calls `write` in tasks, `commit` and `abort` in a process of
its own beside the driver. Nothing is remembered between them but what the messages carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from waystation.errors import Conflict
from waystation.protocol import StagedTransaction
from waystation.spark.links.broker_link import client_at, patiently
from waystation.spark.spark_versions import DataSourceStreamArrowWriter
from waystation.spark.workers import settle
from waystation.spark.writing.sink_columns import Layout, check_columns
from waystation.spark.writing.sink_options import SinkOptions, read_sink_options
from waystation.spark.writing.staging import Plain, Staging
from waystation.spark.writing.task_rows import RowWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
ABORT_S = 10.0
"""How long the end of a query waits for a broker that is away; what is staged there has its own time."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What a task tells the driver. `staged` is None where it had no rows, or need not write them any more. `run`:
    which one of its query's, if it is a query; each start of a query is another."""

    name: str
    rows: int
    staged: tuple[str, int, int] | None = None
    run: str = ""


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Called by Spark before a batch is written; raises Invalid. In complete mode each batch has all rows again."""
    settle()
    read = read_sink_options(options, streaming=True)
    layout = check_columns(schema, read)
    return ExactlyOnceStream(read, layout) if read.exactly_once else AtLeastOnceStream(read, layout)


class ExactlyOnceStream(DataSourceStreamArrowWriter):
    """`guarantee=exactly-once`, the default."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if context is None or not query or not batch:
            raise Conflict("this task belongs to no streaming query, so its batch has no number; use df.write")
        name = f"spark/{query}"
        run = context.getLocalProperty(RUN_ID)
        stage = f"{name}/{run or 0}.{context.partitionId()}.{context.attemptNumber()}"
        written = stage_rows(self._options, self._layout, name, int(batch), stage, iterator)
        return replace(written, run=run or "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit_stages(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort_run(self._options, messages)


class AtLeastOnceStream(DataSourceStreamArrowWriter):
    """`guarantee=at-least-once`: rows are seen as they are written, and a batch that is replayed writes them again."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return write_plainly(self._options, self._layout, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is durable already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays: that is what the user chose."""


# -- what stream and batch writes share --------------------------------------------------------------------------------


def stage_rows(
    options: SinkOptions, layout: Layout, name: str, sequence: int, stage: str, batches: Iterator[pa.RecordBatch]
) -> TaskCommit:
    """A task: stages its rows, unless what they belong to is committed already."""
    settle()
    client = client_at(options.servers, options.retry_s)
    last = patiently(lambda: client.staged_position(name), options.servers, options.retry_s)
    if last is not None and sequence <= last:
        for _ in batches:
            pass  # Spark wants its rows taken
        return TaskCommit(name, 0)
    staging = Staging(client, stage, options)
    writer = RowWriter(client, staging, layout, options, _task_number())
    try:
        writer.write(batches)
        staged = staging.stage()
    except BaseException:
        staging.abort()
        raise
    told = None if staged is None else (staged.transactional_id, staged.producer_id, staged.epoch)
    return TaskCommit(name, writer.rows, told)


def write_plainly(options: SinkOptions, layout: Layout, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
    settle()
    client = client_at(options.servers, options.retry_s)
    writer = RowWriter(client, Plain(client, options), layout, options, _task_number())
    writer.write(batches)
    return TaskCommit("", writer.rows)


def commit_stages(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], sequence: int) -> None:
    """The driver: all of it, or, if this sequence is committed already, nothing."""
    settle()
    told = [message for message in messages if isinstance(message, TaskCommit)]
    if not told:
        return  # no task, no rows
    client = client_at(options.servers, options.retry_s)
    name = told[0].name
    staged = _staged(told)
    patiently(
        lambda: client.commit_staged(name, sequence, staged, abandon=f"{name}/"), options.servers, options.retry_s
    )


def abort_stages(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], prefix: str = "") -> None:
    """The job failed. What its commit may have made visible stays: the broker aborts only what is still undecided.

    `prefix`: and all that is open under names that begin so; no task can begin there any more, if it has not heard of
    it yet.
    """
    staged = _staged([message for message in messages if isinstance(message, TaskCommit)])
    if staged or prefix:
        client = client_at(options.servers, options.retry_s)
        patiently(
            lambda: client.abort_staged(staged, prefix=prefix, fence=bool(prefix)), options.servers, options.retry_s
        )


def abort_run(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """A query's batch failed, or the query was stopped in the middle of it: in both cases this run of it is over.

    Tasks that Spark gave up may have staged, or be about to, without having told anybody: until their time runs out
    they would be in the way of readers, unless the query is started again. Spark tells this process neither the query
    nor the run, so the run can be fenced only if one task has told. Else the query's id is looked for in its
    checkpoint.
    """
    options = replace(options, retry_s=min(options.retry_s, ABORT_S))
    told = next((message for message in messages if isinstance(message, TaskCommit) and message.run), None)
    if told is not None:
        abort_stages(options, messages, f"{told.name}/{told.run}.")
        return
    query = query_of(options.checkpoint)
    if query is not None:
        client = client_at(options.servers, options.retry_s)
        patiently(lambda: client.abort_staged(prefix=f"spark/{query}/"), options.servers, options.retry_s)


def query_of(checkpoint: str | None) -> str | None:
    """The id of the query that a checkpoint is of; None where it is not in a folder that this process can read."""
    if not checkpoint:
        return None
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return None
    try:
        found = json.loads(Path(unquote(place.path) if place.scheme else checkpoint, "metadata").read_bytes())
        return str(UUID(found["id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _staged(told: Sequence[TaskCommit]) -> list[StagedTransaction]:
    return [StagedTransaction(*message.staged) for message in told if message.staged is not None]


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
