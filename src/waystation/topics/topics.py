"""Topics: created, altered and deleted at run time, and remembered in the catalog.

Order of things, so that a crash at any moment leaves no half-made topic: a topic is in the catalog before its folders
are made (missing ones are made at the next start), and deleted in the catalog, which remembers that, before they are
removed (left-over ones are removed at the next start; `topic_folders.py`). A folder carries eight digits of the topic's
id, so that a topic that is deleted and created again never meets its old files.

A change of the catalog that fails may have happened all the same (the disk failed to sync it): what was before is then
written again, so that what was answered as failed does not take effect at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

from waystation.catalog import Catalog, TopicRow
from waystation.config import BrokerSettings, TopicSettings, parse_topic_overrides, resolve_topic
from waystation.errors import (
    AlreadyExists,
    InvalidPartitions,
    InvalidTopicName,
    NotAllowed,
    StorageFailed,
    UnknownTopic,
    UnknownTopicId,
)
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.points import RecoveryPoints
from waystation.log.recovery import Trust, lead_alone, open_log
from waystation.topics.folders import TopicFolders
from waystation.topics.partition import Partition
from waystation.topics.unfinished_batches import UnfinishedBatches
from waystation.world import World

logger = logging.getLogger("waystation.topics")

T = TypeVar("T")
Change = Callable[[dict[str, str]], Mapping[str, str]]

MAX_NAME_LENGTH = 249
MAX_PARTITIONS = 10_000
"""Per topic. A partition costs a folder and a few files; more than this is a mistake."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_TOPIC = "__share_group_state"
QUEUES_TOPIC = "__queues"
TIERS = {OFFSETS_TOPIC: 1, SHARE_TOPIC: 1, TRANSACTIONS_TOPIC: 2}

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024)}
"""Only sealed segments are compacted, and a start replays what is left: twelve minutes of transactions took 3 s of it
with segments of 64 MiB."""
"""Settings of an internal topic unless it is told others."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raises InvalidTopicName unless it can be a topic's name (Kafka's rules)."""
    if not name or len(name) > MAX_NAME_LENGTH or name in (".", "..") or not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise InvalidTopicName(
            f"{shown!r} cannot be a topic name: 1 to {MAX_NAME_LENGTH} of letters, digits, '.', '_' and '-'"
        )


def check_like(name: str, others: Iterable[str]) -> None:
    """Two names that differ only in '.' and '_' would be one name in metrics; Kafka refuses them, and so do we."""
    if "." not in name and "_" not in name:
        return
    flat = name.replace(".", "_")
    for other in others:
        if other.replace(".", "_") == flat:
            raise InvalidTopicName(
                f"topic {name!r} is too like the existing {other!r}: they differ only in '.' and '_'"
            )


