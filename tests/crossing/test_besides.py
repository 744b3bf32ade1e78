"""What a receiver learns besides the message: where it was, how often it was delivered, when it came, why it died."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.clients.share_kit import share_consumer, take
from tests.crossing import page
from tests.crossing.samples import Sample, text
from tests.crossing.ways import ClientWay, KafkaWay, LinesWay, Seen, Way, at, now_ms
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

CLIENT_NAMES = {
    "which partition and offset": ("partition", "offset"),
    "which topic": ("topic",),
    "how often it was delivered": ("deliveries",),
    "when the broker took it in": ("taken",),
    "why it died": ("deaths",),
}
"""The client's properties, which have no column on the page."""


def told(way: str, row: str, seen: Seen) -> Any:
    """What the page's cell says there is."""
    column = next(column for column in page.BESIDES.columns if way in page.ways_of(column))
    cell = page.BESIDES.rows[row][column]
    found: list[Any]
    if way == "amqp":
        return told_by_amqp(row, cell, seen)
    if way == "client":
        found = [getattr(seen.raw, name) for name in CLIENT_NAMES[row]]
    elif way == "frames" and "`Delivered`" in cell:
        found = [seen.raw[int(index)] for index in re.findall(r"\d+", cell)]
    elif way in ("lines", "http"):
        found = [down(seen.raw, name) for name in re.findall(r"`([^`]+)`", cell)]
    elif re.match(r"headers? `", cell):
        found = [seen.fields["headers"][name] for name in re.findall(r"`([^`]+)`", cell)]
    else:
        found = [getattr(seen.raw, name)() for name in cell.split(", ")]
    return found[0] if len(found) == 1 else tuple(found)


def told_by_amqp(row: str, cell: str, seen: Seen) -> Any:
    method, properties, _ = seen.raw
    headers = properties.headers or {}
    if row == "which topic":
        assert cell == "the queue that is consumed"
        return seen.place
    if row == "which partition and offset":
        return tuple(headers[name] for name in re.findall(r"`([^`]+)`", cell))
    if row == "how often it was delivered":
        flag, count = re.findall(r"`([^`]+)`", cell)
        assert getattr(method, flag)
        return headers[count] + 1 if count in headers else 2
    if row == "when the broker took it in":
        assert "`timestamp`" in cell
        return seen.fields["timestamp_ms"]
    return headers[re.findall(r"`([^`]+)`", cell)[0]]


