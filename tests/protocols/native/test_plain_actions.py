"""The plain actions of JSON lines, with a client that knows nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.native.kit import JsonLines
from tests.protocols.native.plain_client import MessageConsumer, MessageProducer
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for


@pytest.fixture
def producer(server: Server) -> Iterator[MessageProducer]:
    client = MessageProducer(*split_address(server.bootstrap))
    yield client
    client.disconnect()


@pytest.fixture
def new_consumer(server: Server) -> Iterator[Callable[[str], MessageConsumer]]:
    made: list[MessageConsumer] = []

    def make(consumer_id: str) -> MessageConsumer:
        made.append(MessageConsumer(consumer_id, *split_address(server.bootstrap)))
        return made[-1]

    yield make
    for consumer in made:
        if consumer.running:
            consumer.stop_consuming()
        consumer.disconnect()


NewConsumer = Callable[[str], MessageConsumer]


def test_its_example_runs_as_written(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    root = unique("test")
    consumer = new_consumer(unique("test-consumer"))
    received: list[dict[str, Any]] = []

    def message_handler(message: dict[str, Any]) -> bool:
        received.append(message)
        return True

    assert consumer.subscribe(f"{root}.topic.*", message_handler=message_handler)
    consumer.start_consuming()
    ids = [producer.publish_text(f"{root}.topic.example", f"Hello World {i}!") for i in range(5)]
    assert None not in ids
    wait_for(lambda: len(received) == 5, "all five have come")
    consumer.stop_consuming()
    assert [message["id"] for message in received] == ids
    assert [message["payload"] for message in received] == [f"Hello World {i}!".encode() for i in range(5)]
    assert {message["topic"] for message in received} == {f"{root}.topic.example"}
    assert consumer.consume() == []  # all are acknowledged


def test_fields_come_back(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    before = time.time()
    producer.publish_json(topic, {"a": 1}, headers={"h": "v"}, priority=4, expiry_seconds=3600)
    producer.publish_text(topic, "plain")
    first, second = _consume(consumer, 2)
    assert (first["payload"], first["headers"], first["priority"]) == ('{"a": 1}', {"h": "v"}, 4)
    assert before + 3500 < first["expiry"] < time.time() + 3700
    assert abs(first["timestamp"] - before) < 60
    assert (first["retry_count"], first["topic"]) == (0, topic)
    assert (second["headers"], second["priority"], second["expiry"]) == ({}, 2, None)


def _consume(consumer: MessageConsumer, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        found.extend(consumer.consume())
        return len(found) >= count

    wait_for(enough, f"{count} messages have come")
    assert len(found) == count, found
    return found


def test_messages_from_before_the_subscription_are_waiting(
    producer: MessageProducer, new_consumer: NewConsumer
) -> None:
    topic = unique("zero")
    producer.publish_text(topic, "early")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    assert _consume(consumer, 1)[0]["payload"] == "early"


def test_every_consumer_gets_every_message(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumers = [new_consumer(unique("c")) for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe(topic)
    producer.publish_text(topic, "to all")
    for consumer in consumers:
        assert _consume(consumer, 1)[0]["payload"] == "to all"


def test_no_more_than_asked_for_and_the_rest_later(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    for i in range(7):
        producer.publish_text(topic, str(i))
    found: list[dict[str, Any]] = []
    while len(found) < 7:
        part = consumer.consume(3)
        assert len(part) <= 3
        found += part
    assert [message["payload"] for message in found] == [str(i) for i in range(7)]


def test_a_rejected_message_comes_again_and_is_counted(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    producer.publish_text(topic, "again")
    (first,) = _consume(consumer, 1)
    assert consumer.reject_message(first["id"])
    (second,) = _consume(consumer, 1)
    assert (second["id"], second["retry_count"]) == (first["id"], 1)
    assert consumer.acknowledge_message(second["id"])
    assert not consumer.acknowledge_message(second["id"])
    assert consumer.consume() == []


def test_a_handler_that_fails_sees_the_message_again(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    seen: list[int] = []

    def handler(message: dict[str, Any]) -> bool:
        seen.append(message["retry_count"])
        if len(seen) < 3:
            raise ValueError("not yet")
        return True

    consumer.subscribe(topic, message_handler=handler)
    consumer.start_consuming()
    producer.publish_text(topic, "stubborn")
    wait_for(lambda: len(seen) == 3, "the third try has come")
    consumer.stop_consuming()
    assert seen == [0, 1, 2]


def test_what_a_lost_consumer_had_comes_again_without_subscribing_again(
    producer: MessageProducer, new_consumer: NewConsumer
) -> None:
    topic, name = unique("zero"), unique("c")
    consumer = new_consumer(name)
    consumer.subscribe(topic)
    for payload in ("done", "lost"):
        producer.publish_text(topic, payload)
    done, lost = _consume(consumer, 2)
    assert consumer.acknowledge_message(done["id"])
    consumer.disconnect()
    (again,) = _consume(new_consumer(name), 1)
    assert (again["id"], again["payload"]) == (lost["id"], "lost")


def test_at_most_once_never_comes_again(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic, name = unique("zero"), unique("c")
    consumer = new_consumer(name)
    consumer.subscribe(topic, delivery_mode="at_most_once")
    producer.publish_text(topic, "once")
    (message,) = _consume(consumer, 1)
    assert consumer.acknowledge_message(message["id"])  # its client says so whatever the mode is
    producer.publish_text(topic, "twice")
    _consume(consumer, 1)
    consumer.disconnect()
    assert new_consumer(name).consume() == []


def test_unsubscribed_is_over(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    assert consumer.unsubscribe(topic)
    producer.publish_text(topic, "nobody hears")
    assert consumer.consume() == []
    assert not consumer.unsubscribe(topic)


def test_two_patterns_of_one_consumer(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    root = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(f"{root}.a")
    consumer.subscribe(f"{root}.b")
    producer.publish_text(f"{root}.a", "1")
    producer.publish_text(f"{root}.b", "2")
    assert sorted(message["payload"] for message in _consume(consumer, 2)) == ["1", "2"]


def test_a_star_inside_a_word(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    root = unique("zero")
    consumer = new_consumer(unique("c"))
    assert consumer.subscribe(f"{root}-*")
    producer.publish_text(f"{root}-x.y", "any")
    producer.publish_text(unique("other"), "none")
    assert [message["payload"] for message in _consume(consumer, 1)] == ["any"]


def test_a_star_is_any_run_of_characters_dots_included(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    root = unique("zero")
    tail, middle = new_consumer(unique("c")), new_consumer(unique("c"))
    assert tail.subscribe(f"{root}.*")
    assert middle.subscribe(f"{root}.*.end")
    for topic in (f"{root}.a", f"{root}.a.b.c", f"{root}.a.b.end", f"{root}-a"):
        producer.publish_text(topic, topic)
    assert {one["payload"] for one in _consume(tail, 3)} == {f"{root}.a", f"{root}.a.b.c", f"{root}.a.b.end"}
    assert [one["payload"] for one in _consume(middle, 1)] == [f"{root}.a.b.end"]


def test_a_pattern_has_stars_or_hashes(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    root = unique("zero")
    consumer = new_consumer(unique("c"))
    assert consumer.subscribe(f"{root}.#")
    producer.publish_text(f"{root}.a.b", "words")
    assert [one["payload"] for one in _consume(consumer, 1)] == ["words"]
    both = {"id": unique("s"), "topic_pattern": f"{root}.*.#", "consumer_id": unique("c")}
    refused = producer.send_command({"action": "subscribe", "subscription": both})
    assert refused is not None
    assert (refused["status"], refused["error_type"]) == ("error", "Invalid")
    assert "topic_pattern" in refused["error"]


def test_an_expired_message_is_not_delivered(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    message = {"id": "x", "topic": topic, "payload": "old", "expiry": time.time() + 0.05}
    assert producer.send_command({"action": "publish", "message": message}) is not None
    deadline = time.time() + 0.06
    wait_for(lambda: time.time() > deadline, "its time has passed")
    producer.publish_text(topic, "fresh")
    assert [message["payload"] for message in _consume(consumer, 1)] == ["fresh"]
    refused = producer.send_command({"action": "publish", "message": message})
    assert refused is not None
    assert (refused["status"], refused["error_type"]) == ("error", "Expired")


def test_stats_have_its_names(producer: MessageProducer, new_consumer: NewConsumer) -> None:
    topic = unique("zero")
    consumer = new_consumer(unique("c"))
    consumer.subscribe(topic)
    before = _stats(producer)
    producer.publish_text(topic, "counted")
    _consume(consumer, 1)
    stats = _stats(producer)
    assert stats["messages_published"] == before["messages_published"] + 1
    assert stats["messages_delivered"] == before["messages_delivered"] + 1
    assert stats["total_topics"] == len(stats["topics"])
    assert stats["total_subscriptions"] >= 1
    assert stats["active_consumers"] >= 1
    assert stats["topics"][topic]["partitions"] == 1
    assert stats["topics"][topic]["total_messages"] == 1
    assert stats["topics"][topic]["total_bytes"] > 0
    assert stats["topics"][topic]["subscriptions"] == 1


def _stats(client: MessageProducer) -> dict[str, Any]:
    response = client.send_command({"action": "stats"})
    assert response is not None
    stats: dict[str, Any] = response["stats"]
    return stats


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({}, "action"),
        ({"action": "explode"}, "Unknown action: explode"),
        ({"action": "subscrib"}, "did you mean subscribe?"),
        ({"action": "publish"}, "Missing required field: 'message'"),
        ({"action": "publish", "message": {"payload": "x"}}, "Missing required field: 'topic'"),
        ({"action": "publish", "message": {"topic": "t"}}, "payload"),
        ({"action": "publish", "message": {"topic": "t", "payload": "x", "priority": 256}}, "priority"),
        ({"action": "publish", "message": {"topic": "t", "payload": "x", "expiry": "soon"}}, "expiry"),
        ({"action": "publish", "message": {"topic": "t/t", "payload": "x"}}, "t/t"),
        ({"action": "publish", "message": "text"}, "message"),
        ({"action": "subscribe"}, "Missing required field: 'subscription'"),
        ({"action": "subscribe", "subscription": {"id": "1", "topic_pattern": "t"}}, "consumer_id"),
        (
            {
                "action": "subscribe",
                "subscription": {"id": "1", "topic_pattern": "t", "consumer_id": "c", "delivery_mode": "twice"},
            },
            "delivery_mode",
        ),
        ({"action": "unsubscribe"}, "subscription_id"),
        ({"action": "unsubscribe", "subscription_id": "never"}, "never"),
        ({"action": "consume"}, "consumer_id"),
        ({"action": "consume", "consumer_id": "c", "max_messages": -1}, "max_messages"),
        ({"action": "ack", "consumer_id": "c"}, "message_id"),
        ({"action": "ack", "consumer_id": "c", "message_id": "m"}, "not in flight"),
        ({"action": "reject", "consumer_id": "c", "message_id": "m"}, "not in flight"),
    ],
)
def test_bad_input_gets_an_error_and_the_connection_stays(
    producer: MessageProducer, command: dict[str, Any], said: str
) -> None:
    response = producer.send_command(command)
    assert response is not None
    assert response["status"] == "error"
    assert said in response["error"]
    assert producer.publish_text(unique("after"), "still here") is not None


def test_a_consume_that_waits_is_woken(server: Server, producer: MessageProducer, lines: JsonLines) -> None:
    topic, name = unique("zero"), unique("c")
    subscription = {"id": unique("s"), "topic_pattern": topic, "consumer_id": name}
    assert lines.try_ask("subscribe", subscription=subscription)["status"] == "success"
    lines.send("consume", consumer_id=name, wait_ms=60_000)
    producer.publish_text(topic, "now")
    assert [message["payload"] for message in lines.answer()["messages"]] == ["now"]


def test_answers_come_in_the_order_of_requests(lines: JsonLines) -> None:
    topic = unique("zero")
    for i in range(30):
        lines.send("publish", message={"topic": topic, "payload": str(i)})
        lines.send("explode")
        lines.send("ping")
    for i in range(30):
        published = lines.answer()
        assert (published["status"], published["offset"]) == ("success", i)
        assert published["message_id"] == f"{topic}-0@{i}"
        assert lines.answer()["status"] == "error"
        assert lines.answer() == {"status": "success"}


def test_payloads_that_are_no_text_come_as_base64(lines: JsonLines) -> None:
    topic, name = unique("zero"), unique("c")
    message = {"topic": topic, "payload": "/wA=", "encoding": "base64"}
    assert lines.try_ask("publish", message=message)["status"] == "success"
    lines.try_ask("subscribe", subscription={"id": unique("s"), "topic_pattern": topic, "consumer_id": name})
    answer = lines.try_ask("consume", consumer_id=name, wait_ms=20_000)
    assert [(each["payload"], each["encoding"]) for each in answer["messages"]] == [("/wA=", "base64")]


def test_the_place_of_a_consumer_survives_kill_nine(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        address = split_address(server.bootstrap)
        producer, consumer = MessageProducer(*address), MessageConsumer("c", *address)
        consumer.subscribe("zero")
        for payload in ("a", "b"):
            producer.publish_text("zero", payload)
        first, _ = _consume(consumer, 2)
        assert consumer.acknowledge_message(first["id"])
        producer.disconnect()
        consumer.disconnect()
        server.kill()
        server.restart()
        again = MessageConsumer("c", *address)
        again.subscribe("zero")
        assert [message["payload"] for message in _consume(again, 1)] == ["b"]
        again.disconnect()
