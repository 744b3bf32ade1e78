"""Search of a topic: by key, id, text, header and time; in one partition or all; oldest or newest first.

`search(broker, SearchQuery) -> SearchAnswer`.

What read_committed readers see is looked through, and nothing else. One call does a bounded amount of work and says in
its `cursor` where the next goes on: the cursor has all that is to be remembered, so the broker remembers nothing. All
partitions are gone through side by side, always the one that is furthest behind in time, so that what is found comes in
the order of its times, as far as the senders' clocks are right. Where a call's work is used up before all partitions
have got that far, it gives what it has found: nothing is left out and nothing comes twice, but the order has a seam.

A batch that is not compressed is first searched as bytes; most need not be opened.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from waystation.admin.operations.search_terms import MessageMatcher, SearchQuery
from waystation.admin.views.view_topics import found as topic_of
from waystation.errors import Invalid
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.message import Delivered, size_of
from waystation.message_json import to_json_object
from waystation.paging import Pace
from waystation.topics.partitions.partition import Partition
from waystation.topics.reading import AWAY_BYTES, is_aborted, messages_in
from waystation.wire.crc32c import crc32c

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic

MAX_OPENED = 20_000
"""Records that one call opens."""
MAX_WORK_S = 0.1
FIRST_BYTES, MOST_BYTES = 32 * 1024, 256 * 1024
"""Of a partition, read in one go: at first, and after some. The latter takes about 4 ms if every record is opened."""
SIDE_BY_SIDE = 64
"""Partitions that are gone through together: as many as a cursor can remember."""
ANSWER_BYTES = 8 * 1024 * 1024


class SearchAnswer(msgspec.Struct):
    messages: list[dict[str, Any]]
    scanned: int
    cursor: str | None
    done: bool


class _Place(msgspec.Struct, array_like=True):
    """How far a partition has been searched."""

    partition: int
    position: int
    bound: int
    rank: int | None


class _Cursor(msgspec.Struct, array_like=True):
    check: int
    following: int  # the first partition whose turn has not come
    places: list[_Place]


class _Part(NamedTuple):
    """What was found in a part of a partition."""

    found: list[Delivered]
    following: int  # the offset behind what was looked at
    scanned: int
    opened: int
    earliest_ms: int
    latest_ms: int


class _Lane:
    """One partition's search. `position` is where it goes on: the next offset, or, newest first, the one behind it."""

    __slots__ = ("bound", "found", "partition", "position", "rank", "resume", "span")

    def __init__(self, partition: Partition, position: int, bound: int, rank: int | None) -> None:
        self.partition = partition
        self.position = position
        self.bound = bound
        self.rank = rank  # how far it is in time; None: it has not begun
        self.found: list[Delivered] = []  # the next is the last
        self.resume = position
        self.span = FIRST_BYTES


async def search(broker: ManagedBroker, query: SearchQuery) -> SearchAnswer:
    """Some of the messages that match, and where to go on. NotFound for a topic that there is not."""
    topic = topic_of(broker, query.topic)
    wanted = MessageMatcher(query)
    if query.id and not query.cursor:
        found = await broker.messages.find(query.id, topic.name) if _is_place(query.id, topic.name) else None
        if found is not None:
            fits = wanted.fits(found.delivered.message)
            return SearchAnswer([to_json_object(found.delivered)] if fits else [], 1, None, True)
    run = _Search(broker, topic, query, wanted)
    await run.begin()
    await run.work()
    return run.answer()


