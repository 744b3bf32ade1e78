"""What open transactions have written to a shard, until their markers say whether it counts.

Kept in order and by producer. What they will put, if they commit, is also counted by queue: a bounded queue has to keep
room for it, and ids that were used since then must not be forgotten. Only the shard and its replay change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from waystation.queues.shard.commands import Command, Done, Enqueue, entries_of
from waystation.queues.shard.queue import block_sizes


class Coming(msgspec.Struct, gc=False):
    """What a queue will get if all transactions commit."""

    count: int = 0
    bytes: int = 0
    since_ms: int = 1 << 62  # the first of it was sent then


NOTHING = Coming()


class OpenTransactions:
    """One shard's."""

    __slots__ = ("_by_producer", "_coming", "_ids")

    def __init__(self) -> None:
        self._by_producer: dict[int, list[tuple[int, Command]]] = {}
        self._coming: dict[int, Coming] = {}
        self._ids: dict[int, dict[int, set[str]]] = {}  # by producer and queue, where the queue looks at ids

    def __len__(self) -> int:
        return len(self._by_producer)

    def add(self, producer_id: int, offset: int, command: Command) -> None:
        self._by_producer.setdefault(producer_id, []).append((offset, command))
        if isinstance(command, Enqueue):
            coming = self._coming.setdefault(command.queue, Coming())
            coming.count += command.count
            coming.bytes += sum(block_sizes(command))
            coming.since_ms = min(coming.since_ms, command.taken_ms)

    def end(self, producer_id: int) -> list[tuple[int, Command]]:
        """What the producer's transaction wrote, which is no longer open."""
        self._ids.pop(producer_id, None)
        written = self._by_producer.pop(producer_id, [])
        for _, command in written:
            if isinstance(command, Enqueue):
                coming = self._coming[command.queue]
                coming.count -= command.count
                coming.bytes -= sum(block_sizes(command))
                if not coming.count:
                    del self._coming[command.queue]
        return written

    def ids(self, producer_id: int, queue_id: int) -> Collection[str]:
        """Those that the transaction has put to the queue. They are not those of before a restart: what is put twice
        all the same is left out with the commit, but nobody is told."""
        return self._ids.get(producer_id, {}).get(queue_id, ())

    def note_ids(self, producer_id: int, queue_id: int, ids: Iterable[str]) -> None:
        self._ids.setdefault(producer_id, {}).setdefault(queue_id, set()).update(ids)

    def coming(self, queue_id: int) -> Coming:
        return self._coming.get(queue_id, NOTHING)

    def first_offset(self, otherwise: int) -> int:
        """Where the oldest of them began."""
        return min([otherwise, *(written[0][0] for written in self._by_producer.values())])

    def taken(self) -> Mapping[int, set[int]]:
        """The entries that they have taken out of each queue."""
        taken: dict[int, set[int]] = {}
        for command in self._commands():
            if isinstance(command, Done):
                taken.setdefault(command.queue, set()).update(entries_of(command.runs))
        return taken

    def _commands(self) -> Iterator[Command]:
        for written in self._by_producer.values():
            for _, command in written:
                yield command