def down(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[name]
    return value


@pytest.fixture(scope="module")
def read(ways: dict[str, Way]) -> dict[str, Seen]:
    """The second message of the third partition of a topic, as each way shows it."""
    topic = unique("besides")
    lines = ways["lines"]
    assert isinstance(lines, LinesWay)
    lines.lines.ask("create_topic", topic=topic, partitions=3)
    lines.publish(topic, [text("id", "first", "one"), text("id", "second", "two")], 2)
    return {name: way.read([topic], 2)[1] for name, way in ways.items()}


def check_place(way: str, read: dict[str, Seen], **_: Any) -> None:
    assert told(way, "which partition and offset", read[way]) == (2, 1)


def check_topic(way: str, read: dict[str, Seen], **_: Any) -> None:
    assert told(way, "which topic", read[way]) == read[way].place
    assert read[way].place.startswith("besides")


def check_taken(way: str, read: dict[str, Seen], **_: Any) -> None:
    stamp = read["frames"].fields["timestamp_ms"]
    expected = {"client": at(stamp), "kafka": (1, stamp)}  # 1: the record says when it was made
    assert told(way, "when the broker took it in", read[way]) == expected.get(way, stamp)
    assert now_ms() - 300_000 < stamp <= now_ms()


def check_deliveries(way: str, ways: dict[str, Way], server: Server, **_: Any) -> None:
    row = "how often it was delivered"
    lines = ways["lines"]
    assert isinstance(lines, LinesWay)
    if way == "kafka":
        assert page.BESIDES.rows[row]["Kafka"] == "share consumers only"
        assert delivered_to_a_share_consumer(lines, server) == 2
        return
    queue = unique("again")
    if way == "amqp":
        ways["amqp"].channel.queue_declare(  # type: ignore[attr-defined]
            queue, durable=True, arguments={"x-queue-type": "quorum"}
        )
    else:
        lines.lines.queue(queue)
    lines.lines.put(queue, "x")
    (first,) = lines.lines.get(queue, wait_ms=30_000)
    assert first["deliveries"] == 1
    lines.lines.settle(first, "release")
    (seen,) = ways[way].take(queue, 1)
    assert told(way, row, seen) == 2
    assert way != "amqp" or "x-delivery-count" in seen.raw[1].headers


def delivered_to_a_share_consumer(lines: LinesWay, server: Server) -> int | None:
    """The count of a record that a member of another protocol had before and gave back."""
    topic, group = unique("shared"), unique("g")
    lines.publish(topic, [text("id", "one", "1")])
    asked: dict[str, Any] = {"mode": "shared", "group": group, "start": "earliest", "credit": 1}
    lines.lines.ask("subscribe_topics", consumer=99, topics=[topic], **asked)
    lines.lines.delivered(1)
    lines.lines.ask("cease", consumer=99)
    consumer = share_consumer(server.bootstrap, group, [topic])
    try:
        (record,) = take(consumer, 1)
    finally:
        consumer.close()
    count: int | None = record.delivery_count()
    return count


def check_death(way: str, ways: dict[str, Way], **_: Any) -> None:
    client, lines = ways["client"], ways["lines"]
    assert isinstance(client, ClientWay)
    assert isinstance(lines, LinesWay)
    topic, queue, dead = unique("dead"), unique("q"), lines.lines.queue(unique("dead"))
    lines.lines.ask("create_topic", topic=topic)
    for target in (f"topic:{topic}", dead):
        lines.lines.queue(queue, dead_letter=target)
        lines.lines.put(queue, "x")
        (message,) = lines.lines.get(queue, wait_ms=30_000)
        lines.lines.settle(message, "kill", error="no use")
        from_topic = target != dead
        if way == "kafka" and not from_topic:
            continue
        (seen,) = ways[way].read([topic], 1) if from_topic else ways[way].take(dead, 1)
        story = told(way, "why it died", seen)
        if from_topic and way not in ("client", "amqp"):  # headers are text there; the client and AMQP have it read
            assert isinstance(story, bytes if way == "kafka" else str)
            story = json.loads(story)
        (death,) = story
        assert (death["reason"], death["queue"], death["error"]) == ("rejected", queue, "no use")
        assert (death["count"], death.get("deliveries")) == (1, None if way == "amqp" else 1)
        lines.lines.ask("delete_queue", queue=queue)


CHECKS: dict[str, Callable[..., None]] = {
    "which partition and offset": check_place,
    "which topic": check_topic,
    "how often it was delivered": check_deliveries,
    "when the broker took it in": check_taken,
    "why it died": check_death,
}


def test_every_cell_of_the_page_is_tested() -> None:
    on_page = {(row, way) for row, column in page.BESIDES.cells() for way in page.ways_of(column)}
    assert {(row, way) for row in CHECKS for way in page.WAYS} == on_page
    assert CLIENT_NAMES.keys() == CHECKS.keys()


@pytest.mark.parametrize("way", page.WAYS)
@pytest.mark.parametrize("row", CHECKS)
def test_what_a_receiver_gets_besides(
    row: str, way: str, ways: dict[str, Way], read: dict[str, Seen], server: Server
) -> None:
    CHECKS[row](way=way, ways=ways, read=read, server=server)


# -- out of a Kafka record ---------------------------------------------------------------------------------------------


REPEATED = [("a", b"1"), ("x-priority", b"7"), ("a", b"2"), ("x-priority", b"high"), ("x-ttl", b"9000000"), ("a", b"")]


def test_several_headers_with_one_name_are_a_list_and_of_a_field_the_last_counts(ways: dict[str, Way]) -> None:
    kafka = ways["kafka"]
    assert isinstance(kafka, KafkaWay)
    topic = unique("repeated")
    kafka.send(topic, b"x", headers=REPEATED)
    for way in page.QUEUE_WAYS:
        (seen,) = ways[way].read([topic], 1)
        expected = {"payload": b"x", "headers": {"a": ["1", "2", ""], "x-priority": "high"}, "ttl_ms": 9_000_000}
        assert {name: value for name, value in seen.fields.items() if name != "timestamp_ms"} == expected
    (seen,) = kafka.read([topic], 1)
    assert seen.raw.headers() == REPEATED


@pytest.mark.parametrize("way", ["client", "amqp", "lines", "http"])
def test_a_list_of_texts_is_several_headers_of_a_kafka_record(way: str, ways: dict[str, Way]) -> None:
    topic = unique("repeated")
    if way == "amqp":
        properties = pika.BasicProperties(headers={"a": ["1", "2"]})
        ways["client"].mq.create_topic(topic)  # type: ignore[attr-defined]
        ways[way].channel.basic_publish("", topic, b"x", properties)  # type: ignore[attr-defined]
    elif way == "client":
        ways[way].mq.publish(topic, b"x", headers={"a": ["1", "2"]})  # type: ignore[attr-defined]
    elif way == "lines":
        message = {"payload": "x", "headers": {"a": ["1", "2"]}}
        ways[way].lines.ask("publish_messages", topic=topic, message=message)  # type: ignore[attr-defined]
    else:
        message = {"payload": "x", "headers": {"a": ["1", "2"]}}
        ways[way].http("POST", f"/v1/topics/{topic}/messages", message)  # type: ignore[attr-defined]
    (record,) = ways["kafka"].read([topic], 1)
    assert [pair for pair in record.raw.headers() if pair[0] == "a"] == [("a", b"1"), ("a", b"2")]


def test_several_headers_that_are_no_text_come_by_json_in_base64(ways: dict[str, Way]) -> None:
    topic = unique("repeated")
    ways["kafka"].send(topic, b"x", headers=[("a", b"\xff"), ("a", b"2"), ("a", None)])  # type: ignore[attr-defined]
    http = ways["http"].http  # type: ignore[attr-defined]
    (shown,) = http("GET", f"/v1/topics/{topic}/messages", wait_ms=10_000).json["messages"]
    assert shown["headers_base64"] == {"a": ["/w==", "Mg==", None]}
    del shown["id"]  # where it was
    http("POST", f"/v1/topics/{topic}.on/messages", shown)
    (record,) = ways["kafka"].read([f"{topic}.on"], 1)
    assert record.raw.headers() == [("a", b"\xff"), ("a", b"2"), ("a", None)]


def test_several_headers_with_one_name_survive_a_dead_letter_queue(ways: dict[str, Way]) -> None:
    topic, group, mq = unique("repeated"), unique("g"), ways["client"].mq  # type: ignore[attr-defined]
    mq.create_topic(topic, 1)
    ways["kafka"].send(topic, b"x", headers=[("a", b"1"), ("b", b"x"), ("a", b"2")])  # type: ignore[attr-defined]
    with mq.subscribe(
        topic, group=group, start="earliest", filter="'2' in headers.a and headers.a[-1] = '2'"
    ) as shared:
        message = shared.get_message(DEADLINE_S)
        assert dict(message.headers) == {"a": ["1", "2"], "b": "x"}
        message.kill("no")
        dead = mq.queue(f"{topic}.{group}.dead")
        wait_for(lambda: len(dead) == 1, "a dead letter")
        assert dead.peek(1)[0].headers["a"] == ["1", "2"]
        mq.create_topic(f"{topic}.on", 1)
        dead.redrive(to=f"topic:{topic}.on")
    (record,) = ways["kafka"].read([f"{topic}.on"], 1)
    assert [pair for pair in record.raw.headers() if pair[0] in "ab"] == [("a", b"1"), ("a", b"2"), ("b", b"x")]


@pytest.mark.parametrize("content", [b"07", b"high", b"-1", b"256", b" 7", b"\xff", None])
def test_what_the_broker_would_not_have_written_is_no_field(content: bytes | None, ways: dict[str, Way]) -> None:
    kafka = ways["kafka"]
    assert isinstance(kafka, KafkaWay)
    topic = unique("no-field")
    kafka.send(topic, b"x", headers=[("x-priority", content)])
    value = content if content in (None, b"\xff") else content.decode()
    for way in page.QUEUE_WAYS:
        (seen,) = ways[way].read([topic], 1)
        assert (seen.fields["headers"], seen.fields.get("priority")) == ({"x-priority": value}, None)


def test_a_field_wins_over_a_header_of_its_name(ways: dict[str, Way]) -> None:
    lines = ways["lines"]
    assert isinstance(lines, LinesWay)
    topic = unique("both")
    headers = {"x-priority": 9, "x-ttl": 3_600_000, "mine": True}
    lines.lines.ask("publish_messages", topic=topic, message={"payload": "x", "priority": 4, "headers": headers})
    (record,) = ways["kafka"].read([topic], 1)
    assert sorted(record.raw.headers()) == [("mine", b"true"), ("x-priority", b"4"), ("x-ttl", b"3600000")]


@pytest.mark.parametrize("way", page.QUEUE_WAYS)
def test_a_tombstone_deletes_its_key(way: str, ways: dict[str, Way]) -> None:
    """As far as a Kafka consumer can see it: a record with a key and without a value."""
    topic = unique("table")
    lines = ways["lines"]
    assert isinstance(lines, LinesWay)
    lines.lines.ask("create_topic", topic=topic, settings={"cleanup.policy": "compact"})
    keyed = Sample("key", "tombstone", b"k", b"k", b"k")
    if way == "frames":
        array: list[Any] = [b"", None, b"k", {}, 0, 0, *[None] * 5, "tombstone", 0, None]
        ways[way].ask("publish_messages", topic=topic, messages=[array])  # type: ignore[attr-defined]
    elif way == "client":
        ways[way].mq.publish(topic, b"", key="k", type="tombstone")  # type: ignore[attr-defined]
    elif way == "amqp":
        properties = pika.BasicProperties(type="tombstone", headers={"x-key": "k"})
        ways[way].channel.basic_publish("", topic, b"", properties)  # type: ignore[attr-defined]
    else:
        message = {"payload": "", "key": "k", "type": "tombstone"}
        if way == "lines":
            lines.lines.ask("publish_messages", topic=topic, message=message)
        else:
            ways[way].http("POST", f"/v1/topics/{topic}/messages", message)  # type: ignore[attr-defined]
    (record,) = ways["kafka"].read([topic], 1)
    headers = [("x-exchange", b""), ("x-routing-key", topic.encode())] if way == "amqp" else None
    assert (record.raw.key(), record.raw.value(), record.raw.headers()) == (keyed.value, None, headers)


RAW_HEADERS = {
    "id": "m-1",
    "key": "u1",
    "priority": "7",
    "deliver_at_ms": "1700000000123",
    "ttl_ms": "3600000",
    "correlation_id": "c-1",
    "reply_to": "inbox",
    "type": "event",
    "max_deliveries": "3",
    "timestamp_ms": "1700000000123",
    "exchange": "ex",
    "routing_key": "a.b",
    "content_encoding": "gzip",
    "delivery_mode": "2",
    "user_id": "guest",
    "app_id": "app",
}


def test_a_raw_payload_by_http_has_its_fields_in_request_headers_of_the_same_names(ways: dict[str, Way]) -> None:
    own = {"key": "x-key", "timestamp_ms": "x-timestamp"}
    sent = {own.get(field) or str(page.kafka_header(field)): value for field, value in RAW_HEADERS.items()}
    topic = unique("raw")
    http = ways["http"].http  # type: ignore[attr-defined]
    sent |= {"content-type": "image/png", "x-header-mine": "yes"}
    http("POST", f"/v1/topics/{topic}/messages", b"\xff\x00", headers=sent)
    (record,) = ways["kafka"].read([topic], 1)
    del record.fields["headers"]["x-taken-at"]  # since it says its own time and a time to live
    expected: dict[str, Any] = {field: value.encode() for field, value in RAW_HEADERS.items()}
    expected |= {"payload": b"\xff\x00", "content_type": b"image/png", "headers": {"mine": b"yes"}}
    assert record.fields == expected | {"timestamp_ms": 1_700_000_000_123}
