"""Topics: created, altered and deleted at run time, as the catalog says.

Whoever changes a topic writes to the catalog, comparing with the revision that is known here; the topic itself changes
when the catalog tells it (`apply`), whoever wrote it. Then the writer is answered.

Order of things, so that a crash at any moment leaves no half-made topic: a topic is in the catalog before its folders
are made (missing ones are made at the next start), and deleted in the catalog, which remembers that, before they are
removed (left-over ones are removed at the next start; `topic_folders.py`). A folder carries eight digits of the topic's
id, so that a topic that is deleted and created again never meets its old files.

A write that fails has not happened (the catalog sees to that), unless it says that it is in doubt. A change that is
written and cannot be made, since the disk refuses the files, is taken back by its writer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from msgspec.structs import replace

from waystation.catalog import ABSENT, Catalog, TopicRow, Update, rows
from waystation.catalog.follower import CatalogFollower
from waystation.cluster.replica_placement import BY_DEFAULT, Assignment, ReplicaPlacement, WantedReplicas
from waystation.cluster.store import MOST_CHANGES
from waystation.config import BrokerSettings, TopicSettings, parse_topic_overrides, resolve_topic
from waystation.errors import (
    AlreadyExists,
    Conflict,
    InvalidPartitions,
    InvalidTopicName,
    NotAllowed,
    NotLeader,
    RevisionConflict,
    StorageFailed,
    Unavailable,
    UnknownTopic,
    UnknownTopicId,
    WriteInDoubt,
)
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, lead_alone, open_log
from waystation.log.points import RecoveryPoints
from waystation.observe.events import event_logger
from waystation.topics.folders import TopicFolders
from waystation.topics.partitions.no_log import NoLog
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.partitions.unfinished_batches import UnfinishedBatches
from waystation.world import World

logger = event_logger("waystation.topics")

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
            f"{shown!r} cannot be a topic name: use 1 to {MAX_NAME_LENGTH} letters, digits, '.', '_' and '-'"
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

    __slots__ = ("delivered", "dropped", "folder", "partitions", "revision", "row", "settings")

    def __init__(self, row: TopicRow, settings: TopicSettings, folder: str) -> None:
        self.row = row
        self.revision = ABSENT
        """Of the catalog's entry when we last heard of it: a change compares with it."""
        self.settings = settings
        self.folder = folder
        self.partitions: list[Partition] = []
        self.delivered = 0  # records that consumers were given, since the broker started
        self.dropped = 0  # offsets that live subscribers missed since then: they did not keep up

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


class Replicas(Protocol):
    """Where the replicas of a cluster's partitions are: what opening one has to know."""

    def here(self, topic_id: UUID, index: int) -> bool:
        """Whether this broker has, or is to have, a replica."""

    def high_watermark(self, topic_id: UUID, index: int) -> int:
        """As far as it was written down."""


