"""Fetch: stored bytes out, as they are; a true long-poll where there is nothing yet.

A fetch that cannot be answered at once watches its partitions. An append wakes it; it answers when `min_bytes` have
come together or `max_wait` is over, whichever is first. Nothing polls.

It reads no more than there is room for in the memory for unread answers (`doors/budget.py`), and if that is not enough
for one batch, it waits for room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from waystation.broker.record_tracing import traced_from
from waystation.doors.kafka import fetch_codec
from waystation.doors.kafka.errors_map import refused
from waystation.doors.kafka.fetch_codec import FetchPartition, FetchRequest, PartitionAnswer
from waystation.doors.kafka.fetch_sessions import Session, SessionError, Sessions
from waystation.errors import WaystationError
from waystation.log.log import Log
from waystation.observe.spans import Place
from waystation.observe.tracing import Tracing

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.partition import Partition
    from waystation.doors.budget import Share

Parts = list[bytes | bytearray | memoryview]
Answer = Callable[[Parts | None], None]

MAX_WAIT_MS = 300_000
"""No fetch is parked longer than this, whatever it asks for."""


def handle(
    broker: Broker, sessions: Sessions, version: int, data: memoryview, answer: Answer, unsent: Share
) -> Callable[[], None] | None:
    """Calls `answer` now or later; returns how to give the fetch up, if it is waiting."""
    request = fetch_codec.decode(data, version)
    try:
        session = sessions.enter(request)
    except SessionError as error:
        answer(fetch_codec.encode(version, [], error=error.code))
        return None
    fetch = _Fetch(broker, request, session, answer, unsent)
    return fetch.begin()


class _Fetch:
    """One fetch, from its request to its answer."""

    __slots__ = (
        "_answer",
        "_broker",
        "_needed",
        "_partitions",
        "_request",
        "_session",
        "_timer",
        "_unsent",
        "_wanted",
        "_watched",
    )

    def __init__(
        self, broker: Broker, request: FetchRequest, session: Session | None, answer: Answer, unsent: Share
    ) -> None:
        self._broker = broker
        self._request = request
        self._session = session
        self._answer = answer
        self._unsent = unsent
        self._partitions: list[Partition] = []
        self._wanted: list[FetchPartition] = []
        self._watched: list[Log] = []
        self._needed = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Callable[[], None] | None:
        request = self._request
        if self._session is None or request.session_epoch == 0:
            self._wanted = request.partitions
        else:
            self._wanted = list(self._session.partitions.values())
        answers, size, urgent = self._read()
        if urgent or size >= request.min_bytes or request.max_wait_ms <= 0 or not self._wanted:
            return None if self._finish(answers, size) else self.cancel
        self._wait(size)
        return self.cancel

    def _read(self) -> tuple[list[PartitionAnswer], int, bool]:
        """Reads what there is: the answers, their bytes, and whether one of them should not wait (an error)."""
        request = self._request
        room = min(request.max_bytes, self._broker.settings.integer("fetch.max.bytes"), self._unsent.room)
        size = 0
        urgent = False
        answers: list[PartitionAnswer] = []
        for wanted in self._wanted:
            answer = PartitionAnswer(wanted.topic, wanted.index)
            answers.append(answer)
            try:
                self._read_partition(wanted, answer, room - size, first=size == 0)
            except WaystationError as error:
                answer.error = refused(self._broker, error)
            if answer.error or answer.diverging is not None:
                urgent = True
            size += len(answer.records)
        return answers, size, urgent

    def _read_partition(self, wanted: FetchPartition, answer: PartitionAnswer, room: int, *, first: bool) -> None:
        partition = self._find(wanted)
        log = partition.log
        partition.check_epoch(wanted.leader_epoch)
        answer.high_watermark = log.high_watermark
        answer.stable_offset = log.stable_offset
        answer.start_offset = log.start_offset
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.epochs.end_offset_for(wanted.last_fetched_epoch, log.end_offset)
            if 0 <= epoch < wanted.last_fetched_epoch or 0 <= end < wanted.offset:
                answer.diverging = (epoch, end)
                return
        if room <= 0 and not first:
            return
        size = max(0, min(wanted.max_bytes, room))
        committed = self._request.read_committed
        data = log.read(wanted.offset, size, answer.stable_offset if committed else None)
        if not first and len(data) > size:
            return  # one batch larger than what is left: it comes with the next fetch
        answer.records = data
        if data:
            answer.delivered = log.end_of_read(data) - wanted.offset
        if committed:
            answer.aborted = [(entry.producer_id, entry.first_offset) for entry in log.aborted_in(wanted.offset, data)]

    def _find(self, wanted: FetchPartition) -> Partition:
        topics = self._broker.topics
        topic = topics.by_id(wanted.topic) if isinstance(wanted.topic, UUID) else topics.get(wanted.topic)
        return topic.partition(wanted.index)

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, size: int) -> None:
        request = self._request
        for wanted in self._wanted:
            partition = self._find(wanted)
            partition.watchers.add(self._woken)
            self._partitions.append(partition)
            self._watched.append(partition.log)
        self._needed = sum(log.appended_bytes for log in self._watched) + request.min_bytes - size
        wait = min(request.max_wait_ms, MAX_WAIT_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait, self._finish_waiting)

    def _woken(self) -> None:
        """A partition grew. Bytes are counted, not read, until there are enough."""
        if sum(log.appended_bytes for log in self._watched) < self._needed and all(
            log.failure is None for log in self._watched
        ):
            return
        answers, size, urgent = self._read()
        if urgent or size >= self._request.min_bytes:
            self.cancel()
            self._finish(answers, size)

    def _finish_waiting(self) -> None:
        self.cancel()
        answers, size, _ = self._read()
        self._finish(answers, size)

    def cancel(self) -> None:
        """Stops watching; nobody will be answered unless `_finish` follows."""
        for partition in self._partitions:
            partition.watchers.discard(self._woken)
        self._partitions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self, answers: list[PartitionAnswer], size: int) -> bool:
        """Answers, if there is room for it; else it reads again when there is."""
        room = self._unsent.want(size, self._with_room)
        if room:
            self._send(answers)
        return room

    def _with_room(self) -> None:
        self._send(self._read()[0])

    def _send(self, answers: list[PartitionAnswer]) -> None:
        self._count(answers)
        if self._broker.tracing is not None:
            self._trace(self._broker.tracing, answers)
        session = self._session
        session_id = 0
        if session is not None:
            session_id = session.id
            news = session.news(answers)
            if self._request.session_epoch != 0:
                answers = news
        self._answer(fetch_codec.encode(self._request.version, answers, session_id=session_id))

    def _trace(self, tracing: Tracing, answers: list[PartitionAnswer]) -> None:
        for wanted, answer in zip(self._wanted, answers, strict=True):
            found = traced_from(answer.records, wanted.offset) if answer.records else None
            if found:
                tracing.fetched(Place("topic", self._find(wanted).topic.name, "kafka"), wanted.index, found)

    def _count(self, answers: list[PartitionAnswer]) -> None:
        """Notes what is delivered, as offsets say it: what compaction took away and markers of transactions count."""
        meter = self._broker.meters.kafka
        for wanted, answer in zip(self._wanted, answers, strict=True):
            if answer.records:
                meter.delivered += answer.delivered
                meter.delivered_bytes += len(answer.records)
                self._find(wanted).topic.delivered += answer.delivered
