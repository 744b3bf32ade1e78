"""A publish to a queue, before it is written: checked against what messages may be, what the queue has seen, and how
much it may hold; then cut into blocks. Pure: nothing changes here.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.errors import Full, Invalid, TooLarge
from waystation.message import Message, check_message
from waystation.queues import commands
from waystation.queues.commands import Enqueue
from waystation.queues.queue import Queue, pack_sizes


def check_all(messages: Sequence[Message], limit_bytes: int) -> list[int]:
    """The payloads' sizes. Raises, naming the field, unless every message makes sense."""
    if not messages:
        raise Invalid("messages: there is none")
    sizes = [len(message.payload) for message in messages]
    if max(sizes) > limit_bytes:
        raise TooLarge(f"payload: {max(sizes)} bytes are more than {limit_bytes} (the broker's message.max.bytes)")
    for message in messages:
        if not message.plain or message.id is not None:
            check_message(message)
    return sizes


def leave_out_seen(
    queue: Queue, messages: Sequence[Message], sizes: list[int], now_ms: int
) -> tuple[list[Message], list[int], list[int]]:
    """(messages, sizes, indexes left out): without those whose ids were used within the queue's window."""
    if not queue.settings.dedup_window_ms:
        return list(messages), sizes, []
    queue.forget_old_ids(now_ms)
    seen = queue.ids or {}
    fresh: set[str] = set()
    wanted: list[Message] = []
    kept: list[int] = []
    duplicates: list[int] = []
    for i, message in enumerate(messages):
        if message.id is not None and (message.id in seen or message.id in fresh):
            duplicates.append(i)
            continue
        if message.id is not None:
            fresh.add(message.id)
        wanted.append(message)
        kept.append(sizes[i])
    return wanted, kept, duplicates


def check_room(queue: Queue, count: int, size: int) -> None:
    """Raises Full if the queue cannot take so much and refuses what it cannot take."""
    settings = queue.settings
    too_long = settings.max_length is not None and len(queue) + count > settings.max_length
    too_big = settings.max_bytes is not None and queue.bytes + size > settings.max_bytes
    if not (too_long or too_big):
        return
    if settings.overflow == "reject":
        limit = f"max_length {settings.max_length}" if too_long else f"max_bytes {settings.max_bytes}"
        raise Full(f"queue {queue.name!r} is full ({limit}); consume from it, or publish later")
    if (settings.max_length is not None and count > settings.max_length) or (
        settings.max_bytes is not None and size > settings.max_bytes
    ):
        raise Full(f"queue {queue.name!r} can never hold {count} messages of {size} bytes at once")


def make_blocks(
    queue: Queue, messages: list[Message], sizes: list[int], first: int, now_ms: int
) -> list[tuple[Enqueue, list[Message]]]:
    """Messages as commands of bounded size."""
    blocks: list[tuple[Enqueue, list[Message]]] = []
    start = 0
    while start < len(messages):
        stop, size = start, 0
        while stop < len(messages) and stop - start < commands.MAX_BLOCK_MESSAGES:
            size += sizes[stop]
            if size > commands.MAX_BLOCK_BYTES and stop > start:
                break
            stop += 1
        part = messages if stop - start == len(messages) else messages[start:stop]
        plain = queue.settings.ttl_ms is None and all(message.plain and message.id is None for message in part)
        block = Enqueue(
            queue.id,
            first if first < 0 else first + start,
            len(part),
            now_ms,
            plain,
            pack_sizes(sizes[start:stop]),
            commands.encode_messages(part),
        )
        blocks.append((block, part))
        start = stop
    return blocks
