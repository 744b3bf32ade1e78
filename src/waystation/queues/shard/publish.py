"""A publish to a queue: checked against what messages may be, what the queue has seen, and how much it may hold; cut
into blocks that are to be written; and what has to give way for it afterwards. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter

import msgspec

from waystation.errors import Full, Invalid, TooLarge
from waystation.message import PLAIN, Message, Run, check_id, check_terms, terms_of
from waystation.queues.errors import NeverFits
from waystation.queues.ledger.runs import add_run
from waystation.queues.shard import commands
from waystation.queues.shard.commands import Enqueue, FanOut
from waystation.queues.shard.open_transactions import Coming
from waystation.queues.shard.queue import Queue, pack_sizes

_NO_LIMIT = 1 << 62


_id_of = attrgetter("id")
_asked_of = attrgetter("priority", "delay_ms", "deliver_at_ms", "ttl_ms", "max_deliveries", "id")
_NOTHING_ASKED = (*PLAIN, None)


def check_all(messages: Sequence[Message], limit_bytes: int) -> tuple[list[int], bool]:
    """The payloads' sizes, and whether nothing of the messages needs to be looked at again (`Enqueue.plain`). Raises,
    naming the field, unless every message makes sense."""
    if not messages:
        raise Invalid("messages: there is none")
    sizes = [len(message.payload) for message in messages]
    if max(sizes) > limit_bytes:
        raise TooLarge(
            f"payload: {max(sizes)} bytes are more than {limit_bytes} (the broker's waystation.queue.message.max.bytes)"
        )
    if list(map(_asked_of, messages)).count(_NOTHING_ASKED) == len(sizes):
        return sizes, True
    for terms in set(map(terms_of, messages)):
        check_terms(terms)
    for message_id in map(_id_of, messages):
        if message_id is not None:
            check_id(message_id)
    return sizes, False


def leave_out_seen(
    queue: Queue, messages: Sequence[Message], sizes: list[int], now_ms: int, pending: Container[str] = ()
) -> tuple[list[Message], list[int], list[int]]:
    """(messages, sizes, indexes left out): without those whose ids were used within the queue's window, or are
    `pending` in the same transaction."""
    fresh: set[str] = set()
    wanted: list[Message] = []
    kept: list[int] = []
    duplicates: list[int] = []
    for i, message in enumerate(messages):
        if message.id is not None:
            if message.id in fresh or message.id in pending or queue.id_used(message.id, now_ms):
                duplicates.append(i)
                continue
            fresh.add(message.id)
        wanted.append(message)
        kept.append(sizes[i])
    return wanted, kept, duplicates


def check_room(queue: Queue, count: int, size: int, coming: Coming) -> None:
    """Raises Full if the queue cannot take so much, with what is coming, and refuses what it cannot take."""
    settings = queue.settings
    if settings.max_length is None and settings.max_bytes is None:
        return
    length, content = len(queue), queue.bytes
    if settings.overflow == "reject-dead-letter":  # then what it refused is here for a moment
        length, content = length - len(queue.deaths or ()), content - queue.dead_bytes
    if settings.queue_type is not None and queue.ledger is not None:  # as in RabbitMQ, what is in flight does not count
        length = queue.ledger.ready + queue.ledger.delayed
    too_long = settings.max_length is not None and length + coming.count + count > settings.max_length
    too_big = settings.max_bytes is not None and content + coming.bytes + size > settings.max_bytes
    if not (too_long or too_big):
        return
    limit = f"max_length {settings.max_length}" if too_long else f"max_bytes {settings.max_bytes}"
    if (settings.max_length is not None and count > settings.max_length) or (
        settings.max_bytes is not None and size > settings.max_bytes
    ):
        raise NeverFits(
            f"{count} messages of {size} bytes will never fit into queue {queue.name!r} ({limit}); put fewer at once"
        )
    if settings.refuses:
        raise Full(f"queue {queue.name!r} is full ({limit}); consume from it, or publish later")
    if too_long and settings.max_length is not None and _delayed(queue) + count > settings.max_length:
        raise Full(
            f"queue {queue.name!r} is full (max_length {settings.max_length}):"
            " delayed messages are not dropped to make room"
        )


def _delayed(queue: Queue) -> int:
    return 0 if queue.ledger is None else queue.ledger.delayed


def drop_overflow(queue: Queue, waited: int) -> list[Run]:
    """The oldest ready messages make room, where the queue says so; returns which. What is in flight does not count.

    `waited`: how many were ready before the present publish. No more go than that: nothing that was just put.
    """
    ledger, places, settings = queue.open_ledger(), queue.places, queue.settings
    length = settings.max_length if settings.max_length is not None else _NO_LIMIT
    room = settings.max_bytes if settings.max_bytes is not None else _NO_LIMIT
    size = queue.bytes - queue.dead_bytes
    dropped: list[Run] = []
    while waited > 0 and (ledger.ready + ledger.delayed > length or size > room):
        entry = ledger.drop_oldest()
        if entry is None or places is None:
            break
        waited -= 1
        size -= places.bytes_of(entry, 1)
        add_run(dropped, entry, 1)
    return dropped


def make_blocks(
    queue: Queue,
    messages: list[Message],
    sizes: list[int],
    first: int,
    now_ms: int,
    *,
    plain: bool = False,
    moved: bool = False,
) -> list[tuple[Enqueue, list[Message]]]:
    """Messages as commands of bounded size."""
    blocks: list[tuple[Enqueue, list[Message]]] = []
    start = 0
    whole = len(messages) <= commands.MAX_BLOCK_MESSAGES and sum(sizes) <= commands.MAX_BLOCK_BYTES
    while start < len(messages):
        stop, size = (len(messages) if whole else start), 0
        while stop < len(messages) and stop - start < commands.MAX_BLOCK_MESSAGES:
            size += sizes[stop]
            if size > commands.MAX_BLOCK_BYTES and stop > start:
                break
            stop += 1
        part = messages if stop - start == len(messages) else messages[start:stop]
        block = Enqueue(
            queue.id,
            first if first < 0 else first + start,
            len(part),
            now_ms,
            plain,
            pack_sizes(sizes[start:stop]),
            _encoded(part),
            moved,
        )
        blocks.append((block, part))
        start = stop
    return blocks


def fan_out(blocks: Sequence[tuple[Enqueue, list[Message]]], firsts: Sequence[tuple[Queue, int]]) -> list[FanOut]:
    """Blocks that were made for the first of some queues, for all of them. `firsts`: the first entry of each."""
    made_for = firsts[0][1]
    return [
        FanOut(
            [(queue.id, first if first < 0 else first + block.first - made_for) for queue, first in firsts],
            block.count,
            block.taken_ms,
            block.plain,
            block.sizes,
            block.messages,
        )
        for block, _ in blocks
    ]


def _encoded(messages: list[Message]) -> msgspec.Raw:
    try:
        return commands.encode_messages(messages)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"messages: something in them cannot be stored: {error}") from error
