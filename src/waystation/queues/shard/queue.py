"""One queue's state in memory: its ledger, where its messages are, its window of ids, its dead that wait to be moved.

It changes by commands only, the same ones when they are made and when they are replayed; it writes nothing itself.
What is empty costs nothing: a queue that nobody uses is this object, its name and its settings, which queues that were
declared alike share.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import WaystationError
from waystation.message import Message, Run, terms_of
from waystation.queues.ledger.ledger import Ledger
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.commands import Enqueue, decode_messages
from waystation.queues.shard.message_index import MessageIndex
from waystation.queues.shard.used_ids import UsedIds

if TYPE_CHECKING:
    from waystation.queues.shard.queue_feed import QueueFeed


_id_of = attrgetter("id")
LetGo = Callable[[int, int], None]
"""Is told the offset of a block, and how many of its messages are done."""


class Death(NamedTuple):
    """Why and when an entry died."""

    reason: str  # rejected, expired, delivery-limit, overflow
    at_ms: int
    error: str | None


class Queue:
    """Constructed by its shard."""

    __slots__ = (
        "acked", "beside", "bytes", "dead", "dead_bytes", "deaths", "delivered", "feeds", "gone_chunks",
        "id", "ids", "ledger", "name", "owner", "places", "pumping", "put", "settings", "stamp", "turn", "used_ms",
        "waiting_room",
    )  # fmt: skip

    def __init__(self, queue_id: int, name: str, settings: QueueSettings) -> None:
        self.id = queue_id
        self.name = name
        self.settings = settings
        self.ledger: Ledger | None = None
        self.places: MessageIndex | None = None
        self.ids: UsedIds | None = None
        self.deaths: dict[int, Death] | None = None
        self.feeds: list[QueueFeed] | None = None  # the consumers, those with higher priorities first
        self.beside: list[QueueFeed] | None = None  # those that have or take messages, but count as no consumers
        self.gone_chunks: list[int] | None = None
        self.waiting_room: deque[asyncio.Future[None]] | None = None  # publishers that wait until there is room
        self.owner: str | None = None
        self.bytes = 0
        self.dead_bytes = 0  # of what waits to be moved
        self.stamp = -1  # commands below this offset are in the snapshot that the queue came from
        self.used_ms = 0  # by the monotonic clock
        self.turn = 0  # whose turn it is among the feeds
        self.pumping = False
        self.put = self.delivered = self.acked = self.dead = 0

    # -- parts that come into being with the first message ------------------------------------------------------------

    def open_ledger(self) -> Ledger:
        ledger = self.ledger
        if ledger is None:
            settings = self.settings
            ledger = Ledger(
                max_deliveries=settings.max_deliveries,
                single_active=settings.single_active,
                keeps_dead=settings.keeps_dead,
            )
            self.adopt(ledger, MessageIndex())
        return ledger

    def adopt(self, ledger: Ledger, places: MessageIndex) -> None:
        self.ledger, self.places, self.gone_chunks = ledger, places, []
        ledger.on_chunk_gone = self.gone_chunks.append

    def change(self, settings: QueueSettings) -> None:
        self.settings = settings
        if self.ledger is not None:
            self.ledger.max_deliveries = settings.max_deliveries
            self.ledger.single_active = settings.single_active
            self.ledger.keeps_dead = settings.keeps_dead
        if not settings.dedup_window_ms:
            self.ids = None

    @property
    def newest(self) -> int:
        return -1 if self.ledger is None else self.ledger.newest

    def __len__(self) -> int:
        return 0 if self.ledger is None else len(self.ledger)

    # -- changes ------------------------------------------------------------------------------------------------------

    def admit(self, block: Enqueue, first: int, offset: int, messages: Sequence[Message] | None = None) -> None:
        """Takes in a block that was written at `offset`."""
        ledger = self.open_ledger()
        sizes = block_sizes(block)
        ids: list[str | None] | None = None
        if block.plain:
            ttl_ms = self.settings.ttl_ms
            ledger.admit_run(first, block.count, expires_at_ms=None if ttl_ms is None else block.taken_ms + ttl_ms)
        else:
            if messages is None:
                messages = decode_messages(block.messages)
            self._admit_by_terms(ledger, messages, first, block.taken_ms)
            ids = list(map(_id_of, messages))
            if ids.count(None) == len(ids):
                ids = None
            elif self.settings.dedup_window_ms and not block.moved:
                self.open_ids().add_all(ids, block.taken_ms)
        self.places.add(first, sizes, offset, ids)  # type: ignore[union-attr]  # comes with the ledger
        self.bytes += sum(sizes)

    def admit_late(self, block: Enqueue, offset: int, let_go: LetGo | None = None) -> int:
        """Takes in a block of a transaction that has committed; returns how many of its messages are there now.

        Their ids may have been used since they were sent. Then they are done at once: whether or not, all of them have
        their numbers, so that what follows has the same ones whenever this is replayed.
        """
        first = self.newest + 1
        if block.plain or block.moved or not self.settings.dedup_window_ms:
            self.admit(block, first, offset)
            return block.count
        messages = decode_messages(block.messages)
        used = [
            (entry, 1)
            for entry, message in enumerate(messages, first)
            if message.id is not None and self.id_used(message.id, block.taken_ms)
        ]
        self.admit(block, first, offset, messages)
        self.finish(used, let_go)
        return block.count - len(used)

    def _admit_by_terms(self, ledger: Ledger, messages: Sequence[Message], first: int, taken_ms: int) -> None:
        """Messages in a row that ask for the same are one run: most that are sent together do."""
        highest, limit_ms = self.settings.max_priority, self.settings.ttl_ms
        asked = list(map(terms_of, messages))
        if asked.count(asked[0]) == len(asked):
            runs = [(asked[0], len(asked))]
        else:
            runs = [(terms, len(list(alike))) for terms, alike in groupby(asked)]
        at = 0
        for (priority, delay_ms, deliver_at_ms, ttl_ms, max_deliveries), count in runs:
            later = delay_ms or deliver_at_ms is not None
            if limit_ms is not None and (ttl_ms is None or ttl_ms > limit_ms):
                ttl_ms = limit_ms
            ledger.admit_run(
                first + at,
                count,
                min(priority, highest),
                deliver_at_ms=messages[at].ready_at_ms(taken_ms) if later else None,
                expires_at_ms=None if ttl_ms is None else taken_ms + ttl_ms,
                max_deliveries=max_deliveries,
            )
            at += count

    def finished(self, runs: Iterable[Run], let_go: LetGo | None = None) -> None:
        """The ledger has let go of these, and `let_go` is told how many of which block."""
        places = self.places
        if places is None:
            return
        for first, count in runs:
            self.bytes -= places.bytes_of(first, count)
            if let_go is not None:
                for _, length, offset, _ in places.blocks(first, count):
                    let_go(offset, length)
        self.sweep()

    def sweep(self) -> None:
        """Forgets the places of chunks in which nothing is alive."""
        if self.gone_chunks:
            for number in self.gone_chunks:
                self.places.drop(number)  # type: ignore[union-attr]
            self.gone_chunks.clear()

    def finish(self, runs: Sequence[Run], let_go: LetGo | None = None) -> list[Run]:
        """Ends entries whatever their state; returns those that were alive. `let_go` as in `finished`."""
        if self.ledger is None:
            return []
        done = self.ledger.finish(runs)
        if self.deaths:
            self._forget_deaths(self.deaths, done)
        self.finished(done, let_go)
        return done

    def bury(self, runs: Iterable[Run], death: Death) -> None:
        """These wait for being moved to the dead-letter target."""
        if self.deaths is None:
            self.deaths = {}
        for first, count in runs:
            self.dead_bytes += self.places.bytes_of(first, count)  # type: ignore[union-attr]
            self.deaths.update(dict.fromkeys(range(first, first + count), death))

    def _forget_deaths(self, deaths: dict[int, Death], runs: Iterable[Run]) -> None:
        for first, count in runs:
            entries = range(first, first + count)
            for entry in entries if count <= len(deaths) else [entry for entry in deaths if entry in entries]:
                if deaths.pop(entry, None) is not None:
                    self.dead_bytes -= self.places.bytes_of(entry, 1)  # type: ignore[union-attr]

    # -- consumers ----------------------------------------------------------------------------------------------------

    def join(self, feed: QueueFeed) -> None:
        """A consumer comes: behind those of its priority."""
        if self.feeds is None:
            self.feeds = []
        insort(self.feeds, feed, key=_behind)

    def join_beside(self, feed: QueueFeed) -> None:
        if self.beside is None:
            self.beside = []
        self.beside.append(feed)

    def part(self, feed: QueueFeed) -> None:
        """Someone goes, or changes sides."""
        for feeds in (self.feeds, self.beside):
            if feeds and feed in feeds:
                feeds.remove(feed)

    # -- publishers that wait -----------------------------------------------------------------------------------------

    async def room(self, timeout_s: float, *, first: bool) -> None:
        """Waits until the queue gets smaller, at most so long. `first`: who was woken for too little goes to the front.

        One is woken at a time. Whoever waited here calls `wake_publishers` when it is through, whatever came of it.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiting_room is None:
            self.waiting_room = deque()
        if first:
            self.waiting_room.appendleft(future)
        else:
            self.waiting_room.append(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            if not future.done():
                self.waiting_room.remove(future)
                future.cancel()
        if not future.cancelled():
            future.result()  # raises if there never will be room here

    def wake_publishers(self) -> None:
        """There may be room now."""
        if self.waiting_room:
            self.waiting_room.popleft().set_result(None)

    def drop(self, error: WaystationError) -> None:
        """Another broker has the queue: whoever waits here is told, and what was in memory is let go of. Its consumers
        may be known to their connections for a while; the messages must not stay for their sake."""
        for feed in (*(self.feeds or ()), *(self.beside or ())):
            feed.drop(error)
        for future in self.waiting_room or ():
            future.set_exception(error)
        self.feeds = self.beside = self.waiting_room = None
        self.ledger = self.places = self.ids = self.deaths = self.gone_chunks = None
        self.bytes = self.dead_bytes = 0

    # -- ids ----------------------------------------------------------------------------------------------------------

    def open_ids(self) -> UsedIds:
        if self.ids is None:
            self.ids = UsedIds()
        return self.ids

    def id_used(self, message_id: str, now_ms: int) -> bool:
        """Whether the id was used within the window before this."""
        return self.ids is not None and self.ids.used_since(message_id, now_ms - self.settings.dedup_window_ms)

    def forget_old_ids(self, now_ms: int, most: int) -> None:
        """Lets go of some ids that were used before the window."""
        if self.ids is not None:
            self.ids.forget(now_ms - self.settings.dedup_window_ms, most)
            if not len(self.ids):
                self.ids = None

    def entries_like(self, trace: bytes) -> Iterator[int]:
        """Living entries that may have the id with this trace."""
        ledger, places = self.ledger, self.places
        if ledger is None or places is None:
            return
        for entry in list(places.with_trace(trace)):
            if ledger.state_of(entry):
                yield entry


def _behind(feed: QueueFeed) -> int:
    return -feed.priority


def block_sizes(block: Enqueue) -> Sequence[int]:
    if isinstance(block.sizes, int):
        return array("I", [block.sizes]) * block.count
    sizes = array("I")
    sizes.frombytes(block.sizes)
    return sizes


def pack_sizes(sizes: Sequence[int]) -> int | bytes:
    """One number where all are alike."""
    if len(set(sizes)) == 1:
        return sizes[0]
    return array("I", sizes).tobytes()
