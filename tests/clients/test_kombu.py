"""kombu, as Celery and others use it: entities, producers, consumers, simple queues, mixins, pools and delays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, ConsumerCancelled, NotFound, PreconditionFailed
from kombu.common import Broadcast, eventloop, maybe_declare
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.messaging import Consumer, Producer
from kombu.mixins import ConsumerProducerMixin
from kombu.pools import connections, producers, reset
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from tests.clients.amqp_kit import AmqpTarget, Relay, numbered
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture
def connection(amqp: AmqpTarget) -> Iterator[Any]:
    with Connection(amqp.url(), connect_timeout=DEADLINE_S) as made:
        yield made


def own_queue(**options: Any) -> Any:
    """A queue that leaves with its connection."""
    name = unique("q")
    return Queue(name, Exchange(unique("x"), type="direct", auto_delete=True), name, exclusive=True, **options)


def serve(connection: Any, done: Callable[[], object], what: str) -> None:
    """Let a connection read until something is true."""

    def step() -> object:
        try:
            connection.drain_events(timeout=0.02)
        except TimeoutError:
            pass
        return done()

    wait_for(step, what, every_s=0)


def publish(connection: Any, queue: Any, body: Any, **options: Any) -> None:
    """As an application does: by the queue's exchange, declared on the way."""
    producer = Producer(connection.default_channel)
    producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


def test_connection_tells_what_it_is_connected_to(connection: Any) -> None:
    connection.connect()
    assert connection.connected
    assert connection.transport.driver_type == "amqp"
    assert connection.connection.server_properties["product"]
    connection.release()
    assert not connection.connected


def test_heartbeats_are_agreed_and_checked(amqp: AmqpTarget) -> None:
    with Connection(amqp.url(), heartbeat=30) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 30
        assert connection.supports_heartbeats
        connection.heartbeat_check()


def test_wrong_password_and_unknown_virtual_host(amqp: AmqpTarget) -> None:
    with Connection(amqp.url().replace("guest:guest", "guest:wrong")) as wrong, pytest.raises(AccessRefused):
        wrong.connect()
    with Connection(amqp.url("no-such-place")) as nowhere, pytest.raises(nowhere.connection_errors):
        nowhere.connect()


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_login_methods(amqp: AmqpTarget, method: str) -> None:
    with Connection(amqp.url(), login_method=method) as connection:
        connection.connect()
        assert connection.connected


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_bodies_of_every_serializer(connection: Any, serializer: str, compression: str | None) -> None:
    queue = own_queue()
    body = {"id": 1, "list": [1, 2, 3], "text": "č"}
    publish(connection, queue, body, serializer=serializer, compression=compression)
    bound = queue(connection.default_channel)
    message = wait_for(lambda: bound.get(accept=[serializer]), "the message")
    assert message.payload == body
    message.ack()
    assert bound.get() is None


def test_consumer_gets_and_settles(connection: Any) -> None:
    queue = own_queue()
    got: list[Any] = []
    for number in range(4):
        publish(connection, queue, {"n": number}, priority=3, headers={"h": number}, correlation_id=str(number))
    consumer = Consumer(connection.channel(), [queue], on_message=got.append, prefetch_count=2)
    with consumer:
        serve(connection, lambda: len(got) == 2, "two messages")
        got[0].ack()
        got[1].requeue()
        serve(connection, lambda: len(got) == 4, "two more")
        by_number = {message.payload["n"]: message for message in got[2:]}
        assert {n: m.delivery_info["redelivered"] for n, m in by_number.items()} == {1: True, 2: False}
        assert by_number[2].headers["h"] == 2
        assert by_number[2].properties["correlation_id"] == "2"
        assert by_number[2].properties["priority"] == 3
        by_number[1].reject()
        by_number[2].ack()
        serve(connection, lambda: len(got) == 5, "the last")
        got[4].ack()
        assert [message.payload["n"] for message in got[4:]] == [3]