class _Search:
    """One call."""

    def __init__(self, broker: ManagedBroker, topic: Topic, query: SearchQuery, wanted: MessageMatcher) -> None:
        self._broker = broker
        self._topic = topic
        self._query = query
        self._wanted = wanted
        self._check = _check_of(topic, query)
        self._newest = query.newest
        self._pace = Pace(broker.world.clock)
        self._lanes: list[_Lane] = []
        self._following = 0
        self._messages: list[Delivered] = []
        self._bytes = self._scanned = self._opened = 0

    # -- where to begin -----------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        if self._query.cursor:
            self._go_on()
        elif self._query.partition is not None:
            self._topic.partition(self._query.partition)
            self._following = len(self._topic.partitions)
            self._lanes = [await self._lane(self._query.partition)]
        if not self._unfinished():
            await self._next_lanes()

    async def _next_lanes(self) -> None:
        """The next partitions have their turn."""
        self._lanes = []
        while not self._unfinished() and self._following < len(self._topic.partitions):
            first = self._following
            self._following = min(len(self._topic.partitions), first + SIDE_BY_SIDE)
            self._lanes = [await self._lane(index) for index in range(first, self._following)]

    async def _lane(self, index: int) -> _Lane:
        partition = self._topic.partitions[index]
        low, high = partition.start_offset, partition.stable_offset
        if self._query.from_ms is not None:
            found = partition.find_time(self._query.from_ms)
            low = high if found is None else found[0]
            await self._pace.breathe()
        position, bound = (high, low) if self._newest else (low, high)
        return _Lane(self._topic.partitions[index], position, bound, None)

    def _go_on(self) -> None:
        cursor = _read_cursor(self._query.cursor)
        partitions = self._topic.partitions
        numbers = [place.partition for place in cursor.places]
        if cursor.check != self._check:
            raise Invalid(
                "cursor: it is of another search; continue with the same conditions, or start without a cursor"
            )
        if len(set(numbers)) < len(numbers) or any(not 0 <= number < len(partitions) for number in numbers):
            raise Invalid("cursor: it is damaged; begin without one")
        self._following = max(0, cursor.following)
        self._lanes = [
            _Lane(partitions[place.partition], place.position, place.bound, place.rank) for place in cursor.places
        ]

    # -- the work -----------------------------------------------------------------------------------------------------

    def _unfinished(self) -> bool:
        return any(lane.found or not self._is_through(lane) for lane in self._lanes)

    def _is_through(self, lane: _Lane) -> bool:
        return lane.position <= lane.bound if self._newest else lane.position >= lane.bound

    @property
    def _spent(self) -> bool:
        return self._opened >= MAX_OPENED or self._pace.elapsed_s >= MAX_WORK_S

    @property
    def _full(self) -> bool:
        return len(self._messages) >= self._query.limit or self._bytes >= ANSWER_BYTES

    async def work(self) -> None:
        while self._lanes:
            await self._search_lanes()
            if self._full or self._spent:
                return
            await self._next_lanes()

    async def _search_lanes(self) -> None:
        """The lane that is furthest behind goes on, until there is enough. When the work of a call is used up, what
        was found by then is still taken."""
        waiting = [(-(2**63) if lane.rank is None else lane.rank, i) for i, lane in enumerate(self._lanes)]
        heapify(waiting)
        while waiting and not self._full:
            _, i = heappop(waiting)
            lane = self._lanes[i]
            if lane.found:
                self._take(lane)
            elif self._is_through(lane) or self._spent:
                continue
            else:
                await self._advance(lane)
                await self._pace.breathe()
            heappush(waiting, (lane.rank or 0, i))

    def _take(self, lane: _Lane) -> None:
        delivered = lane.found.pop()
        self._messages.append(delivered)
        self._bytes += size_of(delivered.message)
        self._stand(lane)

    def _stand(self, lane: _Lane) -> None:
        """Before the next that was found, or behind all that was looked at."""
        if not lane.found:
            lane.position = lane.resume
            return
        following = lane.found[-1]
        lane.position = following.offset + 1 if self._newest else following.offset
        self._note_time(lane, following.taken_ms)

    def _note_time(self, lane: _Lane, time_ms: int) -> None:
        rank = -time_ms if self._newest else time_ms
        lane.rank = rank if lane.rank is None else max(lane.rank, rank)

    async def _advance(self, lane: _Lane) -> None:
        """Looks at the next part of a partition."""
        partition = lane.partition
        if self._newest:
            first = max(lane.bound, partition.step_back(min(lane.position, partition.stable_offset), lane.span))
            part = await self._look(lane.partition, first, lane.position, lane.span, to_end=True)
            lane.resume = first if first < lane.position else lane.bound  # what was before it has been deleted
            lane.found, edge_ms = part.found, part.earliest_ms
        else:
            first = max(lane.position, partition.start_offset)
            part = await self._look(lane.partition, first, lane.bound, lane.span, to_end=False)
            lane.resume = part.following if part.following > first else lane.bound
            lane.found, edge_ms = part.found[::-1], part.latest_ms
        if not lane.found:
            self._note_time(lane, edge_ms)
        lane.span = min(MOST_BYTES, lane.span * 2)
        self._stand(lane)

    async def _look(self, partition: Partition, first: int, end: int, span: int, *, to_end: bool) -> _Part:
        """Opens what may match from `first` on, before `end`: one read, or as many as it takes."""
        whole = _Part([], first, 0, 0, 2**63 - 1, -1)
        while whole.following < end:
            offset = max(whole.following, partition.start_offset)
            if offset >= min(end, partition.stable_offset):
                break
            data = partition.read(offset, span, partition.stable_offset)
            given = (partition, data, offset, end, partition.aborted_in(offset, data), self._wanted)
            part = await self._broker.world.offload(_open, *given) if _is_heavy(data) else _open(*given)
            if part.following <= offset:
                break
            self._scanned += part.scanned
            self._opened += part.opened
            whole = _Part(
                whole.found + part.found,
                part.following,
                whole.scanned + part.scanned,
                whole.opened + part.opened,
                min(whole.earliest_ms, part.earliest_ms),
                max(whole.latest_ms, part.latest_ms),
            )
            if not to_end:
                break
            await self._pace.breathe()
        return whole

    # -- the answer ---------------------------------------------------------------------------------------------------

    def answer(self) -> SearchAnswer:
        shown = [to_json_object(delivered) for delivered in self._messages]
        cursor = self._cursor()
        return SearchAnswer(shown, self._scanned, cursor, cursor is None)

    def _cursor(self) -> str | None:
        places = [
            _Place(lane.partition.index, lane.position, lane.bound, lane.rank)
            for lane in self._lanes
            if lane.found or not self._is_through(lane)
        ]
        if not places and self._following >= len(self._topic.partitions):
            return None
        data = msgspec.msgpack.encode(_Cursor(self._check, self._following, places))
        return urlsafe_b64encode(data).decode().rstrip("=")


