"""A message keeps its meaning on the way into a topic and back, and the page about it says the truth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Invalid, InvalidRecord
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header, Record
from waystation.message import LATEST_MS, MAX_HORIZON_MS, Delivered, Message
from waystation.message_json import from_json_object, to_json_object
from waystation.topics.messages import build_batches
from waystation.topics.records import crossing
from waystation.topics.records.crossing import CROSSINGS, NUMBER_FIELDS, TEXT_FIELDS, headers_of, message_of
from waystation.topics.records.record_reading import delivered_of

NOW_MS = 1_772_366_400_000
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "crossing.md"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = text.filter(lambda name: name not in TEXT_FIELDS and name not in NUMBER_FIELDS)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
header_values = (
    json_like | st.binary(max_size=10) | st.lists(st.none() | text | st.binary(max_size=5), min_size=2, max_size=4)
)

messages = st.builds(
    Message,
    payload=st.binary(max_size=300),
    id=st.none() | text.filter(bool),
    key=st.none() | st.binary(max_size=20),
    headers=st.dictionaries(names, header_values, max_size=4),
    priority=st.integers(0, 255),
    delay_ms=st.integers(0, MAX_HORIZON_MS),
    deliver_at_ms=st.none() | st.integers(0, LATEST_MS),
    ttl_ms=st.none() | st.integers(1, MAX_HORIZON_MS),
    correlation_id=st.none() | text,
    reply_to=st.none() | text,
    content_type=st.none() | text,
    type=st.none() | text | st.just(crossing.TOMBSTONE),
    max_deliveries=st.integers(0, 2**31 - 1),
    timestamp_ms=st.none() | st.integers(0, 2**62),
    exchange=st.none() | text,
    routing_key=st.none() | text,
    content_encoding=st.none() | text,
    delivery_mode=st.integers(0, 255),
    user_id=st.none() | text,
    app_id=st.none() | text,
)


def as_text(value: Any) -> Any:
    """What becomes of a header's value in Kafka and back."""
    if value is None:
        return None
    if (
        isinstance(value, list)
        and len(value) > 1
        and all(each is None or isinstance(each, str | bytes) for each in value)
    ):
        return [as_text(each) for each in value]
    raw = value if isinstance(value, bytes) else crossing.header_value("h", value)
    try:
        return raw.decode() if raw is not None else None
    except UnicodeDecodeError:
        return raw


def stored(sent: list[Message], limit: int = 2**20) -> list[Delivered]:
    """What a reader of the batches finds, one after the other."""
    found: list[Delivered] = []
    for batch in build_batches(sent, NOW_MS, limit):
        header = batches.check_batch(batch)
        assert header.record_count == header.last_offset_delta + 1
        header = header._replace(base_offset=len(found))
        found += delivered_of(bytes(batch[batches.HEADER_SIZE :]), header, "t", 3, 0)
    return found


@given(st.lists(messages, min_size=1, max_size=5), st.sampled_from([200, 1_000, 2**20]))
def test_a_message_comes_out_of_a_topic_as_it_went_in(sent: list[Message], limit: int) -> None:
    got = stored(sent, limit)
    for i, (before, after) in enumerate(zip(sent, got, strict=True)):
        expected = msgspec.structs.replace(
            before,
            headers={name: as_text(value) for name, value in before.headers.items()},
            timestamp_ms=NOW_MS if before.timestamp_ms is None else before.timestamp_ms,
        )
        assert after.message == expected
        assert (after.offset, after.tag, after.partition, after.source) == (i, i, 3, "t")
        # A time to live counts from when the broker took the message in, whatever time the sender says.
        assert after.taken_ms == (expected.timestamp_ms if before.ttl_ms is None else NOW_MS)