class Topics:
    """All topics of a broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.TOPICS,)

    def __init__(
        self,
        world: World,
        root: str,
        catalog: Catalog,
        follower: CatalogFollower,
        settings: BrokerSettings,
        commit: GroupCommit,
        points: RecoveryPoints,
        placement: ReplicaPlacement,
        replicas: Replicas | None = None,
    ) -> None:
        self._replicas = replicas  # None: a broker alone, which leads everything
        self._world = world
        self._catalog = catalog
        self._follower = follower
        self._settings = settings
        self._commit = commit
        self._points = points
        self._placement = placement
        self.folders = TopicFolders(world.disk, root, catalog, points, replicas)
        self._unfinished = UnfinishedBatches()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._removals: dict[UUID, asyncio.Task[None]] = {}  # of files of deleted topics
        self._on_change: list[Callable[[], None]] = []
        self.admit: Callable[[str, int, int], None] = lambda name, topics, partitions: None
        """Set by whoever limits how much there may be: raises if so many more topics, with so many more partitions, are
        too many where this one is. The broker's own are not asked about."""
        self.meant_by: Callable[[str], Iterable[str]] = lambda group_id: self.names()
        """Set by whoever knows where groups are: what a pattern of one can mean. Never the broker's own."""
        self.by_policy: Callable[[str], Mapping[str, str]] = lambda name: {}
        """Set by whoever knows policies: what they say of a stream's settings, in the place of its own."""
        self._on_delete: list[Callable[[list[str]], None]] = []

    # -- finding ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}", "topic", name)
        return topic

    def by_id(self, topic_id: UUID) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        return topic

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, topic: str | UUID, index: int) -> Partition:
        """One partition, by the topic's name or id. A single call: produce and fetch ask for each of theirs."""
        found = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)
        if found is not None and 0 <= index < len(found.partitions):
            return found.partitions[index]
        return (self.get(topic) if isinstance(topic, str) else self.by_id(topic)).partition(index)

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

    def epoch_of(self, topic_id: UUID, index: int) -> int | None:
        """The leader epoch of a partition; None: there is none."""
        found = self._by_id.get(topic_id)
        return None if found is None or not 0 <= index < len(found.partitions) else found.partitions[index].epoch

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._by_name.values() if not topic.internal]

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` runs after every creation, deletion and growth."""
        self._on_change.append(callback)

    def subscribe_deletions(self, callback: Callable[[list[str]], None]) -> None:
        self._on_delete.append(callback)

    def logs(self) -> Iterator[tuple[str, Log]]:
        """Every log with the name that its recovery point has."""
        for partition in self.replicas():
            yield f"{partition.topic.id}/{partition.index}", log_of(partition)

    def replicas(self) -> Iterator[Partition]:
        """Every partition that has a log here."""
        for topic in self:
            for partition in topic.partitions:
                if partition.here:
                    yield partition

    # -- start ------------------------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Opens what the catalog knows, and puts folders in order. Blocks: before the listeners open."""
        known = self.folders.reconcile()
        revisions = {key: entry.revision for key, entry in self._catalog.read(rows.TOPICS).entries.items()}
        for row in known:
            self._admit(self._prepare(row), revisions.get(rows.topic_key(row.id), ABSENT))
            self.folders.describe_again(row)

    def ensure_internal(self, name: str, partitions: int, overrides: dict[str, str] | None = None) -> Topic:
        """An internal topic, compacted unless told otherwise, made at the first start. Blocks."""
        topic = self._by_name.get(name)
        if topic is None:
            row = self._new_row(name, partitions, True, dict(overrides or COMPACTED))
            revision = self._catalog.save_topic(row)
            topic = self._make(row)
            self._admit(topic, revision)
        return topic

    def _new_row(self, name: str, partitions: int, internal: bool, overrides: dict[str, str]) -> TopicRow:
        return TopicRow(
            name,
            self._world.random.uuid(),
            partitions,
            internal=internal,
            overrides=overrides,
            created_ms=self._world.clock.now_ms(),
        )

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

    def _admit(self, topic: Topic, revision: int) -> None:
        topic.revision = revision
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
        if self._replicas is not None:
            return self._open_replica(topic, index, self._replicas)
        trust = self._trust(topic, index)
        log = self._open_log(topic, index, trust)
        lead_alone(log, trust)
        partition = Partition(topic, index, log, self._unfinished, self._commit)
        partition.lead(log.epoch)  # a broker alone leads everything
        return partition

    def _open_log(self, topic: Topic, index: int, trust: Trust) -> Log:
        return open_log(
            self._world,
            f"{topic.folder}/{index}",
            topic.settings,
            trust,
            tier=TIERS.get(topic.name, 0),
            replicated=self._replicas is not None,
            on_write=self._commit.written,
        )

    def _trust(self, topic: Topic, index: int) -> Trust:
        points = self._points
        return Trust(points.of(f"{topic.id}/{index}"), points.clean, points.same_boot)

    def _open_replica(self, topic: Topic, index: int, replicas: Replicas) -> Partition:
        here = replicas.here(topic.id, index)
        log = self.open_log_of(topic, index) if here else self.no_log(topic, index)
        known = replicas.high_watermark(topic.id, index)
        return ReplicatedPartition(topic, index, log, self._unfinished, self._commit, known)

    def open_log_of(self, topic: Topic, index: int) -> Log:
        """The files of a replica, made if there are none. Blocks."""
        return self._open_log(topic, index, self._trust(topic, index))

    def no_log(self, topic: Topic, index: int) -> Log:
        return NoLog(self._world, f"{topic.folder}/{index}", topic.settings)

    async def remove_copy(self, partition: ReplicatedPartition) -> None:
        """The partition has moved to other nodes: it has no log here any more, and its files are removed. Nothing is
        known of them before the first is deleted: a start would miss them, if the partition comes back."""
        log = log_of(partition)
        partition.use(self.no_log(partition.topic, partition.index))
        log.retire(NotLeader(f"{partition.topic.name}-{partition.index} has moved to other nodes"))
        await self._commit.quiesce([log])
        log.close(clean=False)
        async with self._points.changing:
            await self._world.offload(self._points.drop, f"{partition.topic.id}/{partition.index}")
        await self._world.offload(self._world.disk.remove_tree, log.folder)

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

    async def create(
        self,
        name: str,
        partitions: int,
        overrides: Mapping[str, str] | None = None,
        wanted: WantedReplicas = BY_DEFAULT,
        *,
        internal: bool = False,
    ) -> Topic:
        """Creates a topic; it is durable and ready when this returns. `internal`: for the broker itself."""
        own = dict(overrides or {})
        if not internal:
            self.check_new(name, partitions, own, wanted)  # before waiting for others: a bad request is refused at once
        return await self._to_the_end(self._create(name, partitions, own, wanted, internal))

    def check_new(
        self, name: str, partitions: int, overrides: Mapping[str, str], wanted: WantedReplicas = BY_DEFAULT
    ) -> int:
        """Raises what `create` would raise now; returns how many replicas its partitions would have."""
        self._check_new(name, partitions, overrides)
        self.admit(name, 1, partitions)
        return len(self._placement.place(name, partitions, wanted)[0])

    def _check_new(self, name: str, partitions: int, overrides: Mapping[str, str]) -> None:
        check_name(name)
        check_partitions(partitions)
        resolve_topic(overrides, self._settings)
        if name in self._by_name:
            raise AlreadyExists(f"topic {name!r} exists already")
        check_like(name, self._by_name)

    async def _create(
        self, name: str, partitions: int, overrides: dict[str, str], wanted: WantedReplicas, internal: bool
    ) -> Topic:
        self._check_new(name, partitions, overrides)
        if not internal:
            self.admit(name, 1, partitions)
        row = self._new_row(name, partitions, internal, overrides)
        await self._write_entries(row, ABSENT, 0, self._placement.place(name, partitions, wanted))
        try:
            revision = await self._follower.write(
                rows.topic_saved(row), {rows.topic_key(row.id): ABSENT, rows.topic_name_key(row.name): ABSENT}
            )
        except RevisionConflict as error:
            await self._delete_entries(row.name, self._placement.keys(row.id, partitions))
            raise AlreadyExists(f"topic {name!r} exists already") from error
        try:
            await self._follower.applied(revision)
        except StorageFailed:
            await self._undo_creation(row, revision)
            raise
        return self.by_id(row.id)

    async def _write_entries(
        self, row: TopicRow, revision: int, first: int, replicas: Sequence[tuple[int, ...]]
    ) -> None:
        """Of new partitions, where the catalog has such: they are there before their topic has that many.

        As long as the topic's own entry has this revision, nobody uses these partitions: what an earlier attempt has
        left behind is replaced. RevisionConflict: it has another one."""
        entries = list(self._placement.entries(row.id, first, replicas).items())
        for start in range(0, len(entries), MOST_CHANGES - 1):
            some = dict(entries[start : start + MOST_CHANGES - 1])
            await self._follower.write(some, {rows.topic_key(row.id): revision})

    async def _delete_entries(self, topic: str, keys: Sequence[str]) -> None:
        """Of partitions that no topic has any more."""
        try:
            for start in range(0, len(keys), MOST_CHANGES):
                await self._follower.write(dict.fromkeys(keys[start : start + MOST_CHANGES]))
        except (StorageFailed, Unavailable) as error:
            logger.warning(
                "topic.entries_left",
                "entries of partitions of topic {topic!r}, which is not there, are left in the catalog: {error}",
                topic=topic,
                error=error,
            )

    async def _undo_creation(self, row: TopicRow, revision: int) -> None:
        try:
            await self._follower.change(rows.topic_deleted(row), {rows.topic_key(row.id): revision})
        except (StorageFailed, RevisionConflict) as error:
            logger.warning(
                "topic.perhaps_created",
                "topic {topic!r} was not created, but may be there after a restart: {error}",
                topic=row.name,
                error=error,
            )
        else:
            await self._delete_entries(row.name, self._placement.keys(row.id, row.partitions))
            await self._world.offload(self.folders.remove, row)

    async def _rewrite(self, topic: Topic, row: TopicRow) -> Topic:
        """Another row for a topic; if that cannot be done, the one that it had."""
        revision = await self._compare_and_write(topic, {rows.topic_key(topic.id): rows.encode(row)})
        try:
            await self._follower.applied(revision)
        except StorageFailed:
            await self._put_back(topic)
            raise
        return topic

    async def _compare_and_write(self, topic: Topic, changes: Mapping[str, bytes | None]) -> int:
        try:
            return await self._follower.write(changes, {rows.topic_key(topic.id): topic.revision})
        except RevisionConflict as error:
            raise _changed_meanwhile(topic) from error

    async def _put_back(self, topic: Topic) -> None:
        """The catalog says something of a topic that could not be done: it shall say what is so."""
        try:
            await self._follower.change(
                {rows.topic_key(topic.id): rows.encode(topic.row)}, {rows.topic_key(topic.id): topic.revision}
            )
        except (StorageFailed, RevisionConflict) as error:
            logger.warning(
                "topic.perhaps_changed",
                "a change of topic {topic!r} failed, but may show after a restart: {error}",
                topic=topic.name,
                error=error,
            )

    def _not_internal(self, name: str) -> Topic:
        topic = self.get(name)
        if topic.internal:
            raise NotAllowed(f"topic {name!r} is the broker's own")
        return topic

    async def delete(self, name: str, *, internal: bool = False) -> None:
        """Deletes a topic and its data. `internal`: the broker does, and it may be its own."""
        await self._to_the_end(self._delete(name, internal))

    async def _delete(self, name: str, internal: bool) -> None:
        topic = self.get(name) if internal else self._not_internal(name)
        try:
            revision = await self._compare_and_write(topic, rows.topic_deleted(topic.row))
        except WriteInDoubt as error:
            # The next start may delete it: nothing more may be acknowledged into it.
            for partition in topic.partitions:
                log_of(partition).fail(StorageFailed(f"topic {topic.name!r} may be deleted at a restart: {error}"))
            raise
        await self._follower.applied(revision)
        await self._delete_entries(topic.name, self._placement.keys(topic.id, topic.row.partitions))
        removal = self._removals.get(topic.id)
        if removal is not None:
            await asyncio.shield(removal)

    def is_deleted(self, topic_id: UUID) -> bool:
        """Whether there is no such topic here, and nobody is removing its files."""
        return topic_id not in self._by_id and topic_id not in self._removals

    async def add_partitions(self, name: str, total: int, assignment: Assignment | None = None) -> Topic:
        """Grows a topic to `total` partitions. `assignment`: of the new ones to nodes; None: as the others are."""
        return await self._to_the_end(self._add_partitions(name, total, assignment))

    def check_growth(self, name: str, total: int, assignment: Assignment | None = None) -> None:
        """Raises what `add_partitions` would raise now."""
        self._place_more(self._check_growth(name, total), total, assignment)

    def _place_more(self, topic: Topic, total: int, assignment: Assignment | None) -> list[tuple[int, ...]]:
        factor = None if assignment is not None else self._placement.factor_of(topic.id)
        return self._placement.place(topic.name, total - len(topic.partitions), WantedReplicas(factor, assignment))

    def _check_growth(self, name: str, total: int) -> Topic:
        topic = self._not_internal(name)
        check_partitions(total)
        if total <= len(topic.partitions):
            raise InvalidPartitions(
                f"topic {name!r} has {len(topic.partitions)} partitions; it can only grow, {total} is no growth"
            )
        self.admit(name, 0, total - len(topic.partitions))
        return topic

    async def _add_partitions(self, name: str, total: int, assignment: Assignment | None) -> Topic:
        topic = self._check_growth(name, total)
        replicas = self._place_more(topic, total, assignment)
        try:
            await self._write_entries(topic.row, topic.revision, len(topic.partitions), replicas)
        except RevisionConflict as error:
            raise _changed_meanwhile(topic) from error
        return await self._rewrite(topic, replace(topic.row, partitions=total))

    async def alter(self, name: str, change: Mapping[str, str] | Change) -> Topic:
        """Replaces a topic's own settings, by a map or by what `change` makes of the present ones."""
        return await self._to_the_end(self._alter(name, change))

    async def _alter(self, name: str, change: Mapping[str, str] | Change) -> Topic:
        topic = self.get(name)
        if name == QUEUES_TOPIC:  # a retention time, say, would end messages that nobody has consumed
            raise NotAllowed(f"topic {name!r} stores the queues; its settings are the broker's own")
        overrides = dict(change(dict(topic.overrides)) if callable(change) else change)
        parse_topic_overrides(overrides)
        counted = topic.settings.retention_messages >= 0
        altered = await self._rewrite(topic, replace(topic.row, overrides=overrides))
        if counted:  # what the old number has removed does not come back, whatever the new one is
            for partition in topic.partitions:
                await partition.remove_before(partition.start_offset)
        return altered

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return map(rows.topic_key, self._by_id)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            topic = self._by_id.get(UUID(key.removeprefix(rows.TOPICS)))
            if value is None:
                if topic is not None:
                    await self._forget(topic)
            elif topic is None:
                await self._begin(rows.read_topic(value), update.revision)
            elif topic.revision < update.revision:
                topic.revision = update.revision
                await self._become(topic, rows.read_topic(value))

    async def _begin(self, row: TopicRow, revision: int) -> None:
        self._admit(await self._world.offload(self._make, row), revision)
        self.refresh(self._by_id[row.id])  # the broker's settings may have changed while the files were made
        self._changed()

    async def _become(self, topic: Topic, row: TopicRow) -> None:
        indexes = range(len(topic.partitions), row.partitions)
        added = await self._world.offload(self._open_partitions, topic, indexes) if indexes else []
        await self._world.offload(self.folders.describe_again, row)
        topic.row = row
        topic.partitions += added
        self.refresh(topic)
        if added:
            self._changed()

    async def _forget(self, topic: Topic) -> None:
        """The topic is deleted at once; its files are removed while the follower goes on."""
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        logs = [log_of(partition) for partition in topic.partitions]
        for log in logs:
            log.retire(UnknownTopic(f"topic {topic.name!r} was deleted"))
        await self._commit.quiesce(logs)
        for partition in topic.partitions:
            log_of(partition).close(clean=False)
            partition.wake()
        removal = asyncio.ensure_future(self._world.offload(self.folders.remove, topic.row))
        self._removals[topic.id] = removal
        self._under_way.add(removal)
        removal.add_done_callback(self._over)
        removal.add_done_callback(lambda _: self._removals.pop(topic.id, None))
        for callback in self._on_delete:
            callback([topic.name])
        self._changed()

    def refresh(self, topic: Topic) -> None:
        """Works out the topic's settings again: its own, a policy's or the broker's have changed."""
        topic.settings = resolve_topic(topic.overrides, self._settings)
        if topic.settings.stream and (ruled := self.by_policy(topic.name)):
            topic.settings = resolve_topic({**topic.overrides, **ruled}, self._settings)
        for partition in topic.partitions:
            log = log_of(partition)
            log.settings = topic.settings
            log.trim(partition.durable_offset if partition.waits else partition.visible_offset)

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()


def _changed_meanwhile(topic: Topic) -> Conflict:
    return Conflict(f"topic {topic.name!r} was changed by somebody else at the same time; look at it, then try again")


def _close(partitions: Iterable[Partition]) -> None:
    """Those of a topic that could not be made."""
    for partition in partitions:
        log_of(partition).close(clean=False)
