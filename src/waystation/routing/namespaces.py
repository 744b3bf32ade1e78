"""Namespaces: each has its own queues, exchanges, bindings and policies, and limits to what it may hold.

AMQP calls them virtual hosts. The namespace `/` is always there; others are made and deleted at run time, as the
catalog says (definitions of the kind `namespace`): whoever makes one writes it there, and it is made here when the
catalog tells it (`apply`). How names inside and outside of one belong together is said in
`namespace_names.py`. The parts of a broker do not know namespaces: they know full names.

A namespace that is being deleted is not found any more from the first moment on; it leaves the catalog when everything
in it is deleted. If the broker dies in between, it is there again after the start, with what is left, and can be
deleted again. On the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.catalog import ABSENT, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import (
    Conflict,
    DeletionDisabled,
    Full,
    Invalid,
    NotAllowed,
    NotFound,
    RevisionConflict,
    TooLarge,
)
from waystation.observe.events import event_logger
from waystation.paging import span
from waystation.routing.namespace_names import (
    DEFAULT,
    NamespaceNames,
    check_namespace_name,
    prefix_of,
    split_full_name,
    topic_prefix_of,
)

if TYPE_CHECKING:
    from waystation.core import Core

logger = event_logger("waystation.namespaces")

KIND = "namespace"
MAX_NAMESPACES = 10_000
MAX_NAMESPACE_BYTES = 16 * 1024
"""What is remembered of one: its description and tags are its maker's."""
SLICE = 500
"""Queues that are deleted with one wait for the disk."""

OnDelete = Callable[[str], Awaitable[object]]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a namespace may hold. None: no limit."""

    max_queues: int | None = None
    max_bytes: int | None = None  # of messages in its queues and topics; publishers are blocked above it
    max_connections: int | None = None
    max_topics: int | None = None
    max_partitions: int | None = None  # of all its topics


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of one."""

    description: str = ""
    tags: list[str] = []
    default_queue_type: str | None = None  # what an AMQP client gets that does not say
    limits: Limits = Limits()