def test_recover_brings_unacked_messages_again(connection: Any) -> None:
    queue = own_queue()
    got: list[Any] = []
    publish(connection, queue, "x")
    with Consumer(connection.channel(), [queue], on_message=got.append) as consumer:
        serve(connection, lambda: got, "the message")
        consumer.recover(requeue=True)
        serve(connection, lambda: len(got) == 2, "it is back")
        got[1].ack()
    assert [m.delivery_info["redelivered"] for m in got] == [False, True]


def test_entities_are_declared_bound_passive_purged_and_deleted(connection: Any) -> None:
    channel = connection.default_channel
    exchange = Exchange(unique("x"), type="topic", durable=True)(channel)
    behind = Exchange(unique("x"), type="fanout", durable=False)(channel)
    queue = Queue(unique("q"), exchange, "a.#", durable=True, queue_arguments={"x-max-priority": 9})(channel)
    maybe_declare(queue)
    behind.declare()
    behind.bind_to(exchange, "a.*")
    second = Queue(unique("q"), behind, auto_delete=True)(channel)
    second.declare()
    Producer(channel, exchange).publish("x", routing_key="a.b")
    wait_for(lambda: queue.queue_declare(passive=True).message_count == 1, "the message is there")
    assert (queue.purge(), second.purge()) == (1, 1)
    queue.unbind_from(exchange, "a.#")
    behind.unbind_from(exchange, "a.*")
    Producer(channel, exchange).publish("x", routing_key="a.b")
    assert (queue.purge(), second.purge()) == (0, 0)
    queue.delete(if_unused=True, if_empty=True)
    exchange.delete()
    second.delete()
    behind.delete()
    with pytest.raises(NotFound):
        queue.queue_declare(passive=True)


def test_broadcast_reaches_every_listener(connection: Any) -> None:
    name = unique("news")
    got: list[list[Any]] = [[], []]
    channel = connection.channel()
    listeners = [
        Consumer(channel, [Broadcast(name)], callbacks=[lambda body, _m, mine=mine: mine.append(body)], no_ack=True)
        for mine in got
    ]
    for listener in listeners:
        listener.consume()
    Producer(channel).publish({"hello": 1}, exchange=Exchange(name, type="fanout"), routing_key="")
    serve(connection, lambda: all(got), "both have it")
    assert got == [[{"hello": 1}]] * 2


def test_properties_that_say_nothing_come_back_as_they_were_sent(connection: Any) -> None:
    # Celery's remote control reads `priority` and `headers` of every message as if they were always there.
    queue = own_queue()
    publish(connection, queue, "x", priority=0, headers={})
    message = queue(connection.default_channel).get(no_ack=True)
    assert message.headers == {}
    assert (message.properties["priority"], message.properties["application_headers"]) == (0, {})


def test_priorities_of_messages_and_of_consumers(connection: Any) -> None:
    queue = own_queue(max_priority=10)
    for priority in (1, 5, 10, 5):
        publish(connection, queue, priority, priority=priority)
    bound = queue(connection.default_channel)
    assert [bound.get(no_ack=True).payload for _ in range(4)] == [10, 5, 5, 1]
    low: list[Any] = []
    high: list[Any] = []
    channel = connection.channel()
    consumers = [
        Consumer(channel, [queue], on_message=low.append, no_ack=True),
        Consumer(
            channel,
            [Queue(queue.name, no_declare=True, consumer_arguments={"x-priority": 5})],
            on_message=high.append,
            no_ack=True,
        ),
    ]
    for consumer in consumers:
        consumer.consume()
    for number in range(5):
        publish(connection, queue, number)
    serve(connection, lambda: len(low) + len(high) == 5, "all are delivered")
    assert (len(low), len(high)) == (0, 5)


def test_queue_arguments_by_their_kombu_names(connection: Any) -> None:
    dead = own_queue()
    dead(connection.default_channel).declare()
    queue = own_queue(
        message_ttl=0.05,
        expires=60,
        max_length=10,
        max_length_bytes=100_000,
        queue_arguments={
            "x-dead-letter-exchange": dead.exchange.name,
            "x-dead-letter-routing-key": dead.routing_key,
        },
    )
    publish(connection, queue, "late")
    message = wait_for(lambda: dead(connection.default_channel).get(no_ack=True), "the message moved")
    assert message.payload == "late"
    assert message.headers["x-death"][0]["reason"] == "expired"


