"""Delivering what partitions have to a consumer, as far as it can take it: what live and stream consumers share.

A feed has positions in partitions and a list of those with something to read. It delivers one chunk of one partition
at a time and then lets others have their turn; it never reads what there is no room for, so nothing piles up. A message
whose time to live is over, or that the filter does not want, is passed over and takes no room. A fault in one
feed (its connection, its place in a log) ends that one and is no other's.

On the loop's thread only. The base of `StreamFeed` and, by `StatelessLogFeed`, of `LiveFeed` and `TailFeed`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from waystation.errors import OffsetOutOfRange, Unavailable, WaystationError
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.queues.feed import Settled, Verdict
from waystation.routing.filtering.filters import Filter
from waystation.topics.expiry import unexpired
from waystation.topics.reading import ReadPosition
from waystation.topics.topics import Topics

logger = event_logger("waystation.following")

P = TypeVar("P", bound=ReadPosition)
_NOTHING = Settled(None, [])


class LogFeed(ABC, Generic[P]):
    """See the module. Subclasses say what there is room for and what becomes of what was taken."""

    def __init__(self, topics: Topics, now_ms: Callable[[], int], filter: Filter | None) -> None:
        self._topics = topics
        self._now_ms = now_ms
        self._filter = filter
        self._credit = 0
        self._ready: dict[P, None] = {}  # those with something to read, the one to go on with first
        self._closed = False
        self._scheduled = False
        self._pumping = False
        self._paused = False

    def pause(self) -> None:
        """Its client does not read: the rest stays in the log."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._soon()

    @property
    def _room(self) -> int:
        """How many messages can be taken now."""
        return self._credit

    @abstractmethod
    def _before_new(self) -> bool:
        """Delivers what comes before anything new; whether there is more of that."""

    @abstractmethod
    def _took(self, place: P, messages: list[Delivered]) -> None:
        """Delivers what was read and passed the filter: one message at least."""

    @abstractmethod
    def _missed(self, place: P, offsets: int) -> None:
        """Retention was faster."""

    @abstractmethod
    def failed(self, error: WaystationError) -> None:
        """It cannot go on."""

    @property
    def closed(self) -> bool:
        return self._closed

    def end(self, error: WaystationError) -> None:
        """The broker ends it."""
        self.failed(error)

    def _soon(self) -> None:
        """Delivers in the loop's next turn: whoever calls may have something to finish first."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._pump()

    def _pump(self) -> None:
        if self._pumping or self._closed or self._paused or self._room <= 0:
            return
        self._pumping = True
        more = False
        try:
            more = self._before_new()
            if not more and self._ready and self._room > 0:
                self._read_on()
        except WaystationError as error:
            self.failed(error)
        except Exception as error:
            logger.exception("consumer.failed", "a consumer cannot be served and is ended")
            self.failed(Unavailable(f"the subscription failed: {error}"))
        finally:
            self._pumping = False
        if (more or self._ready) and self._room > 0 and not self._paused:
            self._soon()

    def _read_on(self) -> None:
        """One chunk, or what there is room for, of the place whose turn it is."""
        place = next(iter(self._ready))
        before = place.position
        try:
            taken = place.take(self._room)
        except OffsetOutOfRange:
            self._missed(place, place.back_in_range())
            return
        except WaystationError:
            if self._is_there(place):
                raise
            del self._ready[place]  # its topic is being deleted; whoever knows will say so
            return
        if not place.behind or place.position == before:
            del self._ready[place]
        elif not place.inside:
            self._ready[place] = self._ready.pop(place)  # a chunk is done: the next partition's turn
        taken = unexpired(taken, self._now_ms())
        if self._filter is not None and not place.partition.topic.internal:  # what was redriven has passed it before
            matches = self._filter.matches
            taken = [one for one in taken if matches(one.message, topic=one.source)]
        if taken:
            place.partition.topic.delivered += len(taken)
            self._took(place, taken)

    def _is_there(self, place: ReadPosition) -> bool:
        """Whether the topic was not deleted."""
        topic = place.partition.topic
        return self._topics.find(topic.name) is topic


class StatelessLogFeed(LogFeed[P]):
    """One with nothing in flight: what it delivered needs no verdict and is redelivered to nobody."""

    def settle(
        self, verdict: Verdict, runs: Sequence[Run], *, delay_ms: int | None = None, error: str | None = None
    ) -> Settled:
        """Nothing is in flight, so there is nothing to do."""
        return _NOTHING

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None) -> list[Run]:
        """Nothing is in flight, so nothing can run out."""
        return []

    def leave(self) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """The consumer leaves; fine if it has left already."""
