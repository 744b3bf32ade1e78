"""pika, blocking: queues of type stream, which are read and read again and not emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.amqp_kit import numbered
from tests.clients.pika_kit import Inbox, Pikas, depth, new_queue, put, refused, until
from tests.support.names import unique

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def channel(pikas: Pikas) -> Any:
    made = pikas.channel()
    made.basic_qos(prefetch_count=100)
    return made


@pytest.fixture
def stream(channel: Any) -> Iterator[str]:
    """A stream with ten messages in it."""
    name = new_queue(channel, STREAM, durable=True)
    put(channel, name, numbered(10), delivery_mode=2)
    yield name
    if channel.is_open:
        channel.queue_delete(name)


def reader(channel: Any, stream: str, offset: object) -> Inbox:
    return Inbox(channel, stream, arguments={"x-stream-offset": offset})


def test_every_reader_gets_everything(channel: Any, stream: str) -> None:
    first, second = reader(channel, stream, "first"), reader(channel, stream, "first")
    until(channel.connection, lambda: len(first.got) == len(second.got) == 10, "ten messages for each")
    assert first.bodies == second.bodies == numbered(10)
    for inbox in (first, second):
        for delivery in inbox.got:
            channel.basic_ack(delivery.tag)
        inbox.cancel()
    assert [d.body for d in reader(channel, stream, "first").take(10)] == numbered(10)


def test_messages_tell_their_offset_and_readers_start_at_one(channel: Any, stream: str) -> None:
    offsets = [d.headers["x-stream-offset"] for d in reader(channel, stream, "first").take(10)]
    assert offsets == list(range(offsets[0], offsets[0] + 10))
    assert [d.body for d in reader(channel, stream, offsets[7]).take(3)][:3] == numbered(3, start=7)


def test_reader_from_the_end_gets_what_comes(channel: Any, stream: str) -> None:
    late = reader(channel, stream, "next")
    put(channel, stream, [b"new"])
    assert late.take(1)[0].body == b"new"


def test_prefetch_holds_a_reader_back_until_it_acks(pikas: Pikas, channel: Any, stream: str) -> None:
    slow = pikas.channel()
    slow.basic_qos(prefetch_count=2)
    inbox = reader(slow, stream, "first")
    until(slow.connection, lambda: len(inbox.got) == 2, "two messages")
    assert inbox.settled() == numbered(2)
    slow.basic_ack(inbox.got[1].tag, multiple=True)
    until(slow.connection, lambda: len(inbox.got) == 4, "two more")
    assert inbox.bodies == numbered(4)


def test_stream_must_be_durable_and_not_exclusive(pikas: Pikas) -> None:
    for flags in ({"durable": False}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}):
        fresh = pikas.channel()
        assert refused(lambda ch=fresh, f=flags: ch.queue_declare(unique("s"), arguments=STREAM, **f))[0] == 406  # type: ignore[misc]


def test_stream_is_declared_again_and_bound_like_a_queue(channel: Any, stream: str) -> None:
    assert channel.queue_declare(stream, durable=True, arguments=STREAM).method.queue == stream
    key = unique("key")
    channel.queue_bind(stream, "amq.topic", key)
    channel.basic_publish("amq.topic", key, b"routed")
    got = reader(channel, stream, "first").take(11)[-1]
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"routed", "amq.topic", key)
    assert depth(channel, stream) >= 0
