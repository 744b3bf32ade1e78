"""Messages by their place in the shard's log, with the latest of them in memory.

The cache is bounded in bytes, and what came first goes first. Messages that are done leave it with the last of their
block, so that it holds what may still be delivered and not the past. A consumer that keeps up finds all of it here; one
that works through a backlog reads the log in strides, since what lies behind a message is usually next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from waystation.errors import Corrupt
from waystation.log.batches import batch as batches
from waystation.message import Message
from waystation.queues.shard import commands
from waystation.queues.shard.commands import Enqueue, FanOut, Forward, OpenedFanOut, OpenedForward
from waystation.topics.partitions.partition import Partition

READ_BYTES = 64 * 1024
NEAR = 500
"""Offsets by which two reads may be apart to be taken for one that goes on: other commands lie between messages."""
READERS = 16
"""How many backlogs may be read at the same time and each is known to go on."""
STALE = 1_000
AHEAD_PART = 4
"""What was read ahead has this part of the room: nobody has asked for it yet, and some of it is done long since."""
BLOCK_BYTES = 300
MESSAGE_BYTES = 260
"""What a block, and each message in it, takes beside what was sent: measured (tests/queues/test_queue_cache.py)."""
OPENED = 3
"""Ids, keys and headers are objects of their own in memory: so many times what they are in the log."""


class Gone(Corrupt):
    """The log does not reach back so far. Nothing that is alive is there: whoever asks has missed an end."""


class Block(msgspec.Struct, gc=False):
    """Messages that were written together."""

    taken_ms: int | Sequence[int]  # one time for all, or one each
    messages: list[Message]
    cost: int
    left: int  # of its messages, in all queues that have them, that are not done as far as this cache was told
    ahead: bool = False  # read with another one; nobody has asked for it yet

    def taken(self, index: int) -> int:
        return self.taken_ms if isinstance(self.taken_ms, int) else self.taken_ms[index]


class Bodies:
    """One shard's."""

    __slots__ = ("_ahead", "_ahead_cost", "_blocks", "_cost", "_ends", "_order", "_partition", "_room")

    def __init__(self, partition: Partition, room_bytes: int) -> None:
        self._partition = partition
        self._room = room_bytes
        self._cost = 0
        self._ends: list[int] = []  # of what was read last
        self._blocks: dict[int, Block] = {}
        # Who comes first goes first. Kept beside the dict, since to find the first key of a dict that loses its first
        # keys takes longer and longer; some are gone already.
        self._order: deque[int] = deque()
        self._ahead: deque[int] = deque()  # the same for those that were read ahead
        self._ahead_cost = 0

    def keep(
        self,
        offset: int,
        taken_ms: int | Sequence[int],
        messages: list[Message],
        payloads: int,
        encoded: int,
        queues: int = 1,
    ) -> None:
        """Remembers what was just written or read; `payloads` and `encoded` are the bytes of payloads, and of all.
        `queues`: how many have these messages."""
        self.forget(offset)
        block = self._blocks[offset] = _block_of(taken_ms, messages, payloads, encoded, queues)
        self._cost += block.cost
        self._order.append(offset)
        while self._cost > self._room and len(self._blocks) > 1:
            line = self._order if len(self._order) > 1 or not self._ahead else self._ahead
            oldest = line.popleft()
            if oldest != offset:  # it may have been here before
                self.forget(oldest)
        if len(self._order) > 2 * len(self._blocks) + STALE:
            self._order = deque(at for at, block in self._blocks.items() if not block.ahead)

    def _keep_ahead(self, offset: int, block: Block) -> None:
        """Remembers what was read on the way, in a part of the room of its own."""
        block.ahead = True
        self._blocks[offset] = block
        self._cost += block.cost
        self._ahead_cost += block.cost
        self._ahead.append(offset)
        while self._ahead_cost > self._room // AHEAD_PART and self._ahead:
            oldest = self._ahead.popleft()
            found = self._blocks.get(oldest)
            if found is not None and found.ahead:  # else it was asked for, or is gone
                self.forget(oldest)
        if len(self._ahead) > 2 * len(self._blocks) + STALE:
            self._ahead = deque(at for at, block in self._blocks.items() if block.ahead)

    def _asked_for(self, offset: int, block: Block) -> None:
        """It was read ahead, and now somebody wants it: it is one like the others."""
        block.ahead = False
        self._ahead_cost -= block.cost
        self._order.append(offset)

    @property
    def cached(self) -> int:
        """Messages that are in memory."""
        return sum(len(block.messages) for block in self._blocks.values())

    @property
    def cost(self) -> int:
        """What they take, in bytes."""
        return self._cost

    def done(self, offset: int, count: int) -> None:
        """So many messages of the block are done. With the last one it goes."""
        block = self._blocks.get(offset)
        if block is not None:
            block.left -= count
            if block.left <= 0:
                self.forget(offset)

    def forget(self, offset: int) -> None:
        gone = self._blocks.pop(offset, None)
        if gone is not None:
            self._cost -= gone.cost
            if gone.ahead:
                self._ahead_cost -= gone.cost

    def get(self, offset: int) -> Block:
        """The block at `offset`; Corrupt or StorageFailed where the disk does not give it, Gone if it is freed."""
        block = self._blocks.get(offset)
        if block is None:
            self._read(offset)
            block = self._blocks.get(offset)
            if block is None:
                raise Corrupt(f"{self._partition.folder}: there is no message at offset {offset}")
        elif block.ahead:
            self._asked_for(offset, block)
        return block

    def some(self, offset: int, indexes: Sequence[int]) -> list[tuple[int, Message]]:
        """(when it was taken in, the message) of some of a block, without opening the others or remembering them: for
        who looks here and there. What consumers have in memory stays there."""
        block = self._blocks.get(offset)
        if block is not None:
            return [(block.taken(index), block.messages[index]) for index in indexes]
        for at, command in self._commands(offset, 1):
            if at == offset:
                when = command.taken_ms
                try:
                    opened = commands.decode_some(command.messages, indexes)
                except (msgspec.DecodeError, IndexError) as error:
                    raise Corrupt(
                        f"{self._partition.folder}: what is at offset {at} cannot be read: {error}"
                    ) from error
                times = [when if isinstance(when, int) else when[index] for index in indexes]
                return list(zip(times, opened, strict=True))
        raise Corrupt(f"{self._partition.folder}: there is no message at offset {offset}")

    def taken_ms(self, offset: int, index: int) -> int:
        """When a message was taken in, without opening more than need be."""
        block = self._blocks.get(offset)
        if block is not None:
            return block.taken(index)
        for at, command in self._commands(offset, 1):
            if at == offset:
                return command.taken_ms if isinstance(command.taken_ms, int) else command.taken_ms[index]
        raise Corrupt(f"{self._partition.folder}: there is no message at offset {offset}")

    def _read(self, offset: int) -> None:
        # Who works through a backlog asks for what lies behind the last that was read; who takes messages from here
        # and there would throw away most of a stride.
        last = next((end for end in self._ends if end - NEAR <= offset <= end + NEAR), None)
        found = _first_of(self._records(offset, 1 if last is None else READ_BYTES))
        self._ends.append(found[-1][0] + 1 if found else offset + 1)
        if last is not None:
            self._ends.remove(last)
        elif len(self._ends) > READERS:
            del self._ends[0]
        for at, record in reversed(found):  # the one that is asked for is the latest used
            if at in self._blocks:
                continue  # as it is here it also knows how many of it are done
            try:
                opened = commands.decode_opened(record)
            except msgspec.DecodeError as error:
                raise Corrupt(f"{self._partition.folder}: what is at offset {at} cannot be read: {error}") from error
            messages, encoded = opened.messages, len(record)
            if isinstance(opened, OpenedForward):
                payloads = sum([len(message.payload) for message in messages])
            else:
                payloads = commands.payload_bytes(opened.sizes, opened.count)
                encoded -= len(opened.sizes) if isinstance(opened.sizes, bytes) else 0
            queues = len(opened.queues) if isinstance(opened, OpenedFanOut) else 1
            if at == offset:
                self.keep(at, opened.taken_ms, messages, payloads, encoded, queues)
            else:
                self._keep_ahead(at, _block_of(opened.taken_ms, messages, payloads, encoded, queues))

    def _commands(self, offset: int, max_bytes: int) -> Iterator[tuple[int, Enqueue | FanOut | Forward]]:
        """The blocks from `offset` on, as the log has them."""
        for at, record in self._records(offset, max_bytes):
            command = commands.decode(record)
            if isinstance(command, Enqueue | FanOut | Forward):
                yield at, command

    def _records(self, offset: int, max_bytes: int) -> list[tuple[int, batches.Buffer]]:
        """The records of blocks from `offset` on, to the end of its batch or so many bytes."""
        if offset < self._partition.start_offset:
            raise Gone(f"{self._partition.folder}: what was at offset {offset} has been freed")
        data = memoryview(self._partition.read(offset, max_bytes))
        return [
            (at, value)
            for position, header in batches.scan(data)
            if not header.control
            for at, value in batches.values_of(data[position : position + header.size], header)
            if at >= offset and value is not None and commands.holds_messages(value)
        ]


def _block_of(
    taken_ms: int | Sequence[int], messages: list[Message], payloads: int, encoded: int, queues: int
) -> Block:
    count = len(messages)
    cost = BLOCK_BYTES + MESSAGE_BYTES * count + payloads + OPENED * (encoded - payloads)
    return Block(taken_ms, messages, cost, count * queues)


def _first_of(found: list[tuple[int, batches.Buffer]]) -> list[tuple[int, batches.Buffer]]:
    """Not more than a stride of them: a batch may hold many blocks, and one is asked for."""
    size = 0
    for i, (_, record) in enumerate(found):
        size += len(record)
        if size >= READ_BYTES:
            return found[: i + 1]
    return found
