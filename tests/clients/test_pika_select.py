"""pika's asynchronous adapters: many things under way at once, answers by callback, and no-wait methods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import (
    ChannelClosedByBroker,
    ChannelClosedByClient,
    ConnectionClosedByBroker,
    ConnectionClosedByClient,
    ProbableAuthenticationError,
)

from tests.clients.amqp_kit import AmqpTarget, numbered
from tests.clients.pika_kit import Pikas, drain, new_queue, parameters, put
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime


class Driver:
    """One asynchronous connection whose loop runs only while `until` waits for something."""

    def __init__(self, adapter: str, target: AmqpTarget, **options: Any) -> None:
        self.ended: list[BaseException] = []
        self.opened = False
        callbacks = {
            "on_open_callback": self._on_open,
            "on_open_error_callback": self._on_end,
            "on_close_callback": self._on_end,
        }
        if adapter == "select":
            self.connection = pika.SelectConnection(parameters(target, **options), **callbacks)
            self._start = self.connection.ioloop.start
        else:
            loop = asyncio.new_event_loop()
            self.connection = AsyncioConnection(parameters(target, **options), custom_ioloop=loop, **callbacks)
            self._start = loop.run_forever

    def _on_open(self, _connection: Any) -> None:
        self.opened = True

    def _on_end(self, _connection: Any, reason: BaseException) -> None:
        self.ended.append(reason)

    def until(self, done: Callable[[], object], what: str) -> None:
        loop = self.connection.ioloop
        deadline = time.monotonic() + DEADLINE_S

        def look() -> None:
            if done() or time.monotonic() > deadline:
                loop.stop()
            else:
                loop.call_later(0.002, look)

        loop.call_later(0, look)
        self._start()
        if not done():
            raise NotInTime(f"not within {DEADLINE_S:g} s: {what}")

    def channel(self) -> Any:
        """An open channel; `closed` of it collects why it ended."""
        ready: list[Any] = []
        channel = self.connection.channel(on_open_callback=ready.append)
        channel.closed = []
        channel.add_on_close_callback(lambda _channel, reason: channel.closed.append(reason))
        self.until(lambda: ready, "the channel is open")
        return channel

    def close(self) -> None:
        if self.opened and not self.ended:
            self.connection.close()
            self.until(lambda: self.ended, "the connection is closed")
        if isinstance(self.connection.ioloop, asyncio.AbstractEventLoop):
            self.connection.ioloop.close()
        else:
            self.connection.ioloop.close()


@pytest.fixture(params=["select", "asyncio"])
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(adapter: str, amqp: AmqpTarget) -> Iterator[Driver]:
    made = Driver(adapter, amqp)
    made.until(lambda: made.opened, "the connection is open")
    yield made
    made.close()


class Confirms:
    """What became of each publish, by its number, and in which order answers came."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.nacked: list[int] = []
        self.returned: list[bytes] = []
        self.order: list[str] = []

    def __call__(self, frame: Any) -> None:
        method = frame.method
        kind = self.acked if isinstance(method, pika.spec.Basic.Ack) else self.nacked
        self.order.append("ack" if kind is self.acked else "nack")
        if method.multiple:
            known = {*self.acked, *self.nacked}
            kind.extend(n for n in range(1, method.delivery_tag + 1) if n not in known)
        else:
            kind.append(method.delivery_tag)

    def on_return(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        self.returned.append(body)
        self.order.append("return")

    @property
    def answered(self) -> int:
        return len(self.acked) + len(self.nacked)


def confirming(driver: Driver) -> tuple[Any, Confirms]:
    """A channel in confirm mode and what comes of it."""
    channel, confirms = driver.channel(), Confirms()
    selected: list[Any] = []
    channel.confirm_delivery(confirms, callback=selected.append)
    channel.add_on_return_callback(confirms.on_return)
    driver.until(lambda: selected, "confirm mode is on")
    return channel, confirms


def test_connection_opens_and_closes_with_its_reason(driver: Driver) -> None:
    channel = driver.channel()
    channel.close()
    driver.until(lambda: channel.closed, "the channel is closed")
    assert isinstance(channel.closed[0], ChannelClosedByClient)
    driver.connection.close(reply_code=200, reply_text="good night")
    driver.until(lambda: driver.ended, "the connection is closed")
    (reason,) = driver.ended
    assert isinstance(reason, ConnectionClosedByClient)
    assert reason.reply_code == 200


def test_wrong_password_is_told_to_the_open_error_callback(adapter: str, amqp: AmqpTarget) -> None:
    wrong = Driver(adapter, amqp, credentials=pika.PlainCredentials("guest", "wrong"))
    wrong.until(lambda: wrong.ended, "the broker refuses")
    assert isinstance(wrong.ended[0], ProbableAuthenticationError)
    assert not wrong.opened
    wrong.close()


def test_connection_error_reaches_the_close_callback(driver: Driver) -> None:
    channel = driver.channel()
    channel.basic_recover(requeue=False)
    driver.until(lambda: driver.ended, "the broker hangs up")
    (reason,) = driver.ended
    assert isinstance(reason, ConnectionClosedByBroker)
    assert reason.reply_code == 540


def test_channel_error_reaches_its_close_callback(driver: Driver) -> None:
    channel = driver.channel()
    channel.queue_declare(unique("missing"), passive=True, callback=lambda _frame: None)
    driver.until(lambda: channel.closed, "the broker closes the channel")
    (reason,) = channel.closed
    assert isinstance(reason, ChannelClosedByBroker)
    assert reason.reply_code == 404
    assert driver.channel().is_open


def test_thousands_of_publishes_are_confirmed_each_once(driver: Driver, pikas: Pikas) -> None:
    watcher = pikas.channel()
    queue = new_queue(watcher, durable=True, exclusive=False)
    channel, confirms = confirming(driver)
    for body in numbered(3000):
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    driver.until(lambda: confirms.answered >= 3000, "3000 confirms")
    assert sorted(confirms.acked) == list(range(1, 3001))
    assert confirms.nacked == []
    assert watcher.queue_delete(queue).method.message_count == 3000


def test_return_comes_before_its_confirm(driver: Driver) -> None:
    channel, confirms = confirming(driver)
    channel.basic_publish("amq.direct", unique("nobody"), b"lost", mandatory=True)
    driver.until(lambda: confirms.answered, "the confirm")
    assert (confirms.order, confirms.returned, confirms.acked) == (["return", "ack"], [b"lost"], [1])


def test_every_mandatory_message_of_a_burst_is_routed_or_returned(driver: Driver, pikas: Pikas) -> None:
    watcher = pikas.channel()
    queue = new_queue(watcher)
    channel, confirms = confirming(driver)
    for number, body in enumerate(numbered(200)):
        channel.basic_publish("", queue if number % 2 else "no-such-queue", body, mandatory=True)
    driver.until(lambda: confirms.answered >= 200, "200 confirms")
    assert sorted(confirms.acked) == list(range(1, 201))
    assert confirms.returned == numbered(200)[::2]
    assert drain(watcher, queue) == numbered(200)[1::2]


def test_full_queue_nacks_exactly_what_it_does_not_take(driver: Driver, pikas: Pikas) -> None:
    watcher = pikas.channel()
    queue = new_queue(watcher, {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel, confirms = confirming(driver)
    for body in numbered(60):
        channel.basic_publish("", queue, body)
    driver.until(lambda: confirms.answered >= 60, "60 answers")
    # RabbitMQ may take a few more than the limit while its queue tells the channel that it is full.
    kept = drain(watcher, queue)
    assert sorted(confirms.acked + confirms.nacked) == list(range(1, 61))
    assert confirms.nacked
    assert [b"%06d" % (n - 1) for n in sorted(confirms.acked)] == kept


def test_publish_to_an_unknown_exchange_ends_the_channel_not_the_others(driver: Driver) -> None:
    channel, confirms = confirming(driver)
    other = driver.channel()
    channel.basic_publish(unique("no-exchange"), "k", b"x")
    driver.until(lambda: channel.closed, "the broker closes the channel")
    assert (channel.closed[0].reply_code, confirms.answered) == (404, 0)
    assert other.is_open


def test_no_wait_methods_do_their_work_in_order(driver: Driver, pikas: Pikas) -> None:
    # A method of pika without a callback is sent with no-wait: nothing comes back unless it fails.
    channel = driver.channel()
    exchange, second, queue = unique("x"), unique("x"), unique("q")
    got: list[bytes] = []
    channel.confirm_delivery(lambda _frame: None)
    channel.exchange_declare(exchange, "fanout")
    channel.exchange_declare(second, "fanout")
    channel.exchange_bind(second, exchange)
    channel.queue_declare(queue)
    channel.queue_bind(queue, second)
    channel.basic_publish(exchange, "", b"purged")
    channel.queue_purge(queue)
    channel.basic_publish(exchange, "", b"kept")
    channel.basic_consume(queue, lambda _ch, _method, _properties, body: got.append(body), auto_ack=True)
    driver.until(lambda: got, "the message")
    assert got == [b"kept"]
    channel.exchange_unbind(second, exchange)
    for name in (exchange, second):
        channel.exchange_delete(name)
    channel.queue_delete(queue)
    left: list[Any] = []
    channel.basic_qos(prefetch_count=1, callback=left.append)
    driver.until(lambda: left, "everything before is done")
    probe = driver.channel()
    probe.queue_declare(queue, passive=True, callback=lambda _frame: None)
    driver.until(lambda: probe.closed, "the queue is gone")
    assert probe.closed[0].reply_code == 404


def test_no_wait_method_that_fails_closes_the_channel(driver: Driver) -> None:
    channel = driver.channel()
    channel.queue_bind(unique("missing"), "amq.direct", "k")
    driver.until(lambda: channel.closed, "the broker closes the channel")
    assert channel.closed[0].reply_code == 404


def test_consumer_is_cancelled_by_client_and_by_broker(driver: Driver, pikas: Pikas) -> None:
    keeper = pikas.channel()
    queue = new_queue(keeper, exclusive=False)
    channel = driver.channel()
    told: list[str] = []
    got: list[bytes] = []
    ready: list[Any] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))

    def on_message(ch: Any, method: Any, _properties: Any, body: bytes) -> None:
        got.append(body)
        ch.basic_ack(method.delivery_tag)

    tags = [channel.basic_consume(queue, on_message, callback=ready.append) for _ in range(2)]
    driver.until(lambda: len(ready) == 2, "both consume")
    put(keeper, queue, numbered(10))
    driver.until(lambda: len(got) == 10, "ten messages")
    cancelled: list[Any] = []
    channel.basic_cancel(tags[0], callback=cancelled.append)
    driver.until(lambda: cancelled, "one is cancelled")
    keeper.queue_delete(queue)
    driver.until(lambda: told, "the broker cancels the other")
    assert told == [tags[1]]


def test_channels_open_without_waiting_for_each_other(driver: Driver) -> None:
    ready: list[Any] = []
    for _ in range(100):
        driver.connection.channel(on_open_callback=ready.append)
    driver.until(lambda: len(ready) == 100, "100 channels")
    assert sorted(channel.channel_number for channel in ready) == list(range(1, 101))


def test_work_flows_through_two_queues_while_everything_is_under_way(driver: Driver, pikas: Pikas) -> None:
    keeper = pikas.channel()
    first, second = (new_queue(keeper, exclusive=False) for _ in range(2))
    channel, confirms = confirming(driver)
    done: list[bytes] = []
    qos: list[Any] = []
    channel.basic_qos(prefetch_count=20, callback=qos.append)
    driver.until(lambda: qos, "prefetch is set")

    def hand_on(ch: Any, method: Any, properties: Any, body: bytes) -> None:
        ch.basic_publish("", second, body, properties)
        ch.basic_ack(method.delivery_tag)

    def finish(ch: Any, method: Any, _properties: Any, body: bytes) -> None:
        done.append(body)
        ch.basic_ack(method.delivery_tag)

    channel.basic_consume(first, hand_on)
    channel.basic_consume(second, finish)
    for body in numbered(500):
        channel.basic_publish("", first, body)
    driver.until(lambda: len(done) >= 500 and confirms.answered >= 1000, "everything went through")
    assert done == numbered(500)
    assert [keeper.queue_delete(queue).method.message_count for queue in (first, second)] == [0, 0]
