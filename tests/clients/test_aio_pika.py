"""aio-pika: confirms, iterators, transactions, and the exceptions it makes of our errors."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Coroutine
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
    QueueEmpty,
)
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource

from tests.clients.aio_pika_kit import channel_to, connection_to, get_one, own_queue, put, run, until
from tests.clients.amqp_kit import AmqpTarget, death, numbered
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

HEADERS: dict[str, Any] = {
    "text": "ž",
    "int": -5,
    "big": 2**50,
    "float": 0.25,
    "bool": True,
    "none": None,
    "bytes": bytearray(b"\x00\xff"),
    "list": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}


def test_message_comes_back_as_it_was_sent(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            queue = await own_queue(channel)
            when = datetime.datetime(2026, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
            sent = Message(
                b"\x00body",
                headers=HEADERS,
                content_type="application/octet-stream",
                content_encoding="none",
                delivery_mode=DeliveryMode.PERSISTENT,
                priority=4,
                correlation_id="c",
                reply_to="r",
                expiration=60,
                message_id="m",
                timestamp=when,
                type="t",
                user_id="guest",
                app_id="a",
            )
            await channel.default_exchange.publish(sent, queue.name)
            got = await queue.get(no_ack=True)
            assert got is not None
            assert (got.body, got.headers) == (b"\x00body", HEADERS)
            assert got.timestamp is not None
            assert got.timestamp.replace(tzinfo=datetime.UTC) == when
            names = ["content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to"]
            names += ["expiration", "message_id", "type", "user_id", "app_id"]
            assert {n: getattr(got, n) for n in names} == {n: getattr(sent, n) for n in names}

    run(story())


def test_publishes_are_confirmed_many_at_once(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            queue = await own_queue(channel, durable=True)
            persistent = DeliveryMode.PERSISTENT
            await asyncio.gather(*(put(channel, queue, [body], delivery_mode=persistent) for body in numbered(1000)))
            declared = await channel.declare_queue(queue.name, passive=True)
            assert declared.declaration_result.message_count == 1000

    run(story())


def test_unroutable_mandatory_message_fails_its_own_publish(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with connection_to(amqp) as connection:
            channel = await connection.channel(on_return_raises=True)
            queue = await own_queue(channel)
            keys = [queue.name, unique("nobody"), queue.name]
            publishes = (channel.default_exchange.publish(Message(b"x"), key, mandatory=True) for key in keys)
            results = await asyncio.gather(*publishes, return_exceptions=True)
            assert [isinstance(r, PublishError) for r in results] == [False, True, False]
            assert (await queue.purge()).message_count == 2

    run(story())


def test_full_queue_fails_the_publish(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            queue = await own_queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            await put(channel, queue, [b"fits"])
            with pytest.raises(DeliveryError):
                await put(channel, queue, [b"does not"])

    run(story())


def test_iterator_and_process_ack_reject_and_requeue(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            await channel.set_qos(prefetch_count=1)
            queue = await own_queue(channel)
            await put(channel, queue, numbered(4))
            seen: list[tuple[bytes, bool | None]] = []
            async with queue.iterator() as messages:
                async for message in messages:
                    seen.append((message.body, message.redelivered))
                    try:
                        async with message.process(requeue=not message.redelivered):
                            if message.body == b"000002":
                                raise ValueError(message.body)
                    except ValueError:
                        pass
                    if message.body == b"000003":
                        break
            assert seen == [
                (b"000000", False),
                (b"000001", False),
                (b"000002", False),
                (b"000002", True),
                (b"000003", False),
            ]
            assert await queue.get(fail=False) is None

    run(story())


def test_get_from_an_empty_queue_fails_or_not(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            queue = await own_queue(channel)
            with pytest.raises(QueueEmpty):
                await queue.get()
            assert await queue.get(fail=False) is None

    run(story())


def test_consume_settles_in_every_way(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            queue = await own_queue(channel)
            await put(channel, queue, numbered(6))
            got: list[AbstractIncomingMessage] = []

            async def keep(message: AbstractIncomingMessage) -> None:
                got.append(message)

            tag = await queue.consume(keep)
            await until(lambda: len(got) == 6, "six messages")
            await queue.cancel(tag)
            await got[1].ack(multiple=True)
            await got[2].nack(requeue=True)
            await got[3].reject(requeue=True)
            await got[4].reject(requeue=False)
            await got[5].nack(requeue=False)
            back = [await get_one(queue, no_ack=True) for _ in range(2)]
            assert [(m.body, m.redelivered) for m in back] == [(b"000002", True), (b"000003", True)]
            assert await queue.get(fail=False) is None

    run(story())


def test_exchanges_of_every_kind(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            cases: list[tuple[ExchangeType, str, dict[str, Any] | None, str, dict[str, Any]]] = [
                (ExchangeType.DIRECT, "k", None, "k", {}),
                (ExchangeType.FANOUT, "", None, "anything", {}),
                (ExchangeType.TOPIC, "a.*.#", None, "a.b.c.d", {}),
                (ExchangeType.HEADERS, "", {"x-match": "all", "h": 1}, "", {"h": 1}),
            ]
            for kind, binding, arguments, key, headers in cases:
                exchange = await channel.declare_exchange(unique("x"), kind, auto_delete=True)
                behind = await channel.declare_exchange(unique("x"), ExchangeType.FANOUT, auto_delete=True)
                queue, further = await own_queue(channel), await own_queue(channel)
                await queue.bind(exchange, binding, arguments=arguments)
                await further.bind(behind)
                await behind.bind(exchange, binding, arguments=arguments)
                await exchange.publish(Message(kind.encode(), headers=headers), key)
                for one in (queue, further):
                    message = await one.get(no_ack=True)
                    assert message is not None
                    assert (message.body, message.exchange) == (kind.encode(), exchange.name)

    run(story())


def test_dead_letters_carry_x_death(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            dead = await own_queue(channel)
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name, "x-message-ttl": 30}
            queue = await own_queue(channel, arguments=arguments)
            await put(channel, queue, [b"x"])
            moved = await get_one(dead, no_ack=True)
            assert death(dict(moved.headers)) == {
                "count": 1,
                "reason": "expired",
                "queue": queue.name,
                "exchange": "",
                "routing-keys": [queue.name],
            }

    run(story())


def test_transaction_commits_and_rolls_back(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with connection_to(amqp) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await own_queue(channel)
            async with channel.transaction():
                await put(channel, queue, [b"yes"])
            rolled_back = channel.transaction()
            await rolled_back.select()
            await put(channel, queue, [b"no"])
            await rolled_back.rollback()
            message = await queue.get(no_ack=True)
            assert message is not None
            assert message.body == b"yes"
            assert await queue.get(fail=False) is None

    run(story())


def test_confirms_exclude_transactions(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            with pytest.raises(RuntimeError):
                channel.transaction()

    run(story())


Call = Callable[[AbstractChannel], Coroutine[Any, Any, object]]


async def _declare_differently(channel: AbstractChannel) -> None:
    queue = await own_queue(channel)
    await channel.declare_queue(queue.name, exclusive=True, arguments={"x-max-length": 1})


ERRORS: list[tuple[type[BaseException], Call]] = [
    (ChannelNotFoundEntity, lambda ch: ch.get_queue(unique("missing"), ensure=True)),
    (ChannelNotFoundEntity, lambda ch: ch.get_exchange(unique("missing"), ensure=True)),
    (ChannelAccessRefused, lambda ch: ch.declare_queue("amq.mine")),
    (ChannelPreconditionFailed, _declare_differently),
]


@pytest.mark.parametrize(("kind", "call"), ERRORS, ids=["no queue", "no exchange", "reserved", "different"])
def test_error_has_its_own_exception(amqp: AmqpTarget, kind: type[BaseException], call: Call) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            with pytest.raises(kind):
                await call(channel)

    run(story())


def test_exclusive_queue_of_another_is_locked(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as mine, channel_to(amqp) as other:
            queue = await own_queue(mine)
            with pytest.raises(ChannelLockedResource):
                await other.declare_queue(queue.name, passive=True)

    run(story())


def test_publish_to_an_unknown_exchange_fails(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            exchange = await channel.get_exchange(unique("missing"), ensure=False)
            with pytest.raises((ChannelNotFoundEntity, ChannelClosed)):
                await exchange.publish(Message(b"x"), "k", timeout=DEADLINE_S)

    run(story())


def test_wrong_password_and_unknown_virtual_host(amqp: AmqpTarget) -> None:
    async def story() -> None:
        with pytest.raises(ProbableAuthenticationError):
            await aio_pika.connect(amqp.url().replace("guest:guest", "guest:wrong"))
        # This client does not look into the close that it gets instead of an open-ok.
        with pytest.raises(InvalidFrameError, match=r"Connection\.Close"):
            await aio_pika.connect(amqp.url("no-such-place"))

    run(story())


def test_secret_is_updated(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with connection_to(amqp) as connection:
            await connection.update_secret("guest", reason="expires")
            await (await connection.channel()).declare_queue(exclusive=True)

    run(story())


def test_flow_is_answered(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            assert (await channel.flow(True)).active

    run(story())


def test_queue_with_only_unacknowledged_messages_counts_as_empty_when_it_is_deleted(amqp: AmqpTarget) -> None:
    # `Queue.delete` asks for `if_unused` and `if_empty` unless it is told otherwise.
    async def story() -> None:
        async with connection_to(amqp) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(unique("q"))
            await put(channel, queue, numbered(2))
            await get_one(queue)
            with pytest.raises(ChannelPreconditionFailed, match="not empty"):
                await (await (await connection.channel()).get_queue(queue.name)).delete()
            await get_one(queue)
            assert (await queue.delete()).message_count == 0
            with pytest.raises(ChannelNotFoundEntity):
                await (await connection.channel()).get_queue(queue.name)

    run(story())


def test_consumer_iterator_ends_when_its_queue_is_deleted(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel, channel_to(amqp) as other:
            queue = await channel.declare_queue(unique("q"))
            underlay: Any = await channel.get_underlay_channel()
            got: list[AbstractIncomingMessage] = []

            async def keep(message: AbstractIncomingMessage) -> None:
                got.append(message)

            tag = await queue.consume(keep)
            assert tag in underlay.consumers
            await other.queue_delete(queue.name)
            await until(lambda: tag not in underlay.consumers, "the broker cancels the consumer")
            assert not channel.is_closed

    run(story())
