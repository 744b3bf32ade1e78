"""Reading partitions from given positions: fetch, open the batches, hand out messages in the order of their offsets.

Aborted transactions and control records are left out (unless `uncommitted`), so what is handed out is what was really
published. A position moves when a message is handed out, never before, so it is always safe to commit. Used by the
command line and by `member.py`'s caller; not for two threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.client.refusals import check
from waystation.client.topics import EARLIEST, LATEST, Place, find_offsets, group_places
from waystation.client.wire import Connection
from waystation.errors import CorruptBatch
from waystation.log.batch import Record, intact, marker_commits, records_of, scan

FETCH_BYTES = 16 * 1024 * 1024
PARTITION_BYTES = 1024 * 1024
"""What one answer may bring; a single batch that is larger still comes."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it was read."""

    topic: str
    partition: int
    record: Record


class Reader:
    """A set of partitions and a position in each."""

    def __init__(self, connection: Connection, *, uncommitted: bool = False, on_reset: str = "earliest") -> None:
        self._connection = connection
        self._uncommitted = uncommitted
        self._on_reset = EARLIEST if on_reset == "earliest" else LATEST
        self.positions: dict[Place, int] = {}
        self._first = 0

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Reads these from now on, and nothing else."""
        self.positions = dict(positions)

    def poll(self, wait_ms: int) -> Iterator[Incoming]:
        """The messages of one fetch, which waits up to `wait_ms` for the first byte."""
        if not self.positions:
            return
        answer = self._connection.call(
            "fetch",
            wait_s=wait_ms / 1000,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=int(not self._uncommitted),
            topics=self._wanted(),
        )
        check(answer.error_code, "the fetch")
        for topic in answer.responses:
            for part in topic.partitions:
                place = (str(topic.topic), int(part.partition_index))
                if self._usable(place, part):
                    yield from self._open(place, part)

    def _wanted(self) -> list[dict[str, object]]:
        """The request, with another topic in front each time so that a busy one cannot starve the rest."""
        topics: list[dict[str, object]] = [
            {
                "topic": name,
                "partitions": [
                    {"partition": n, "fetch_offset": self.positions[name, n], "partition_max_bytes": PARTITION_BYTES}
                    for n in numbers
                ],
            }
            for name, numbers in group_places(self.positions).items()
        ]
        self._first = (self._first + 1) % len(topics)
        return topics[self._first :] + topics[: self._first]

    def _usable(self, place: Place, part: Any) -> bool:
        if part.error_code is ErrorCode.offset_out_of_range:
            # Retention removed what we wanted to read next, or the topic was cut: begin where asked to.
            self.positions[place] = find_offsets(self._connection, {place: self._on_reset})[place].offset
            return False
        check(part.error_code, f"partition {place[1]} of topic {place[0]!r}")
        return part.records is not None

    def _open(self, place: Place, part: Any) -> Iterator[Incoming]:
        data = memoryview(part.records)
        aborted = _Aborted(part.aborted_transactions or ())
        for start, header in scan(data):
            batch = data[start : start + header.size]
            if not intact(data, start, header):
                raise CorruptBatch(f"a batch of {place[0]}-{place[1]} at offset {header.base_offset} came damaged")
            if header.control:
                aborted.ends(header.producer_id, header.last_offset, marker_commits(batch, header))
            elif not (header.transactional and aborted.covers(header.producer_id, header.last_offset)):
                for record in records_of(batch, header):
                    if record.offset >= self.positions[place]:
                        self.positions[place] = record.offset + 1
                        yield Incoming(*place, record)
            self.positions[place] = max(self.positions[place], header.last_offset + 1)


class _Aborted:
    """Which transactional batches of one answer belong to aborted transactions (none, when reading uncommitted)."""

    def __init__(self, listed: Any) -> None:
        self._coming = sorted(((int(t.first_offset), int(t.producer_id)) for t in listed), reverse=True)
        self._open: set[int] = set()

    def covers(self, producer_id: int, last_offset: int) -> bool:
        self._reach(last_offset)
        return producer_id in self._open

    def ends(self, producer_id: int, last_offset: int, committed: bool | None) -> None:
        """A marker: the transaction that it ends is over, also if compaction left nothing of it but this."""
        self._reach(last_offset)
        if committed is False:
            self._open.discard(producer_id)

    def _reach(self, offset: int) -> None:
        while self._coming and self._coming[-1][0] <= offset:
            self._open.add(self._coming.pop()[1])
