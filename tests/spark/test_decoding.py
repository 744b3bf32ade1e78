"""Record batches become Arrow columns, and the columns say what `records_of` says, whatever the bytes are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.errors import InvalidRecord, TooLarge
from waystation.log.batches.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Header,
    Record,
    assemble,
    build,
    build_marker,
    encode_records,
    place,
    read_header,
    records_of,
    stamp,
)
from waystation.log.batches.compression import compress

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed; `pip install 'waystation[spark]'` brings it")

from waystation.spark.reading.columns import Columns, constant, padded  # noqa: E402
from waystation.spark.reading.decoding import decode, open_batches  # noqa: E402

pytestmark = pytest.mark.quick

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("id", pa.string()),
        ("priority", pa.int32()),
        ("contentType", pa.string()),
    ]
)
END = 2**62

headers = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=200)), max_size=4).map(tuple)
record = st.tuples(
    st.integers(0, 5),  # how many offsets are left out before it
    st.integers(-(10**6), 10**12),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=300) | st.integers(0, 20_000).map(bytes),
    st.just(()) | headers,
)


def batch_of(rows: list[Any], base_offset: int, codec: int = 0, attributes: int = 0, base_time: int = 1_700) -> bytes:
    offset = base_offset - 1
    made = []
    for skipped, timestamp, key, value, pairs in rows:
        offset += 1 + skipped
        made.append(Record(offset, base_time + timestamp, key, value, pairs))
    body, count = encode_records(made, base_offset, base_time)
    last = made[-1].offset - base_offset if made else 0
    highest = max((one.timestamp for one in made), default=base_time)
    header = Header(base_offset, 0, 0, 2, 0, attributes | codec, last, base_time, highest, -1, -1, -1, count)
    return bytes(assemble(header, compress(codec, body)))


def rows_of(data: bytes, first: int = 0, end: int = END, aborted: Any = ()) -> list[dict[str, Any]]:
    opened = open_batches(padded(data), first, end, aborted)
    fields = decode(opened)
    if not len(fields.offset):
        return []
    batch = Columns(SCHEMA, "t", 3).batch(opened.data, fields)
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    milliseconds = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for row, time in zip(found, milliseconds, strict=True):
        row["timestamp"] = None if time is None else time // 1000
    return found


def as_record(row: dict[str, Any]) -> Record:
    pairs = tuple((pair["key"], pair["value"]) for pair in row["headers"] or ())
    time = -1 if row["timestamp"] is None else row["timestamp"]
    return Record(row["offset"], time, row["key"], row["value"], pairs)


@given(st.lists(st.tuples(st.lists(record, min_size=1, max_size=30), st.integers(0, 4)), max_size=4))
def test_columns_say_what_records_of_says(batches: list[tuple[list[Any], int]]) -> None:
    data, expected, at = b"", [], 0
    for rows, codec in batches:
        one = batch_of(rows, at, codec)
        expected += list(records_of(one))
        at = expected[-1].offset + 1
        data += one
    assert [as_record(row) for row in rows_of(data)] == expected


@given(st.integers(0, 300), st.integers(0, 400), st.integers(1, 300))
def test_equal_lengths_and_changing_ones_in_one_batch(before: int, same: int, size: int) -> None:
    rows: list[Any] = [(0, 0, None, bytes(n % 7), ()) for n in range(before)]
    rows += [(0, 0, b"k", bytes(size), ()) for _ in range(same)]
    rows += [(0, 0, None, bytes(size + n % 100), ()) for n in range(before)]
    if rows:
        data = batch_of(rows, 5)
        assert [as_record(row) for row in rows_of(data)] == list(records_of(data))


@given(
    st.integers(100, 400),
    st.none() | st.integers(0, 70),
    st.none() | st.integers(0, 200),
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from([1, 63, 64, 8191, 8192, 10**6, 2**40, -1, -70])), max_size=3
    ),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
)
def test_runs_of_records_that_are_not_quite_alike(
    count: int, key: int | None, value: int | None, later: list[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    """Of one length each, with times that take more or fewer bytes than the others', and with bytes that are wrong."""
    times, content = dict(later), None if value is None else bytes(value)
    keys = [None if key is None else bytes([n % 256]) * key for n in range(count)]
    rows: list[Any] = [(0, times.get(n, 0), keys[n], content, ()) for n in range(count)]
    whole = batch_of(rows, 7)
    body = bytearray(whole[HEADER_SIZE:])
    for position, byte in changes:
        body[position % len(body)] = byte
    data = bytes(assemble(read_header(whole), bytes(body)))
    try:
        expected = list(records_of(data))
    except (InvalidRecord, TooLarge):
        with pytest.raises(InvalidRecord):
            rows_of(data)
        return
    assert [as_record(row) for row in rows_of(data)] == expected


