"""Batches that consumers cannot read: refused when they are produced, and passed by the consumer behind them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError

from tests.clients import kit
from tests.clients.raw_produce import batch_of, produce, tiny_records
from tests.clients.stage import NewTopicCall
from waystation.log.batches.batch import Record, encode_records, write_varint
from waystation.log.batches.compression import compress
from waystation.log.batches.record_check import MAX_BATCH_RECORDS

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
NOW_MS = int(time.time() * 1000)


def records(count: int = 3, **fields: object) -> bytes:
    """Good records, unless the last one is given other fields."""
    made = [Record(i, NOW_MS, b"k", b"v%d" % i, (("h", b"x"),)) for i in range(count)]
    made[-1] = made[-1]._replace(**fields)  # type: ignore[arg-type]
    return encode_records(made, 0, NOW_MS)[0]


def with_byte(body: bytes, at: int, byte: int) -> bytes:
    return body[:at] + bytes((byte,)) + body[at + 1 :]


def long_length() -> bytes:
    """A record whose length is written in six bytes: Java's client reads five."""
    inner = b"\0\0\0\1\1\0"
    return bytes((2 * len(inner) | 0x80, 0x80, 0x80, 0x80, 0x80, 0)) + inner


def without_header_name() -> bytes:
    inner = bytearray(b"\0\0\0\1\1")
    write_varint(inner, 1)
    inner += b"\1\1"
    return bytes((2 * len(inner),)) + bytes(inner)


POISON: dict[str, Callable[[], tuple[bytes, int]]] = {
    "a record longer than the batch": lambda: (with_byte(records(), 0, 0x7E), 3),
    "a record shorter than what is in it": lambda: (with_byte(records(), 0, records()[0] - 2), 3),
    "a key longer than its record": lambda: (with_byte(records(1), 4, 0x7E), 1),
    "a value with a length of -2": lambda: (with_byte(records(1), 6, 3), 1),
    "bytes behind the last record": lambda: (records() + b"\0", 3),
    "fewer records than the header says": lambda: (records(), 4),
    "the last record cut off": lambda: (records()[:-3], 3),
    "an offset twice": lambda: (records(3, offset=1), 3),
    "an offset left out": lambda: (records(3, offset=3), 3),
    "a length of six bytes": lambda: (long_length(), 1),
    "a header without a name": lambda: (without_header_name(), 1),
    "nothing at all": lambda: (b"", 1),
}


@pytest.mark.parametrize("codec", ["none", *CODECS])
@pytest.mark.parametrize("kind", POISON)
def test_records_that_do_not_parse_are_refused(
    bootstrap: str, new_topic: NewTopicCall, kind: str, codec: str, topics: dict[str, str]
) -> None:
    topic = topics.setdefault("plain", "") or new_topic()
    topics["plain"] = topic
    body, count = POISON[kind]()
    answer = produce(bootstrap, topic, batch_of(body, count, NOW_MS, CODECS.get(codec, 0)))
    assert answer.error == KafkaError.INVALID_RECORD, answer
    assert answer.base_offset == -1


@pytest.fixture(scope="module")
def topics() -> dict[str, str]:
    """One topic for all the batches that leave nothing behind."""
    return {}


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_decompress_is_refused_and_consumers_get_on(
    bootstrap: str, new_topic: NewTopicCall, codec: str
) -> None:
    topic = new_topic()
    packed = compress(CODECS[codec], records(50))
    kit.produce(bootstrap, topic, [b"before"])
    for junk in (b"not " + codec.encode(), packed[: len(packed) // 2], b"", packed[:8] + b"\xff" * 40):
        answer = produce(bootstrap, topic, batch_of(b"", 50, NOW_MS, CODECS[codec], packed=junk))
        assert answer.error == KafkaError.INVALID_RECORD, (junk, answer)
    assert produce(bootstrap, topic, batch_of(records(50), 50, NOW_MS, CODECS[codec])).error == 0
    kit.produce(bootstrap, topic, [b"behind"])
    found = kit.values(kit.read_all(bootstrap, topic))
    assert found == [b"before", *(b"v%d" % i for i in range(50)), b"behind"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_opens_to_too_much_is_too_large(bootstrap: str, new_topic: NewTopicCall, codec: str) -> None:
    topic = new_topic(config={"max.message.bytes": 2_000_000})
    value = bytes(33_000_000)
    body = encode_records([Record(0, NOW_MS, None, value)], 0, NOW_MS)[0]
    answer = produce(bootstrap, topic, batch_of(body, 1, NOW_MS, CODECS[codec]))
    assert answer.error == KafkaError.MSG_SIZE_TOO_LARGE, answer
    fits = encode_records([Record(0, NOW_MS, None, value[:20_000_000])], 0, NOW_MS)[0]
    assert produce(bootstrap, topic, batch_of(fits, 1, NOW_MS, CODECS[codec])).error == 0


def test_a_batch_of_more_records_than_one_may_have_is_too_large(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    count = MAX_BATCH_RECORDS
    more = produce(bootstrap, topic, batch_of(tiny_records(count + 1), count + 1, NOW_MS, 4))
    assert more.error == KafkaError.MSG_SIZE_TOO_LARGE, more
    assert produce(bootstrap, topic, batch_of(tiny_records(count), count, NOW_MS, 4)).error == 0


def test_a_topic_can_do_without_the_check(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"waystation.validate.records": "crc"})
    assert produce(bootstrap, topic, batch_of(b"", 1, NOW_MS, 4, packed=b"not zstd")).error == 0
    assert produce(bootstrap, topic, batch_of(records(), 3, NOW_MS)).error == 0


def test_a_refused_batch_does_not_stop_others_of_its_producer(bootstrap: str, new_topic: NewTopicCall) -> None:
    """Large compressed batches are checked away from the loop; their order is that in which they came."""
    topic = new_topic()
    client = kit.producer(bootstrap, {"compression.type": "gzip", "linger.ms": 50, "enable.idempotence": True})
    sent = [b"%d" % n + b"x" * 200 for n in range(30_000)]
    for value in sent:
        kit.send(client, topic, value)
    kit.flush(client)
    assert kit.values(kit.read_all(bootstrap, topic)) == sent
