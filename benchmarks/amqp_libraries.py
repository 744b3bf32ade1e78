"""The usual Python clients of AMQP brokers, used as their own guides show it.

Messages are persistent, confirmed and acknowledged singly; the queue is there already. Each imports its library itself,
so that none loads another's. Called by `benchmarks.libraries`, which owns the process.
"""

import asyncio
import time
from typing import Any

from benchmarks import jobs
from benchmarks.line import payloads

PREFETCH = 250


def _transfer(count: int, began: float) -> jobs.Transfer:
    return jobs.Transfer(count, time.monotonic() - began, time.process_time())


def pika_put(job: jobs.LibraryPut) -> jobs.Transfer:
    """BlockingConnection: with confirms, every publish waits for its own."""
    import pika

    bodies, properties = payloads(job.size), pika.BasicProperties(delivery_mode=2)
    channel = pika.BlockingConnection(pika.URLParameters(f"amqp://{job.address}")).channel()
    channel.confirm_delivery()
    began = time.monotonic()
    for number in range(job.count):
        channel.basic_publish("", job.queue, bodies[number % len(bodies)], properties)
    return _transfer(job.count, began)


def pika_take(job: jobs.LibraryTake) -> jobs.Transfer:
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(f"amqp://{job.address}")).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    got = 0

    def take(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal got
        channel.basic_ack(method.delivery_tag)
        got += 1
        if got == job.count:
            channel.stop_consuming()

    began = time.monotonic()
    channel.basic_consume(job.queue, take)
    channel.start_consuming()
    channel.queue_declare(job.queue, passive=True)  # answered after the last acknowledgement was read
    return _transfer(got, began)


def aio_pika_put(job: jobs.LibraryPut) -> jobs.Transfer:
    """`batch` publishes awaited together."""
    import aio_pika

    async def run() -> jobs.Transfer:
        connection = await aio_pika.connect(f"amqp://guest:guest@{job.address}/")
        channel, bodies = await connection.channel(publisher_confirms=True), payloads(job.size)
        publish = channel.default_exchange.publish
        began = time.monotonic()
        for at in range(0, job.count, job.batch):
            messages = [
                aio_pika.Message(bodies[number % len(bodies)], delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                for number in range(at, at + job.batch)
            ]
            await asyncio.gather(*[publish(message, job.queue) for message in messages])
        return _transfer(job.count, began)

    return asyncio.run(run())


def aio_pika_take(job: jobs.LibraryTake) -> jobs.Transfer:
    import aio_pika

    async def run() -> jobs.Transfer:
        connection = await aio_pika.connect(f"amqp://guest:guest@{job.address}/")
        channel, got, done = await connection.channel(), 0, asyncio.Event()
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(job.queue, ensure=False)

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            nonlocal got
            await message.ack()
            got += 1
            if got == job.count:
                done.set()

        began = time.monotonic()
        await queue.consume(take)
        await done.wait()
        await channel.declare_queue(job.queue, passive=True)
        return _transfer(got, began)

    return asyncio.run(run())