def test_messages_that_say_the_same_have_headers_of_their_own() -> None:
    sent = [Message(b"%d" % n, headers={"h": "v"}, exchange="ex", routing_key="k") for n in range(3)]
    first, second, third = stored(sent)
    first.message.headers["new"] = "1"
    assert second.message.headers == third.message.headers == {"h": "v"}
    assert [one.message.payload for one in (first, second, third)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_is_the_same_for_many_messages_may_be_long(size: int) -> None:
    sent = [Message(b"x", content_type="t" * size, routing_key=key) for key in ("a", "a", "b")]
    assert [one.message for one in stored(sent)] == [
        msgspec.structs.replace(message, timestamp_ms=NOW_MS) for message in sent
    ]


kafka_names = names | st.sampled_from([*TEXT_FIELDS, *NUMBER_FIELDS])
kafka_values = (
    st.none() | st.binary(max_size=8) | st.integers(-5, 2**63).map(lambda n: b"%d" % n) | text.map(str.encode)
)
kafka_headers = st.lists(st.tuples(kafka_names, kafka_values), max_size=6, unique_by=lambda pair: pair[0])
repeated_headers = st.lists(st.tuples(st.sampled_from("abc"), kafka_values), max_size=9)
SAYS_NOTHING = {("x-priority", b"0"), ("x-delay", b"0"), ("x-max-deliveries", b"0"), ("x-delivery-mode", b"0")}


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9), kafka_headers)
def test_a_kafka_record_keeps_all_it_has(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    message = message_of(key, value, headers, NOW_MS)
    [batch] = build_batches([message], NOW_MS, 2**20)
    [record] = batches.records_of(batch)
    assert (record.key, record.value, record.timestamp) == (key, value, NOW_MS)
    assert set(record.headers) == set(headers) - SAYS_NOTHING


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=200), kafka_headers, st.integers(-1, 2**62))
def test_the_tight_reader_agrees_with_the_plain_one(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    made = [Record(i, timestamp, key, value, tuple(headers)) for i in range(3)]
    body, count = batches.encode_records(made, 0, timestamp)
    header = Header(40, 0, 0, 2, 0, 0, count - 1, timestamp, timestamp, -1, -1, -1, count)
    got = delivered_of(body, header, "t", 0, 41)
    assert [one.offset for one in got] == [41, 42]
    expected = message_of(key, value, headers, timestamp if timestamp >= 0 else None)
    assert [one.message for one in got] == [expected] * 2


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_damaged_records_are_an_error_and_never_a_crash(sent: list[Message], data: st.DataObject) -> None:
    [batch] = build_batches(sent, NOW_MS, 2**30)
    body = bytearray(batch[batches.HEADER_SIZE :])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut])):
        header = batches.read_header(batch)
        try:
            plain = list(batches.parse_records(damaged, header))
        except InvalidRecord:
            plain = None
        try:
            tight = delivered_of(damaged, header, "t", 0, 0)
        except InvalidRecord:
            tight = None
        if plain is not None:
            assert tight is not None
            assert [one.offset for one in tight] == [record.offset for record in plain]


def test_repeated_headers_are_a_list_and_of_fields_the_last_counts() -> None:
    pairs = [("a", b"1"), ("x-priority", b"7"), ("a", b"2"), ("x-priority", b"high"), ("x-ttl", b"no"), ("x-ttl", b"5")]
    pairs += [("a", b"\xff"), ("x-death", b"[]"), ("x-death", b"[{}]")]
    message = message_of(None, b"", pairs, None)
    assert message.headers == {"a": ["1", "2", b"\xff"], "x-priority": "high", "x-death": "[{}]"}
    assert (message.priority, message.ttl_ms) == (0, 5)


def by_name(pairs: list[tuple[str, bytes | None]]) -> dict[str, list[bytes | None]]:
    return {name: [value for other, value in pairs if other == name] for name, _ in pairs}


@given(repeated_headers)
def test_repeated_headers_are_written_as_they_were_read(headers: list[tuple[str, bytes | None]]) -> None:
    """Those of one name in their order, by way of a topic and of JSON."""
    message = message_of(b"k", b"v", headers, NOW_MS)
    assert by_name(headers_of(message)) == by_name(headers)
    [back] = stored([message])
    assert back.message.headers == message.headers
    shown = msgspec.json.decode(msgspec.json.encode(to_json_object(message)))
    assert by_name(headers_of(from_json_object(shown))) == by_name(headers)


def test_a_field_wins_over_a_header_of_its_name() -> None:
    message = Message(b"", priority=4, headers={"x-priority": 9, "x-ttl": 50, "mine": True})
    assert headers_of(message) == [("x-priority", b"4"), ("x-ttl", b"50"), ("mine", b"true")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x-priority", b"256"),
        ("x-priority", b"05"),
        ("x-priority", b"-1"),
        ("x-ttl", b"0"),
        ("x-ttl", b"\xff"),
        ("x-delay", None),
        ("x-message-id", b""),
        ("x-message-id", b"\xff\xfe"),
        ("x-message-id", b"i" * 256),
        ("x-max-deliveries", b"99999999999999999999999"),
    ],
)
def test_a_header_that_cannot_be_a_field_stays_a_header(name: str, content: bytes | None) -> None:
    message = message_of(None, b"v", [(name, content)], NOW_MS)
    assert message == Message(b"v", headers={name: as_text(content)}, timestamp_ms=NOW_MS)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", headers={"a": object()}),
        Message(b"", headers={"a": "\ud800"}),
        Message(b"", headers={"\ud800": "a"}),
        Message(b"", id="\ud800"),
        Message(b"", priority=256),
        Message(b"", delivery_mode=256),
        Message(b"", ttl_ms=0),
        Message(b"", timestamp_ms=-1),
        Message(b"", timestamp_ms=2**63),
        Message(b"", id=""),
    ],
)
def test_what_cannot_cross_is_refused_by_name(message: Message) -> None:
    with pytest.raises(Invalid, match=r"^(headers|x-message-id|priority|ttl_ms|timestamp_ms|id|delivery_mode): "):
        build_batches([message], NOW_MS, 2**20)


