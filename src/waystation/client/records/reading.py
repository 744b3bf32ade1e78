"""Reading partitions from given positions: batches as they are stored, opened here, in the order of their offsets.

Aborted transactions and control records are left out (unless `uncommitted`), so what is handed out is what was really
published. So are, if asked for, those whose time to live is over, by the clock here. A position moves when a record is
handed out or left out, never before, so it is always safe to commit. Not for two threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waystation.client import admin
from waystation.client.records.calls import Calls
from waystation.client.records.offsets import TopicPartition
from waystation.client.sync.client import Client
from waystation.errors import CorruptBatch
from waystation.log.batches.batch import Header, Record, intact, records_of, scan
from waystation.message import Delivered
from waystation.protocol import PartitionBatches, Position
from waystation.topics.expiry import expired
from waystation.topics.records.crossing import OF_TIME, message_of
from waystation.topics.records.record_reading import taken_at

AT_ONCE = 1_000
"""Positions in one request: the most that the broker takes."""


@dataclass(frozen=True, slots=True)
class IncomingRecord:
    """A record as it was read."""

    topic: str
    partition: int
    record: Record


class RecordReader:
    """A set of partitions and a position in each. One that is outside of its partition begins at its start again.

    `resend`: a read that was on its way when the connection was lost is sent again; else it fails at once, and whoever
    reads may ask again when `connected`.
    """

    def __init__(self, client: Client, *, uncommitted: bool = False, expired: bool = True, resend: bool = True) -> None:
        self._calls = Calls(client)
        self._resend = resend
        self._uncommitted = uncommitted
        self._expired = expired
        self.positions: dict[TopicPartition, int] = {}
        self._first = 0

    @property
    def connected(self) -> bool:
        return self._calls.up

    def resume(self) -> None:
        """There is a connection again: positions have outlived the last one."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Reads these from now on, and nothing else."""
        self.positions = dict(positions)

    def poll(self, wait_ms: int) -> Iterator[IncomingRecord]:
        """The records of one answer; waits up to `wait_ms` for the first."""
        if not self.positions:
            return
        answers = self._read()
        if not answers and wait_ms > 0 and self._wait(wait_ms):
            answers = self._read()
        for answer in answers:
            yield from self._open(answer)

    def _read(self) -> list[PartitionBatches]:
        """What there is at one of the positions, or at more of them."""
        for asked in self._asked():
            reading = admin.read_batches(self._calls.core, asked, uncommitted=self._uncommitted, resend=self._resend)
            answers = self._calls.run(reading)
            found = [answer for answer in answers if self._usable(answer)]
            if found:
                return found
        return []

    def _asked(self) -> Iterator[list[Position]]:
        """All positions, another one first each time, so that a busy one cannot starve the rest."""
        places = sorted(self.positions)
        self._first = (self._first + 1) % len(places)
        places = places[self._first :] + places[: self._first]
        for start in range(0, len(places), AT_ONCE):
            yield [(*place, self.positions[place]) for place in places[start : start + AT_ONCE]]

    def _wait(self, wait_ms: int) -> bool:
        asked = next(self._asked())
        waiting = admin.await_records(
            self._calls.core, asked, wait_ms, uncommitted=self._uncommitted, resend=self._resend
        )
        return self._calls.run(waiting)

    def _usable(self, answer: PartitionBatches) -> bool:
        if not answer.batches:  # also if it is outside of the partition, and begins again at its start
            self.positions[answer.topic, answer.partition] = answer.next_offset
        return bool(answer.batches)

    def _open(self, answer: PartitionBatches) -> Iterator[IncomingRecord]:
        place = (answer.topic, answer.partition)
        data = memoryview(answer.batches)
        for start, header in scan(data):
            if not intact(data, start, header):
                raise CorruptBatch(
                    f"a batch of {answer.topic}-{answer.partition} at offset {header.base_offset} came damaged"
                )
            if not header.control and not _aborted(answer, header):
                for record in records_of(data[start : start + header.size], header):
                    if record.offset >= self.positions[place]:
                        self.positions[place] = record.offset + 1
                        if self._expired or not _is_over(record):
                            yield IncomingRecord(*place, record)
            self.positions[place] = max(self.positions[place], header.last_offset + 1)


def _aborted(answer: PartitionBatches, header: Header) -> bool:
    return header.transactional and any(
        producer_id == header.producer_id and first <= header.base_offset <= last
        for producer_id, first, last in answer.aborted
    )


def _is_over(record: Record) -> bool:
    """Whether its time to live is. It is counted from when the broker took it in, as for subscriptions."""
    if not any(name in OF_TIME for name, _ in record.headers):
        return False
    message = message_of(record.key, record.value, record.headers, record.timestamp)
    taken_ms = taken_at(message.headers) or record.timestamp
    return expired(Delivered(0, 1, taken_ms, message, "", 0, record.offset), time.time_ns() // 1_000_000)
