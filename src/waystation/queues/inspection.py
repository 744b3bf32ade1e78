"""Looking at queues: what they are and what is in them, without taking anything out.

What the disk does not give is left out: that a message cannot be read keeps nobody from seeing the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from waystation.errors import Corrupt, StorageFailed
from waystation.message import Delivered, Message, Run, size_of
from waystation.observe.events import event_logger
from waystation.protocol import EntriesAnswer, Found, Peeked, QueueInfo
from waystation.queues.ledger.states import State
from waystation.queues.names import QueuePlace
from waystation.queues.shard.message_index import trace_of
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard

logger = event_logger("waystation.queues")

STATES = {State.READY: "ready", State.DELAYED: "parked", State.IN_FLIGHT: "held", State.LEAVING: "leaving"}
SEARCHED = 10_000
"""Among more delayed messages, nobody looks for the time until which one is that was tried before."""
MAX_TAG_DIGITS = 18
PEEKED_BYTES = 8 * 1024 * 1024


def info_of(shard: Shard, queue: Queue) -> QueueInfo:
    info = QueueInfo(queue.name, queue.settings, put=queue.put, delivered=queue.delivered, acked=queue.acked)
    info.dead = queue.dead
    info.consumers = len(queue.feeds or ())
    ledger = queue.ledger
    if ledger is not None:
        info.ready, info.parked, info.held, info.bytes = ledger.ready, ledger.delayed, ledger.in_flight, queue.bytes
        for _, first, _ in ledger.alive_runs():
            info.oldest_ms = _taken_ms(shard, queue, first)
            break
    return info


def _taken_ms(shard: Shard, queue: Queue, entry: int) -> int | None:
    try:
        return shard.taken_ms(queue, entry)
    except (Corrupt, StorageFailed):
        return None


def peek(shard: Shard, queue: Queue, count: int, after: int, state: str, max_bytes: int = PEEKED_BYTES) -> list[Peeked]:
    """Messages as they are, oldest first: `count`, or as many as have `max_bytes`, or one; none is the end."""
    found: list[Peeked] = []
    size = 0
    places = queue.places
    if queue.ledger is None or places is None:
        return found
    for run_state, first, length in queue.ledger.alive_runs(after=after):
        if state not in ("any", STATES[run_state]):
            continue
        for entry in range(max(first, after + 1), first + length):
            if len(found) >= count or (found and size + places.bytes_of(entry, 1) > max_bytes):
                return found
            peeked = peeked_at(shard, queue, entry)
            if peeked is not None:
                found.append(peeked)
                size += size_of(peeked.delivered.message)
    return found


def read_or_tell(shard: Shard, queue: Queue, entry: int) -> tuple[int, Message] | None:
    """When it was taken, and the message; None if the disk does not give it, and the log says so."""
    try:
        return shard.message_at(queue, entry)
    except (Corrupt, StorageFailed) as error:
        logger.error(
            "message.unreadable",
            "a message of queue {queue} cannot be read: {error}",
            queue=queue.name,
            entry=entry,
            error=error,
        )
        return None


def peeked_at(shard: Shard, queue: Queue, entry: int) -> Peeked | None:
    """A living message; None if the disk does not give it."""
    ledger = queue.open_ledger()
    read = read_or_tell(shard, queue, entry)
    if read is None:
        return None
    taken_ms, message = read
    state = ledger.state_of(entry)
    ready_at_ms: int | None = None
    if state is State.DELAYED:
        ready_at_ms = message.ready_at_ms(taken_ms)
        if ready_at_ms is None or ready_at_ms <= shard.world.clock.now_ms():  # it was tried before, and waits again
            ready_at_ms = ledger.ready_at(entry) if ledger.delayed <= SEARCHED else None
    delivered = Delivered(entry, ledger.deliveries_of(entry), taken_ms, message, queue.name)
    return Peeked(STATES[state], ready_at_ms, delivered)


def read_entries(shard: Shard, queue: Queue, runs: Sequence[Run], count: int, max_bytes: int) -> EntriesAnswer:
    """The living messages of some runs, in order: `count`, or as many as have `max_bytes`, or one.

    `deliveries` counts the reader's own look as one: what is read again is the same again. Raises what the disk says.
    """
    ledger, places, dead = queue.ledger, queue.places, queue.deaths or {}
    found: list[Delivered] = []
    size = 0
    for start, length in runs:
        if ledger is None or places is None:
            break
        for _, first, alive in ledger.alive_runs(after=start - 1):
            if first >= start + length:
                break
            for at, many, offset, index in places.blocks(first, min(alive, start + length - first)):
                block = shard.bodies.get(offset)
                for entry in range(at, at + many):
                    if len(found) >= count:
                        return EntriesAnswer(found, entry)
                    if entry in dead:
                        continue
                    message = block.messages[index + entry - at]
                    if found and size + len(message.payload) > max_bytes:
                        return EntriesAnswer(found, entry)
                    tries = ledger.tries_of(entry)
                    found.append(Delivered(entry, tries + 1, block.taken(index + entry - at), message))
                    size += len(message.payload)
    return EntriesAnswer(found)


def entries_with_id(places: Iterable[QueuePlace], message_id: str) -> Iterator[tuple[Shard, Queue, int]]:
    """The living messages that have this id of their own."""
    try:
        trace = trace_of(message_id)
    except UnicodeEncodeError:
        return
    for shard, queue in places:
        if queue.places is None:
            continue
        for entry in queue.entries_like(trace):
            read = read_or_tell(shard, queue, entry)
            if read is not None and read[1].id == message_id:
                yield shard, queue, entry


def split_tag(message_id: str) -> tuple[str, int] | None:
    """(queue, entry) of an id of the form QUEUE#TAG."""
    name, _, tag = message_id.rpartition("#")
    return (name, int(tag)) if name and tag.isdecimal() and len(tag) <= MAX_TAG_DIGITS else None


def found_at(shard: Shard, queue: Queue, entry: int) -> Found | None:
    peeked = peeked_at(shard, queue, entry)
    return None if peeked is None else Found(f"queue:{queue.name}", peeked.state, peeked.delivered, peeked.ready_at_ms)
