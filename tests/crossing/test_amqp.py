"""What the page says about AMQP beyond its column: headers with types, what is spelled in another way, verdicts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import amqp
import pika
import pytest

from tests.crossing.amqp_way import AmqpWay
from tests.crossing.samples import number, text
from tests.crossing.ways import ClientWay, HttpWay, KafkaWay, LinesWay, Way, now_ms
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for

NOON = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)
NOON_TEXT = "2024-05-06T12:00:00Z"


@pytest.fixture
def rabbit(ways: dict[str, Way]) -> AmqpWay:
    way = ways["amqp"]
    assert isinstance(way, AmqpWay)
    return way


@pytest.fixture
def lines(ways: dict[str, Way]) -> LinesWay:
    way = ways["lines"]
    assert isinstance(way, LinesWay)
    return way


def send(rabbit: AmqpWay, place: str, **properties: Any) -> None:
    rabbit.channel.basic_publish("", place, b"x", pika.BasicProperties(**properties), mandatory=True)


def get(rabbit: AmqpWay, queue: str) -> tuple[Any, pika.BasicProperties, bytes]:
    def found() -> tuple[Any, pika.BasicProperties, bytes] | None:
        got = rabbit.channel.basic_get(queue, auto_ack=True)
        return None if got[0] is None else got

    return wait_for(found, f"a message in {queue}")


def stream(rabbit: AmqpWay) -> str:
    topic = unique("stream")
    rabbit.channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
    return topic


# -- times, decimals, fractions in headers -----------------------------------------------------------------------------


def test_a_timestamp_in_a_header_stays_one_in_amqp_and_is_text_where_there_are_none(
    rabbit: AmqpWay, lines: LinesWay, ways: dict[str, Way]
) -> None:
    headers = {"at": NOON, "list": [NOON]}
    queue = lines.lines.queue(unique("q"))
    for _ in range(4):
        send(rabbit, queue, headers=headers)
    assert get(rabbit, queue)[1].headers == headers
    http, client = ways["http"], ways["client"]
    assert lines.take(queue, 1)[0].fields["headers"] == {"at": NOON_TEXT, "list": [NOON_TEXT]}
    assert http.take(queue, 1)[0].fields["headers"] == {"at": NOON_TEXT, "list": [NOON_TEXT]}
    assert client.take(queue, 1)[0].fields["headers"] == headers


def test_a_timestamp_in_a_header_is_text_behind_a_topic(rabbit: AmqpWay, ways: dict[str, Way]) -> None:
    topic = stream(rabbit)
    send(rabbit, topic, headers={"at": NOON, "list": [NOON]})
    expected = {"at": NOON_TEXT, "list": json.dumps([NOON_TEXT])}
    for name in ("amqp", "client", "lines", "http"):
        assert ways[name].read([topic], 1)[0].fields["headers"] == expected
    record = ways["kafka"].read([topic], 1)[0].fields["headers"]
    assert record == {name: value.encode() for name, value in expected.items()}


def test_a_decimal_becomes_its_text_for_others_than_amqp(rabbit: AmqpWay, lines: LinesWay) -> None:
    queue = lines.lines.queue(unique("q"))
    send(rabbit, queue, headers={"d": Decimal("3.14")})
    send(rabbit, queue, headers={"d": Decimal("3.14")})
    assert get(rabbit, queue)[1].headers == {"d": Decimal("3.14")}
    assert lines.take(queue, 1)[0].fields["headers"] == {"d": "3.14"}


def test_fractions_in_headers_are_doubles(server: Server, lines: LinesWay) -> None:
    """By py-amqp: pika has none."""
    queue = lines.lines.queue(unique("q"))
    host, port = split_address(server.addresses["amqp"])
    with amqp.Connection(f"{host}:{port}") as connection:
        channel = connection.channel()
        channel.basic_publish(amqp.Message(b"x", application_headers={"f": 0.1}), routing_key=queue)
        assert lines.take(queue, 1)[0].fields["headers"] == {"f": 0.1}
        lines.lines.put(queue, {"payload": "x", "headers": {"f": 0.1}})
        message = wait_for(lambda: channel.basic_get(queue, no_ack=True), "a message")
        assert message.properties["application_headers"] == {"f": 0.1}


# -- what is spelled in another way ------------------------------------------------------------------------------------


def test_what_was_delayed_can_be_sent_on_without_a_new_delay(rabbit: AmqpWay, lines: LinesWay) -> None:
    queue = lines.lines.queue(unique("q"))
    send(rabbit, queue, headers={"x-delay": 50})
    _, properties, body = get(rabbit, queue)
    assert properties.headers == {"x-delay": -50}
    rabbit.channel.basic_publish("", queue, body, properties)
    assert lines.lines.counts(queue) == (1, 0, 0)
    (seen,) = lines.take(queue, 1)
    assert (seen.fields.get("delay_ms"), seen.fields["headers"]) == (None, {"x-delay": -50})


def test_a_text_too_long_for_a_property_is_a_header(rabbit: AmqpWay, lines: LinesWay) -> None:
    queue = lines.lines.queue(unique("q"))
    lines.lines.put(queue, {"payload": "x", "correlation_id": "ü" * 200, "reply_to": "short"})
    _, properties, _ = get(rabbit, queue)
    assert (properties.correlation_id, properties.reply_to) == (None, "short")
    assert properties.headers == {"x-correlation-id": "ü" * 200}


def test_an_invalid_expiration_closes_the_channel(rabbit: AmqpWay, lines: LinesWay) -> None:
    queue = lines.lines.queue(unique("q"))
    channel = rabbit.connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration="soon"))
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == "PRECONDITION_FAILED - invalid expiration 'soon': no_integer"
    assert lines.lines.counts(queue) == (0, 0, 0)


def test_cc_and_bcc_reach_further_queues(rabbit: AmqpWay, lines: LinesWay) -> None:
    first, second, third = (lines.lines.queue(unique("q")) for _ in range(3))
    send(rabbit, first, headers={"CC": [second], "BCC": [third], "h": 1})
    for queue in (first, second, third):
        assert lines.take(queue, 1)[0].fields["headers"] == {"CC": [second], "h": 1}


def test_the_deaths_of_amqp_and_of_other_protocols_are_one_story(rabbit: AmqpWay, lines: LinesWay) -> None:
    queue, dead = unique("q"), lines.lines.queue(unique("dead"))
    terms = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    rabbit.channel.queue_declare(queue, durable=True, arguments=terms)
    for _ in range(2):
        send(rabbit, queue)
        method, _, _ = rabbit.channel.basic_get(queue)
        rabbit.channel.basic_reject(method.delivery_tag, requeue=False)
    begin = now_ms() // 1000 - 60
    _, properties, _ = get(rabbit, dead)
    headers = properties.headers or {}
    (death,) = headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [queue])
    assert begin <= death["time"].timestamp() <= now_ms() / 1000
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (queue, "rejected")
    (seen,) = lines.take(dead, 1)
    (death,) = seen.fields["headers"]["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)
    assert begin <= death["time"] // 1000 <= now_ms() // 1000


@pytest.mark.parametrize("forged", ["x", ["x"], [{"queue": None}], [{"count": "many"}], [{"count": -5}], [{"time": 5}]])
def test_a_story_that_was_made_up_stops_nobody_from_dying(forged: Any, rabbit: AmqpWay, lines: LinesWay) -> None:
    queue, dead = unique("q"), lines.lines.queue(unique("dead"))
    terms = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    rabbit.channel.queue_declare(queue, durable=True, arguments=terms)
    if isinstance(forged[0], dict):
        forged = [{"queue": queue, "reason": "rejected", **forged[0]}]
    send(rabbit, queue, headers={"x-death": forged})
    method, _, _ = rabbit.channel.basic_get(queue)
    rabbit.channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, _ = get(rabbit, dead)
    death = (properties.headers or {})["x-death"][0]
    assert (death["queue"], death["reason"]) == (queue, "rejected")
    assert death["count"] in (1, 2)


# -- there and back ----------------------------------------------------------------------------------------------------


def test_a_kafka_producers_records_are_acked_one_by_one_in_amqp(rabbit: AmqpWay, ways: dict[str, Way]) -> None:
    kafka = ways["kafka"]
    assert isinstance(kafka, KafkaWay)
    topic, queue = unique("orders"), unique("on-topic")
    kafka.publish(topic, [text("id", str(n), f"m-{n}") for n in range(3)])
    rabbit.channel.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    channel = rabbit.connection.channel()
    channel.basic_qos(prefetch_count=10)
    found: list[tuple[Any, str]] = []
    channel.basic_consume(queue, lambda _c, method, properties, _b: found.append((method, properties.message_id)))

    def arrived(count: int) -> bool:
        rabbit.connection.process_data_events(time_limit=0.05)
        return len(found) >= count

    wait_for(lambda: arrived(3), "three records")
    assert [message_id for _, message_id in found] == ["m-0", "m-1", "m-2"]
    channel.basic_ack(found[0][0].delivery_tag)
    channel.basic_ack(found[2][0].delivery_tag)
    channel.basic_nack(found[1][0].delivery_tag, requeue=True)
    wait_for(lambda: arrived(4), "the one that was given back")
    method, message_id = found[3]
    assert (message_id, method.redelivered) == ("m-1", True)
    channel.basic_ack(method.delivery_tag)
    channel.close()
    # A member of another protocol in the same group finds nothing left but what is new.
    client = ways["client"]
    assert isinstance(client, ClientWay)
    kafka.publish(topic, [text("id", "last", "m-3")])
    with client.mq.subscribe([topic], group=queue, mode="shared") as subscription:
        message = next(iter(subscription))
        assert message.id == "m-3"
        message.ack()


def test_from_amqp_over_http_and_back(rabbit: AmqpWay, ways: dict[str, Way]) -> None:
    http = ways["http"]
    assert isinstance(http, HttpWay)
    first, second = unique("first"), unique("second")
    for queue in (first, second):
        rabbit.channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 9})
    said: dict[str, Any] = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"n": 5, "list": [1, "a", None], "big": 2**40, "raw": b"\xff"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "3600000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
    }
    send(rabbit, first, **said)
    (got,) = http.http.take(first, 1, 1_000, auto_ack=True)
    for of_the_delivery in ("ack_id", "consumer"):
        got.pop(of_the_delivery, None)
    http.http("POST", f"/v1/queues/{second}/messages", got)
    method, properties, body = get(rabbit, second)
    assert {name: getattr(properties, name) for name in said} == said
    assert (body, method.exchange, method.routing_key) == (b"x", "", first)


@pytest.mark.parametrize("way", ["kafka", "lines", "http", "client", "frames"])
def test_priorities_and_delays_of_every_protocol_reach_amqp(way: str, rabbit: AmqpWay, ways: dict[str, Way]) -> None:
    samples = [number("priority", "high", 8), number("max_deliveries", "some", 4)]
    if way == "kafka":
        topic = unique("t")
        ways[way].publish(topic, samples)
        found = rabbit.read([topic], 2, "shared")
    else:
        queue = unique("q")
        rabbit.channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 9})
        ways[way].put(queue, [*samples, number("delay_ms", "short", 30)])
        found = rabbit.take(queue, 3)
        assert found[2].fields["delay_ms"] == 30
        assert found[2].raw[1].headers == {"x-delay": -30}
    assert [one.raw[1].priority for one in found[:2]] == [8, None]
    assert found[1].raw[1].headers["x-max-deliveries"] == 4
