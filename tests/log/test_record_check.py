"""The check of a producer's records: fast where they are alike, and never of another opinion than a plain decoder."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.errors import InvalidRecord
from waystation.log.batch import LOG_APPEND_TIME, MAGIC, Header, Record, encode_records, parse_records
from waystation.log.record_check import MAX_BATCH_RECORDS, check_records

BASE_MS = 1_700_000_000_000


def header_of(count: int, attributes: int = 0, base_ms: int = BASE_MS) -> Header:
    return Header(0, 0, -1, MAGIC, 0, attributes, count - 1, base_ms, base_ms, -1, -1, -1, count)


def body_of(records: list[Record]) -> bytes:
    return encode_records(records, 0, BASE_MS)[0]


def accepts(body: bytes, header: Header) -> bool:
    try:
        check_records(body, header)
    except InvalidRecord:
        return False
    return True


class Refused(Exception):
    pass


def plain_decoder_accepts(body: bytes, header: Header) -> bool:
    """What Kafka's protocol says, written down without a thought of speed."""
    position = 0

    def number(most: int) -> int:
        nonlocal position
        result = 0
        for i in range(most):
            if position >= len(body):
                raise Refused
            byte = body[position]
            position += 1
            result |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if result >= 2 ** (32 if most == 5 else 64):
                    raise Refused
                return (result >> 1) ^ -(result & 1)
        raise Refused

    def field() -> bytes | None:
        nonlocal position
        size = number(5)
        if size < -1 or position + max(size, 0) > len(body):
            raise Refused
        found = body[position : position + max(size, 0)]
        position += max(size, 0)
        return None if size < 0 else found

    try:
        for delta in range(header.record_count):
            size = number(5)
            end = position + size
            position += 1
            moment = header.base_timestamp + number(10)
            if size < 0 or end > len(body) or number(5) != delta:
                raise Refused
            if not header.attributes & LOG_APPEND_TIME and not -(2**63) <= moment < 2**63:
                raise Refused
            field(), field()
            count = number(5)
            if not 0 <= count <= len(body):
                raise Refused
            for _ in range(count):
                name = field()
                if name is None:
                    raise Refused
                name.decode()
                field()
            if position != end:
                raise Refused
    except (Refused, UnicodeDecodeError):
        return False
    return position == len(body)


texts = st.sampled_from([b"", b"k", b"key-12345", b"x" * 62, b"x" * 63, b"x" * 64, b"x" * 100, b"y" * 8200, None])
pairs = st.tuples(st.sampled_from(["h", "traceparent", "ü" * 3]), st.sampled_from([b"", b"v" * 55, None]))


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, Header]:
    """Stretches of records that are alike or nearly so, as producers make them."""
    records: list[Record] = []
    at = BASE_MS
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.sampled_from([1, 2, 17, 40, 70, 140, 300]))
        key, value = draw(texts), draw(texts)
        headers = tuple(draw(st.lists(pairs, max_size=2)))
        step = draw(st.sampled_from([0, 1, 70, -3, 2**33]))
        spread = draw(st.sampled_from([0, 0, 3, 40]))
        rnd = random.Random(draw(st.integers(0, 99)))
        for _ in range(count):
            at = min(2**62, max(0, at + step))
            grown = value if value is None or not spread else value + b"z" * rnd.randrange(spread)
            records.append(Record(len(records), at, key, grown, headers))
    return body_of(records), header_of(len(records))


@given(batches())
@settings(max_examples=60, deadline=None)
def test_what_producers_make_passes(made: tuple[bytes, Header]) -> None:
    check_records(*made)


@given(batches(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_batch_is_judged_as_by_a_plain_decoder(made: tuple[bytes, Header], data: st.DataObject) -> None:
    body, header = made
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.sampled_from(["set", "flip", "cut", "insert", "count"])):
            case "set":
                changed[at] = data.draw(st.integers(0, 255))
            case "flip":
                changed[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut" if len(changed) > 1:
                del changed[at]
            case "insert":
                changed.insert(at, data.draw(st.sampled_from([0, 1, 2, 0x80, 0xFF])))
            case "count":
                header = header._replace(record_count=max(1, header.record_count + data.draw(st.sampled_from([-1, 1]))))
    assert accepts(bytes(changed), header) == plain_decoder_accepts(bytes(changed), header)


def test_every_byte_of_regular_records_is_judged_as_by_a_plain_decoder() -> None:
    """Both fast ways: one size, and many sizes. Each byte of the first, a middle and the last record in turn."""
    for spread in (0, 30):
        rnd = random.Random(7)
        made = [Record(i, BASE_MS + i // 50, None, b"v" * (70 + rnd.randrange(spread + 1)), ()) for i in range(400)]
        body, header = body_of(made), header_of(400)
        size = len(body) // 400
        for start in (0, 200 * size, len(body) - size - 5):
            for at in range(start, start + size + 5):
                for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, body[at] ^ 1, body[at] ^ 0x80, (body[at] + 2) % 256):
                    changed = body[:at] + bytes((byte,)) + body[at + 1 :]
                    assert accepts(changed, header) == plain_decoder_accepts(changed, header), (spread, at, byte)


@given(batches(), st.data())
@settings(max_examples=100, deadline=None)
def test_what_passes_is_read_by_the_decoder(made: tuple[bytes, Header], data: st.DataObject) -> None:
    body, header = made
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if accepts(bytes(changed), header):
        assert len(list(parse_records(bytes(changed), header))) == header.record_count


@pytest.mark.parametrize("width", [1, 2, 3])
def test_offsets_of_every_width_are_counted(width: int) -> None:
    count = {1: 60, 2: 3000, 3: 20_000}[width]
    records = [Record(i, BASE_MS, None, b"v" * 10, ()) for i in range(count)]
    check_records(body_of(records), header_of(count))
    for wrong in (count - 1, count // 2):
        bad = [*records[:wrong], records[wrong]._replace(offset=wrong - 1), *records[wrong + 1 :]]
        assert not accepts(body_of(bad), header_of(count))


def test_more_records_than_a_batch_may_have_are_refused_unseen() -> None:
    with pytest.raises(InvalidRecord, match=str(MAX_BATCH_RECORDS)):
        check_records(b"", header_of(MAX_BATCH_RECORDS + 1))
    most = body_of([Record(i, BASE_MS, None, None, ()) for i in range(MAX_BATCH_RECORDS)])
    check_records(most, header_of(MAX_BATCH_RECORDS))


def test_a_time_that_does_not_fit_into_64_bits_is_refused() -> None:
    body = encode_records([Record(0, 2**62, None, b"v", ())], 0, 0)[0]
    assert accepts(body, header_of(1, base_ms=0))
    assert not accepts(body, header_of(1, base_ms=2**62 + 2**61 + 2**61 - 1))
    assert accepts(body, header_of(1, LOG_APPEND_TIME, 2**63 - 1))
