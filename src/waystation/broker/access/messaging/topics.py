"""Topics as those who read and administer them have them: found, listed, changed, emptied. `Access.topics`.

Publishing, creating and deleting topics are verbs of `Access` itself. What a principal may not see is not there for it:
lists and translations of names leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from waystation.broker.access.messaging.family import Family, spelled
from waystation.cluster.replica_placement import BY_DEFAULT, Assignment, WantedReplicas
from waystation.errors import UnknownTopic
from waystation.topics.topics import check_name

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.security.principals import Principal
    from waystation.topics.partitions.partition import Partition
    from waystation.topics.topics import Topic


def _unlimited(_: int) -> None:
    """No quota."""


class TopicAccess(Family):
    """Made by `Access`."""

    __slots__ = ("_mutate",)

    def __init__(self, broker: Broker, principal: Principal, mutate: Callable[[int], None] = _unlimited) -> None:
        """`mutate`: is told how many partitions are about to be created, and raises if that were too fast."""
        super().__init__(broker, principal)
        self._mutate = mutate

    # -- finding ----------------------------------------------------------------------------------------------------

    def get(self, topic: str | UUID) -> Topic:
        """By its name or its id; raises UnknownTopic or UnknownTopicId if there is none."""
        if isinstance(topic, str):
            self._ask("describe", "topic", topic)
            return self._broker.topics.get(topic)
        found = self._broker.topics.by_id(topic)
        self._ask("describe", "topic", found.name)
        return found

    def describe(self, name: str) -> Topic:
        """By its name; raises InvalidTopicName if no topic can have it, UnknownTopic if none has."""
        self._ask("describe", "topic", name)
        found = self._broker.topics.find(name)
        if found is None:
            check_name(name)
            raise UnknownTopic(f"there is no topic {name!r}", "topic", name)
        return found

    async def ensure(self, name: str) -> Topic:
        """The same, created if it is not there and topics are created on first use; then it is durable."""
        if name in self._broker.topics or not self._broker.settings.flag("auto.create.topics.enable"):
            return self.describe(name)
        self.ask_create(name)
        self._mutate(self._broker.settings.integer("num.partitions"))
        return await self._changing("create", "topic", name, self._broker.messages.ensure(name))

    def partition_to_read(self, topic: str | UUID, index: int) -> Partition:
        """A partition by the name or id of its topic, for who is about to read records from it."""
        if isinstance(topic, str):
            self._ask("read", "topic", topic)
            return self._broker.topics.partition(topic, index)
        partition = self._broker.topics.partition(topic, index)
        self._ask("read", "topic", partition.topic.row.name)
        return partition

    def listing(self) -> list[Topic]:
        """All that the principal may see, the broker's own among them; in the order in which they were created."""
        return [topic for topic in self._broker.topics if self._sees("topic", topic.name)]

    def find(self, name: str) -> Topic | None:
        return self._broker.topics.find(name) if self._sees("topic", name) else None

    def partitions_of(self, name: str) -> int | None:
        """How many partitions it has; None: there is no such topic."""
        return self._broker.topics.partitions_of(name) if self._sees("topic", name) else None

    def id_of(self, name: str) -> UUID | None:
        return self._broker.topics.id_of(name) if self._sees("topic", name) else None

    def name_of(self, topic_id: UUID) -> str | None:
        name = self._broker.topics.name_of(topic_id)
        return name if name is not None and self._sees("topic", name) else None

    def ask_create(self, name: str) -> None:
        """Raises if the principal may neither create this topic nor, as Kafka has it, create in the cluster: of that,
        in the namespace that it is in."""
        within = self._principal.within
        outside = within and self._broker.namespaces.of_topic(name) != within
        if outside or not self._broker.permissions.allows(self._principal, "create", "cluster", "*"):
            self._ask("create", "topic", name)

    def ask_use(self, name: str) -> None:
        """Raises if the topic is not there and the principal may not create it now, for who is about to do what creates
        it."""
        if name not in self._broker.topics:
            self.ask_create(name)
            self._mutate(self._broker.settings.integer("num.partitions"))

    # -- changing ---------------------------------------------------------------------------------------------------

    def check_new(
        self, name: str, partitions: int, settings: Mapping[str, str], replicas: WantedReplicas = BY_DEFAULT
    ) -> int:
        """Raises what creating this topic would raise now; returns how many replicas its partitions would have."""
        self.ask_create(name)
        return self._broker.topics.check_new(name, partitions, settings, replicas)

    def check_growth(self, name: str, total: int, assignment: Assignment | None = None) -> None:
        """Raises what `add_partitions` would raise now."""
        self._ask("alter", "topic", name)
        self._broker.topics.check_growth(name, total, assignment)

    async def add_partitions(self, name: str, total: int, assignment: Assignment | None = None) -> Topic:
        """Grows the topic to `total` partitions. `assignment`: of the new ones to nodes."""
        self._ask("alter", "topic", name)
        self._broker.topics.check_growth(name, total, assignment)
        self._mutate(total - len(self._broker.topics.get(name).partitions))
        work = self._broker.topics.add_partitions(name, total, assignment)
        return await self._changing("alter", "topic", name, work, f"{total} partitions")

    def settings(self, name: str) -> dict[str, str]:
        """Those that were set on the topic itself; UnknownTopic, InvalidTopicName."""
        self._ask("describe-configs", "topic", name)
        found = self._broker.topics.find(name)
        if found is None:
            check_name(name)
            raise UnknownTopic(f"there is no topic {name!r}", "topic", name)
        return found.overrides

    def settings_to_alter(self, name: str) -> dict[str, str]:
        """The same, for one who is about to change them, or would."""
        self._ask("alter-configs", "topic", name)
        return self._broker.topics.get(name).overrides

    async def alter(self, name: str, change: Mapping[str, str] | Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Replaces the topic's own settings, by a map or by what `change` makes of the present ones."""
        self._ask("alter-configs", "topic", name)
        detail = spelled(change) if isinstance(change, Mapping) else ""
        await self._changing("alter-configs", "topic", name, self._broker.topics.alter(name, change), detail)

    async def delete_records(self, name: str, index: int, before_offset: int) -> int:
        """Moves the start of a partition, durably; -1 means everything. Returns the new start."""
        self._ask("delete", "topic", name)
        partition = self._broker.topics.partition(name, index)
        partition.check_leads()
        work = partition.delete_records(before_offset)
        return await self._changing(
            "delete", "topic", name, work, f"records of partition {index} up to {before_offset}"
        )