def test_expiration_of_a_message(connection: Any) -> None:
    queue = own_queue()
    publish(connection, queue, "short", expiration=0.05)
    bound = queue(connection.default_channel)
    wait_for(lambda: bound.queue_declare(passive=True).message_count == 0, "it timed out")


def test_simple_queue_and_buffer(connection: Any) -> None:
    name = unique("simple")
    with connection.SimpleQueue(name) as queue:
        for number in range(3):
            queue.put({"n": number})
        wait_for(lambda: queue.qsize() == 3, "all three are there")
        got = [queue.get(timeout=DEADLINE_S) for _ in range(3)]
        assert [message.payload["n"] for message in got] == [0, 1, 2]
        for message in got:
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
    connection.default_channel.queue_delete(name)
    with connection.SimpleBuffer(unique("buffer")) as buffer:
        buffer.put("x")
        assert buffer.get(timeout=DEADLINE_S).payload == "x"


def test_mixin_answers_requests(amqp: AmqpTarget) -> None:
    requests = Queue(unique("rpc"), auto_delete=True)

    class Worker(ConsumerProducerMixin):
        def __init__(self, connection: Any) -> None:
            self.connection = connection
            self.ready = threading.Event()

        def get_consumers(self, consumer: Any, _channel: Any) -> list[Any]:
            return [consumer(queues=[requests], on_message=self.answer, accept=["json"], prefetch_count=1)]

        def on_consume_ready(self, *_: Any, **__: Any) -> None:
            self.ready.set()

        def answer(self, message: Any) -> None:
            self.producer.publish(
                {"double": 2 * message.payload["n"]},
                exchange="",
                routing_key=message.properties["reply_to"],
                correlation_id=message.properties["correlation_id"],
            )
            message.ack()

    with Connection(amqp.url()) as serving, Connection(amqp.url()) as asking:
        worker = Worker(serving)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert worker.ready.wait(DEADLINE_S)
        got: dict[str, int] = {}
        channel = asking.channel()
        replies = Queue(unique("reply"), exclusive=True, auto_delete=True)

        def keep(body: Any, message: Any) -> None:
            got[message.properties["correlation_id"]] = body["double"]

        with Consumer(channel, [replies], callbacks=[keep], no_ack=True):
            for number in range(5):
                Producer(channel).publish(
                    {"n": number}, routing_key=requests.name, reply_to=replies.name, correlation_id=str(number)
                )
            serve(asking, lambda: len(got) == 5, "five answers")
        worker.should_stop = True
        thread.join(DEADLINE_S)
    assert got == {str(n): 2 * n for n in range(5)}


def test_pools_lend_connections_and_producers(amqp: AmqpTarget) -> None:
    connection = Connection(amqp.url())
    queue = Queue(unique("pooled"), auto_delete=True)
    with connections[connection].acquire(block=True) as lent:
        queue(lent.default_channel).declare()
    for body in ("a", "b"):
        with producers[connection].acquire(block=True) as producer:
            producer.publish(body, routing_key=queue.name, retry=True)
    with connections[connection].acquire(block=True) as lent:
        bound = queue(lent.default_channel)
        assert [bound.get(no_ack=True).payload for _ in range(2)] == ["a", "b"]
        bound.delete()
    reset()


