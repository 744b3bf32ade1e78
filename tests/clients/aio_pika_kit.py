"""Short words for tests with aio-pika. Only tests/clients calls this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

from tests.clients.amqp_kit import AmqpTarget
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; nothing in it may take longer than two deadlines."""
    asyncio.run(asyncio.wait_for(story, 2 * DEADLINE_S))


@asynccontextmanager
async def connection_to(target: AmqpTarget, vhost: str = "%2F", query: str = "") -> AsyncIterator[AbstractConnection]:
    """An open connection that is closed at the end."""
    connection = await aio_pika.connect(target.url(vhost) + query, timeout=DEADLINE_S)
    async with connection:
        yield connection


@asynccontextmanager
async def channel_to(target: AmqpTarget) -> AsyncIterator[AbstractChannel]:
    """A channel, which confirms, on a connection of its own."""
    async with connection_to(target) as connection:
        yield await connection.channel()


async def own_queue(channel: AbstractChannel, **options: Any) -> AbstractQueue:
    """A fresh queue that leaves with its connection."""
    return await channel.declare_queue(unique("q"), **{"exclusive": True, **options})


async def put(channel: AbstractChannel, queue: AbstractQueue, bodies: list[bytes], **options: Any) -> None:
    for body in bodies:
        await channel.default_exchange.publish(Message(body, **options), queue.name)


async def until(done: Callable[[], object], what: str) -> None:
    """Let the loop run until something is true."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not done():
        if asyncio.get_running_loop().time() > deadline:
            raise NotInTime(f"not within {DEADLINE_S:g} s: {what}")
        await asyncio.sleep(0.005)


async def get_one(queue: AbstractQueue, **options: Any) -> AbstractIncomingMessage:
    """The next message, waited for."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while asyncio.get_running_loop().time() < deadline:
        message = await queue.get(fail=False, **options)
        if message is not None:
            return message
        await asyncio.sleep(0.005)
    raise NotInTime(f"no message in {queue.name}")