def check_partitions(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {count}")


class Topic:
    """A topic and its partitions."""

    __slots__ = ("delivered", "folder", "partitions", "row", "settings")

    def __init__(self, row: TopicRow, settings: TopicSettings, folder: str) -> None:
        self.row = row
        self.settings = settings
        self.folder = folder
        self.partitions: list[Partition] = []
        self.delivered = 0  # records that consumers were given, since the broker started

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def id(self) -> UUID:
        return self.row.id

    @property
    def internal(self) -> bool:
        return self.row.internal

    @property
    def overrides(self) -> dict[str, str]:
        """The settings that were set on the topic itself."""
        return self.row.overrides

    def partition(self, index: int) -> Partition:
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise UnknownTopic(f"topic {self.name!r} has no partition {index}; it has 0 to {len(self.partitions) - 1}")


class Topics:
    """All topics of a broker."""

    def __init__(
        self,
        world: World,
        root: str,
        catalog: Catalog,
        settings: BrokerSettings,
        commit: GroupCommit,
        points: RecoveryPoints,
    ) -> None:
        self._world = world
        self._catalog = catalog
        self._settings = settings
        self._commit = commit
        self._points = points
        self.folders = TopicFolders(world.disk, root, catalog, points)
        self._unfinished = UnfinishedBatches()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._on_change: list[Callable[[], None]] = []
        self._on_delete: list[Callable[[list[str]], None]] = []

    # -- finding ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    def by_id(self, topic_id: UUID) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        return topic

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    # What the coordinators need to know of topics.

    def partitions_of(self, topic: str) -> int | None:
        found = self._by_name.get(topic)
        return None if found is None else len(found.partitions)

    def id_of(self, topic: str) -> UUID | None:
        found = self._by_name.get(topic)
        return None if found is None else found.id

    def name_of(self, topic_id: UUID) -> str | None:
        found = self._by_id.get(topic_id)
        return None if found is None else found.name

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._by_name.values() if not topic.internal]

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` runs after every creation, deletion and growth."""
        self._on_change.append(callback)

    def subscribe_deletions(self, callback: Callable[[list[str]], None]) -> None:
        self._on_delete.append(callback)

    def logs(self) -> Iterator[tuple[str, Log]]:
        """Every log with the name that its recovery point has."""
        for topic in self:
            for partition in topic.partitions:
                yield f"{topic.id}/{partition.index}", partition.log

    # -- start ------------------------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Opens what the catalog knows, and puts folders in order. Blocks: before the doors open."""
        for row in self.folders.reconcile():
            self._admit(self._prepare(row))
            self.folders.describe_again(row)

    def ensure_internal(self, name: str, partitions: int, overrides: dict[str, str] | None = None) -> Topic:
        """An internal topic, compacted unless told otherwise, made at the first start. Blocks."""
        topic = self._by_name.get(name)
        if topic is None:
            row = TopicRow(
                name, self._world.random.uuid(), partitions, internal=True, overrides=dict(overrides or COMPACTED)
            )
            self._catalog.save_topic(row)
            topic = self._make(row)
            self._admit(topic)
        return topic

    def _make(self, row: TopicRow) -> Topic:
        """A new topic, its files made. Blocks; may run on a thread."""
        topic = self._prepare(row)
        try:
            self.folders.describe(row)
        except OSError as error:
            _close(topic.partitions)
            raise StorageFailed(f"cannot make the files of topic {row.name!r}: {error.strerror or error}") from error
        return topic

    def _prepare(self, row: TopicRow) -> Topic:
        """The topic with its logs open, not yet to be found. Blocks; may run on a thread."""
        topic = Topic(row, resolve_topic(row.overrides, self._settings), self.folders.path(row))
        topic.partitions = self._open_partitions(topic, range(row.partitions))
        return topic

    def _admit(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic

    def _open_partitions(self, topic: Topic, indexes: range) -> list[Partition]:
        opened: list[Partition] = []
        try:
            for index in indexes:
                opened.append(self._open_partition(topic, index))
        except OSError as error:
            _close(opened)
            raise StorageFailed(f"cannot make the files of topic {topic.name!r}: {error.strerror or error}") from error
        return opened

    def _open_partition(self, topic: Topic, index: int) -> Partition:
        points = self._points
        trust = Trust(points.of(f"{topic.id}/{index}"), points.clean, points.same_boot)
        log = open_log(
            self._world,
            f"{topic.folder}/{index}",
            topic.settings,
            trust,
            tier=TIERS.get(topic.name, 0),
            on_write=self._commit.written,
        )
        lead_alone(log, trust)
        return Partition(topic, index, log, self._unfinished)

    # -- changes ----------------------------------------------------------------------------------------------------

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """One change at a time, and each to its end even when whoever asked for it has gone.

        A change reads what there is, waits for the catalog, and then changes what there is: two at once would lose one
        of them, and one that is cancelled while it waits would leave catalog and memory apart.
        """

        async def in_turn() -> T:
            async with self._turn:
                return await work

        task = asyncio.ensure_future(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone; asyncio would complain that nobody looked

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    async def create(self, name: str, partitions: int, overrides: Mapping[str, str] | None = None) -> Topic:
        """Creates a topic; it is durable and ready when this returns."""
        own = dict(overrides or {})
        self.check_new(name, partitions, own)  # before waiting for others: a bad request is refused at once
        return await self._to_the_end(self._create(name, partitions, own))

    def check_new(self, name: str, partitions: int, overrides: Mapping[str, str]) -> None:
        """Raises what `create` would raise now."""
        check_name(name)
        check_partitions(partitions)
        resolve_topic(overrides, self._settings)
        if name in self._by_name:
            raise AlreadyExists(f"topic {name!r} exists already")
        check_like(name, self._by_name)

    async def _create(self, name: str, partitions: int, overrides: dict[str, str]) -> Topic:
        self.check_new(name, partitions, overrides)
        row = TopicRow(name, self._world.random.uuid(), partitions, overrides=overrides)
        try:
            await self._world.offload(self._catalog.save_topic, row)
            topic = await self._world.offload(self._make, row)
        except StorageFailed:
            await self._undo_creation(row)
            raise
        self._admit(topic)
        self._changed()
        return topic

    async def _undo_creation(self, row: TopicRow) -> None:
        try:
            await self._world.offload(self._catalog.delete_topic, row.id)
        except StorageFailed as error:
            logger.warning("topic %r was not created, but may be there after a restart: %s", row.name, error)
        else:
            await self._world.offload(self.folders.remove, row)

    async def _save(self, topic: Topic, row: TopicRow) -> None:
        """Replaces what the catalog says of a topic; if that fails it says what it said before."""
        try:
            await self._world.offload(self._catalog.save_topic, row)
        except StorageFailed:
            await self._save_again(topic)
            raise

    async def _save_again(self, topic: Topic) -> bool:
        """Whether the catalog is known to say what we know."""
        try:
            await self._world.offload(self._catalog.save_topic, topic.row)
        except StorageFailed as error:
            logger.warning("a change of topic %r failed, but may show after a restart: %s", topic.name, error)
            return False
        return True

    def _not_internal(self, name: str) -> Topic:
        topic = self.get(name)
        if topic.internal:
            raise NotAllowed(f"topic {name!r} is the broker's own")
        return topic

    async def delete(self, name: str) -> None:
        """Deletes a topic and its data."""
        await self._to_the_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        topic = self._not_internal(name)
        await self._record_deletion(topic)
        del self._by_name[name]
        del self._by_id[topic.id]
        logs = [partition.log for partition in topic.partitions]
        for log in logs:
            log.retire(UnknownTopic(f"topic {name!r} was deleted"))
        await self._commit.quiesce(logs)
        for partition in topic.partitions:
            partition.log.close(clean=False)
            partition.wake()
        await self._world.offload(self.folders.remove, topic.row)
        for callback in self._on_delete:
            callback([name])
        self._changed()

    async def _record_deletion(self, topic: Topic) -> None:
        try:
            await self._world.offload(self._catalog.delete_topic, topic.id)
        except StorageFailed as error:
            if not await self._save_again(topic):
                # The next start may delete it: nothing more may be acknowledged into it.
                for partition in topic.partitions:
                    partition.log.fail(StorageFailed(f"topic {topic.name!r} may be deleted at a restart: {error}"))
            raise

    async def add_partitions(self, name: str, total: int) -> Topic:
        """Grows a topic to `total` partitions."""
        return await self._to_the_end(self._add_partitions(name, total))

    async def _add_partitions(self, name: str, total: int) -> Topic:
        topic = self._not_internal(name)
        check_partitions(total)
        if total <= len(topic.partitions):
            raise InvalidPartitions(
                f"topic {name!r} has {len(topic.partitions)} partitions; it can only grow, {total} is no growth"
            )
        row = TopicRow(topic.name, topic.id, total, topic.internal, topic.overrides)
        await self._save(topic, row)
        try:
            added = await self._world.offload(self._open_partitions, topic, range(len(topic.partitions), total))
        except StorageFailed:
            await self._save_again(topic)
            raise
        await self._world.offload(self.folders.describe_again, row)
        topic.row = row
        topic.partitions += added
        self._changed()
        return topic

    async def alter(self, name: str, change: Mapping[str, str] | Change) -> Topic:
        """Replaces a topic's own settings, by a map or by what `change` makes of the present ones."""
        return await self._to_the_end(self._alter(name, change))

    async def _alter(self, name: str, change: Mapping[str, str] | Change) -> Topic:
        topic = self.get(name)
        if name == QUEUES_TOPIC:  # a retention time, say, would end messages that nobody has consumed
            raise NotAllowed(f"topic {name!r} holds the queues; its settings are the broker's own")
        overrides = dict(change(dict(topic.overrides)) if callable(change) else change)
        parse_topic_overrides(overrides)
        row = TopicRow(topic.name, topic.id, topic.row.partitions, topic.internal, overrides)
        await self._save(topic, row)
        await self._world.offload(self.folders.describe_again, row)
        topic.row = row
        self.refresh(topic)
        return topic

    def refresh(self, topic: Topic) -> None:
        """Works out the topic's settings anew: its own or the broker's have changed."""
        topic.settings = resolve_topic(topic.overrides, self._settings)
        for partition in topic.partitions:
            partition.log.settings = topic.settings

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()


def _close(partitions: Iterable[Partition]) -> None:
    """Those of a topic that could not be made."""
    for partition in partitions:
        partition.log.close(clean=False)
