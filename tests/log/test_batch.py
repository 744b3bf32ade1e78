"""Record batches, against the readers and writers of two other projects."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from waystation.errors import CorruptBatch, InvalidRecord, UnsupportedFormat
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Header,
    Record,
    assemble,
    build,
    build_marker,
    build_values,
    check_batch,
    encode_records,
    marker_commits,
    place,
    read_header,
    read_varint,
    records_of,
    scan,
    stamp,
    values_of,
    write_varint,
)
from waystation.log.batches.compression import NONE, compress

NOW_MS = 1_772_366_400_000
CODECS = range(5)

octets = st.none() | st.binary(max_size=80)
record_headers = st.lists(st.tuples(st.text(max_size=8), octets), max_size=3).map(tuple)
contents = st.lists(
    st.tuples(octets, octets, record_headers, st.integers(min_value=0, max_value=2**40)), min_size=1, max_size=12
)


def made_of(content: list[tuple[Any, ...]], codec: int, base_offset: int = 0, **fields: Any) -> bytearray:
    """A batch with a timestamp of its own for every record, which `build` has no need for."""
    records = [Record(base_offset + i, ts, key, value, headers) for i, (key, value, headers, ts) in enumerate(content)]
    body, count = encode_records(records, base_offset, records[0].timestamp)
    latest = max(record.timestamp for record in records)
    header = Header(base_offset, 0, 0, 2, 0, codec, count - 1, records[0].timestamp, latest, -1, -1, -1, count)
    return assemble(header._replace(**fields), compress(codec, body))


def changed(batch: bytearray, **fields: Any) -> bytearray:
    """The batch with other header fields and a CRC that is right for them."""
    return assemble(read_header(batch)._replace(**fields), bytes(batch[HEADER_SIZE:]))


# -- others read what we write, we read what others write --------------------------------------------------------------


@given(content=contents, codec=st.sampled_from(CODECS), base=st.integers(min_value=0, max_value=2**62))
def test_what_we_write_is_read_by_kafka_python(content: list[tuple[Any, ...]], codec: int, base: int) -> None:
    batch = bytes(made_of(content, codec, base))
    theirs = KafkaPythonBatch(batch)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.last_offset, theirs.compression_type) == (base, base + len(content) - 1, codec)
    seen = [(r.offset - base, r.key, r.value, tuple(r.headers), r.timestamp) for r in theirs]
    assert seen == [(i, key, value, headers, ts) for i, (key, value, headers, ts) in enumerate(content)]


@given(content=contents, codec=st.sampled_from(CODECS))
def test_what_aiokafka_writes_is_read_by_us(content: list[tuple[Any, ...]], codec: int) -> None:
    builder = AiokafkaBuilder(2, codec, 1, 4_000, 3, 77, 1 << 20)
    for i, (key, value, headers, ts) in enumerate(content):
        builder.append(i, ts, key, value, list(headers))
    batch = bytearray(builder.build())
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4_000, 3, 77)
    assert header.transactional
    assert header.record_count == len(content)
    assert header.max_timestamp == max(ts for *_, ts in content)
    seen = [(record.offset, record.key, record.value, record.headers, record.timestamp) for record in records_of(batch)]
    assert seen == [(i, key, value, headers, ts) for i, (key, value, headers, ts) in enumerate(content)]


@given(value=st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_a_varint_reads_back(value: int) -> None:
    out = bytearray(b"before")
    write_varint(out, value)
    assert read_varint(out + b"after", 6) == (value, len(out))


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, b"\0"), (-1, b"\x01"), (1, b"\x02"), (63, b"\x7e"), (64, b"\x80\x01"), (-65, b"\x81\x01")],
)
def test_varints_are_the_zigzag_ones_of_protocol_buffers(number: int, encoded: bytes) -> None:
    out = bytearray()
    write_varint(out, number)
    assert out == encoded


def test_a_varint_that_never_ends_or_has_too_many_bits_is_refused() -> None:
    with pytest.raises(InvalidRecord):
        read_varint(b"\xff" * 20, 0)
    with pytest.raises(InvalidRecord):
        read_varint(b"\xff" * 9 + b"\x7f", 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff\xff", 0)


# -- what is no batch --------------------------------------------------------------------------------------------------

GOOD = bytes(build([(b"k", b"v", (("h", b"x"),))] * 3, NOW_MS))


@pytest.mark.parametrize("size", [*range(0, HEADER_SIZE + 2), len(GOOD) - 1])
def test_a_batch_that_ends_early_is_refused(size: int) -> None:
    with pytest.raises((CorruptBatch, UnsupportedFormat)):
        check_batch(GOOD[:size])


def test_a_batch_with_something_behind_it_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        check_batch(GOOD + b"\0")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_told_what_to_do(magic: int) -> None:
    for size in (20, len(GOOD)):
        old = bytearray(GOOD[:size])
        old[16] = magic
        with pytest.raises(UnsupportedFormat, match="v2"):
            check_batch(old)


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_formats_of_the_future_are_refused(magic: int) -> None:
    strange = bytearray(GOOD)
    strange[16] = magic
    with pytest.raises(CorruptBatch):
        check_batch(strange)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, len(GOOD) - 13, len(GOOD) - 11, 2**31 - 1])
def test_a_length_that_is_not_the_batchs_is_refused(length: int) -> None:
    wrong = bytearray(GOOD)
    struct.pack_into(">i", wrong, 8, length)
    with pytest.raises(CorruptBatch):
        check_batch(wrong)


@given(position=st.integers(min_value=17, max_value=len(GOOD) - 1), bit=st.integers(min_value=0, max_value=7))
def test_any_flipped_bit_behind_the_crc_is_found(position: int, bit: int) -> None:
    rotten = bytearray(GOOD)
    rotten[position] ^= 1 << bit
    with pytest.raises(CorruptBatch):
        check_batch(rotten)


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": -1},
        {"last_offset_delta": -1},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2, "attributes": 4},
        {"attributes": 5},
        {"attributes": 7},
    ],
    ids=str,
)
def test_counts_and_codecs_that_cannot_be_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidRecord):
        check_batch(changed(bytearray(GOOD), **fields))


def body_of(*records: bytes) -> bytes:
    return b"".join(bytes([len(record) << 1]) + record for record in records)


PLAIN = b"\0\0\0\x01\x01\0"  # attributes, timestamp delta 0, offset delta 0, no key, no value, no headers


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(b"", 1, id="no record"),
        pytest.param(body_of(PLAIN), 2, id="one record of two"),
        pytest.param(body_of(PLAIN, PLAIN), 1, id="two records of one"),
        pytest.param(body_of(PLAIN) + b"\0", 1, id="a byte too many"),
        pytest.param(b"\x01" + PLAIN, 1, id="negative length"),
        pytest.param(b"\x0e" + PLAIN, 1, id="length past the end"),
        pytest.param(b"\x0a" + PLAIN, 1, id="length too short"),
        pytest.param(body_of(b"\0\0\0\x14abc\x01\0"), 1, id="key longer than the record"),
        pytest.param(body_of(b"\0\0\0\x01\x14abc\0"), 1, id="value longer than the record"),
        pytest.param(body_of(b"\0\0\0\x01\x01\x01"), 1, id="negative header count"),
        pytest.param(body_of(b"\0\0\0\x01\x01\xfe\xff\x7f"), 1, id="a million headers"),
        pytest.param(body_of(b"\0\0\0\x01\x01\x02\x01\x01"), 1, id="header without a name"),
        pytest.param(body_of(b"\0\0\0\x01\x01\x02\x04\xff\xfe\x01"), 1, id="header name that is not text"),
        pytest.param(body_of(b"\0\0\x02\x01\x01\0"), 1, id="offset past the batch"),
        pytest.param(body_of(b"\0\0\x01\x01\x01\0"), 1, id="offset before the batch"),
        pytest.param(
            body_of(b"\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\x01\x01\0"), 1, id="timestamp past 64 bits"
        ),
        pytest.param(body_of(b"\0\0\0"), 1, id="record that stops"),
    ],
)
def test_records_that_do_not_parse_are_refused(body: bytes, count: int) -> None:
    header = Header(0, 0, 0, 2, 0, NONE, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
    with pytest.raises(InvalidRecord):
        list(records_of(assemble(header, body)))


@given(noise=st.binary(max_size=60), count=st.integers(min_value=0, max_value=5))
def test_noise_is_records_or_refused_but_never_another_error(noise: bytes, count: int) -> None:
    header = Header(0, 0, 0, 2, 0, NONE, 10, NOW_MS, NOW_MS, -1, -1, -1, count)
    try:
        assert len(list(records_of(assemble(header, noise)))) == count
    except InvalidRecord:
        pass


# -- walking -----------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(min_value=0, max_value=300), max_size=6), cut=st.integers(min_value=0, max_value=400))
def test_a_scan_gives_the_whole_batches_and_no_more(sizes: list[int], cut: int) -> None:
    made = [bytes(build([(None, b"x" * size, ())], NOW_MS)) for size in sizes]
    data = b"".join(made)
    data = data[: max(0, len(data) - cut)]
    expected, end = 0, 0
    while expected < len(made) and end + len(made[expected]) <= len(data):
        end += len(made[expected])
        expected += 1
    found = list(scan(data))
    assert len(found) == expected
    assert [data[at : at + header.size] for at, header in found] == made[:expected]


@given(noise=st.binary(max_size=200))
def test_a_scan_of_noise_ends(noise: bytes) -> None:
    for position, header in scan(noise):
        assert 0 <= position <= position + header.size <= len(noise)


# -- what the broker changes in place ----------------------------------------------------------------------------------


def test_offset_and_epoch_are_given_without_touching_the_checksum() -> None:
    batch = bytearray(GOOD)
    place(batch, 2**40, 9)
    header = check_batch(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (2**40, 2**40 + 2, 9)
    assert [record.offset for record in records_of(batch)] == [2**40, 2**40 + 1, 2**40 + 2]


@pytest.mark.parametrize("codec", CODECS)
def test_the_brokers_time_replaces_that_of_every_record(codec: int) -> None:
    batch = build([(b"k", b"v", ())] * 3, 5, codec=codec, attributes=TRANSACTIONAL)
    stamp(batch, read_header(batch).attributes, NOW_MS)
    header = check_batch(batch)
    assert header.attributes == codec | TRANSACTIONAL | LOG_APPEND_TIME
    assert {record.timestamp for record in records_of(batch)} == {NOW_MS}
    assert {record.timestamp for record in KafkaPythonBatch(bytes(batch))} == {NOW_MS}


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_how_its_transaction_ended(commit: bool) -> None:
    marker = build_marker(12, 3, commit, 5, NOW_MS)
    header = check_batch(marker)
    assert header.control
    assert header.transactional
    assert marker_commits(marker, header) is commit
    assert KafkaPythonBatch(bytes(marker)).is_control_batch


def test_a_control_batch_of_another_kind_is_no_marker() -> None:
    other = build([(struct.pack(">hh", 0, 7), b"", ())], NOW_MS, attributes=batches.CONTROL)
    assert marker_commits(other, read_header(other)) is None
    keyless = build([(None, b"", ())], NOW_MS, attributes=batches.CONTROL)
    assert marker_commits(keyless, read_header(keyless)) is None


@pytest.mark.parametrize(
    ("base", "delta", "last"), [(0, 0, 0), (5, 4, 9), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0)]
)
def test_sequence_numbers_wrap_to_zero(base: int, delta: int, last: int) -> None:
    batch = build([(None, b"", ())], NOW_MS, producer_id=1, producer_epoch=0, base_sequence=base)
    assert read_header(changed(batch, last_offset_delta=delta)).last_sequence == last


@given(
    values=st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=3), min_size=1, max_size=80),
    producer=st.sampled_from([(-1, -1, 0), (7, 3, TRANSACTIONAL)]),
)
def test_values_in_pieces_make_the_same_batch(values: list[list[bytes]], producer: tuple[int, int, int]) -> None:
    producer_id, epoch, attributes = producer
    made, header = build_values(values, NOW_MS, producer_id=producer_id, producer_epoch=epoch, attributes=attributes)
    wanted = build(
        [(None, b"".join(value), ()) for value in values],
        NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes=attributes,
    )
    assert made == wanted
    assert header == read_header(wanted)


@pytest.mark.parametrize("codec", CODECS)
def test_values_are_those_of_the_records(codec: int) -> None:
    batch = build([(b"k", b"one", (("h", b"v"),)), (None, None, ()), (None, b"x" * 300, ())], NOW_MS, codec=codec)
    place(batch, 40, 1)
    header = read_header(batch)
    found = [(offset, None if value is None else bytes(value)) for offset, value in values_of(batch, header)]
    assert found == [(record.offset, record.value) for record in records_of(batch, header)]


def test_the_header_is_sixty_one_bytes() -> None:
    assert HEADER.size == HEADER_SIZE == 61
