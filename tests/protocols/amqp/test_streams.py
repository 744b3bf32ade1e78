"""Topics through the AMQP protocol: streams, and queues whose messages are a shared subscription (`x-topic`).

A real broker, pika on the one side and Kafka's clients on the other.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pika
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for

STREAM = {"x-queue-type": "stream"}

KILLED = """
import sys, pika
host, port, queue = sys.argv[1:]
channel = pika.BlockingConnection(pika.ConnectionParameters(host, int(port))).channel()
channel.basic_qos(prefetch_count=10)
for method, properties, body in channel.consume(queue):
    print(body.decode(), flush=True)
"""
"""A consumer that takes messages, acknowledges none, and waits to be killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("amqp-streams"), settings={"log.retention.check.interval.ms": 500}) as started:
        yield started


class Clients:
    """Connections of one test, closed at its end."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._opened: list[pika.BlockingConnection] = []

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.server.addresses["amqp"].rpartition(":")
        return host, int(port)

    def channel(self, prefetch: int = 0, vhost: str = "/") -> BlockingChannel:
        """On a connection of its own; publishes are confirmed."""
        host, port = self.address
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, stack_timeout=DEADLINE_S))
        self._opened.append(connection)
        channel = connection.channel()
        channel.confirm_delivery()
        if prefetch:
            channel.basic_qos(prefetch_count=prefetch)
        return channel

    def close(self) -> None:
        for connection in self._opened:
            if connection.is_open:
                try:
                    connection.close()
                except AMQPError:
                    pass

    # -- Kafka ------------------------------------------------------------------------------------------------------

    def produce(self, topic: str, *values: str, key: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        for value in values:
            producer.produce(topic, value, key)
        assert producer.flush(DEADLINE_S) == 0

    def fetch(self, topic: str, count: int) -> list[Any]:
        consumer = Consumer(
            {"bootstrap.servers": self.server.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
        )
        got: list[Any] = []
        try:
            consumer.subscribe([topic])
            deadline = time.monotonic() + DEADLINE_S
            while len(got) < count and time.monotonic() < deadline:
                got += [one for one in consumer.consume(count, 0.2) if one.error() is None]
        finally:
            consumer.close()
        return got


@pytest.fixture
def clients(server: Server) -> Iterator[Clients]:
    opened = Clients(server)
    yield opened
    opened.close()


class Got:
    """What a consumer was called with, in order. The test says when the client works."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.deliveries: list[tuple[Any, Any, bytes]] = []
        self._cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: self._cancelled.append(frame.method.consumer_tag))
        self.tag = channel.basic_consume(queue, self._take, **options)

    def _take(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self.deliveries.append((method, properties, body))

    @property
    def texts(self) -> list[str]:
        return [body.decode() for _, _, body in self.deliveries]

    def until(self, count: int, *others: Got) -> list[str]:
        deadline = time.monotonic() + DEADLINE_S
        while (now := sum(len(one.deliveries) for one in (self, *others))) < count:
            if time.monotonic() > deadline:
                raise NotInTime(f"{count} deliveries, got {now}: {self.texts}")
            for one in (self, *others):
                one.channel.connection.process_data_events(0.02)
        return self.texts

    def until_cancelled(self) -> None:
        """By the broker."""
        deadline = time.monotonic() + DEADLINE_S
        while self.tag not in self._cancelled:
            if time.monotonic() > deadline:
                raise NotInTime("the broker cancels the consumer")
            self.channel.connection.process_data_events(0.02)

    def ack_all(self) -> None:
        self.channel.basic_ack(0, multiple=True)


def refused(code: int, words: str, act: Callable[[BlockingChannel], object], channel: BlockingChannel) -> None:
    """By the channel's end, or the connection's where the code is that of a hard error."""
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        act(channel)
    assert caught.value.reply_code == code, caught.value.reply_text
    assert words in caught.value.reply_text
    assert isinstance(caught.value, ConnectionClosedByBroker) == (code == 540)


# -- x-topic -----------------------------------------------------------------------------------------------------------


def test_kafka_producer_to_amqp_consumer_with_acks_and_a_killed_connection(clients: Clients) -> None:
    topic, queue = unique("t"), unique("q")
    channel = clients.channel(prefetch=10)
    channel.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    clients.produce(topic, "a", "b", "c", key="k")
    command = [sys.executable, "-c", KILLED, *map(str, clients.address), queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert [killed.stdout.readline().strip() for _ in range(3)] == ["a", "b", "c"]
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        killed.kill()
    got = Got(channel, queue)
    assert got.until(3) == ["a", "b", "c"]
    assert all(method.redelivered for method, _, _ in got.deliveries)
    assert got.deliveries[0][1].headers["x-key"] == "k"
    got.ack_all()
    clients.produce(topic, "d")
    assert got.until(4)[-1] == "d"
    assert not got.deliveries[-1][0].redelivered


def test_two_consumers_of_one_queue_compete_and_a_kafka_group_reads_all(clients: Clients) -> None:
    topic, queue = unique("t"), unique("q")
    clients.produce(topic, *map(str, range(20)))
    first, second = clients.channel(prefetch=5), clients.channel(prefetch=5)
    first.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    one, other = Got(first, queue), Got(second, queue)
    one.until(10, other)
    assert (len(one.texts), len(other.texts)) == (5, 5)
    for count in range(11, 21):
        for each in (one, other):
            each.ack_all()
        one.until(count, other)
    assert sorted(one.texts + other.texts, key=int) == [str(number) for number in range(20)]
    assert [message.value() for message in clients.fetch(topic, 20)] == [b"%d" % number for number in range(20)]


def test_a_message_that_fails_comes_again_and_then_goes_to_the_dead_letters(clients: Clients) -> None:
    topic, queue, dead = unique("t"), unique("q"), unique("dead")
    channel = clients.channel(prefetch=10)
    channel.queue_declare(dead, durable=True)
    arguments = {
        "x-topic": topic,
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    channel.queue_declare(queue, durable=True, arguments=arguments)
    clients.produce(topic, "bad")
    got, letters = Got(channel, queue), Got(channel, dead)
    got.until(1)
    channel.basic_nack(got.deliveries[0][0].delivery_tag, requeue=True)
    got.until(2)
    assert got.deliveries[1][0].redelivered
    channel.basic_nack(got.deliveries[1][0].delivery_tag, requeue=True)
    assert letters.until(1) == ["bad"]
    [death] = letters.deliveries[0][1].headers["x-death"]
    assert (death["reason"], death["count"]) == ("delivery_limit", 1)
    clients.produce(topic, "rejected")
    got.until(3)
    channel.basic_reject(got.deliveries[2][0].delivery_tag, requeue=False)
    assert letters.until(2) == ["bad", "rejected"]


def test_dead_letters_of_a_topic_go_through_an_exchange(clients: Clients) -> None:
    topic, queue, dead, exchange = unique("t"), unique("q"), unique("dead"), unique("dlx")
    channel = clients.channel(prefetch=10)
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(dead, durable=True)
    channel.queue_bind(dead, exchange, "gone.#")
    arguments = {"x-topic": topic, "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "gone.bad"}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    clients.produce(topic, "bad")
    got, letters = Got(channel, queue), Got(channel, dead)
    got.until(1)
    channel.basic_reject(got.deliveries[0][0].delivery_tag, requeue=False)
    assert letters.until(1) == ["bad"]
    method = letters.deliveries[0][0]
    assert (method.exchange, method.routing_key) == (exchange, "gone.bad")


def test_where_a_queue_on_a_topic_begins(clients: Clients) -> None:
    topic, every, new = unique("t"), unique("all"), unique("new")
    clients.produce(topic, "old")
    channel = clients.channel(prefetch=10)
    channel.queue_declare(every, durable=True, arguments={"x-topic": topic})
    channel.queue_declare(new, durable=True, arguments={"x-topic": topic, "x-topic-start": "latest"})
    clients.produce(topic, "young")
    assert channel.queue_declare(every, passive=True).method.message_count == 2
    assert channel.queue_declare(new, passive=True).method.message_count == 1
    assert Got(channel, every).until(2) == ["old", "young"]
    assert Got(channel, new).until(1) == ["young"]


def test_get_purge_and_delete_of_a_queue_on_a_topic(clients: Clients) -> None:
    topic, queue = unique("t"), unique("q")
    channel = clients.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    assert channel.basic_get(queue) == (None, None, None)
    clients.produce(topic, "a", "b", "c")
    method, _, body = channel.basic_get(queue)
    assert (body, method.message_count) == (b"a", 2)
    channel.basic_ack(method.delivery_tag)
    assert channel.queue_purge(queue).method.message_count == 2
    assert channel.basic_get(queue, auto_ack=True) == (None, None, None)
    clients.produce(topic, "d")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"d"
    got = Got(clients.channel(prefetch=1), queue)
    channel.queue_delete(queue)
    got.until_cancelled()
    assert len(clients.fetch(topic, 4)) == 4
    refused(404, "no queue", lambda channel: channel.queue_declare(queue, passive=True), channel)


def test_a_publish_to_a_queue_on_a_topic_goes_to_the_topic(clients: Clients) -> None:
    topic, queue, exchange = unique("t"), unique("q"), unique("x")
    channel = clients.channel(prefetch=10)
    channel.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.basic_publish("", queue, b"by name", mandatory=True)
    channel.basic_publish(exchange, "", b"by exchange", mandatory=True)
    assert Got(channel, queue).until(2) == ["by name", "by exchange"]
    assert [one.value() for one in clients.fetch(topic, 2)] == [b"by name", b"by exchange"]


def test_a_queue_on_a_topic_keeps_its_place_when_the_broker_is_killed(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        clients = Clients(server)
        channel = clients.channel(prefetch=2)
        channel.queue_declare("jobs", durable=True, arguments={"x-topic": "t"})
        channel.queue_declare("gone", arguments={"x-topic": "t"})
        clients.produce("t", "a", "b", "c")
        got = Got(channel, "jobs")
        got.until(2)
        channel.basic_ack(got.deliveries[0][0].delivery_tag)
        got.until(3)  # the ack was taken before the third was sent
        channel.queue_declare("other", durable=True)
        channel.basic_publish("", "other", b"confirmed when it, and what came before it, is on the disk")
        server.kill()
        server.restart()
        channel = clients.channel(prefetch=10)
        again = Got(channel, "jobs")
        assert again.until(2) == ["b", "c"]
        refused(404, "no queue 'gone'", lambda channel: channel.queue_declare("gone", passive=True), clients.channel())
        clients.close()


# -- streams -----------------------------------------------------------------------------------------------------------


def test_amqp_publish_to_a_stream_to_a_kafka_consumer(clients: Clients) -> None:
    stream = unique("s")
    channel = clients.channel()
    channel.queue_declare(stream, durable=True, arguments=STREAM)
    properties = pika.BasicProperties(headers={"colour": "blue", "x-key": "k"}, content_type="text/plain")
    channel.basic_publish("", stream, b"hello", properties, mandatory=True)
    [message] = clients.fetch(stream, 1)
    headers = dict(message.headers())
    assert (message.value(), message.key(), message.partition(), message.offset()) == (b"hello", b"k", 0, 0)
    assert headers["colour"] == b"blue"


@pytest.fixture
def stream(clients: Clients) -> str:
    """With five messages of its own."""
    name = unique("s")
    channel = clients.channel()
    channel.queue_declare(name, durable=True, arguments=STREAM)
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    return name


@pytest.mark.parametrize(
    ("offset", "texts"),
    [
        ("first", "01234"),
        (0, "01234"),
        (3, "34"),
        ("last", "4"),
        ("1h", "01234"),
        (datetime.now(UTC) - timedelta(hours=1), "01234"),
        (datetime.now(UTC) + timedelta(hours=1), ""),
        ("next", ""),
        (None, ""),
        (1_000_000, ""),
    ],
)
def test_a_reader_says_where_it_begins(clients: Clients, stream: str, offset: Any, texts: str) -> None:
    channel = clients.channel(prefetch=50)
    got = Got(channel, stream, arguments={} if offset is None else {"x-stream-offset": offset})
    channel.basic_publish("", stream, b"new")
    assert got.until(len(texts) + 1) == [*texts, "new"]
    offsets = [properties.headers["x-stream-offset"] for _, properties, _ in got.deliveries]
    assert offsets == [5 if text == "new" else int(text) for text in got.texts]
    assert not any(method.redelivered for method, _, _ in got.deliveries)


def test_a_reader_gets_its_prefetch_and_acks_free_it(clients: Clients, stream: str) -> None:
    channel = clients.channel(prefetch=2)
    got = Got(channel, stream, arguments={"x-stream-offset": "first"})
    assert got.until(2) == ["0", "1"]
    channel.connection.process_data_events(0.1)
    assert got.texts == ["0", "1"]
    channel.basic_ack(2, multiple=True)
    assert got.until(4) == ["0", "1", "2", "3"]
    channel.basic_nack(3, requeue=True)  # frees a place, and is not sent again
    assert got.until(5) == ["0", "1", "2", "3", "4"]


def test_every_reader_gets_everything(clients: Clients, stream: str) -> None:
    readers = [Got(clients.channel(prefetch=10), stream, arguments={"x-stream-offset": "first"}) for _ in range(2)]
    for reader in readers:
        assert reader.until(5) == list("01234")
    assert readers[0].channel.queue_declare(stream, passive=True).method.consumer_count == 2


def test_what_streams_cannot_do_is_refused_in_rabbitmqs_words(clients: Clients, stream: str) -> None:
    where = f"queue '{stream}' in vhost '/'"
    for code, words, act in [
        (406, f"prefetch count is not set for stream '{stream}'", lambda channel: channel.basic_consume(stream, print)),
        (540, "not supported by stream queues", lambda channel: channel.basic_get(stream)),
        (540, "not supported by stream queues", lambda channel: channel.queue_purge(stream)),
        (406, "received none but current is the value 'stream' of type 'longstr'", _declare(stream)),
        (406, f"inequivalent arg 'x-max-age' for {where}", _declare(stream, **STREAM, **{"x-max-age": "7D"})),
        (406, "invalid property 'non-durable'", lambda channel: channel.queue_declare("x", arguments=STREAM)),
        (406, "server-named queue for type rabbit_stream_queue", _declare("", **STREAM)),
        (406, "invalid arg 'x-message-ttl'", _declare("x", **STREAM, **{"x-message-ttl": 1})),
        (406, "invalid arg 'x-max-age'", _declare("x", **STREAM, **{"x-max-age": "soon"})),
    ]:
        refused(code, words, act, clients.channel())
    for flag in ("exclusive", "auto_delete"):
        refused(
            406,
            "invalid property",
            lambda channel: channel.queue_declare("x", durable=True, arguments=STREAM, **{flag: True}),  # noqa: B023
            clients.channel(),
        )
    for offset in ("soon", -1, True):
        refused(
            406,
            "invalid arg 'x-stream-offset'",
            lambda channel: channel.basic_consume(stream, print, arguments={"x-stream-offset": offset}),  # noqa: B023
            clients.channel(prefetch=1),
        )
    refused(
        540, "automatic ack", lambda channel: channel.basic_consume(stream, print, auto_ack=True), clients.channel(1)
    )


def _declare(name: str, **arguments: Any) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.queue_declare(name, durable=True, arguments=arguments)


def test_a_streams_limits_are_the_topics_settings(clients: Clients) -> None:
    name = unique("s")
    channel = clients.channel()
    arguments = {
        **STREAM,
        "x-max-age": "7D",
        "x-max-length-bytes": 1_000_000,
        "x-stream-max-segment-size-bytes": 500_000,
        "x-partitions": 3,
    }
    for _ in range(2):
        channel.queue_declare(name, durable=True, arguments=arguments)
    admin = AdminClient({"bootstrap.servers": clients.server.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result().items()}
    assert {key: found[key] for key in ("retention.ms", "retention.bytes", "segment.bytes")} == {
        "retention.ms": "604800000",
        "retention.bytes": "1000000",
        "segment.bytes": "500000",
    }
    assert len(admin.list_topics(name).topics[name].partitions) == 3
    changed = {**arguments, "x-max-age": "1h"}
    refused(406, "received '1h' but current is '7D'", _declare(name, **changed), channel)


def test_a_kafka_topic_is_a_stream_that_amqp_clients_need_not_declare(clients: Clients) -> None:
    topic, exchange = unique("t"), unique("x")
    clients.produce(topic, "a", "b")
    channel = clients.channel(prefetch=10)
    assert channel.queue_declare(topic, passive=True).method.message_count == 2
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(topic, exchange, "key")
    channel.basic_publish(exchange, "key", b"c", mandatory=True)
    assert Got(channel, topic, arguments={"x-stream-offset": "first"}).until(3) == ["a", "b", "c"]
    refused(403, "delete it as a topic", lambda channel: channel.queue_delete(topic), channel)
    channel = clients.channel()
    channel.queue_declare(topic, durable=True)  # a queue of that name may be, and is then what AMQP clients find
    channel.basic_publish("", topic, b"to the queue")
    assert channel.basic_get(topic, auto_ack=True)[2] == b"to the queue"


def test_deleting_a_stream_deletes_the_topic_and_tells_its_readers(clients: Clients, stream: str) -> None:
    got = Got(clients.channel(prefetch=10), stream)
    channel = clients.channel()
    channel.queue_delete(stream)
    got.until_cancelled()
    channel.queue_declare(stream, durable=True)  # the name is free


def test_the_three_kinds_of_queues_share_their_names(clients: Clients, stream: str) -> None:
    topic, plain, on_topic = unique("t"), unique("q"), unique("xt")
    channel = clients.channel()
    channel.queue_declare(plain, durable=True)
    channel.queue_declare(on_topic, durable=True, arguments={"x-topic": topic})
    channel.queue_declare(on_topic, durable=True, arguments={"x-topic": topic})
    cases: list[tuple[str, dict[str, Any], str]] = [
        (plain, STREAM, "inequivalent arg 'x-queue-type'"),
        (plain, {"x-topic": topic}, "not on a topic"),
        (on_topic, {}, "inequivalent arg 'x-topic'"),
        (on_topic, STREAM, "it is no stream"),
        (on_topic, {"x-topic": unique("t")}, "inequivalent"),
        (on_topic, {"x-topic": topic, "x-delivery-limit": 3}, "inequivalent"),
        (stream, {}, "inequivalent arg 'x-queue-type'"),
        (stream, {"x-topic": topic}, "inequivalent arg 'x-queue-type'"),
        (unique("q"), {"x-topic": topic, "x-max-length": 3}, "invalid arg 'x-max-length'"),
        (unique("q"), {"x-topic": "no topic's name"}, "cannot be a topic name"),
    ]
    for name, arguments, words in cases:
        refused(406, words, _declare(name, **arguments), clients.channel())


def test_cancelling_and_closing_leave_no_consumer(clients: Clients, stream: str) -> None:
    topic, queue = unique("t"), unique("q")
    watching = clients.channel()
    watching.queue_declare(queue, durable=True, arguments={"x-topic": topic})
    clients.produce(topic, "a", "b")
    channel = clients.channel(prefetch=1)
    got, read = Got(channel, queue), Got(channel, stream, arguments={"x-stream-offset": "first"})
    got.until(2, read)
    assert _consumers(watching, queue, stream) == (1, 1)
    for each in (got, read):
        channel.basic_cancel(each.tag)
    wait_for(lambda: _consumers(watching, queue, stream) == (0, 0), "no consumers")
    channel.basic_ack(got.deliveries[0][0].delivery_tag)
    channel.close()
    later = Got(watching, queue)
    assert later.until(1) == ["b"]


def _consumers(channel: BlockingChannel, *names: str) -> tuple[int, ...]:
    return tuple(channel.queue_declare(name, passive=True).method.consumer_count for name in names)


# -- virtual hosts -----------------------------------------------------------------------------------------------------


def test_topics_of_another_virtual_host_have_its_name(clients: Clients) -> None:
    vhost, topic = unique("shop"), unique("t")
    request = Request(f"http://{clients.server.addresses['http']}/api/vhosts/{vhost}", method="PUT")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urlopen(request, timeout=DEADLINE_S):
        pass
    channel = clients.channel(prefetch=10, vhost=vhost)
    channel.queue_declare("events", durable=True, arguments=STREAM)
    channel.queue_declare("jobs", durable=True, arguments={"x-topic": topic})
    channel.basic_publish("", "events", b"event", mandatory=True)
    channel.basic_publish("", "jobs", b"job", mandatory=True)
    assert [one.value() for one in clients.fetch(f"{vhost}.events", 1)] == [b"event"]
    clients.produce(f"{vhost}.{topic}", "other job")
    assert Got(channel, "jobs").until(2) == ["job", "other job"]
    assert Got(channel, "events", arguments={"x-stream-offset": "first"}).until(1) == ["event"]
    for name in ("jobs", "events"):
        refused(404, "no queue", lambda channel: channel.queue_declare(name, passive=True), clients.channel())  # noqa: B023
