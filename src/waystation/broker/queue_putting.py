"""Messages into a queue: what a full one refuses, and waiting until there is room. `broker/queues.py` calls this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from waystation.broker.queue_names import Place
from waystation.errors import Full
from waystation.message import Message
from waystation.queues.shard import PutResult


def put_or_refuse(place: Place, messages: Sequence[Message]) -> PutResult:
    """All of them, or none: then the queue may want to have them as dead letters."""
    shard, queue = place
    try:
        return shard.put(queue, messages)
    except Full:
        shard.refuse(queue, messages)
        raise


async def put_with_patience(find: Callable[[], Place], messages: Sequence[Message], wait_s: float) -> PutResult:
    """The same, but waits until there is room, so long at most. `find`: where the queue is; it may go meanwhile."""
    shard, queue = find()
    try:
        return shard.put(queue, messages)
    except Full:
        if wait_s <= 0:
            shard.refuse(queue, messages)
            raise
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    waited = False
    try:
        while True:
            await queue.room(max(0.0, deadline - loop.time()), first=waited)
            waited = True
            if loop.time() >= deadline:
                return put_or_refuse(find(), messages)
            try:
                now_in, there = find()
                return now_in.put(there, messages)
            except Full:
                continue
    finally:
        queue.wake_publishers()  # the next one may find room, too