def test_confirmed_publishes_and_returns(amqp: AmqpTarget) -> None:
    options = {"confirm_publish": True}
    with Connection(amqp.url(), transport_options=options) as connection:
        channel = connection.channel()
        queue = own_queue(queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        publish(connection, queue, "fits")
        with pytest.raises((OperationalError, *connection.recoverable_connection_errors)):
            publish(connection, queue, "does not")
        returned: list[Any] = []
        producer = Producer(channel, on_return=lambda *what: returned.append(what))
        producer.publish("lost", exchange="amq.direct", routing_key=unique("nobody"), mandatory=True)
        serve(connection, lambda: returned, "the message comes back")
        assert returned[0][0].reply_code == 312


def test_declaring_differently_is_a_channel_error(connection: Any) -> None:
    queue = own_queue()
    queue(connection.channel()).declare()
    other = Queue(queue.name, queue.exchange, queue.routing_key, exclusive=True, max_length=5)
    with pytest.raises(PreconditionFailed) as caught:
        other(connection.channel()).declare()
    assert isinstance(caught.value, connection.channel_errors)


def test_consumer_hears_that_its_queue_is_deleted(connection: Any) -> None:
    queue = own_queue()
    channel = connection.channel()
    Consumer(channel, [queue], on_message=print).consume()
    queue(connection.default_channel).delete(nowait=True)
    with pytest.raises(ConsumerCancelled):
        serve(connection, lambda: False, "the broker cancels")


def test_publisher_reconnects_and_tries_again(amqp: AmqpTarget, relay: Relay) -> None:
    queue = Queue(unique("again"), durable=True)
    policy = {"interval_start": 0, "interval_step": 0.05, "max_retries": 100}
    with Connection(amqp.url()) as steady, Connection(relay.target.url()) as shaky:
        bound = queue(steady.default_channel)
        bound.declare()
        producer = shaky.Producer()
        producer.publish("before", routing_key=queue.name, retry=True, retry_policy=policy)
        wait_for(lambda: bound.queue_declare(passive=True).message_count == 1, "the first is there")
        relay.cut()
        try:
            shaky.drain_events(timeout=DEADLINE_S)
        except (TimeoutError, *shaky.connection_errors):
            pass
        producer.publish("after", routing_key=queue.name, retry=True, retry_policy=policy)
        wait_for(lambda: bound.queue_declare(passive=True).message_count == 2, "the second is there")
        assert [bound.get(no_ack=True).payload for _ in range(2)] == ["before", "after"]
        bound.delete()


def test_ensure_revives_a_dead_connection(amqp: AmqpTarget, relay: Relay) -> None:
    with Connection(relay.target.url()) as connection:
        connection.ensure_connection(max_retries=3, timeout=DEADLINE_S)
        relay.cut()
        seen: list[Exception] = []

        def declare(channel: Any = None) -> Any:
            return (channel or connection.default_channel).queue_declare("", exclusive=True).queue

        ensured = connection.autoretry(
            declare,
            max_retries=5,
            errback=lambda error, _interval: seen.append(error),
            interval_start=0,
            interval_step=0.05,
        )
        name, _channel = ensured()
        assert name.startswith("amq.gen-")
        assert seen


def test_eventloop_hands_messages_on(connection: Any) -> None:
    queue = own_queue()
    for body in numbered(3):
        publish(connection, queue, body.decode())
    got: list[Any] = []
    with Consumer(connection.channel(), [queue], callbacks=[lambda body, _m: got.append(body)], no_ack=True):
        for _ in eventloop(connection, timeout=0.05, ignore_timeouts=True):
            if len(got) == 3:
                break
    assert got == ["000000", "000001", "000002"]


def test_native_delayed_delivery_of_quorum_queues(connection: Any) -> None:
    # What Celery does for an ETA on quorum queues: a ladder of queues with a TTL each, joined by topic exchanges.
    prefix = unique("delay")
    declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", prefix)
    channel = connection.default_channel
    exchange = Exchange(unique("tasks"), type="topic")
    queue = Queue(unique("eta"), exchange, "work", durable=True, queue_arguments={"x-queue-type": "quorum"})(channel)
    queue.declare()
    bind_queue_to_native_delayed_delivery_exchange(connection, queue, prefix)
    key = calculate_routing_key(1, "work")
    Producer(channel).publish("later", exchange=level_name(27, prefix), routing_key=key, delivery_mode=2)
    assert queue.get(no_ack=True) is None
    message = wait_for(lambda: queue.get(no_ack=True), "the message has waited its second")
    assert message.payload == "later"
    assert message.headers["x-death"][0]["queue"] == level_name(0, prefix)
    queue.delete()
    for level in range(28):
        channel.queue_delete(level_name(level, prefix))
        channel.exchange_delete(level_name(level, prefix))
