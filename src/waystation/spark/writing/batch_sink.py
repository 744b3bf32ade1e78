"""The batch sink: a whole DataFrame is in the topics and queues, or nothing of it.

As in `sink.py`, every task stages and the end of the job commits. A job has no number that stays the same when it is
run again, so the user gives one: with `txnId` (and, for writes that follow one another, `txnVersion`) a write that was
committed before is not done again. Without it the write is still all or nothing, but running it again writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from waystation.errors import Conflict, Invalid
from waystation.spark.writing.sink import TaskCommit, abort_stages, commit_stages, stage_rows, write_plainly
from waystation.spark.writing.sink_columns import Layout, check_columns
from waystation.spark.writing.sink_options import TXN_NAMES, SinkOptions, read_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def check_appends(overwrite: bool) -> None:
    """Raises Invalid for what Spark calls overwriting."""
    if overwrite:
        raise Invalid(
            "mode overwrite: what is in a topic or a queue is not replaced; use mode('append'), in SQL INSERT INTO"
        )


def writer(options: Mapping[str, str], schema: StructType) -> DataSourceArrowWriter:
    """Called by Spark before anything is written; raises Invalid."""
    read = read_sink_options(options, streaming=False)
    layout = check_columns(schema, read)
    return WholeBatch(read, layout) if read.exactly_once else PlainBatch(read, layout)


class WholeBatch(DataSourceArrowWriter):
    """All rows or none; once per `txnId` and `txnVersion`. Made once per job, and pickled to its tasks."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._job = uuid4().hex
        self._name = f"{TXN_NAMES}{options.txn_id}" if options.txn_id is not None else f"spark/job/{self._job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = TaskContext.get()
        if context is None:
            raise Conflict("this runs in no task of Spark's")
        stage = f"{self._stages}{context.partitionId()}.{context.attemptNumber()}"
        return stage_rows(self._options, self._layout, self._name, self._options.txn_version, stage, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_stages(self._options, messages, self._options.txn_version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Also what tasks have staged, or are about to, that the job has not heard of: no later commit would undo it.
        abort_stages(self._options, messages, self._stages)

    @property
    def _stages(self) -> str:
        """How the names of this job's transactions begin."""
        return f"{self._name}/{self._job}."


class PlainBatch(DataSourceArrowWriter):
    """`guarantee=at-least-once`: rows are seen as they are written; a task that is tried again writes them again."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return write_plainly(self._options, self._layout, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is durable already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was written stays."""
