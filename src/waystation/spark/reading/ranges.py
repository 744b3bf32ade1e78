"""Reads one range of offsets as Arrow record batches: what a task of Spark does.

The next piece is asked for before the last one is decoded, so broker and reader work at the same time. A range is read
to its end whatever is in it: offsets that compaction or an aborted transaction left empty bring no rows; offsets that
are deleted (retention, a deleted topic) are an error or a gap with a line in the log, as the user said.

Runs in Spark's Python workers, and wherever else rows are needed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import Corrupt, CorruptBatch, Expired, Invalid, InvalidRecord, TooLarge
from waystation.observe.events import event_logger
from waystation.spark.options import SourceOptions
from waystation.spark.reading.columns import Columns
from waystation.spark.reading.decoding import DecompressedBatches, Fields, decode, open_batches
from waystation.spark.reading.fetch_wire import OFFSET_OUT_OF_RANGE, TOPIC_DELETED, Fetch, FetchedPartition
from waystation.spark.reading.fetching import Cluster
from waystation.spark.reading.filters import PushedFilters
from waystation.spark.reading.planning import Range
from waystation.spark.values.json_values import CORRUPT, decode_values
from waystation.spark.values.value_formats import decode_typed

log = event_logger("waystation.spark")

FETCH_BYTES = 4 * 1024 * 1024
"""About 36,000 rows of 100 bytes. Measured: 1, 2, 4 and 8 MiB differ by a tenth, and 4 is the best of them."""
MAX_ROWS = 50_000
"""Rows in one record batch at most. Spark is quickest with 10,000 to 50,000."""
PATIENCE_S = 30.0
"""How long a partition may say that it does not have yet what it once said to have."""


@dataclass(frozen=True)
class Task:
    """What to read and how; picklable, since it goes to the workers."""

    options: SourceOptions
    schema: pa.Schema
    wanted: PushedFilters = field(default_factory=PushedFilters)


def expired_text(one: Range, oldest: int | None) -> str:
    """The sentence about offsets that are not there any more."""
    where = f"topic {one.topic!r} partition {one.partition}"
    if oldest is None:
        return (
            f"{where} does not exist any more, and offsets {one.start} to {one.end - 1} were still to be read: start"
            " the query with a new checkpoint, or set failOnDataLoss=false to go on without them"
        )
    last = min(oldest, one.end) - 1
    return (
        f"{where}: offsets {one.start} to {last} were deleted, by retention or by a client, before this query read"
        f" them, and the oldest one is {oldest}: start the query with a new checkpoint, or set failOnDataLoss=false to"
        " go on without them"
    )


def read_range(cluster: Cluster, task: Task, one: Range) -> Generator[pa.RecordBatch, None, None]:
    """All rows of the range."""
    columns = Columns(raw_schema(task.schema), one.topic, one.partition)
    where = (one.topic, one.partition)
    position = one.start
    moved = time.monotonic()
    ahead = cluster.ahead(_fetch(task, one, position))
    try:
        while position < one.end:
            answer = ahead.take()[where]
            opened: DecompressedBatches | None = None
            if answer.error or not answer.size:
                following = _pass_over(task, replace(one, start=position), answer)
                if following == position and time.monotonic() - moved > PATIENCE_S:
                    raise Expired(_cut_off(one, position, answer))
            else:
                opened = _open(task, one, position, answer)
                following = opened.next_offset
            if following < one.end:
                ahead = cluster.ahead(_fetch(task, one, following))
            if opened is not None:
                yield from _rows(task, columns, opened, one, position)
            if following > position:
                moved = time.monotonic()
            position = following
    finally:
        cluster.drop_unanswered()


def _fetch(task: Task, one: Range, position: int) -> Fetch:
    return Fetch({(one.topic, one.partition): position}, task.options.committed, FETCH_BYTES)


def _pass_over(task: Task, rest: Range, answer: FetchedPartition) -> int:
    """Where to go on if the answer has no rows; at the same place if they may still come."""
    if answer.error in TOPIC_DELETED:
        return _lose(task, rest, None, rest.end)
    if answer.error == OFFSET_OUT_OF_RANGE:
        if answer.start_offset > rest.start:
            return _lose(task, rest, answer.start_offset, min(answer.start_offset, rest.end))
        return _lose(task, rest, None, rest.end)  # beyond the end: the topic was re-created, or truncated
    end = answer.stable_offset if task.options.committed else answer.high_watermark
    if end >= rest.end:
        return rest.end  # compaction left nothing
    return rest.start


def _lose(task: Task, rest: Range, oldest: int | None, following: int) -> int:
    if task.options.fail_on_data_loss:
        raise Expired(expired_text(rest, oldest))
    log.warning(
        "offsets.lost",
        "topic {topic!r} partition {partition}: {count} offsets ({first} to {last}) were deleted before they were read;"
        " continuing without them",
        topic=rest.topic,
        partition=rest.partition,
        count=following - rest.start,
        first=rest.start,
        last=following - 1,
    )
    return following


def _cut_off(one: Range, position: int, answer: FetchedPartition) -> str:
    return (
        f"topic {one.topic!r} partition {one.partition}: offsets {position} to {one.end - 1} were there when the read"
        f" was planned and are not now (its end is {answer.high_watermark}): the topic was re-created or lost its last"
        " records; start the query with a new checkpoint"
    )


def _open(task: Task, one: Range, position: int, answer: FetchedPartition) -> DecompressedBatches:
    try:
        opened = open_batches(
            answer.data,
            position,
            one.end,
            answer.aborted,
            begin=answer.begin,
            size=answer.size,
            since_ms=task.wanted.since_ms,
        )
    except (Corrupt, InvalidRecord, TooLarge) as error:
        raise _unreadable(one, position, error) from None
    if opened.next_offset <= position:
        raise _unreadable(one, position, CorruptBatch("what the broker sent has no whole batch from there on"))
    return opened


def _unreadable(one: Range, position: int, error: Exception) -> Invalid:
    return Invalid(
        f"topic {one.topic!r} partition {one.partition}: the records at offset {position} or shortly behind it cannot"
        f" be read: {error}; read around them with startingOffsets or an offset filter, and tell the producer"
    )


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(
    task: Task, columns: Columns, opened: DecompressedBatches, one: Range, position: int
) -> Iterator[pa.RecordBatch]:
    try:
        fields = _chosen(task.wanted, decode(opened), one, position)
        if not len(fields.offset):
            return
        batch = columns.batch(opened.data, fields)
    except InvalidRecord as error:
        raise _unreadable(one, position, error) from None
    if batch.schema != task.schema:
        batch = with_decoded(task, batch)
    for start in range(0, batch.num_rows, MAX_ROWS):
        yield batch.slice(start, MAX_ROWS)


def _chosen(wanted: PushedFilters, fields: Fields, one: Range, position: int) -> Fields:
    """The rows of the range that the filters may want."""
    if not len(fields.offset):
        return fields
    first, last = max(position, wanted.first), min(one.end - 1, wanted.last)
    keep = None
    if fields.offset[0] < first or fields.offset[-1] > last or (np.diff(fields.offset) <= 0).any():
        keep = (fields.offset >= first) & (fields.offset <= last)
    for bound, above in ((wanted.since_us, True), (wanted.until_us, False)):
        if bound is not None:
            fits = fields.timestamp >= -(-bound // 1000) if above else fields.timestamp <= bound // 1000
            keep = fits if keep is None else keep & fits
    return fields if keep is None or keep.all() else fields.only(keep)


def raw_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as they come from the records: a value that is decoded later is bytes first."""
    fields = [pa.field("value", pa.binary()) if one.name == "value" else one for one in schema if one.name != CORRUPT]
    if CORRUPT in schema.names and "value" not in schema.names:
        fields.append(pa.field("value", pa.binary()))
    return pa.schema(fields)


