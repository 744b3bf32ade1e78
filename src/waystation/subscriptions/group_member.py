"""A member of a consumer group that reads its partitions by itself, by offsets, and is sent nothing.

It is a member like any Kafka consumer (see `membership`), with the connection of its client as its heartbeat. The
client asks for its partitions, reads them, and commits as this member.

What must hold: a partition that the group takes back stays this member's until its client no longer names it among
those that it reads. So a client that commits before it lets go repeats nothing, and one that never asks again is put
out by the group when the time for a rebalance is over. What is committed for a partition that is not the member's is
refused.

On the loop's thread only. Made by `Streams.join`; protocols know it as a `Feed` that delivers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from waystation.errors import Conflict, Invalid, WaystationError
from waystation.groups.coordinator import GroupCoordinator
from waystation.groups.machines.calls import OffsetToCommit, TopicPartition
from waystation.subscriptions.membership import GroupMembership
from waystation.topics.topics import Topics

MAX_WAIT_MS = 300_000
"""Nobody waits longer than this for a change, whatever they ask for."""

UNSTABLE_RETRY_S = 0.1
"""How soon it is looked again whether a transaction still has a committed offset in doubt."""

NamedPartition = tuple[str, int]
"""A topic's name and a partition's number."""


class Hub(Protocol):
    """What a member needs of the rest (`Streams`)."""

    topics: Topics
    groups: GroupCoordinator

    async def durable(self, group: str) -> None: ...

    def member_closed(self, member: GroupMember) -> None: ...


class GroupMember:
    """See the module."""

    def __init__(self, hub: Hub, group: str, topics: Sequence[str], on_end: Callable[[WaystationError], None]) -> None:
        self.group = group
        self.member: GroupMembership
        self._hub = hub
        self._names = tuple(dict.fromkeys(topics))
        self._on_end = on_end
        self._target: frozenset[TopicPartition] = frozenset()
        self._owned: set[TopicPartition] = set()  # the target, and what its client has not let go of
        self._waiting = False
        self._news = asyncio.Event()
        self._closed = False

    # -- what its client asks ----------------------------------------------------------------------------------------

    async def assignment(self, owned: Collection[NamedPartition], wait_ms: int) -> list[tuple[str, int, int]]:
        """Its partitions, with what the group has committed in them (-1: nothing); see `protocol.GroupAssignment`."""
        if self._waiting:
            raise Conflict(f"group {self.group!r}: this member waits for its partitions already")
        self._let_go(set(owned))
        until = asyncio.get_running_loop().time() + min(wait_ms, MAX_WAIT_MS) / 1000
        self._waiting = True
        try:
            while True:
                self._check_open()
                self._news.clear()
                found, unstable = self._assigned()
                left = until - asyncio.get_running_loop().time()
                if {(topic, index) for topic, index, _ in found} != set(owned) or left <= 0:
                    return found
                await self._news_within(min(left, UNSTABLE_RETRY_S) if unstable else left)
        finally:
            self._waiting = False

    async def _news_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def commit(self, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Durable when this returns."""
        self._check_open()
        mine = {self._place(key) for key in self._owned}
        for topic, index, _ in offsets:
            if (topic, index) not in mine:
                raise Conflict(
                    f"group {self.group!r}: partition {index} of topic {topic!r} is not this member's any more"
                )
        results = self._hub.groups.write_offsets(
            self.group, [OffsetToCommit(*offset) for offset in offsets], self.member.member_id
        )
        for result in results:
            if result.error is not None:
                raise result.error
        await self._hub.durable(self.group)

    def _let_go(self, named: set[NamedPartition]) -> None:
        revoked = {key for key in self._owned - self._target if self._place(key) not in named}
        if revoked:
            self._owned -= revoked
            self.member.nudge()

    def _assigned(self) -> tuple[list[tuple[str, int, int]], bool]:
        """The partitions; and whether there is one whose offset a transaction has in doubt: that one comes later."""
        places = sorted(place for key in self._target if (place := self._place(key)) is not None)
        fetched = self._hub.groups.fetch_offsets(self.group, places, require_stable=True)
        found = [(one.topic, one.partition, one.offset) for one in fetched if one.error is None]
        return found, len(found) < len(places)

    def _place(self, key: TopicPartition) -> NamedPartition | None:
        """None: its topic is deleted."""
        name = self._hub.topics.name_of(key[0])
        return None if name is None else (name, key[1])

    def _check_open(self) -> None:
        if self._closed:
            raise Conflict(f"group {self.group!r}: this member has left")

    # -- what the membership says ------------------------------------------------------------------------------------

    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self._owned)

    def names(self) -> tuple[str, ...]:
        return self._names

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._target = partitions
        self._owned |= partitions
        self._news.set()

    def heartbeat(self) -> None:
        """What it has read is its client's to say."""

    def lost(self) -> None:
        self._target = frozenset()
        self._owned.clear()
        self._news.set()

    def failed(self, error: WaystationError) -> None:
        if not self._closed:
            self.close()
            self._on_end(error)

    @property
    def closed(self) -> bool:
        return self._closed

    def end(self, error: WaystationError) -> None:
        """The broker ends it."""
        self.failed(error)

    # -- as a feed ---------------------------------------------------------------------------------------------------

    def credit(self, count: int) -> None:
        """It is sent nothing."""

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def settle(self, verdict: Any, runs: Any, *, delay_ms: int | None = None, error: str | None = None) -> Any:
        raise Invalid("consumer: a member of a group that reads by itself settles nothing; it commits offsets")

    def touch(self, runs: Any, visibility_timeout_ms: int | None = None) -> Any:
        raise Invalid("consumer: a member of a group that reads by itself has nothing in flight")

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        """Others get its partitions at once, and go on from what was committed."""
        if not self._closed:
            self._closed = True
            self._news.set()
            self._hub.member_closed(self)
