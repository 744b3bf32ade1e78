"""Messages by their place in the shard's log, with the latest of them in memory.

The cache is bounded in bytes, and what was used longest ago goes first. A consumer that keeps up finds everything in
it; one that works through a backlog reads the log in strides, since what lies behind a message is usually next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from waystation.errors import Corrupt
from waystation.log import batch as batches
from waystation.log.log import Log
from waystation.message import Message
from waystation.queues import commands
from waystation.queues.commands import Enqueue, Forward

READ_BYTES = 256 * 1024
OVERHEAD_BYTES = 300
"""Of a message in memory, beside its payload."""


class Block(NamedTuple):
    """Messages that were written together."""

    taken_ms: int | Sequence[int]  # one time for all, or one each
    messages: list[Message]
    cost: int

    def taken(self, index: int) -> int:
        return self.taken_ms if isinstance(self.taken_ms, int) else self.taken_ms[index]


class Bodies:
    """One shard's."""

    __slots__ = ("_blocks", "_cost", "_log", "_room")

    def __init__(self, log: Log, room_bytes: int) -> None:
        self._log = log
        self._room = room_bytes
        self._cost = 0
        self._blocks: dict[int, Block] = {}  # in the order of their last use

    def keep(self, offset: int, taken_ms: int | Sequence[int], messages: list[Message], size: int) -> None:
        """Remembers what was just written or read."""
        block = Block(taken_ms, messages, size + OVERHEAD_BYTES * len(messages))
        old = self._blocks.pop(offset, None)
        self._cost += block.cost - (old.cost if old is not None else 0)
        self._blocks[offset] = block
        while self._cost > self._room and len(self._blocks) > 1:
            oldest = next(iter(self._blocks))
            self._cost -= self._blocks.pop(oldest).cost

    def forget(self, offset: int) -> None:
        gone = self._blocks.pop(offset, None)
        if gone is not None:
            self._cost -= gone.cost

    def get(self, offset: int) -> Block:
        """The block at `offset`; CorruptBatch or StorageFailed where the disk does not give it."""
        block = self._blocks.get(offset)
        if block is None:
            self._read(offset)
            block = self._blocks.get(offset)
            if block is None:
                raise Corrupt(f"{self._log.folder}: there is no message at offset {offset}")
        return block

    def _read(self, offset: int) -> None:
        data = self._log.read(offset, READ_BYTES)
        found: list[tuple[int, Enqueue | Forward]] = []
        for position, header in batches.scan(data):
            if header.control:
                continue
            for record in batches.records_of(data[position : position + header.size], header):
                if record.offset < offset or record.value is None:
                    continue
                command = commands.decode(record.value)
                if isinstance(command, Enqueue | Forward):
                    found.append((record.offset, command))
        for at, command in reversed(found):  # the one that is asked for is the latest used
            messages = commands.decode_messages(command.messages)
            self.keep(at, command.taken_ms, messages, sum(len(message.payload) for message in messages))
