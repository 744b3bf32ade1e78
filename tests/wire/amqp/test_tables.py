"""Field tables: pamqp reads what we write and we read what it writes; any bytes are a table or an error."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from waystation.wire.amqp.errors import AmqpError
from waystation.wire.amqp.tables import MAX_DEPTH, Long, decode_table, encode_table

NOON = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

moments = st.integers(0, 2**32 - 1).map(lambda seconds: EPOCH + timedelta(seconds=seconds))
decimals = st.builds(lambda number, scale: Decimal(number).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 9))
scalars = (
    st.text()
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
    | st.binary()
    | moments
)
names = st.text(max_size=60)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=20)
tables = st.dictionaries(names, values, max_size=8)


def read(encoded: bytes) -> dict[str, Any]:
    """The table behind its length."""
    assert struct.unpack_from(">I", encoded)[0] == len(encoded) - 4
    return decode_table(encoded, 4, len(encoded))


def entry(letter: bytes, value: bytes) -> bytes:
    return b"\x01k" + letter + value


def with_text_for_bytes(value: Any) -> Any:
    """pamqp reads byte arrays as bytearrays."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [with_text_for_bytes(one) for one in value]
    if isinstance(value, dict):
        return {name: with_text_for_bytes(one) for name, one in value.items()}
    return value


# -- both ways ---------------------------------------------------------------------------------------------------------


@given(tables)
def test_what_is_written_is_read_again(table: dict[str, Any]) -> None:
    found = read(encode_table(table))
    assert found == table
    assert [type(value) for value in found.values()] == [type(value) for value in table.values()]


@given(tables)
def test_pamqp_reads_what_is_written(table: dict[str, Any]) -> None:
    encoded = encode_table(table)
    consumed, found = decode.field_table(encoded)
    assert consumed == len(encoded)
    assert with_text_for_bytes(found) == table


@given(
    st.dictionaries(
        st.text(max_size=30),
        st.recursive(
            st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | moments | st.floats(width=32),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=20), inner),
            max_leaves=15,
        ),
    )
)
def test_what_pamqp_writes_is_read(table: dict[str, Any]) -> None:
    found = read(encode.field_table(table))
    assert msgspec.msgpack.encode(found, order="deterministic") == msgspec.msgpack.encode(table, order="deterministic")


@given(decimals)
def test_decimals_are_read_as_their_text(number: Decimal) -> None:
    assert Decimal(read(encode.field_table({"k": number}))["k"]) == number
    assert Decimal(read(encode_table({"k": number}))["k"]) == number
    assert decode.field_table(encode_table({"k": number}))[1]["k"] == number


@given(tables)
def test_a_table_survives_in_a_stored_message(table: dict[str, Any]) -> None:
    """Headers are kept as msgpack; types that it does not have would not come back."""
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(table))
    assert kept == table
    assert read(encode_table(kept)) == table


@pytest.mark.parametrize(
    ("letter", "value", "expected"),
    [
        (b"t", b"\x00", False),
        (b"t", b"\x07", True),
        (b"b", b"\x80", -128),
        (b"B", b"\xff", 255),
        (b"s", b"\xff\xfe", -2),
        (b"u", b"\xff\xfe", 65534),
        (b"I", b"\xff\xff\xff\xff", -1),
        (b"i", b"\xff\xff\xff\xff", 2**32 - 1),
        (b"l", b"\xff" * 8, -1),
        (b"L", b"\xff" * 8, -1),
        (b"f", struct.pack(">f", 0.5), 0.5),
        (b"d", struct.pack(">d", 0.1), 0.1),
        (b"D", b"\x02" + struct.pack(">i", 314), "3.14"),
        (b"D", b"\x00" + struct.pack(">i", -7), "-7"),
        (b"S", struct.pack(">I", 2) + b"hi", "hi"),
        (b"S", struct.pack(">I", 2) + b"\xff\xfe", b"\xff\xfe"),
        (b"x", struct.pack(">I", 2) + b"hi", b"hi"),
        (b"T", struct.pack(">Q", int(NOON.timestamp())), NOON),
        (b"T", struct.pack(">Q", 1_700_000_000_123), 1_700_000_000_123),
        (b"V", b"", None),
        (b"A", struct.pack(">I", 3) + b"b\x01V", [1, None]),
        (b"F", struct.pack(">I", 4) + b"\x01at\x01", {"a": True}),
    ],
)
def test_every_type_is_read(letter: bytes, value: bytes, expected: object) -> None:
    data = entry(letter, value)
    found = decode_table(b"__" + data + b"__", 2, 2 + len(data))["k"]
    assert (type(found), found) == (type(expected), expected)


