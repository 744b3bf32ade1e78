"""What the clients of one log were told, and whether a log that was opened again keeps it.

A `Promises` outlives crashes: it is the clients' memory, not the broker's. Everything handed to the log is noted as
*placed*, every acknowledgement as *promised*, and `check` compares a freshly recovered log with both: all that was
promised is there, byte for byte; nothing is there that was not placed; there are no holes. What a recovered log shows
is promised from then on, since consumers may have seen it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from waystation.errors import NotLeader, WaystationError
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.log.log import Log
from waystation.transactions.errors import ConcurrentTransactions

Found = list[tuple[bytes, Header]]


class Broken(AssertionError):
    """A promise was not kept."""


def of_another_leader(error: WaystationError) -> bool:
    """What clients may be told because leadership moves: no transaction ends while nobody leads one of its logs."""
    return isinstance(error, NotLeader | ConcurrentTransactions)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


async def insist(kinds: Iterable[Callable[[], Awaitable[None]]], attempts: int = 60) -> None:
    """Each of them works, sooner or later, once the disk does: clients try again, and nobody restarts anything."""
    for kind in kinds:
        for left in range(attempts, 0, -1):
            try:
                await kind()
                break
            except WaystationError as error:
                expect(left > 1, f"still refused: {error!r}")
                await asyncio.sleep(1)


class Promises:
    """Of a log without compaction: batches stay as they were sent, with no hole between them."""

    def __init__(self, name: str, *, markers: bool = False) -> None:
        self.name = name
        self._markers = markers  # transaction markers appear that nobody here has placed: the broker's own
        self.placed: dict[int, set[bytes]] = defaultdict(set)
        self.promised: dict[int, bytes] = {}
        self.safe: dict[int, bytes] = {}  # of the promised ones, those that a recovered log showed: they are synced
        self.start_asked = 0
        self.start_promised = 0

    def power_was_cut(self, until: int) -> None:
        """Where records are acknowledged from the page cache: what was not synced is promised no more. Before `until`
        everything was."""
        self.promised = {base: data for base, data in self.promised.items() if base in self.safe or base < until}

    def place(self, batch: bytes) -> int:
        """The log has taken the batch and given it its offset, which is returned."""
        base = batches.read_header(batch).base_offset
        self.placed[base].add(batch)
        return base

    def promise(self, batch: bytes) -> None:
        """The client was told that the batch is safe."""
        base = batches.read_header(batch).base_offset
        before = self.promised.setdefault(base, batch)
        expect(before == batch, f"{self.name}: two batches were acknowledged for offset {base}")

    def promised_at(self, log: Log, base: int, content: bytes) -> None:
        """The client was told that a batch that it sent, perhaps again and again, is stored at `base`."""
        if base + batches.read_header(content).last_offset_delta < log.start_offset:
            return  # deleted meanwhile
        stored = log.read(max(base, log.start_offset), 1)[: len(content)]
        same = stored[batches.CRC_START :] == content[batches.CRC_START :]
        expect(same, f"{self.name}: a retry was answered with offset {base}, where it is not")
        self.promise(stored)

    def check(self, log: Log) -> Found:
        found = list(log.batches_from(log.start_offset))
        self._check_bounds(log, found)
        self._check_batches(log, {header.base_offset: data for data, header in found})
        self._check_sequences(found)
        self._check_times(log, found)
        expect(log.durable_offset == log.end_offset, f"{self.name}: opened with data that is not durable")
        for data, _ in found:
            self.promise(data)
        self.safe = dict(self.promised)
        return found

    def _check_bounds(self, log: Log, found: Found) -> None:
        bounds = f"{self.start_promised} <= {log.start_offset} <= {self.start_asked}"
        expect(
            self.start_promised <= log.start_offset <= self.start_asked, f"{self.name}: the start is wrong: {bounds}"
        )
        expected = log.start_offset
        for _, header in found:
            starts_right = header.base_offset == expected or header.base_offset < expected == log.start_offset
            expect(starts_right, f"{self.name}: a batch at {header.base_offset}, expected {expected}")
            expected = header.last_offset + 1
        expect(expected == log.end_offset, f"{self.name}: ends at {log.end_offset}, but batches end at {expected}")
        expect(log.written_offset == log.end_offset, f"{self.name}: opened with something unwritten")

    def _check_batches(self, log: Log, found: dict[int, bytes]) -> None:
        for base, data in found.items():
            sent = data in self.placed.get(base, ()) or (self._markers and batches.read_header(data).control)
            expect(sent, f"{self.name}: the batch at {base} was never sent")
            read = log.read(max(base, log.start_offset), 1)
            expect(read[: len(data)] == data, f"{self.name}: reading at {base} gives another batch")
        for base, data in self.promised.items():
            if batches.read_header(data).last_offset >= log.start_offset:
                expect(base in found, f"{self.name}: the acknowledged batch at {base} is lost")
                expect(found[base] == data, f"{self.name}: the acknowledged batch at {base} has changed")

    def _check_sequences(self, found: Found) -> None:
        following: dict[tuple[int, int], int] = {}
        for _, header in found:
            if header.base_sequence >= 0:
                writer = (header.producer_id, header.producer_epoch)
                expected = following.get(writer, header.base_sequence)
                expect(
                    header.base_sequence == expected,
                    f"{self.name}: producer {header.producer_id} has sequence {header.base_sequence} at offset "
                    f"{header.base_offset}, expected {expected}",
                )
                following[writer] = header.last_sequence + 1

    def _check_times(self, log: Log, found: Found) -> None:
        """The time index, which is never synced, must still lead to the first record that is late enough."""
        records = [
            record
            for data, header in found
            if not header.control
            for record in batches.records_of(data, header)
            if record.offset >= log.start_offset
        ]
        for wanted in {record.timestamp for record in records[:: max(1, len(records) // 10)]}:
            first = next(record for record in records if record.timestamp >= wanted)
            answer = log.find_time(wanted)
            expect(
                answer == (first.offset, first.timestamp),
                f"{self.name}: time {wanted} is found at {answer}, not at {first.offset}",
            )


class BoundedPromises(Promises):
    """Of a log that keeps the newest `most` offsets: those that were acknowledged are among them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.most = 0
        self._least = 0  # what it was since the last check

    def bound(self, most: int) -> None:
        self._least, self.most = min(self._least or most, most), most

    def check(self, log: Log) -> Found:
        # What was durable is still there, so no life may have removed more than this.
        self.start_asked = max(self.start_asked, log.end_offset - self._least)
        left = log.end_offset - log.start_offset
        expect(left <= self.most, f"{self.name}: {left} offsets are left, more than {self.most}")
        self._least = self.most
        return super().check(log)


