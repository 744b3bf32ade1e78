"""Files of messages: whatever a message has, it comes back from the file as it was."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cli.transfer.row_files import RowReader, format_of, open_writer
from waystation.cli.transfer.row_lines import from_line, to_line
from waystation.cli.transfer.rows import QueueRow, Row, TopicRow
from waystation.errors import AlreadyExists, Invalid
from waystation.message import Message

TEXTS = st.text(max_size=8)
MAYBE_BYTES = st.none() | st.binary(max_size=8)
MOMENTS = st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS | st.binary(max_size=4) | MOMENTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)

TOPIC_ROWS = st.builds(
    TopicRow,
    topic=TEXTS,
    partition=st.none() | st.integers(0, 1000),
    offset=st.integers(0, 2**62),
    timestamp_ms=st.none() | st.integers(-1, 2**50),
    key=MAYBE_BYTES,
    value=MAYBE_BYTES,
    headers=st.lists(st.tuples(TEXTS, MAYBE_BYTES), max_size=3).map(tuple),
)
MESSAGES = st.builds(
    Message,
    payload=st.binary(max_size=16),
    id=st.none() | st.text(min_size=1, max_size=8),
    key=MAYBE_BYTES,
    headers=st.dictionaries(TEXTS, VALUES, max_size=3),
    priority=st.integers(0, 255),
    delay_ms=st.integers(0, 10**9),
    deliver_at_ms=st.none() | st.integers(0, 2**50),
    ttl_ms=st.none() | st.integers(1, 10**9),
    correlation_id=st.none() | TEXTS,
    content_type=st.none() | TEXTS,
    max_deliveries=st.integers(0, 100),
    timestamp_ms=st.none() | st.integers(0, 2**50),
    exchange=st.none() | TEXTS,
    delivery_mode=st.integers(0, 2),
)
QUEUE_ROWS = st.builds(
    QueueRow,
    queue=TEXTS,
    message=MESSAGES,
    tag=st.integers(0, 2**62),
    taken_ms=st.integers(0, 2**50),
    deliveries=st.integers(0, 100),
    state=st.sampled_from(["ready", "parked", "held"]),
    ready_at_ms=st.none() | st.integers(0, 2**50),
)


ROWS: dict[type[Row], st.SearchStrategy[Any]] = {TopicRow: TOPIC_ROWS, QueueRow: QUEUE_ROWS}


def exactly(row: Row) -> bytes:
    """So that 1, 1.0 and True are told apart. The headers of a queue's message are known by name and have no order."""
    if isinstance(row, QueueRow):
        ordered = dict(sorted(row.message.headers.items()))
        row = msgspec.structs.replace(row, message=msgspec.structs.replace(row.message, headers=ordered))
    return msgspec.msgpack.encode(row)


@given(TOPIC_ROWS | QUEUE_ROWS)
def test_a_row_comes_back_from_its_line(row: Row) -> None:
    line = to_line(row)
    assert line.count(b"\n") == 1
    assert exactly(from_line(line)) == exactly(row)


@pytest.mark.parametrize("kind", [TopicRow, QueueRow])
@given(data=st.data())
def test_rows_come_back_from_parquet(tmp_path_factory: pytest.TempPathFactory, kind: Any, data: st.DataObject) -> None:
    pytest.importorskip("pyarrow")
    rows: list[Row] = data.draw(st.lists(ROWS[kind], max_size=5))
    path = str(tmp_path_factory.mktemp("rows") / "rows.parquet")
    writer = open_writer(path, "parquet", kind, overwrite=False, keep=False)
    writer.write(rows)
    writer.finish()
    reader = RowReader(path, None)
    assert [exactly(row) for row in reader.rows(0)] == [exactly(row) for row in rows]
    assert reader.total == len(rows)


def row(number: int) -> TopicRow:
    return TopicRow(topic="t", partition=0, offset=number, timestamp_ms=0, key=None, value=b"%d" % number)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = open_writer(str(path), "jsonl", TopicRow, overwrite=False, keep=False)
    writer.write([row(1)])
    assert not path.exists()
    writer.give_up()
    assert list(tmp_path.iterdir()) == []
    writer = open_writer(str(path), "jsonl", TopicRow, overwrite=False, keep=False)
    writer.write([row(1)])
    writer.finish()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(AlreadyExists, match="--overwrite"):
        open_writer(str(path), "jsonl", TopicRow, overwrite=False, keep=False)


def test_a_file_that_keeps_messages_has_its_name_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = open_writer(str(path), "jsonl", TopicRow, overwrite=False, keep=True)
    writer.write([row(1)])
    assert path.read_bytes() == to_line(row(1))
    writer.give_up()
    assert path.read_bytes() == to_line(row(1))


def test_rows_can_be_skipped_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"\n" + to_line(row(1)) + b"\r\n\n" + to_line(row(2)) + to_line(row(3)).rstrip())
    reader = RowReader(str(path), None)
    assert list(reader.rows(1)) == [row(2), row(3)]
    assert reader.share == 1.0


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"3", b'{"key": "k"}', b'{"value": 3}', b'{"value": "//4=", "value_encoding": "hex"}',
     b'{"value": "x", "partition": "one"}', b'{"payload": 3}', b'{"payload": "x", "colour": "red"}',
     b'{"value": "x", "headers": [{"value": "x"}]}', b'{"payload": "x", "headers_msgpack": "?"}', b"\xff"],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows"
    path.write_bytes(to_line(row(1)) + line + b"\n")
    rows = RowReader(str(path), None).rows(0)
    assert next(rows) == row(1)
    with pytest.raises(Invalid, match="rows, line 2: "):
        next(rows)


def test_lines_are_those_of_the_other_commands() -> None:
    fields = json.loads(to_line(row(1)))
    assert fields == {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "timestamp": 0,
        "key": None,
        "value": "1",
        "headers": [],
    }
    looked = b'{"id": "a", "payload": "x", "tag": 3, "queue": "q", "taken_ms": 5, "state": "ready", "place": "queue:q"}'
    found = from_line(looked)
    assert isinstance(found, QueueRow)
    assert (found.message.id, found.tag, found.taken_ms) == ("a", 3, 5)


def test_the_format_is_known_by_the_name() -> None:
    assert format_of("a.parquet", None) == "parquet"
    assert format_of("a.jsonl", None) == format_of(None, None) == "jsonl"
    assert format_of("a.parquet", "jsonl") == "jsonl"


def test_kept_times_are_those_of_the_first_life() -> None:
    said = Message(payload=b"x", delay_ms=1000, ttl_ms=5000)
    parked = QueueRow(queue="q", message=said, tag=1, taken_ms=10_000, state="parked", ready_at_ms=11_001)
    made = parked.as_message(12_000, keep_times=True)
    assert made is not None
    assert (made.deliver_at_ms, made.delay_ms, made.ttl_ms) == (11_001, 0, 3000)
    assert parked.as_message(12_000, keep_times=False) is said
    assert parked.as_message(15_000, keep_times=True) is None
