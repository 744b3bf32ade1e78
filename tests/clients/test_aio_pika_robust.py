"""aio-pika: its patterns, and its robust connection, which finds its way back on its own."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.patterns import RPC, JsonMaster

from tests.clients.aio_pika_kit import channel_to, put, run, until
from tests.clients.amqp_kit import AmqpTarget, Relay, numbered, ours_only, target_of
from tests.clients.stage import OwnServerCall
from tests.support.names import unique


def test_rpc_pattern_calls_and_reports_errors(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as server, channel_to(amqp) as client:
            name = unique("multiply")

            async def multiply(*, x: int, y: int) -> int:
                if y == 0:
                    raise ValueError("nothing comes of it")
                return x * y

            serving = await RPC.create(server)
            await serving.register(name, multiply, auto_delete=True)
            calling = await RPC.create(client)
            calls = (calling.call(name, kwargs={"x": 6, "y": n}) for n in (7, 8))
            assert await asyncio.gather(*calls) == [42, 48]
            with pytest.raises(ValueError, match="nothing comes of it"):
                await calling.call(name, kwargs={"x": 1, "y": 0})
            await calling.close()
            await serving.close()

    run(story())


def test_master_and_worker_pattern(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as channel:
            name, done = unique("work"), asyncio.Queue[int]()

            async def work(*, number: int) -> None:
                await done.put(number)

            master = JsonMaster(channel)
            worker = await master.create_worker(name, work, auto_delete=True)
            for number in range(10):
                await master.create_task(name, kwargs={"number": number})
            assert sorted([await done.get() for _ in range(10)]) == list(range(10))
            await worker.close()

    run(story())


def test_direct_reply_to(amqp: AmqpTarget) -> None:
    async def story() -> None:
        async with channel_to(amqp) as asker, channel_to(amqp) as answerer:
            queue = await answerer.declare_queue(unique("q"), auto_delete=True)

            async def answer(message: AbstractIncomingMessage) -> None:
                reply = Message(message.body.upper(), correlation_id=message.correlation_id)
                await answerer.default_exchange.publish(reply, message.reply_to or "", mandatory=False)

            await queue.consume(answer, no_ack=True)
            replies = await asker.get_queue("amq.rabbitmq.reply-to", ensure=False)
            answers: asyncio.Queue[bytes] = asyncio.Queue()

            async def keep(message: AbstractIncomingMessage) -> None:
                await answers.put(message.body)

            await replies.consume(keep, no_ack=True)
            ask = Message(b"hello", reply_to="amq.rabbitmq.reply-to")
            await asker.default_exchange.publish(ask, queue.name)
            assert await answers.get() == b"HELLO"

    run(story())


def test_robust_connection_finds_its_way_back(amqp: AmqpTarget, relay: Relay) -> None:
    async def story() -> None:
        robust = await aio_pika.connect_robust(relay.target.url() + "?reconnect_interval=0.1&fail_fast=0")
        async with robust:
            channel = await robust.channel()
            queue = await channel.declare_queue(unique("q"), auto_delete=False, durable=True)
            got: list[bytes] = []

            async def keep(message: AbstractIncomingMessage) -> None:
                got.append(message.body)
                await message.ack()

            await queue.consume(keep)
            async with channel_to(amqp) as steady:
                await put(steady, queue, [b"before"])
                await until(lambda: got == [b"before"], "the first message")
                relay.cut()
                await put(steady, queue, [b"after"])
                await until(lambda: got[-1] == b"after", "the consumer is back")
                await steady.queue_delete(queue.name)

    run(story())


@ours_only
def test_robust_connection_survives_kill_9_of_the_broker(own_server: OwnServerCall) -> None:
    server = own_server()

    async def story() -> None:
        robust = await aio_pika.connect_robust(target_of(server).url() + "?reconnect_interval=0.1&fail_fast=0")
        async with robust:
            channel = await robust.channel()
            exchange = await channel.declare_exchange(unique("x"), ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue(unique("q"), durable=True)
            await queue.bind(exchange, "a.#")
            for body in numbered(50):
                await exchange.publish(Message(body, delivery_mode=DeliveryMode.PERSISTENT), "a.b")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            got: list[bytes] = []

            async def keep(message: AbstractIncomingMessage) -> None:
                got.append(message.body)
                await message.ack()

            await until(lambda: robust.connected.is_set() and not channel.is_closed, "the client is back")
            await queue.consume(keep)
            await until(lambda: len(got) >= 50, "everything confirmed is there")
            assert got == numbered(50)

    run(story())
