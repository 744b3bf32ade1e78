"""Fetch: stored bytes out, as they are; a true long-poll where there is nothing yet.

A fetch that cannot be answered at once watches its partitions. An append wakes it; it answers when `min_bytes` have
come together or `max_wait` is over, whichever is first. Nothing polls.

It reads no more than there is room for in the memory for unread answers (`protocols/budget.py`), and if that is not
enough for one batch, it waits for room. Nor does it read more than twice as much as its client has read before, beyond
the first megabyte. What is more than that, or comes while others have much to do, is read in the line of long work
(`world/long_work.py`), a step at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.broker.access.types import NamespaceNames, Partition, traced_from
from waystation.observe.spans import TracedPlace
from waystation.observe.tracing import Tracing
from waystation.protocols.budget import FIRST_ANSWER_BYTES, FREE_BYTES
from waystation.protocols.kafka.records import fetch_codec
from waystation.protocols.kafka.records.fetch_codec import FetchRequest, PartitionAnswer
from waystation.protocols.kafka.records.fetch_reading import STEP_BYTES, Reading
from waystation.protocols.kafka.records.fetch_sessions import FetchSession, SessionError, Sessions
from waystation.protocols.kafka.requests.throttling import told_ms

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.protocols.budget import BudgetShare
    from waystation.protocols.kafka.requests.registry import Listener
    from waystation.world.long_work import LongWork

Parts = list[bytes | bytearray | memoryview]
Answer = Callable[[Parts | None], None]

MAX_WAIT_MS = 300_000
"""No fetch waits longer than this, whatever it asks for."""


def handle(
    broker: Node,
    access: Access,
    sessions: Sessions,
    version: int,
    data: memoryview,
    answer: Answer,
    unsent: BudgetShare,
    long_work: LongWork,
    listener: Listener,
) -> Callable[[], None] | None:
    """Calls `answer` now or later; returns how to give the fetch up, if it is waiting. `listener`: what the client has
    reached."""
    request = fetch_codec.decode(data, version)
    if access.names.topic_prefix:
        _within(request, access.names)
    try:
        session = sessions.enter(request, (str(access.principal), access.namespace))
    except SessionError as error:
        answer(fetch_codec.encode(version, [], error=error.code))
        return None
    fetch = _Fetch(broker, access, request, session, answer, unsent, long_work, listener)
    fetch.begin()
    return fetch.cancel


def _within(request: FetchRequest, names: NamespaceNames) -> None:
    """The names in a request of a client in a namespace, as the broker knows them."""
    for part in request.partitions:
        if isinstance(part.topic, str):
            part.topic = names.topic(part.topic)
    request.forgotten = [
        (names.topic(topic) if isinstance(topic, str) else topic, index) for topic, index in request.forgotten
    ]


class _Fetch:
    """One fetch, from its request to its answer."""

    __slots__ = (
        "_access",
        "_answer",
        "_broker",
        "_epochs",
        "_in_line",
        "_listener",
        "_long_work",
        "_needed",
        "_over",
        "_partitions",
        "_reading",
        "_request",
        "_session",
        "_stepped",
        "_then",
        "_timer",
        "_unsent",
        "_wanted",
        "_watched",
    )

    def __init__(
        self,
        broker: Node,
        access: Access,
        request: FetchRequest,
        session: FetchSession | None,
        answer: Answer,
        unsent: BudgetShare,
        long_work: LongWork,
        listener: Listener,
    ) -> None:
        self._broker = broker
        self._access = access
        self._request = request
        self._session = session
        self._answer = answer
        self._unsent = unsent
        self._long_work = long_work
        self._listener = listener
        self._partitions: list[Partition] = []
        if session is None or request.session_epoch == 0:
            self._wanted = request.partitions
        else:
            self._wanted = list(session.partitions.values())
        self._watched: list[Partition] = []
        self._needed = 0
        self._epochs = 0  # of all partitions, summed: another leader makes it another number
        self._timer: asyncio.TimerHandle | None = None
        self._reading: Reading
        self._then: Callable[[], None] | None = None  # what follows when all is read, until then
        self._in_line = False
        self._stepped = False  # it was read in more than one turn: what came meanwhile is for the next fetch
        self._over = False

    def begin(self) -> None:
        self._read(self._began)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _new_reading(self) -> Reading:
        request = self._request
        most = min(request.max_bytes, self._broker.settings.integer("fetch.max.bytes"))
        room = min(most, self._unsent.room_for_answer)
        return Reading(self._access, request, self._wanted, room, self._listener)

    def _read(self, then: Callable[[], None]) -> None:
        """Reads what there is, in this turn if that is not much or nobody else has much to do; then calls `then`."""
        self._reading, self._then = self._new_reading(), then
        others = self._long_work.taken_from(self._unsent.owner)
        complete = self._reading.step(FREE_BYTES if others else FIRST_ANSWER_BYTES, patient=others)
        if not others and self._reading.size > STEP_BYTES:
            self._long_work.took(self._unsent.owner)
        self._goes_on(complete)

    def _goes_on(self, complete: bool) -> None:
        self._in_line = not complete
        if complete:
            # It is a method of this: what was read would be kept until a collection.
            then, self._then = self._then, None
            if then is not None:
                then()
        else:
            self._unsent.hold(max(self._unsent.size, self._reading.size))
            self._long_work.then(self._step, self._unsent.owner)

    def _step(self) -> None:
        if not self._over:
            self._stepped = True
            reading = self._reading
            reading.room = min(reading.room, self._unsent.room)
            complete = reading.step(STEP_BYTES)
            self._unsent.hold(max(self._unsent.size, reading.size))
            self._goes_on(complete)

    def _began(self) -> None:
        if self._enough or self._request.max_wait_ms <= 0 or not self._wanted:
            self._finish()
        else:
            self._wait(self._reading.size)

    @property
    def _enough(self) -> bool:
        return self._reading.urgent or self._reading.size >= self._request.min_bytes or self._stepped

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, size: int) -> None:
        request = self._request
        find = self._access.topics.partition_to_read
        for wanted in self._wanted:
            partition = find(wanted.topic, wanted.index)
            partition.watchers.add(self._woken)
            self._partitions.append(partition)
            self._watched.append(partition)
            self._epochs += partition.epoch
        self._needed = sum(one.appended_bytes for one in self._watched) + request.min_bytes - size
        wait = min(request.max_wait_ms, MAX_WAIT_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait, self._finish_waiting)

    def _woken(self) -> None:
        """A partition grew, or is not what it was. Bytes are counted, not read, until there are enough."""
        if self._in_line:
            return
        if sum(one.appended_bytes for one in self._watched) < self._needed and all(
            one.failure is None for one in self._watched
        ):
            epochs = sum(one.epoch for one in self._watched)
            if epochs == self._epochs:
                return
            self._epochs = epochs
        self._read(self._woke)

    def _woke(self) -> None:
        if self._enough:
            self._stop_watching()
            self._finish()
        else:
            self._reading = self._new_reading()

    def _finish_waiting(self) -> None:
        self._stop_watching()
        if self._in_line:
            self._then = self._finish
        else:
            self._read(self._finish)

    def _stop_watching(self) -> None:
        for partition in self._partitions:
            partition.watchers.discard(self._woken)
        self._partitions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel(self) -> None:
        """It is given up: nobody will be answered."""
        self._over = True
        self._stop_watching()

    # -- the answer -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Answers, if there is room for it; else it reads again when there is."""
        if self._unsent.want(self._reading.size, self._with_room):
            self._send()
        else:
            self._reading = self._new_reading()

    def _with_room(self) -> None:
        self._read(self._send)

    def _send(self) -> None:
        answers = self._reading.answers
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
        throttle_ms = told_ms(self._access.consume_wait_s()) if self._access.quotas.on else 0
        encoded = fetch_codec.encode(
            self._request.version,
            answers,
            session_id=session_id,
            throttle_ms=throttle_ms,
            prefix=self._access.names.topic_prefix,
        )
        self._answer(encoded)

    def _trace(self, tracing: Tracing, answers: list[PartitionAnswer]) -> None:
        for wanted, answer, partition in zip(self._wanted, answers, self._reading.partitions, strict=True):
            found = [one for piece in answer.records for one in traced_from(bytes(piece), wanted.offset)]
            if found and partition is not None:
                tracing.fetched(TracedPlace("topic", partition.topic.name, "kafka"), wanted.index, found)

    def _count(self, answers: list[PartitionAnswer]) -> None:
        """Notes what is delivered, as offsets say it: what compaction took away and markers of transactions count."""
        delivered, size = 0, 0
        for answer, partition in zip(answers, self._reading.partitions, strict=True):
            if answer.records and partition is not None:
                delivered += answer.delivered
                size += answer.size
                partition.topic.delivered += answer.delivered
        self._access.count_delivered(delivered, size)
