"""Queues on topics: names under which clients that know queues alone share the messages of a topic.

A topic queue is a shared subscription (`SharedGroups`) that has been given a name, a place to begin and terms of its
own. The group is called as the queue is; its members of other protocols and Kafka's compete with the queue's consumers.
The topic stays what it is, and other readers of it are not concerned.

What must hold: a name is in the catalog (kind `topic-queue`) before it is found here, and out of it before its group is
removed. Whoever declares or deletes one writes to the catalog, and the queue comes and goes when the catalog tells it
(`apply`). The group's place in the topic is fixed when the queue is declared: what comes after that is the queue's,
also while it has no consumer. Topics and partitions that come later are read from their beginning.

Protocols call it, on the loop's thread only. `load` before they open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec

from waystation.catalog import ABSENT, Catalog, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.catalog.follower import CatalogFollower
from waystation.errors import AlreadyExists, Conflict, NotAllowed, NotFound, RevisionConflict
from waystation.observe.events import event_logger
from waystation.queues.feed import Deliver
from waystation.queues.names import check_not_internal
from waystation.queues.redriving import delete_redriven
from waystation.queues.settings import check_queue_name
from waystation.share.checks import MAX_VISIBILITY_TIMEOUT_MS
from waystation.share.feed import OnEnd, SharedFeed
from waystation.share.group import SharedGroup, earliest, latest_committed
from waystation.share.share_groups import SharedGroups
from waystation.share.topic_queue_settings import TopicQueueSettings, check_same, group_settings
from waystation.topics.partitions.partition import Receipt
from waystation.topics.topics import Topic, Topics

logger = event_logger("waystation.topic_queues")

KIND = "topic-queue"


class TopicQueue:
    """One of them, as it is."""

    __slots__ = ("exclusive", "feeds", "getters", "name", "settings")

    def __init__(self, name: str, settings: TopicQueueSettings) -> None:
        self.name = name
        self.settings = settings
        self.feeds: dict[SharedFeed, None] = {}
        self.getters: dict[SharedFeed, None] = {}
        self.exclusive: SharedFeed | str | None = None
        """Who consumes it alone; a name while that one is on its way."""


class Counts(NamedTuple):
    """As far as it can be known without reading: `ready` counts markers of transactions, and what compaction left."""

    ready: int
    in_flight: int
    consumers: int


class OrdinaryQueues(Protocol):
    """The ordinary queues, as far as this module needs them."""

    def __contains__(self, name: object) -> bool: ...


class _DeclaredAt(msgspec.Struct):
    """What is written beside the settings of a queue that is not durable."""

    node: int | None = None


class TopicQueues:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(
        self,
        catalog: Catalog,
        follower: CatalogFollower,
        topics: Topics,
        shared: SharedGroups,
        queues: OrdinaryQueues,
        ensure_topic: Callable[[str], Awaitable[Topic]],
        node_id: int,
    ) -> None:
        self._catalog = catalog
        self._follower = follower
        self._topics = topics
        self._shared = shared
        self._ordinary = queues
        self._ensure_topic = ensure_topic
        self._node_id = node_id
        self._queues: dict[str, TopicQueue] = {}
        self._revisions: dict[str, int] = {}
        self._changes = ChangeQueue()
        self._on_change: list[Callable[[], None]] = []
        self._closed = False

    def load(self) -> None:
        """Reads the catalog, and removes what was not to survive this broker. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            name = rows.definition_name(KIND, key)
            settings = _read(name, entry.value)
            if settings is None:
                continue
            if settings.durable or not self._is_own(name, entry.value):
                self._queues[name] = TopicQueue(name, settings)
                self._revisions[name] = entry.revision
            else:
                self._catalog.delete_definition(KIND, name)
                self._remove_group(name)

    def _is_own(self, name: str, value: bytes) -> bool:
        """Whether the queue was declared at this broker. Where that is not written, by an earlier version: whether this
        broker has its group, as one that is alone has them all."""
        node = msgspec.msgpack.decode(value, type=_DeclaredAt).node
        return self._leads(name) if node is None else node == self._node_id

    async def close(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        self._closed = True
        await self._changes.settle()

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` runs after a queue was created or deleted."""
        self._on_change.append(callback)

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()

    # -- finding ----------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def find(self, name: str) -> TopicQueue | None:
        return self._queues.get(name)

    def get(self, name: str) -> TopicQueue:
        found = self._queues.get(name)
        if found is None:
            raise NotFound(f"there is no queue {name!r} on a topic")
        return found

    def names(self, prefix: str = "") -> list[str]:
        """In order."""
        return sorted(name for name in self._queues if name.startswith(prefix))

    def counts(self, name: str) -> Counts:
        queue = self.get(name)
        self._shared.journal.check_led(name)
        topic = self._topics.find(queue.settings.topic)
        group = self._shared.get(name) if name in self._shared else None
        ready = in_flight = 0
        for partition in topic.partitions if topic is not None else ():
            begin = partition.start_offset
            if group is not None and group.has((partition.topic.id, partition.index)):
                core = group.partition(partition).core
                out = len(core.ledger) - core.ready
                in_flight += out
                begin = max(core.start, begin) + core.marks.done + out
            ready += max(0, partition.stable_offset - begin)
        members = 0 if group is None else len(group.machine.members)
        idle = len(queue.getters) + sum(feed.retired for feed in queue.feeds)
        return Counts(ready, in_flight, max(0, members - idle))

    # -- changes ----------------------------------------------------------------------------------------------------

    async def declare(self, name: str, settings: TopicQueueSettings) -> TopicQueue:
        """The queue, made if it is not there; one that differs is a Conflict. It is kept when this returns."""
        return await self._changes.to_the_end(self._declare(name, settings))

    async def _declare(self, name: str, settings: TopicQueueSettings) -> TopicQueue:
        present = self._queues.get(name)
        if present is not None:
            check_same(name, present.settings, settings)
            return present
        check_queue_name(name)
        check_not_internal(name)
        self._shared.journal.check_led(name)
        if name in self._ordinary:
            raise AlreadyExists(f"{name!r} is a queue already, and not one on a topic; choose another name")
        own = group_settings(settings)
        topic = await self._ensure_topic(settings.topic)
        if topic.internal:
            raise NotAllowed(f"topic {settings.topic!r} is the broker's own")
        was_there = name in self._shared
        receipt = self._begin_group(name, settings, own)
        try:
            await self._shared.durability.wait(receipt)
            await self._write(name, self._encode(settings))
        except BaseException:
            if not was_there and name not in self._queues:
                self._remove_group(name)
            raise
        return self.get(name)

    def _encode(self, settings: TopicQueueSettings) -> bytes:
        """With where it was declared, if it is not to survive that broker."""
        plain = msgspec.to_builtins(settings)
        return msgspec.msgpack.encode(plain if settings.durable else {**plain, "node": self._node_id})

    async def _write(self, name: str, value: bytes | None) -> None:
        key = rows.definition_key(KIND, name)
        try:
            await self._follower.change({key: value}, {key: self._revisions.get(name, ABSENT)})
        except RevisionConflict as error:
            raise Conflict(
                f"queue {name!r}: somebody else changed it at the same time; look, then try again"
            ) from error

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [rows.definition_key(KIND, name) for name in self._revisions]

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            name = rows.definition_name(KIND, key)
            if value is None:
                self._drop(name)
            elif self._revisions.get(name, ABSENT) < update.revision:
                self._take(name, value, update.revision)
        self._changed()

    def _take(self, name: str, value: bytes, revision: int) -> None:
        settings = _read(name, value)
        present = self._queues.get(name)
        if settings is None:
            return
        self._revisions[name] = revision
        if present is None or present.settings != settings:
            self._drop_queue(name)
            self._queues[name] = TopicQueue(name, settings)

    def _drop(self, name: str) -> None:
        if self._revisions.pop(name, None) is not None:
            self._drop_queue(name)

    def _drop_queue(self, name: str) -> None:
        """Its consumers are ended; the group is removed by who deletes the queue."""
        queue = self._queues.pop(name, None)
        if queue is None:
            return
        deleted = NotFound(f"queue {name!r} was deleted")
        for feed in [*queue.feeds, *queue.getters]:
            feed.close() if feed.retired or feed in queue.getters else feed.end(deleted)

    # -- groups -----------------------------------------------------------------------------------------------------

    def _begin_group(self, name: str, settings: TopicQueueSettings, own: dict[str, str]) -> Receipt:
        """The group with the queue's terms, standing where the queue begins."""
        group = self._shared.make(name)
        self._shared.change_settings(name, {**self._shared.own_settings(name), **own})
        group.subscribe([settings.topic], earliest if settings.start == "earliest" else latest_committed)
        return self._shared.journal.note(group.key, group.encode)

    async def delete(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """The queue and its group's place in the topic; its consumers are ended. Returns how much was ready.

        With `if_unused` or `if_empty`, a queue that has consumers or messages is a Conflict instead.
        """
        return await self._changes.to_the_end(self._delete(name, if_unused, if_empty))

    async def _delete(self, name: str, if_unused: bool, if_empty: bool) -> int:
        counts = self.counts(name)
        if if_unused and counts.consumers:
            raise Conflict(f"queue {name!r} is in use: it has {counts.consumers} consumers")
        if if_empty and counts.ready:
            raise Conflict(f"queue {name!r} is not empty: about {counts.ready} messages are ready in it")
        await self._write(name, None)
        await self._shared.durability.wait(self._remove_group(name))
        await delete_redriven(self._topics, name)
        return counts.ready

    def _remove_group(self, name: str) -> Receipt | None:
        """By the broker that coordinates it."""
        if not self._leads(name):
            return None
        receipt = self._shared.remove(self._shared.get(name)) if name in self._shared else None
        if self._shared.own_settings(name):
            return self._shared.change_settings(name, {})
        return receipt

    def _leads(self, name: str) -> bool:
        return self._shared.journal.leads(self._shared.journal.index_of(name))

    async def purge(self, name: str) -> int:
        """Everything that the topic has now is done for this queue, also what is in flight. Returns how many."""
        self.get(name)
        purged = self.counts(name).ready
        group = self._group(name)
        receipt = None
        topic = self._topics.find(self.get(name).settings.topic)
        for partition in topic.partitions if topic is not None else ():
            receipt = group.partition(partition, latest_committed).reset(partition.stable_offset) or receipt
        await self._shared.durability.wait(receipt)
        return purged

    def _group(self, name: str) -> SharedGroup:
        if name not in self._shared:  # an administrator has deleted it
            settings = self.get(name).settings
            self._begin_group(name, settings, group_settings(settings))
        return self._shared.get(name)

    # -- consuming --------------------------------------------------------------------------------------------------

    async def consume(
        self,
        name: str,
        consumer: str,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        visibility_timeout_ms: int | None = None,
        prefetch: int = 0,
        auto_ack: bool = False,
        exclusive: bool = False,
    ) -> SharedFeed:
        """A consumer of the queue; it delivers when it is given credit.

        A visibility timeout is a day at most. `exclusive`: a Conflict if there are other consumers, and for those who
        come later.
        """
        queue = self.get(name)
        consumers = self.counts(name).consumers
        if queue.exclusive is not None:
            raise Conflict(f"queue {name!r} has an exclusive consumer")
        if exclusive and consumers:
            raise Conflict(f"queue {name!r} has {consumers} consumers; it cannot be consumed exclusively")
        if exclusive:
            queue.exclusive = consumer  # before anybody else can come
        try:
            feed = await self._open(queue, consumer, deliver, on_end, prefetch, visibility_timeout_ms, auto_ack)
        except BaseException:
            queue.exclusive = None if exclusive else queue.exclusive
            raise
        queue.feeds[feed] = None
        if exclusive:
            queue.exclusive = feed
        feed.on_retired = lambda _: self._left(queue, feed)
        self._on_closed(feed, lambda: self._feed_closed(queue, feed))
        return feed

    async def getter(
        self, name: str, consumer: str, *, visibility_timeout_ms: int | None = None, auto_ack: bool = False
    ) -> SharedFeed:
        """One who asks for single messages (`SharedFeed.take`) and is not counted as a consumer."""
        queue = self.get(name)
        feed = await self._open(queue, consumer, _nothing, _nothing, 0, visibility_timeout_ms, auto_ack)
        queue.getters[feed] = None
        self._on_closed(feed, lambda: queue.getters.pop(feed, None))
        return feed

    async def _open(
        self,
        queue: TopicQueue,
        consumer: str,
        deliver: Deliver,
        on_end: OnEnd,
        prefetch: int,
        visibility_timeout_ms: int | None,
        auto_ack: bool,
    ) -> SharedFeed:
        self._group(queue.name)
        # The place was fixed when the queue was declared, so what the group does not know yet is new: all of it is
        # the queue's.
        feed = await self._shared.open(
            queue.name,
            [queue.settings.topic],
            "wildcard",
            consumer,
            deliver,
            on_end,
            start="earliest",
            prefetch=prefetch,
            visibility_timeout_ms=None
            if visibility_timeout_ms is None
            else min(visibility_timeout_ms, MAX_VISIBILITY_TIMEOUT_MS),
            auto_ack=auto_ack,
        )
        if self._queues.get(queue.name) is not queue:
            feed.close()
            raise NotFound(f"queue {queue.name!r} was deleted")
        return feed

    @staticmethod
    def _on_closed(feed: SharedFeed, then: Callable[[], object]) -> None:
        usual = feed.on_closed

        def closed(one: SharedFeed) -> None:
            if usual is not None:
                usual(one)
            then()

        feed.on_closed = closed

    def _feed_closed(self, queue: TopicQueue, feed: SharedFeed) -> None:
        queue.feeds.pop(feed, None)
        if not feed.retired:
            self._left(queue, feed)

    def _left(self, queue: TopicQueue, feed: SharedFeed) -> None:
        """One consumer fewer."""
        if queue.exclusive is feed:
            queue.exclusive = None
        if not queue.settings.auto_delete or self._closed or self._queues.get(queue.name) is not queue:
            return
        if feed.dropped is not None:
            return  # it did not go: another broker has the group, and the queue stays
        if all(one.retired for one in queue.feeds):
            task = self._changes.begin(self._delete_unused(queue))
            task.add_done_callback(_log_failure)

    async def _delete_unused(self, queue: TopicQueue) -> None:
        if self._queues.get(queue.name) is queue and not self.counts(queue.name).consumers:
            await self._delete(queue.name, if_unused=False, if_empty=False)


def _read(name: str, value: bytes) -> TopicQueueSettings | None:
    try:
        return msgspec.msgpack.decode(value, type=TopicQueueSettings)
    except msgspec.DecodeError as error:
        logger.error(
            "topic_queue.unreadable", "queue {queue} on a topic cannot be read: {error}", queue=name, error=error
        )
        return None


def _nothing(_: object) -> None:
    """For those who take and are not told."""


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.warning("topic_queue.not_deleted", "a queue on a topic could not be deleted: {error}", error=error)