def _open(
    partition: Partition, data: bytes, first: int, end: int, aborted: Sequence[Aborted], wanted: MessageMatcher
) -> _Part:
    """The messages in some bytes of a log that match. Touches nothing else: it may run on a thread."""
    found: list[Delivered] = []
    following, scanned, opened = first, 0, 0
    earliest, latest = 2**63 - 1, -1
    for position, header in batches.scan(data):
        if header.base_offset >= end:
            break
        following = max(following, header.last_offset + 1)
        if header.control or (header.transactional and aborted and is_aborted(header, aborted)):
            continue
        scanned += header.record_count
        earliest, latest = min(earliest, header.base_timestamp), max(latest, header.max_timestamp)
        if header.codec or wanted.may_be_in(data, position, position + header.size):
            opened += header.record_count
            for delivered in messages_in(partition, data, position, header, first):
                if delivered.offset < end and wanted.matches(delivered.message):
                    found.append(delivered)
    return _Part(found, min(following, max(end, first)), scanned, opened, earliest, latest)


def _is_heavy(data: bytes) -> bool:
    return any(
        header.record_count > MAX_OPENED or (header.codec and header.size > AWAY_BYTES)
        for _, header in batches.scan(data)
    )


# -- which search it is ------------------------------------------------------------------------------------------------


def _is_place(message_id: str, topic: str) -> bool:
    return message_id.startswith(f"{topic}-") and "@" in message_id


def _check_of(topic: Topic, query: SearchQuery) -> int:
    """A number that is another for another search."""
    asked = (
        *(topic.id.bytes, query.key, query.key_base64, query.id, query.text, query.header),
        *(query.partition, query.from_ms, query.newest),
    )
    return int(crc32c(repr(asked).encode(errors="replace")))  # numbers of any size have a repr


def _read_cursor(text: str) -> _Cursor:
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.msgpack.decode(data, type=_Cursor)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise Invalid(f"cursor: {text[:60]!r} is none; give the one of the answer before, or none") from None
