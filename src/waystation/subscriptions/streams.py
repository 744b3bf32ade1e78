"""Stream subscriptions: the consumers of this broker, by group, and what they share; members that read by themselves.

On the loop's thread only. Protocols come here by way of `Subscriptions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from waystation.groups.coordinator import GroupCoordinator
from waystation.message import Delivered, Message
from waystation.queues.failure_history import TOPIC_TARGET, X_DEATH, with_death
from waystation.queues.feed import Deliver
from waystation.queues.redriven import redrive_topic
from waystation.subscriptions.group_member import GroupMember
from waystation.subscriptions.membership import GroupMembership
from waystation.subscriptions.selection import Selection
from waystation.subscriptions.stream_feed import OnEnd, StreamFeed
from waystation.subscriptions.stream_terms import Terms
from waystation.topics.messages import Messages
from waystation.topics.partitions.durability import Durability, Told
from waystation.topics.partitions.partition import Receipt
from waystation.topics.reading import Readers
from waystation.topics.topics import OFFSETS_TOPIC, Topics
from waystation.world import World


class DeadLetterQueues(Protocol):
    """What streams ask of the queues: a place for messages that were given up."""

    def __contains__(self, name: object) -> bool: ...

    async def declare(self, name: str) -> object: ...

    async def put_durable(self, name: str, messages: Sequence[Message]) -> object: ...


class Streams:
    """All stream consumers of a broker, by group. One per broker, made when the coordinator is there."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        groups: GroupCoordinator,
        readers: Readers,
        messages: Messages,
        queues: DeadLetterQueues,
        durability: Durability,
    ) -> None:
        self.topics = topics
        self.groups = groups
        self.readers = readers
        self.now_ms = world.clock.now_ms
        self._world = world
        self._messages = messages
        self._queues = queues
        self._durability = durability
        self._by_group: dict[str, dict[StreamFeed, None]] = {}
        self._members: dict[str, dict[GroupMember, None]] = {}  # those that read by themselves
        self._tasks: set[asyncio.Future[None]] = set()
        self._due = False
        self.version = 0  # counts who came and went
        self._offsets = topics.get(OFFSETS_TOPIC).partitions
        topics.subscribe_changes(self._changed)
        groups.tell_resolved(self._resolved)

    async def open(
        self, group: str, selection: Selection, terms: Terms, consumer: str, deliver: Deliver, on_end: OnEnd
    ) -> StreamFeed:
        """A consumer in the group; partitions come to it as the group settles."""
        feed = StreamFeed(self, group, selection, terms, deliver, on_end)
        member_id = str(self._world.random.uuid())
        feed.member = GroupMembership(self.groups, group, member_id, consumer, feed, self._moved)
        self._by_group.setdefault(group, {})[feed] = None
        self.version += 1
        try:
            await feed.member.join()
        except BaseException:
            feed.close()
            raise
        return feed

    async def join(self, group: str, topics: Sequence[str], consumer: str, on_end: OnEnd) -> GroupMember:
        """A member of the group that reads by itself; partitions come to it as the group settles."""
        made = GroupMember(self, group, topics, on_end)
        member_id = str(self._world.random.uuid())
        made.member = GroupMembership(self.groups, group, member_id, consumer, made, self._moved)
        self._members.setdefault(group, {})[made] = None
        try:
            await made.member.join()
        except BaseException:
            made.close()
            raise
        return made

    async def close(self) -> None:
        """Everybody leaves: before the coordinator goes."""
        for members in list(self._members.values()):
            for member in list(members):
                member.close()
        for feeds in list(self._by_group.values()):
            for feed in list(feeds):
                feed.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    @property
    def open_feeds(self) -> int:
        """The consumers there are."""
        return sum(map(len, self._by_group.values()))

    def count(self, topic: str) -> int:
        """How many groups have consumers here that subscribe to this topic."""
        found = self.topics.find(topic)
        if found is None:
            return 0
        return sum(any(feed.selection.wants(found) for feed in feeds) for feeds in self._by_group.values())

    # -- for the feeds ----------------------------------------------------------------------------------------------

    def names_for(self, group: str, selection: Selection) -> tuple[str, ...]:
        """What a member subscribes to by name, and what was redriven to its group. Where nothing matches, the patterns
        themselves, since a member must subscribe to something and no topic can have such a name."""
        redriven = {redrive_topic(group)} if redrive_topic(group) in self.topics else set()
        if not selection.patterns:
            return tuple(sorted(selection.names | redriven))
        names = selection.names | {topic.name for topic in selection.matching(self.topics)} | redriven
        return tuple(sorted(names)) or selection.texts

    def sizes(self) -> dict[UUID, int]:
        """The partitions there are: later ones are read from their beginning, whoever starts at the end."""
        return {topic.id: len(topic.partitions) for topic in self.topics}

    def receipt(self, group: str) -> Receipt:
        """Of the last thing written about a group."""
        partition = self._offsets[self.groups.partition_for(group)]
        return Receipt(partition, partition.end_offset)

    def when_durable(self, receipt: Receipt, told: Told) -> None:
        self._durability.when_durable([receipt], told)

    def bury(self, group: str, target: str, dead: Delivered, reason: str, error: str | None) -> asyncio.Future[None]:
        """Keeps a dead letter with its failure history; done when it is durable."""
        now_ms = self._world.clock.now_ms()
        message = dead.message
        history = with_death(message, f"{TOPIC_TARGET}{dead.source}", reason, now_ms, dead.deliveries, error)
        history[0] |= {"group": group, "partition": dead.partition, "offset": dead.offset}
        dead_letter = msgspec.structs.replace(
            message,
            id=message.id if message.id is not None else f"{dead.source}-{dead.partition}@{dead.offset}",
            headers={**message.headers, X_DEATH: history},
            delay_ms=0,
            deliver_at_ms=None,
            ttl_ms=None,
        )
        return self._spawn(self._send_dead(target, dead_letter))

    async def _send_dead(self, target: str, dead_letter: Message) -> None:
        """To a queue, or to `topic:` and a topic's name; both come into being with their first dead."""
        if target.startswith(TOPIC_TARGET):
            topic = target.removeprefix(TOPIC_TARGET)
            await self._messages.ensure(topic)
            await self._durability.wait(*self._messages.publish(topic, [dead_letter]).receipts)
            return
        if target not in self._queues:
            await self._queues.declare(target)
        await self._queues.put_durable(target, [dead_letter])

    def closed(self, feed: StreamFeed) -> None:
        self.version += 1
        feeds = self._by_group.get(feed.group, {})
        feeds.pop(feed, None)
        if not feeds:
            self._by_group.pop(feed.group, None)
        self._spawn(feed.member.leave())

    def member_closed(self, member: GroupMember) -> None:
        members = self._members.get(member.group, {})
        members.pop(member, None)
        if not members:
            self._members.pop(member.group, None)
        self._spawn(member.member.leave())

    async def durable(self, group: str) -> None:
        """When all that was written about a group is."""
        await self._durability.wait(self.receipt(group))

    def _spawn(self, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _moved(self, member: GroupMembership) -> None:
        """Others of the group need not wait for their next heartbeat to hear of it."""
        group = member.group_id
        for other in (*self._by_group.get(group, ()), *self._members.get(group, ())):
            if other.member is not member:
                other.member.nudge()

    def _resolved(self, groups: set[str]) -> None:
        for group in groups:
            for feed in list(self._by_group.get(group, ())):
                feed.offsets_moved()

    def _changed(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._due = False
        for feeds in self._by_group.values():
            for feed in feeds:
                feed.topics_changed()