def test_rows_are_read_without_pandas() -> None:
    """It would be about 0.2 s of the start of each worker, and pyarrow loads it without being asked."""
    plain = """
import sys
from tests.spark.test_decoding import batch_of, open_batches, decode, Columns, SCHEMA, padded
loaded = "pandas" in sys.modules
opened = open_batches(padded(batch_of([(0, 0, b"k", b"v", ()), (0, 0, None, b"w", ())], 0)), 0, 9)
assert Columns(SCHEMA, "t", 3).batch(opened.data, decode(opened)).num_rows == 2
assert loaded == ("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", plain], check=True)


def test_a_constant_column_is_as_long_as_it_should_be_however_long_it_was() -> None:
    for count in (3, 1, 0, 70_000, 300_000, 5):
        for kind, value in ((pa.string(), "täglich"), (pa.string(), ""), (pa.int32(), 7), (pa.string(), None)):
            column = constant(kind, value, count)
            column.validate(full=True)
            assert len(column) == count
            assert not count or set(column.to_pylist()) == {value}


@settings(max_examples=150)
@given(st.lists(record, min_size=1, max_size=12), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_bytes_that_are_no_records_are_refused_as_records_of_refuses_them(
    rows: list[Any], changes: list[tuple[int, int]]
) -> None:
    whole = batch_of(rows, 0)
    body = bytearray(whole[HEADER_SIZE:])
    for position, byte in changes:
        body[position % len(body)] = byte
    data = bytes(assemble(read_header(whole), bytes(body)))
    try:
        expected = list(records_of(data))
    except (InvalidRecord, TooLarge):
        with pytest.raises(InvalidRecord):
            rows_of(data)
        return
    found = [as_record(row) for row in rows_of(data)]
    largest = (2**63 - 1) // 1000
    assert found == [one._replace(timestamp=one.timestamp if abs(one.timestamp) <= largest else -1) for one in expected]


def test_a_range_begins_and_ends_within_a_batch() -> None:
    data = batch_of([(0, 0, None, b"%d" % n, ()) for n in range(20)], 100)
    opened = open_batches(padded(data), 105, 110)
    assert opened.next_offset == 110
    assert len(decode(opened).offset) == 20  # the reader cuts; it knows the filters too


def test_the_brokers_time_wins_where_the_topic_wants_it() -> None:
    batch = build([(None, b"a", ()), (None, b"b", ())], 5)
    stamp(batch, 0, 77)
    rows = rows_of(bytes(batch))
    assert read_header(batch).attributes & LOG_APPEND_TIME
    assert [(row["timestamp"], row["timestampType"]) for row in rows] == [(77, 1), (77, 1)]


def test_a_record_without_a_time_has_none() -> None:
    assert rows_of(bytes(build([(None, b"a", ())], -1)))[0]["timestamp"] is None


def test_fields_of_a_message_are_columns_and_stay_headers() -> None:
    pairs = (
        ("x-message-id", b"first"),
        ("x-message-id", b"order-7"),
        ("x-priority", b"7"),
        ("x-content-type", b"text/plain"),
        ("own", None),
    )
    wrong = (("x-priority", b"07"), ("x-message-id", b""), ("x-content-type", b"\xff"))
    good, bad, plain = rows_of(bytes(build([(None, b"a", pairs), (None, b"b", wrong), (None, b"c", ())], 1)))
    assert (good["id"], good["priority"], good["contentType"]) == ("order-7", 7, "text/plain")
    assert [(one["key"], one["value"]) for one in good["headers"]] == list(pairs)
    assert (bad["id"], bad["priority"], bad["contentType"]) == (None, 0, None)
    assert (plain["id"], plain["priority"], plain["contentType"], plain["headers"]) == (None, 0, None, None)


def test_aborted_transactions_and_markers_bring_no_rows() -> None:
    data, at = b"", 0

    def add(batch: bytearray, size: int) -> None:
        nonlocal data, at
        place(batch, at, 0)
        data += bytes(batch)
        at += size

    def sent(producer: int, value: bytes) -> bytearray:
        return build([(None, value, ())], 1, producer_id=producer, producer_epoch=0, attributes=TRANSACTIONAL)

    add(sent(1, b"aborted"), 1)
    add(sent(2, b"kept"), 1)
    add(build([(None, b"plain", ())], 1), 1)
    add(build_marker(1, 0, False, 0, 1), 1)
    add(sent(1, b"kept later"), 1)
    add(build_marker(2, 0, True, 0, 1), 1)
    assert read_header(build_marker(1, 0, False, 0, 1)).attributes & CONTROL
    aborted = [(1, 0)]
    assert [row["value"] for row in rows_of(data, aborted=aborted)] == [b"kept", b"plain", b"kept later"]
    assert open_batches(padded(data), 0, END, aborted).next_offset == 6


def test_a_flipped_bit_is_noticed() -> None:
    data = bytearray(batch_of([(0, 0, None, b"hello", ())], 0))
    data[-3] ^= 1
    with pytest.raises(Exception, match="CRC"):
        rows_of(bytes(data))
