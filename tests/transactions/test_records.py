"""What is stored of a transactional id comes back the same, in the form that Kafka's own readers know."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Corrupt, NewerFormat
from waystation.transactions.machine import MAX_EPOCH, Producer, Transaction, TransactionState
from waystation.transactions.records import (
    ReservationKey,
    TransactionKey,
    decode_key,
    decode_reservation,
    decode_value,
    encode_key,
    encode_reservation,
    encode_value,
    partition_for,
)

INT64 = st.integers(0, 2**63 - 1)
EPOCH = st.integers(0, MAX_EPOCH)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from([state for state in TransactionState if state is not TransactionState.DEAD]))
    partitions = draw(st.frozensets(st.tuples(NAMES, st.integers(0, 2**31 - 1)), max_size=6))
    return Transaction(
        draw(NAMES),
        Producer(draw(INT64), draw(EPOCH)),
        draw(st.integers(1, 2**31 - 1)),
        draw(INT64),
        state,
        frozenset() if state is TransactionState.EMPTY else partitions,
        draw(st.integers(-1, 2**63 - 1)),
        last_epoch=draw(st.integers(-1, MAX_EPOCH)),
        previous_producer_id=draw(st.integers(-1, 2**63 - 1)),
        next_producer_id=draw(st.integers(-1, 2**63 - 1)),
        bumps_epoch=draw(st.booleans()),
    )


@given(transactions())
def test_a_stored_value_comes_back_the_same(txn: Transaction) -> None:
    assert decode_key(encode_key(txn.transactional_id)) == TransactionKey(txn.transactional_id)
    assert decode_value(txn.transactional_id, encode_value(txn)) == txn


@given(transactions(), st.data())
def test_a_torn_value_is_called_corrupt(txn: Transaction, data: st.DataObject) -> None:
    whole = encode_value(txn)
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Corrupt):
        decode_value(txn.transactional_id, torn)


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_called_corrupt(junk: bytes) -> None:
    for decode in (lambda: decode_value("x", junk), lambda: decode_key(junk), lambda: decode_reservation(junk)):
        try:
            decode()
        except (Corrupt, NewerFormat):
            pass


def test_the_layout_of_version_1_byte_by_byte() -> None:
    txn = Transaction(
        "shop",
        Producer(5, 6),
        60_000,
        1_000,
        TransactionState.PREPARE_COMMIT,
        frozenset({("a", 1), ("a", 2)}),
        900,
        last_epoch=5,
        next_producer_id=8,
        bumps_epoch=True,
    )
    expected = b"".join(
        [
            struct.pack(">hqhib", 1, 5, 6, 60_000, 2),
            bytes([2, 2]) + b"a" + bytes([3]) + struct.pack(">ii", 1, 2) + bytes([0]),
            struct.pack(">qq", 1_000, 900),
            bytes([3]),
            bytes([1, 8]) + struct.pack(">q", 8),
            bytes([2, 2]) + struct.pack(">h", 2),
            bytes([0xE8, 0x07, 2]) + struct.pack(">h", 5),
        ]
    )
    assert encode_value(txn) == expected
    assert encode_key("shop") == b"\x00\x00\x00\x04shop"


def test_version_0_as_older_kafka_wrote_it_is_read() -> None:
    stored = struct.pack(">hqhib", 0, 5, 6, 60_000, 1)
    stored += struct.pack(">ih", 1, 1) + b"a" + struct.pack(">iii", 2, 1, 2) + struct.pack(">qq", 1_000, 900)
    txn = decode_value("shop", stored)
    assert (txn.state, txn.started_ms) == (TransactionState.ONGOING, 900)
    assert txn.partitions == {("a", 1), ("a", 2)}
    null_partitions = struct.pack(">hqhibiqq", 0, 5, 6, 60_000, 0, -1, 1_000, -1)
    assert decode_value("shop", null_partitions).partitions == frozenset()


def test_tags_of_a_newer_version_are_skipped_and_a_newer_version_is_refused() -> None:
    txn = Transaction("shop", Producer(5, 6), 60_000, 1_000)
    stored = encode_value(txn)
    assert decode_value("shop", stored[:-1] + bytes([1, 3, 2]) + b"\x00\x09") == txn
    with pytest.raises(NewerFormat):
        decode_value("shop", struct.pack(">h", 2) + stored[2:])
    assert decode_key(struct.pack(">h", 77)) is None


def test_a_reservation_comes_back() -> None:
    key, value = encode_reservation(3_000)
    assert decode_key(key) == ReservationKey()
    assert decode_reservation(value) == 3_000


def test_ids_live_where_kafka_would_put_them() -> None:
    # Java: Math.abs("shop".hashCode()) % 50, and a string whose hash is Integer.MIN_VALUE.
    assert partition_for("shop", 50) == 3529462 % 50
    assert partition_for("polygenelubricants", 50) == 0