def test_a_tombstone_is_a_message_of_that_type() -> None:
    [batch] = build_batches([Message(b"", key=b"k", type="tombstone"), Message(b"x", type="tombstone")], NOW_MS, 2**20)
    first, second = batches.records_of(batch)
    assert (first.key, first.value, first.headers) == (b"k", None, ())
    assert (second.value, second.headers) == (b"x", (("x-type", b"tombstone"),))


# -- the page ----------------------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: len(CROSSINGS)]]


def test_the_page_has_the_table_that_the_code_goes_by() -> None:
    assert rows() == [[f"`{row.field}`", row.kafka, row.amqp, row.json, row.msgpack] for row in CROSSINGS]


def test_every_field_has_its_row() -> None:
    of_amqp_alone = ["amqp"]  # what it has for its own receivers crosses to nobody
    assert [row.field for row in CROSSINGS] + of_amqp_alone == list(Message.__struct_fields__)


SAMPLES: dict[str, Any] = {
    "payload": b"\xff\0",
    "id": "i-1",
    "key": b"\xfe",
    "headers": {"text": "t", "raw": b"\xff"},
    "priority": 7,
    "delay_ms": 30,
    "deliver_at_ms": NOW_MS,
    "ttl_ms": 60_000,
    "correlation_id": "c-1",
    "reply_to": "inbox:1",
    "content_type": "application/json",
    "type": "event",
    "max_deliveries": 3,
    "timestamp_ms": NOW_MS - 5,
    "exchange": "ex",
    "routing_key": "a.b",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "user_id": "guest",
    "app_id": "app",
}


def sample(field: str) -> Message:
    return Message(**{"payload": b"", field: SAMPLES[field]})


@pytest.mark.parametrize("row", CROSSINGS, ids=lambda row: row.field)
def test_the_kafka_cell(row: crossing.Crossing) -> None:
    [batch] = build_batches([sample(row.field)], NOW_MS, 2**20)
    [record] = batches.records_of(batch)
    value = SAMPLES[row.field]
    if row.field in ("payload", "key", "timestamp_ms"):
        found: Any = {"value": record.value, "key": record.key, "timestamp": record.timestamp}[row.kafka]
        assert found == value
    elif row.field == "headers":
        assert record.headers == (("text", b"t"), ("raw", b"\xff"))
    else:
        name = re.findall(r"`([^`]+)`", row.kafka)[0]
        assert record.headers == ((name, str(value).encode()),)
    assert getattr(stored([sample(row.field)])[0].message, row.field) == value


@pytest.mark.parametrize("row", CROSSINGS, ids=lambda row: row.field)
def test_the_json_cell(row: crossing.Crossing) -> None:
    as_words = {"payload": b"words", "key": b"k", "headers": {"text": "t"}}
    usual, _, otherwise = row.json.partition(";")
    for words, message in (
        (usual, Message(**{"payload": b"", row.field: as_words.get(row.field, SAMPLES[row.field])})),
        (otherwise, sample(row.field)),
    ):
        there = to_json_object(message)
        for name in re.findall(r"`([a-z0-9_]+)`", words):
            assert name in there or name in there.values()
        assert from_json_object(msgspec.json.decode(msgspec.json.encode(there))) == message


@pytest.mark.parametrize("row", CROSSINGS, ids=lambda row: row.field)
def test_the_msgpack_cell(row: crossing.Crossing) -> None:
    message = sample(row.field)
    raw = msgspec.msgpack.encode(message)
    place, kind = row.msgpack.split(", ")
    value = msgspec.msgpack.decode(raw)[int(place)]
    assert value == SAMPLES[row.field]
    assert type(value) is {"bin": bytes, "str": str, "int": int, "map": dict}[kind]
    assert msgspec.msgpack.decode(raw, type=Message) == message
