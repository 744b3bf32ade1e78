"""The transaction index: which ranges of a log belong to aborted transactions.

A read_committed consumer is sent the same bytes as any other, and beside them the list of aborted transactions that
overlap; it drops those records itself. One `.txnindex` file per segment, written like the other indexes, holds the
transactions whose marker is in that segment: (producer id i64, first offset i64, last offset i64), big-endian. (Those
of an upper tier may be in an earlier segment's file: it is written before they are.)

Before a log takes appends, no file says anything of offsets behind its end: or a marker of a lost history would count
once the log reaches that far again.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waystation.world.disk import Disk

_ENTRY = struct.Struct(">qqq")


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the abort marker


class AbortedTransactions:
    """All of one log's, ordered by the offset of their marker."""

    def __init__(self) -> None:
        self._entries: list[Aborted] = []
        self._ends: list[int] = []
        self._lowest: list[int] = []  # the smallest first offset of an entry and all behind it
        self.on_forget: Callable[[Sequence[Aborted]], None] | None = None
        """Told of transactions that are in the log no more, and which nobody can ask for from now on."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, aborted: Aborted) -> None:
        if self._ends and aborted.last_offset <= self._ends[-1]:
            return  # read again after a crash: known already
        self._entries.append(aborted)
        self._ends.append(aborted.last_offset)
        self._lowest.append(aborted.first_offset)
        i = len(self._lowest) - 2
        while i >= 0 and self._lowest[i] > aborted.first_offset:
            self._lowest[i] = aborted.first_offset
            i -= 1

    def overlapping(self, first: int, end: int) -> list[Aborted]:
        """Those with a record in [first, end)."""
        found = []
        for i in range(bisect_left(self._ends, first), len(self._entries)):
            if self._lowest[i] >= end:
                break  # so a reader at the beginning of a long log does not go through all of it
            if self._entries[i].first_offset < end:
                found.append(self._entries[i])
        return found

    def between(self, first: int, end: int) -> list[Aborted]:
        """Those whose marker is in [first, end): what one segment's file holds."""
        return self._entries[bisect_left(self._ends, first) : bisect_left(self._ends, end)]

    def drop_before(self, offset: int) -> None:
        """Retention has removed what is before the offset."""
        self._forget(0, bisect_left(self._ends, offset))

    def drop_between(self, first: int, end: int) -> None:
        """Compaction has been where the markers in [first, end) stand, and everywhere before: what these transactions
        wrote is not there any more."""
        at = bisect_left(self._ends, first)
        self._forget(at, bisect_left(self._ends, end))
        lowest = self._lowest[at] if at < len(self._lowest) else 2**63
        for i in range(at - 1, -1, -1):
            self._lowest[i] = lowest = min(lowest, self._entries[i].first_offset)

    def _forget(self, at: int, end: int) -> None:
        forgotten = self._entries[at:end]
        del self._entries[at:end], self._ends[at:end], self._lowest[at:end]
        if forgotten and self.on_forget is not None:
            self.on_forget(forgotten)

    def drop_from(self, offset: int) -> None:
        """The log was cut to `offset`: transactions whose marker stood there or later are not aborted any more."""
        keep = bisect_left(self._ends, offset)
        del self._entries[keep:], self._ends[keep:], self._lowest[keep:]
        lowest = 2**63
        for i in range(keep - 1, -1, -1):
            self._lowest[i] = lowest = min(lowest, self._entries[i].first_offset)

    @staticmethod
    def encode(entries: list[Aborted]) -> bytes:
        return b"".join(_ENTRY.pack(*entry) for entry in entries)

    @staticmethod
    def decode(data: bytes) -> list[Aborted]:
        whole = len(data) - len(data) % _ENTRY.size
        return [Aborted(*entry) for entry in _ENTRY.iter_unpack(data[:whole])]


def cut_file(disk: Disk, path: str, end_offset: int) -> list[Aborted]:
    """Removes from a transaction index what it says of offsets from `end_offset` on, and gives the rest. Durable when
    the folder is synced; blocks."""
    entries = AbortedTransactions.decode(disk.read_file(path) or b"")
    kept = [entry for entry in entries if entry.last_offset < end_offset]
    if kept and len(kept) < len(entries):
        disk.replace_file(path, AbortedTransactions.encode(kept))
    elif entries and not kept:
        disk.remove(path)
    return kept
