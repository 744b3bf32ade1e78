"""The check of a producer's records: fast where they are alike, and never of another opinion than a plain decoder."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.errors import InvalidRecord
from waystation.log.batches.batch import LOG_APPEND_TIME, MAGIC, Header, Record, encode_records, parse_records
from waystation.log.batches.record_check import MAX_BATCH_RECORDS, _Check, check_records

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


def accepts_inside(body: bytes, header: Header, before: bytes, behind: bytes) -> bool:
    """As `accepts`, of records that are in the middle of a buffer."""
    try:
        check_records(bytearray(before + body + behind), header, len(before), len(before) + len(body))
    except InvalidRecord:
        return False
    return True


def accepts_one_by_one(body: bytes, header: Header) -> bool:
    """The slow way alone."""
    base = None if header.attributes & LOG_APPEND_TIME else header.base_timestamp
    try:
        return _Check(body, len(body), header.record_count, base)._one_by_one(0, 0, header.record_count) == len(body)
    except (InvalidRecord, IndexError):
        return False


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
        spreads = [draw(st.sampled_from([0, 0, 3, 40])) for _ in range(3)]
        rnd = random.Random(draw(st.integers(0, 99)))
        for _ in range(count):
            at = min(2**62, max(0, at + step))
            values = [grown(rnd, text, spread) for text, spread in zip((key, value), spreads, strict=False)]
            named = tuple((name, grown(rnd, text, spreads[2])) for name, text in headers)
            records.append(Record(len(records), at, values[0], values[1], named))
    return body_of(records), header_of(len(records))


def grown(rnd: random.Random, text: bytes | None, spread: int) -> bytes | None:
    return text if text is None or not spread else text + b"z" * rnd.randrange(spread)


def changed_at_random(body: bytes, rnd: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rnd.choice((1, 1, 2, 3))):
        at = rnd.randrange(len(changed))
        match rnd.randrange(4):
            case 0:
                changed[at] = rnd.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 1:
                changed[at] ^= 1 << rnd.randrange(8)
            case 2:
                del changed[at]
            case 3:
                changed.insert(at, rnd.choice((0, 1, 2, 0x80, 0xFF)))
    return bytes(changed)


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


@given(batches(), st.data())
@settings(max_examples=150, deadline=None)
def test_records_in_the_middle_of_a_buffer_are_judged_as_if_they_were_alone(
    made: tuple[bytes, Header], data: st.DataObject
) -> None:
    """What is around them is another batch's, or nothing that was ever a record."""
    body, header = made
    if data.draw(st.booleans()):
        body = changed_at_random(body, random.Random(data.draw(st.integers(0, 2**32))))
    count = header.record_count + data.draw(st.sampled_from([0, 0, 1]))
    header = header._replace(record_count=count)
    around = data.draw(
        st.sampled_from([b"", b"\0" * 40, b"\xff" * 40, body, body_of([Record(count - 1, BASE_MS, None, b"")])])
    )
    assert accepts_inside(body, header, around, around) == plain_decoder_accepts(body, header)


KINDS = {
    "one size": ((0, None), (0, b"v" * 70), ()),
    "values of any size": ((0, None), (90, b"v" * 70), ()),
    "values of about 64 bytes": ((0, None), (20, b"v" * 50), ()),
    "small records": ((5, b"k"), (9, b"v"), ()),
    "keys and values of any size": ((50, b"k"), (90, b"v" * 70), ()),
    "headers of one size": ((0, b"key"), (0, b"v" * 70), (("traceparent", 0), ("h", 0))),
    "a header of any size": ((0, None), (90, b"v" * 70), (("traceparent", 30),)),
    "keys and headers of any size": ((50, b"k"), (90, b"v" * 70), (("ü", 5), ("content-type", 90), ("h", 3))),
    "more headers than there are columns": ((0, None), (0, b"v"), tuple((f"name-{i}", 0) for i in range(20))),
    "large": ((0, None), (3000, b"v" * 7000), ()),
}


def made_of(kind: str, count: int, seed: int = 5) -> bytes:
    (key_spread, key), (spread, value), names = KINDS[kind]
    rnd = random.Random(seed)
    records = []
    for i in range(count):
        headers = tuple((name, grown(rnd, b"w", wide)) for name, wide in names)
        records.append(Record(i, BASE_MS + i // 30, grown(rnd, key, key_spread), grown(rnd, value, spread), headers))
    return body_of(records)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_ways_are_of_the_slow_ones_opinion(kind: str) -> None:
    """Of each kind of records that a fast way was made for: as they are, and changed in many random places."""
    rnd = random.Random(kind)
    for count in (1, 15, 17, 64, 65, 90, 400):
        body, header = made_of(kind, count), header_of(count)
        assert accepts(body, header)
        for _ in range(150):
            changed = changed_at_random(body, rnd)
            assert accepts(changed, header) == accepts_one_by_one(changed, header)


@pytest.mark.parametrize("kind", ["one size", "keys and values of any size", "a header of any size"])
def test_every_width_of_offsets_is_judged_alike_by_the_fast_ways_and_the_slow(kind: str) -> None:
    """17,000 records: offsets of one, two and three bytes, and two of what the third byte can be."""
    count = 17_000
    body, header = made_of(kind, count), header_of(count)
    check_records(body, header)
    rnd = random.Random(3)
    ends = [0, 0]
    while len(ends) <= count:
        ends.append(_Check(body, len(body), count, BASE_MS)._one_by_one(ends[-1], len(ends) - 2, len(ends) - 1))
    for number in (0, 62, 63, 64, 65, 1100, 8190, 8191, 8192, 8193, 12_000, 16_383, 16_384, 16_390, count - 1):
        for _ in range(6):
            at = ends[number + 1] + rnd.randrange(9)  # of the numbers in front
            changed = bytearray(body)
            changed[at] ^= 1 << rnd.randrange(8)
            assert accepts(bytes(changed), header) == accepts_one_by_one(bytes(changed), header), (number, at)


def test_records_that_are_too_long_for_the_width_of_their_length_are_refused() -> None:
    """From offset 64 on, records are a byte longer: here too long for a length of one byte, which says 0 instead."""
    records = [Record(i, BASE_MS, None, b"v" * 57, ()) for i in range(64)]
    body, longer = body_of(records), body_of([Record(64, BASE_MS, None, b"v" * 57, ())])
    assert body[0] == 2 * 63
    assert longer[:2] == b"\x80\x01"
    check_records(body + longer, header_of(65))
    rest = b""
    for i in range(64, 100):
        rest += b"\0" + body_of([Record(i, BASE_MS, None, b"v" * 57, ())])[2:]
    assert not plain_decoder_accepts(body + rest, header_of(100))
    assert not accepts(body + rest, header_of(100))


def test_a_record_that_reaches_into_what_is_behind_its_batch_is_refused() -> None:
    """However its records are gone through, and whatever is there."""
    for spread in (0, 30):
        rnd = random.Random(spread)
        records = [Record(i, BASE_MS, None, b"v" * (70 + rnd.randrange(spread + 1)), ()) for i in range(50)]
        body = body_of(records)
        for cut in (1, 40, 100):
            inside, behind = body[:-cut], body[-cut:]
            assert accepts_inside(body, header_of(50), b"before", b"behind")
            assert not accepts_inside(inside, header_of(50), b"before", behind)


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