def with_decoded(task: Task, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its values decoded, and the schema that Spark expects."""
    kind = task.schema.field("value").type if "value" in task.schema.names else pa.struct([])
    raw = batch.column("value")
    typed = task.options.typed
    structs, bad = decode_values(raw, kind) if typed is None else decode_typed(raw, kind, typed)
    columns = []
    for one in task.schema:
        if one.name == "value":
            columns.append(structs)
        elif one.name == CORRUPT:
            columns.append(pc.if_else(bad, raw, pa.scalar(None, pa.binary())))
        else:
            columns.append(batch.column(one.name))
    made = pa.RecordBatch.from_arrays(columns, schema=task.schema)
    if task.options.mode == "permissive" or not pc.any(bad).as_py():
        return made
    if task.options.mode == "dropmalformed":
        return made.filter(pc.invert(bad))
    what = "JSON" if typed is None else typed.kind
    raise Invalid(
        f"{pc.sum(bad).as_py()} of {batch.num_rows} values are not {what} of the schema {kind}; with mode=permissive"
        f" they are null and their bytes are in the column {CORRUPT}{_hint(task, raw.filter(bad))}"
    )


def _hint(task: Task, bad: pa.Array) -> str:
    """Values that a serialiser of Confluent wrote are what people have who do not know it."""
    typed = task.options.typed
    if typed is None or typed.registry is not None or any(value[:1] != b"\0" for value in bad.to_pylist()):
        return ""
    return "; they begin as values of a schema registry do: name it with the option schemaRegistry"