class Namespaces:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(self, broker: Core) -> None:
        self._broker = broker
        self._known: dict[str, Namespace] = {DEFAULT: Namespace()}
        self._queues: dict[str, int] = {}  # how many there are, but for `/`, which has the rest
        self.byte_limits: dict[str, int] = {}
        """Of the namespaces that have one."""
        self._revisions: dict[str, int] = {}
        self._by_topics: tuple[list[str], dict[str, str]] | None = None  # None: it is made when it is needed
        self.version = 0
        """Another one: a name may be of another namespace than before."""
        self._changes = ChangeQueue()
        self._on_delete: list[OnDelete] = []
        self._on_change: list[Callable[[], None]] = []

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open and before the exchanges are loaded."""
        for key, entry in self._broker.catalog.read(rows.definitions_of(KIND)).entries.items():
            name = rows.definition_name(KIND, key)
            self._known[name] = _read(name, entry.value)
            self._revisions[name] = entry.revision
        routing, queues = self._broker.routing, self._broker.queues
        for name in self.names():
            if name != DEFAULT:
                routing.add_namespace(prefix_of(name))
                self._count_queues(name)
        self._note_known()
        routing.use_local_names(self.local)
        queues.admit = self._check_room
        self._broker.topics.admit = self._check_topics
        self._broker.topics.meant_by = self.topics_meant_by
        queues.subscribe_creations(self._queue_came)
        queues.subscribe_deletions(self._queue_went)
        queues.subscribe_leads(self._count_all_queues)

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    # -- finding ----------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def names(self) -> list[str]:
        """In order, `/` first."""
        return [DEFAULT, *sorted(name for name in self._known if name != DEFAULT)]

    def get(self, name: str) -> Namespace:
        found = self._known.get(name)
        if found is None:
            raise NotFound(f"there is no namespace {name[:127]!r}", "namespace", name)
        return found

    def limits(self, name: str) -> Limits:
        return self.get(name).limits

    def of(self, full_name: str) -> str:
        """The namespace that a queue or exchange is in."""
        name = split_full_name(full_name)[0]
        return name if name in self._known else DEFAULT

    def holds(self, names: NamespaceNames, name: str) -> bool:
        """Whether a queue or exchange of this name is in the namespace of `names`: `/` has no prefix that keeps what
        is in others apart."""
        return "/" not in name or self.of(names.full(name)) == names.vhost

    def local(self, full_name: str) -> str:
        """What a queue or exchange is called in its namespace."""
        return full_name[len(prefix_of(self.of(full_name))) :]

    def of_topic(self, topic: str) -> str:
        """The namespace that a topic is in: the one with the longest name where several are possible."""
        found = DEFAULT
        at = topic.find(".")
        while at >= 0:
            for name in (topic[:at], f"/{topic[:at]}"):
                found = name if name in self._known else found
            at = topic.find(".", at + 1)
        return found

    def topics_meant_by(self, group_id: str) -> Iterable[str]:
        """What a pattern of this group can mean: topics of `shop.eu` begin as those of `shop` do, and are elsewhere."""
        names, namespace = self._broker.topics.names(), self.of(group_id)
        return names if namespace == DEFAULT else [name for name in names if self.of_topic(name) == namespace]

    def topics_beneath(self, prefix: str) -> Sequence[str]:
        """The namespaces all of whose topics have names that begin so, but for the one that the prefix itself is in."""
        if self._by_topics is None:
            names = {topic_prefix_of(name): name for name in self._known if name != DEFAULT}
            self._by_topics = (sorted(names), names)
        prefixes, names = self._by_topics
        first, last = span(prefixes, prefix)
        itself = self.of_topic(prefix)
        return [names[one] for one in prefixes[first:last] if names[one] != itself]

    def queue_count(self, name: str) -> int:
        if name == DEFAULT:
            return len(self._broker.queues) - sum(self._queues.values())
        return self._queues.get(name, 0)

    # -- limits -----------------------------------------------------------------------------------------------------

    def _check_room(self, full_name: str) -> None:
        name = self.of(full_name)
        limit = self._known[name].limits.max_queues
        if limit is not None and self.queue_count(name) >= limit:
            raise Full(
                f"namespace {name!r} has {limit} queues already, which is its limit;"
                f" delete one or raise the limit to make room for {self.local(full_name)!r}"
            )

    def _check_topics(self, topic: str, topics: int, partitions: int) -> None:
        """Raises Full if so many more topics and partitions are too many for the namespace that a topic is in."""
        name = self.of_topic(topic)
        limits = self._known[name].limits
        if limits.max_topics is None and limits.max_partitions is None:
            return
        there = self.topic_counts(name)
        for what, most, have, more in (
            ("topics", limits.max_topics, there[0], topics),
            ("partitions", limits.max_partitions, there[1], partitions),
        ):
            if most is not None and more and have + more > most:
                raise Full(
                    f"namespace {name!r} has {have} {what}, and its limit is {most};"
                    f" delete some or raise the limit to make room for {topic!r}"
                )

    def topic_counts(self, name: str) -> tuple[int, int]:
        """(topics, partitions) of a namespace; the broker's own do not count."""
        found = [
            len(topic.partitions)
            for topic in self._broker.topics
            if not topic.internal and self.of_topic(topic.name) == name
        ]
        return len(found), sum(found)

    def _note_known(self) -> None:
        """There are others, or others' limits."""
        self._by_topics = None
        limits = {name: namespace.limits.max_bytes for name, namespace in self._known.items()}
        self.byte_limits = {name: limit for name, limit in limits.items() if limit is not None}

    def check_connections(self, name: str, connected: int) -> None:
        """Raises NotAllowed if one more connection to the namespace is too many."""
        limit = self.get(name).limits.max_connections
        if limit is not None and connected >= limit:
            raise NotAllowed(f"namespace {name!r} has {connected} connections; its limit is {limit}")

    def _count_queues(self, name: str) -> None:
        self._queues[name] = sum(1 for _ in self._broker.queues.names(prefix_of(name)))

    def _count_all_queues(self) -> None:
        """Those of a whole shard came or went."""
        for name in self._queues:
            self._count_queues(name)

    def _queue_came(self, full_name: str) -> None:
        name = split_full_name(full_name)[0]
        if name in self._queues:
            self._queues[name] += 1

    def _queue_went(self, full_name: str, _: object) -> None:
        name = split_full_name(full_name)[0]
        if name in self._queues:
            self._queues[name] -= 1

    # -- changes ----------------------------------------------------------------------------------------------------

    def subscribe_deletions(self, callback: OnDelete) -> None:
        """`callback` gets the name of each namespace that is deleted, and deletes what its owner keeps of it."""
        self._on_delete.append(callback)

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called when there are others: a name may be of another namespace than before."""
        self._on_change.append(callback)

    async def create(self, name: str, **known: Any) -> bool:
        """A namespace of this name; True if it is new. `known` (fields of `Namespace`) changes what is known of it."""
        return await self._changes.to_the_end(self._create(name, known))

    async def _create(self, name: str, known: dict[str, Any]) -> bool:
        check_namespace_name(name)
        present = self._known.get(name)
        namespace = msgspec.structs.replace(present or Namespace(), **known)
        _check_limits(namespace.limits)
        if present is None:
            self._check_new(name)
        value = msgspec.msgpack.encode(namespace)
        if len(value) > MAX_NAMESPACE_BYTES:
            raise TooLarge(
                f"namespace {name!r}: description and tags have {len(value)} bytes; the most is {MAX_NAMESPACE_BYTES}"
            )
        if namespace != present:
            await self._write(name, value)
        return present is None

    async def _write(self, name: str, value: bytes | None) -> None:
        key = rows.definition_key(KIND, name)
        try:
            await self._broker.follower.change({key: value}, {key: self._revisions.get(name, ABSENT)})
        except RevisionConflict as error:
            raise Conflict(
                f"namespace {name!r}: somebody else changed it at the same time; look, then try again"
            ) from error

    def _check_new(self, name: str) -> None:
        if len(self._known) >= MAX_NAMESPACES:
            raise Full(f"there are {MAX_NAMESPACES} namespaces already; delete one to make room for {name!r}")
        other = name[1:] if name.startswith("/") else f"/{name}"
        if other in self._known:
            raise Conflict(f"namespace: {name!r} is too like {other!r}; the names of their topics would be the same")
        self._check_empty(name)

    def _check_empty(self, name: str) -> None:
        """What has such a full name already is somebody else's, with its bindings, and would be in the namespace. Not
        named: who creates a namespace need not see it. Topics are taken in: their names may have had dots for long."""
        broker, prefix = self._broker, prefix_of(name)
        if next(iter(broker.queues.names(prefix)), None) is not None or broker.topic_queues.names(prefix):
            kind = "queues"
        elif any(one.startswith(prefix) for one in broker.routing.exchange_names()):
            kind = "exchanges"
        else:
            return
        raise Conflict(
            f"namespace {name!r}: there are {kind} already whose names begin with {prefix!r} and which would be in it;"
            f" delete them first (`waystation {kind} list` shows them), or take another name"
        )

    async def set_limits(self, name: str, limits: Limits) -> None:
        """Replaces the limits of a namespace. What is there already stays."""
        self.get(name)
        await self.create(name, limits=limits)

    async def delete(self, name: str) -> None:
        """Deletes it, and its queues, exchanges, bindings, policies and streams. Its connections are ended."""
        if name == DEFAULT:
            raise NotAllowed("namespace '/' is always there and cannot be deleted")
        self.get(name)
        self._check_streams(name)
        await self._changes.to_the_end(self._delete(name))

    def _check_streams(self, name: str) -> None:
        """They are topics, and are deleted with the namespace."""
        if self._broker.settings.flag("delete.topic.enable"):
            return
        for topic in self._broker.topics:
            if topic.settings.stream and self.of_topic(topic.name) == name:
                raise DeletionDisabled(
                    f"namespace {name!r} cannot be deleted: its stream {topic.name!r} is a topic, and the broker has "
                    "delete.topic.enable=false"
                )

    async def _delete(self, name: str) -> None:
        namespace = self.get(name)
        del self._known[name]
        self._note_known()
        try:
            self._end_connections(name)
            await self._empty(name)
            await self._write(name, None)
        except BaseException:
            self._known[name] = namespace  # what is left of it can be seen, and deleted again
            self._note_known()
            self._broker.routing.add_namespace(prefix_of(name))
            raise
        logger.info("namespace.deleted", "namespace {namespace} is deleted", namespace=name)

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [rows.definition_key(KIND, name) for name in self._revisions]

    async def apply(self, update: Update) -> None:
        before = self.version
        for key, value in update.changes:
            name = rows.definition_name(KIND, key)
            if value is None:
                self._drop(name)
            elif self._revisions.get(name, ABSENT) < update.revision:
                self._take(name, _read(name, value), update.revision)
        self._note_known()
        if self.version != before:
            for callback in self._on_change:
                callback()

    def _take(self, name: str, namespace: Namespace, revision: int) -> None:
        new = name not in self._revisions
        self.version += new
        self._known[name] = namespace
        self._revisions[name] = revision
        if new:
            self._broker.routing.add_namespace(prefix_of(name))
            self._count_queues(name)  # of another node's that had such names already

    def _drop(self, name: str) -> None:
        """Who deletes a namespace empties it first; what is of this broker alone goes here."""
        if self._revisions.pop(name, None) is None:
            return
        self.version += 1
        self._known.pop(name, None)
        self._queues.pop(name, None)
        self._end_connections(name)
        self._broker.routing.forget_namespace(prefix_of(name))

    # -- deleting ---------------------------------------------------------------------------------------------------

    def _end_connections(self, name: str) -> None:
        for connection in self._broker.connections:
            if connection.namespace == name:
                connection.end(f"vhost '{name}' is deleted")

    async def _empty(self, name: str) -> None:
        prefix = prefix_of(name)
        for callback in self._on_delete:
            await callback(name)
        for topic in self._streams(name):
            await self._broker.topics.delete(topic)
        for full_name in self._broker.topic_queues.names(prefix):
            await self._broker.topic_queues.delete(full_name)
        await self._broker.routing.remove_namespace(prefix)
        while names := list(islice(self._broker.queues.names(prefix), SLICE)):
            await asyncio.gather(*(self._delete_queue(full_name) for full_name in names))

    def _streams(self, name: str) -> list[str]:
        """Topics that were declared as queues of the namespace; other topics are nobody's but their makers'."""
        prefix = topic_prefix_of(name)
        return [
            topic.name
            for topic in self._broker.topics
            # The namespace itself is not found any more: what no longer one than it has is in `/` now.
            if topic.settings.stream and topic.name.startswith(prefix) and self._is_left(topic.name, name)
        ]

    def _is_left(self, topic: str, name: str) -> bool:
        return len(topic_prefix_of(self.of_topic(topic))) < len(topic_prefix_of(name))

    async def _delete_queue(self, full_name: str) -> None:
        try:
            await self._broker.queues.delete(full_name)
        except NotFound:
            return  # it went with its connection


def _read(name: str, value: bytes) -> Namespace:
    try:
        return msgspec.msgpack.decode(value, type=Namespace)
    except msgspec.DecodeError as error:
        logger.warning(
            "namespace.unreadable",
            "what is known of namespace {namespace} cannot be read: {error}",
            namespace=name,
            error=error,
        )
        return Namespace()


def _check_limits(limits: Limits) -> None:
    for field in Limits.__struct_fields__:
        value = getattr(limits, field)
        if value is not None and not 0 <= value < 2**63:
            raise Invalid(f"{field}: {value} is not between 0 and {2**63 - 1}")
