"""Topics, live and stream subscriptions through the protocols of a real server, native beside Kafka's own clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import waystation as ws
from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

FIELDS: dict[str, Any] = {
    "id": "m-1",
    "key": "k",
    "headers": {"mine": "yes"},
    "priority": 7,
    "ttl_ms": 60_000,
    "correlation_id": "c-1",
    "reply_to": "somewhere",
    "content_type": "text/plain",
    "type": "event",
    "max_deliveries": 3,
}
HEADERS = {
    "x-message-id": b"m-1",
    "mine": b"yes",
    "x-priority": b"7",
    "x-ttl": b"60000",
    "x-correlation-id": b"c-1",
    "x-reply-to": b"somewhere",
    "x-content-type": b"text/plain",
    "x-type": b"event",
    "x-max-deliveries": b"3",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("topics"), settings={"num.partitions": 4}) as server:
        yield server


@pytest.fixture
def lines(server: Server) -> Iterator[JsonLines]:
    with JsonLines(server.bootstrap) as connection:
        yield connection


def kafka_consumer(server: Server, group: str, **settings: Any) -> Consumer:
    return Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **settings}
    )


def read_one(consumer: Consumer) -> Any:
    message = wait_for(lambda: consumer.poll(0.2), "a message for the Kafka consumer")
    assert message.error() is None
    return message


def subscribe(lines: JsonLines, number: int, topic: str, **fields: Any) -> Any:
    return lines.ask("subscribe_topics", consumer=number, topics=[topic], credit=1000, **fields)


def publish(lines: JsonLines, topic: str, *messages: dict[str, Any], **fields: Any) -> Any:
    return lines.ask("publish_messages", topic=topic, messages=list(messages), **fields)


def test_a_native_message_is_a_kafka_record_with_all_it_says(server: Server, lines: JsonLines) -> None:
    topic = unique("crossing")
    publish(lines, topic, {"payload": "hello", **FIELDS})
    consumer = kafka_consumer(server, unique("g"))
    consumer.subscribe([topic])
    record = read_one(consumer)
    consumer.close()
    assert (record.key(), record.value()) == (b"k", b"hello")
    assert dict(record.headers()) == HEADERS


def test_a_kafka_record_is_a_native_message_with_all_it_says(server: Server, lines: JsonLines) -> None:
    topic = unique("crossing")
    lines.ask("create_topic", topic=topic)
    subscribe(lines, 1, topic)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, value=b"hello", key=b"k", headers=list(HEADERS.items()))
    producer.produce(topic, value=b"\xff\xfe", key=b"k")
    producer.flush(30)
    first, second = lines.delivered(2)
    assert {name: first[name] for name in FIELDS} == FIELDS
    assert first["payload"] == "hello"
    assert (second["payload"], second["encoding"]) == ("//4=", "base64")
    found = lines.ask("find", message_id=second["id"])
    assert found["place"] == f"topic:{topic}"
    assert lines.ask("find", message_id="m-1", topic=topic)["message"]["payload"] == "hello"


def test_patterns_history_and_counts_over_a_plain_socket(server: Server, lines: JsonLines) -> None:
    name = unique("news")
    publish(lines, f"{name}.eu", *({"payload": str(i), "key": "k"} for i in range(5)))
    answer = subscribe(lines, 1, f"{name}.*", history=2)
    assert answer["topics"] == [f"{name}.eu"]
    assert [message["payload"] for message in lines.delivered(2)] == ["3", "4"]
    with JsonLines(server.bootstrap) as other:
        told = publish(other, f"{name}.us", {"payload": "later"})
        assert told["subscribers"] == 1
        publish(other, f"{name}.eu", {"payload": "now"})
        assert {message["payload"] for message in lines.delivered(2)} == {"later", "now"}
        lines.ask("cease", consumer=1)
        assert publish(other, f"{name}.eu", {"payload": "unheard"}).get("subscribers", 0) == 0


def test_native_and_kafka_consumers_divide_a_group(server: Server, lines: JsonLines) -> None:
    topic, group = unique("orders"), unique("g")
    lines.ask("create_topic", topic=topic, partitions=4)
    subscribe(lines, 1, topic, mode="stream", group=group, start="earliest")
    consumer = kafka_consumer(server, group, **{"group.protocol": "consumer"})

    def assigned() -> set[int]:
        return {part.partition for part in consumer.assignment()}

    consumer.subscribe([topic])

    def shared() -> bool:
        consumer.poll(0.1)
        return len(assigned()) == 2

    wait_for(shared, "half of the partitions for each")
    with JsonLines(server.bootstrap) as other:
        for index in range(4):
            publish(other, topic, {"payload": str(index)}, partition=index)
    by_kafka = sorted(int(read_one(consumer).value()) for _ in range(2))
    native = lines.delivered(2)
    assert by_kafka == sorted(assigned())
    assert sorted(by_kafka + [int(message["payload"]) for message in native]) == [0, 1, 2, 3]
    lines.ask("settle", consumer=1, tags=[message["tag"] for message in native])
    consumer.commit(asynchronous=False)
    consumer.close()
    with JsonLines(server.bootstrap) as other:
        for index in range(4):
            publish(other, topic, {"payload": f"again {index}"}, partition=index)
    assert sorted(message["payload"] for message in lines.delivered(4)) == [f"again {i}" for i in range(4)]


def test_what_a_stream_consumer_acknowledged_stays_so_after_a_kill(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"group.consumer.session.timeout.ms": 1_000}) as server:
        with JsonLines(server.bootstrap) as lines:
            publish(lines, "t", *({"payload": str(i)} for i in range(6)))
            subscribe(lines, 1, "t", mode="stream", group="g", start="earliest")
            got = lines.delivered(6)
            lines.ask("settle", consumer=1, tags=[message["tag"] for message in got[:4]])
            server.kill()
        server.restart()
        with JsonLines(server.bootstrap) as lines:
            subscribe(lines, 1, "t", mode="stream", group="g", start="earliest")
            assert [message["payload"] for message in lines.delivered(2)] == ["4", "5"]


def test_a_stream_is_turned_into_another_exactly_once_by_many_hands(server: Server) -> None:
    source, target, group = unique("in"), unique("out"), unique("g")
    failed: set[int] = set()
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        mq.create_topic(source, 3)
        mq.create_topic(target, 1)

        def work(message: ws.Message, tx: ws.Transaction) -> None:
            number = message.json()
            tx.publish(target, number * 10)
            if number % 7 == 0 and number not in failed:
                failed.add(number)
                raise ValueError("once")

        mq.on(source, group=group, start="earliest", guarantee="exactly-once", concurrency=4)(work)
        mq.publish_many(source, range(0, 50), key="a")
        mq.publish_many(source, range(50, 100), key="b")
        out = mq.subscribe(target, group=unique("check"), mode="stream", start="earliest")
        got = [out.get_message(timeout=30) for _ in range(100)]
        assert sorted(message.json() for message in got if message is not None) == [i * 10 for i in range(100)]
        assert out.get_message(timeout=0.2) is None
        mq.off(work)