# -- what is written as what -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "letter"),
    [
        (5, b"I"),
        (-(2**31), b"I"),
        (2**31, b"l"),
        (Long(5), b"l"),
        (2**63, b"S"),
        (0.5, b"d"),
        (True, b"t"),
        (None, b"V"),
        ("text", b"S"),
        (b"bytes", b"x"),
        (bytearray(b"bytes"), b"x"),
        (NOON, b"T"),
        (datetime(1950, 1, 1, tzinfo=UTC), b"S"),
        (Decimal("3.14"), b"D"),
        (Decimal("1e400"), b"S"),
        (Decimal("NaN"), b"S"),
        ([], b"A"),
        ((1,), b"A"),
        ({}, b"F"),
        (msgspec.msgpack.Ext(7, b"data"), b"x"),
        (math.inf, b"d"),
    ],
)
def test_a_value_has_the_type_that_clients_know(value: object, letter: bytes) -> None:
    encoded = encode_table({"k": value})
    assert encoded[6:7] == letter
    read(encoded)


def test_names_too_long_for_a_short_string_are_cut_at_a_character() -> None:
    assert read(encode_table({"ä" * 200: 1})) == {"ä" * 127: 1}
    assert read(encode_table({"k": {7: 1}})) == {"k": {"7": 1}}


def test_a_moment_loses_its_fraction_only() -> None:
    assert read(encode_table({"k": NOON + timedelta(milliseconds=999)}))["k"] == NOON
    assert read(encode_table({"k": NOON.replace(tzinfo=None)}))["k"] == NOON


def test_what_is_deeper_than_anybody_reads_is_written_as_json() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 3):
        value = [value]
    found = read(encode_table({"k": value}))["k"]
    for _ in range(MAX_DEPTH):
        found = found[0]
    assert found == "[[[1]]]"


# -- bytes that are no table -------------------------------------------------------------------------------------------


def refused(data: bytes, start: int = 0, end: int | None = None) -> None:
    with pytest.raises(AmqpError) as caught:
        decode_table(data, start, len(data) if end is None else end)
    assert caught.value.code == 502
    assert caught.value.hard


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        data = b""
        for _ in range(levels):
            data = entry(b"F", struct.pack(">I", len(data)) + data)
        return data

    assert decode_table(nested(MAX_DEPTH), 0, len(nested(MAX_DEPTH)))
    refused(nested(MAX_DEPTH + 1))
    arrays = b""
    for _ in range(20_000):
        arrays = b"A" + struct.pack(">I", len(arrays)) + arrays
    refused(b"\x01k" + arrays)


@pytest.mark.parametrize(
    "data",
    [
        b"\x05abc",
        b"\x01k",
        entry(b"S", b"\x00\x00"),
        entry(b"S", b"\xff\xff\xff\xffabc"),
        entry(b"x", b"\x00\x00\x00\x09abc"),
        entry(b"F", b"\x00\x00\x00\x09abc"),
        entry(b"A", b"\x00\x00\x00\x02l\x00"),
        entry(b"l", b"\x00\x00"),
        entry(b"T", b"\x00\x00"),
        entry(b"D", b"\x00\x00"),
        entry(b"t", b""),
        entry(b"?", b"\x00"),
        b"\x01\xffV",
    ],
)
def test_broken_tables_are_refused(data: bytes) -> None:
    refused(data)
    refused(data + b"\x01kV" * 20, 0, len(data))


def test_a_table_longer_than_its_frame_is_refused() -> None:
    refused(b"\x01kV", 0, 4)
    refused(b"\x01kV", 2, 1)


def attempt(data: bytes, end: int) -> tuple[dict[str, Any] | None, int]:
    """The table, or the code of the refusal. Anything else is a failure."""
    try:
        return decode_table(data, 0, end), 0
    except AmqpError as error:
        return None, error.code


@given(st.binary(max_size=300))
def test_any_bytes_are_a_table_or_refused(data: bytes) -> None:
    found, code = attempt(data, len(data))
    if found is None:
        assert code == 502
    else:
        msgspec.msgpack.encode(found)
        read(encode_table(found))


@given(tables, st.data())
def test_damaged_tables_are_read_or_refused(table: dict[str, Any], data: st.DataObject) -> None:
    encoded = bytearray(encode_table(table)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    found, code = attempt(bytes(encoded), cut)
    assert code in (0, 502)
    msgspec.msgpack.encode(found)
