"""Short words for what tests with pika's blocking adapter do: connect, declare, publish, collect, be refused.

`Pikas` closes whatever it opened. A channel made by it confirms every publish, so that a test which goes on after a
publish goes on after the broker has the message. Only tests/clients calls this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.clients.amqp_kit import AmqpTarget
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for

Arguments = Mapping[str, Any]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def parameters(target: AmqpTarget, **options: Any) -> pika.ConnectionParameters:
    """Connection parameters that give up within the deadline and do not try again on their own."""
    base: dict[str, Any] = {
        "host": target.host,
        "port": target.port,
        "blocked_connection_timeout": DEADLINE_S,
        "socket_timeout": DEADLINE_S,
        "stack_timeout": DEADLINE_S,
    }
    return pika.ConnectionParameters(**{**base, **options})


class Pikas:
    """Opens blocking connections to one broker."""

    def __init__(self, target: AmqpTarget) -> None:
        self.target = target
        self._opened: list[BlockingConnection] = []

    def connect(self, **options: Any) -> BlockingConnection:
        connection = BlockingConnection(parameters(self.target, **options))
        self._opened.append(connection)
        return connection

    def channel(self, *, confirm: bool = True, **options: Any) -> BlockingChannel:
        """A channel on a connection of its own."""
        channel = self.connect(**options).channel()
        if confirm:
            channel.confirm_delivery()
        return channel

    def close(self) -> None:
        for connection in self._opened:
            if connection.is_open:
                try:
                    connection.close()
                except AMQPError:
                    pass


class Delivery:
    """What a consumer was called with."""

    __slots__ = ("body", "method", "properties")

    def __init__(self, method: Any, properties: Any, body: bytes) -> None:
        self.method = method
        self.properties = properties
        self.body = body

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def redelivered(self) -> bool:
        return bool(self.method.redelivered)

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


class Inbox:
    """A consumer that keeps what it gets, and takes part in its connection only while `take` or `until` runs."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.got: list[Delivery] = []
        self.tag: str = channel.basic_consume(queue, self._on_message, **options)

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append(Delivery(method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.got]

    def take(self, count: int) -> list[Delivery]:
        """Wait until `count` messages are here; return and forget them all (there may be more)."""
        until(self.channel.connection, lambda: len(self.got) >= count, f"{count} messages from {self.queue}")
        taken, self.got = self.got, []
        return taken

    def settled(self) -> list[bytes]:
        """The bodies that are here once the broker has answered a question to this queue: what is not, is held back."""
        depth(self.channel, self.queue)
        self.channel.connection.process_data_events(0)
        return self.bodies

    def cancel(self) -> None:
        self.channel.basic_cancel(self.tag)


def until(connection: BlockingConnection, done: Callable[[], object], what: str) -> None:
    """Serve a connection until something is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {DEADLINE_S:g} s: {what}")
        connection.process_data_events(0.02)


def new_queue(channel: BlockingChannel, arguments: Arguments | None = None, **flags: Any) -> str:
    """Declare a queue under a fresh name; exclusive unless told otherwise, so that it leaves with its connection."""
    flags.setdefault("exclusive", not flags.get("durable", False))
    name = unique("q")
    channel.queue_declare(name, arguments=dict(arguments or {}), **flags)
    return name


def new_exchange(channel: BlockingChannel, kind: str, arguments: Arguments | None = None, **flags: Any) -> str:
    """Declare an exchange under a fresh name. It leaves with its last binding, if it ever has one."""
    flags.setdefault("auto_delete", True)
    name = unique(f"x-{kind}")
    channel.exchange_declare(name, kind, arguments=dict(arguments or {}), **flags)
    return name


def bound_queue(channel: BlockingChannel, exchange: str, key: str = "", arguments: Arguments | None = None) -> str:
    """A fresh queue that is bound to an exchange."""
    queue = new_queue(channel)
    channel.queue_bind(queue, exchange, key, dict(arguments or {}))
    return queue


def put(channel: BlockingChannel, queue: str, bodies: Iterable[bytes], **properties: Any) -> None:
    """Publish to a queue by its name."""
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Delivery | None:
    """One `basic.get`."""
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    return None if method is None else Delivery(method, properties, body)


def get_one(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Delivery:
    """The next message, waited for."""
    return wait_for(lambda: get(channel, queue, auto_ack=auto_ack), f"a message in {queue}")


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Everything that is ready in a queue now, taken out."""
    bodies: list[bytes] = []
    while (message := get(channel, queue)) is not None:
        bodies.append(message.body)
    return bodies


def depth(channel: BlockingChannel, queue: str) -> int:
    """How many messages are ready, as a passive declaration tells it."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def consumers(channel: BlockingChannel, queue: str) -> int:
    """How many consumers it has, as a passive declaration tells it."""
    return int(channel.queue_declare(queue, passive=True).method.consumer_count)


def refused(call: Callable[[], object]) -> tuple[int, str]:
    """Code and text of the channel error that a call meets."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        call()
    return caught.value.reply_code, caught.value.reply_text


def cut_off(call: Callable[[], object]) -> tuple[int, str]:
    """Code and text of the connection error that a call meets."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        call()
    return caught.value.reply_code, caught.value.reply_text


def gone(pikas: Pikas, queue: str) -> bool:
    """Whether a queue is not there; asked on a connection of its own, since the answer closes a channel."""
    channel = pikas.channel(confirm=False)
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as error:
        if error.reply_code == 404:
            return True
        raise
    finally:
        channel.connection.close()
    return False