def committed_batches(log: Log) -> Found:
    """What a read_committed consumer keeps: it reads to the stable offset and drops what is listed as aborted."""
    everything = [found for found in log.batches_from(log.start_offset) if found[1].last_offset < log.stable_offset]
    listed = log.aborted_in(log.start_offset, b"".join(data for data, _ in everything))
    aborted = sorted(listed, key=lambda entry: entry.first_offset)
    dropping: set[int] = set()
    kept: Found = []
    for data, header in everything:
        while aborted and aborted[0].first_offset <= header.base_offset:
            dropping.add(aborted.pop(0).producer_id)
        if header.control:
            if batches.marker_commits(data, header) is False:
                dropping.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in dropping):
            kept.append((data, header))
    return kept


class KeyedPromises:
    """Of a compacted log: the newest record of each key stays; older ones may go; nothing else appears."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.placed: dict[int, set[tuple[bytes, bytes | None]]] = defaultdict(set)
        self.promised: dict[bytes, int] = {}  # key → newest offset acknowledged
        self.safe: dict[bytes, int] = {}

    def power_was_cut(self) -> None:
        self.promised = dict(self.safe)

    def place(self, batch: bytes) -> int:
        for record in batches.records_of(batch):
            self.placed[record.offset].add((record.key or b"", record.value))
        return batches.read_header(batch).base_offset

    def promise(self, batch: bytes) -> None:
        for record in batches.records_of(batch):
            key = record.key or b""
            self.promised[key] = max(self.promised.get(key, -1), record.offset)

    def check(self, log: Log) -> dict[bytes, bytes | None]:
        """Returns the newest value of each key."""
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        before = -1
        for data, header in log.batches_from(log.start_offset):
            expect(header.base_offset > before, f"{self.name}: offset {header.base_offset} after {before}")
            before = header.last_offset
            for record in batches.records_of(data, header):
                key = record.key or b""
                known = (key, record.value) in self.placed.get(record.offset, ())
                expect(known, f"{self.name}: the record at {record.offset} was never sent")
                newest[key] = (record.offset, record.value)
        expect(before < log.end_offset, f"{self.name}: ends at {log.end_offset}, but has a batch up to {before}")
        for key, offset in self.promised.items():
            self._check_key(key, offset, newest.get(key))
        for key, (offset, _) in newest.items():
            self.promised[key] = max(self.promised.get(key, -1), offset)
        self.safe = dict(self.promised)
        return {key: value for key, (_, value) in newest.items()}

    def _check_key(self, key: bytes, promised: int, newest: tuple[int, bytes | None] | None) -> None:
        if newest is not None:
            fine = newest[0] >= promised
            expect(fine, f"{self.name}: key {key!r} has its value of offset {newest[0]}, acknowledged was {promised}")
            return
        tombstones = [at for at, records in self.placed.items() if at >= promised and (key, None) in records]
        expect(len(tombstones) > 0, f"{self.name}: the acknowledged value of {key!r} at {promised} is lost")
