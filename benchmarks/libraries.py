"""The usual Python clients of the queue brokers, used as their own guides show it.

Run as `python -m benchmarks.libraries JOB`, one job a process. Batched: as many as `batch` at a time by whatever the
library has for it (`put_many`, a pipeline, gathered futures). One by one: send, wait for the answer, send the next.
Those of AMQP are in `benchmarks.amqp_libraries`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks import amqp_libraries, jobs
from benchmarks.line import payloads
from benchmarks.wires import GROUP

WAIT_S = 60.0


def _transfer(count: int, began: float) -> jobs.Transfer:
    return jobs.Transfer(count, time.monotonic() - began, time.process_time())


def waystation_put(job: jobs.LibraryPut) -> jobs.Transfer:
    import waystation

    bodies = payloads(job.size)
    with waystation.connect(f"waystation://{job.address}") as mq:
        queue = mq.queue(job.queue)
        began = time.monotonic()
        if job.batch == 1:
            for number in range(job.count):
                queue.put(bodies[number % len(bodies)])
        else:
            for _ in range(job.count // job.batch):
                queue.put_many(bodies[: job.batch])
        return _transfer(job.count, began)


def waystation_take(job: jobs.LibraryTake) -> jobs.Transfer:
    import waystation

    got = 0
    with waystation.connect(f"waystation://{job.address}") as mq:
        queue = mq.queue(job.queue)
        began = time.monotonic()
        while got < job.count:
            if job.batch == 1:
                queue.get(timeout=WAIT_S).ack()
                got += 1
            else:
                messages = queue.get_many(job.batch, timeout=WAIT_S)
                queue.ack_many(messages)
                got += len(messages)
        return _transfer(got, began)


def nats_put(job: jobs.LibraryPut) -> jobs.Transfer:
    import nats

    async def run() -> jobs.Transfer:
        connection = await nats.connect(f"nats://{job.address}")
        stream, bodies = connection.jetstream(publish_async_max_pending=2 * job.batch), payloads(job.size)
        began = time.monotonic()
        if job.batch == 1:
            for number in range(job.count):
                await stream.publish(job.queue, bodies[number % len(bodies)])
        else:
            for _ in range(job.count // job.batch):
                await asyncio.gather(*[await stream.publish_async(job.queue, body) for body in bodies[: job.batch]])
        return _transfer(job.count, began)

    return asyncio.run(run())


def nats_take(job: jobs.LibraryTake) -> jobs.Transfer:
    import nats

    async def run() -> jobs.Transfer:
        connection, got = await nats.connect(f"nats://{job.address}"), 0
        subscription = await connection.jetstream().pull_subscribe(job.queue, GROUP, stream=job.queue)
        began = time.monotonic()
        while got < job.count:
            messages = await subscription.fetch(job.batch, timeout=WAIT_S)
            for message in messages:
                await message.ack()
            got += len(messages)
        await connection.flush()
        return _transfer(got, began)

    return asyncio.run(run())


def redis_put(job: jobs.LibraryPut) -> jobs.Transfer:
    import redis

    host, _, port = job.address.rpartition(":")
    client, bodies = redis.Redis(host=host, port=int(port)), payloads(job.size)
    client.ping()
    began = time.monotonic()
    if job.batch == 1:
        for number in range(job.count):
            client.xadd(job.queue, {"p": bodies[number % len(bodies)]})
    else:
        for _ in range(job.count // job.batch):
            pipeline = client.pipeline(transaction=False)
            for body in bodies[: job.batch]:
                pipeline.xadd(job.queue, {"p": body})
            pipeline.execute()
    return _transfer(job.count, began)


def redis_take(job: jobs.LibraryTake) -> jobs.Transfer:
    import redis

    host, _, port = job.address.rpartition(":")
    client, got = redis.Redis(host=host, port=int(port)), 0
    client.ping()
    began = time.monotonic()
    while got < job.count:
        # Its types promise a dozen shapes; by RESP 2 it is this one.
        read: Any = client.xreadgroup(GROUP, GROUP, {job.queue: ">"}, count=job.batch, block=int(WAIT_S * 1000))
        for _, entries in read:
            client.xack(job.queue, GROUP, *[entry for entry, _ in entries])
            got += len(entries)
    return _transfer(got, began)


PUT: dict[str, Callable[[jobs.LibraryPut], jobs.Transfer]] = {
    "waystation": waystation_put,
    "nats-py": nats_put,
    "redis-py": redis_put,
    "pika": amqp_libraries.pika_put,
    "aio-pika": amqp_libraries.aio_pika_put,
}
TAKE: dict[str, Callable[[jobs.LibraryTake], jobs.Transfer]] = {
    "waystation": waystation_take,
    "nats-py": nats_take,
    "redis-py": redis_take,
    "pika": amqp_libraries.pika_take,
    "aio-pika": amqp_libraries.aio_pika_take,
}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=jobs.LibraryJob)
    done = PUT[job.library](job) if isinstance(job, jobs.LibraryPut) else TAKE[job.library](job)
    print(msgspec.json.encode(done).decode(), flush=True)
    os._exit(0)  # closing a client politely takes it time that no figure contains


if __name__ == "__main__":
    main()
