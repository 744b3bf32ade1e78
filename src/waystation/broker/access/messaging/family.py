"""`Family`: some verbs of `Access` that belong together, bound to its principal."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from waystation.broker.access.messaging.open_consumers import Consumer, Question, ask
from waystation.cluster.decisions.state import NOBODY
from waystation.config import BROKER_SETTINGS
from waystation.errors import NotAllowed
from waystation.groups.machines.calls import OffsetResult, OffsetToCommit
from waystation.security.permissions import Operation, Resource
from waystation.security.principals import Principal

if TYPE_CHECKING:
    from waystation.broker.broker import Broker

T = TypeVar("T")


def spelled(settings: Mapping[str, object]) -> str:
    """Settings for the audit log: what is secret is not said."""
    return ", ".join(f"{name}={_shown(name, value)}" for name, value in settings.items())


def _shown(name: str, value: object) -> str:
    row = BROKER_SETTINGS.get(name)
    if row is not None and row.secret:
        return "…"
    return "its default" if value is None else str(value)


def in_order(offsets: Sequence[OffsetToCommit], results: Sequence[OffsetResult]) -> list[OffsetResult]:
    """The results in the order of what they are about."""
    if [(one.topic, one.partition) for one in offsets] == [(one.topic, one.partition) for one in results]:
        return list(results)
    found = {(one.topic, one.partition): one for one in results}
    return [found[offset.topic, offset.partition] for offset in offsets]


class Family:
    """Made by `Access`. Each verb asks before it has any effect."""

    __slots__ = ("_broker", "_principal")

    def __init__(self, broker: Broker, principal: Principal) -> None:
        self._broker = broker
        self._principal = principal

    def _ask(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raises NotAllowed if the principal may not."""
        self._broker.permissions.check(self._principal, operation, resource, name)

    def _ask_dead_letters(self, resource: Resource, name: str) -> Question:
        """Of one who says where dead letters go: they are written there, and what is not there is created with the
        first. Returns what has to stay allowed."""
        writing = Question("write", resource, name)
        self._ask_all((writing,))
        broker = self._broker
        if resource == "queue" and name not in broker.queues:
            self._ask("create", "queue", name)
        everywhere = broker.permissions.allows(self._principal, "create", "cluster", "*")
        if resource == "topic" and name not in broker.topics and not everywhere:
            self._ask("create", "topic", name)
        return writing

    def _ask_cluster(self, operation: Operation) -> None:
        """For what concerns the broker itself, and no one thing in it."""
        self._ask(operation, "cluster", "*")

    async def _changing(self, operation: str, resource: str, name: str, work: Awaitable[T], detail: str = "") -> T:
        """Awaits a change, and notes in the audit log how it ended."""
        return await self._broker.audit.change(self._principal, operation, resource, name, work, detail)

    def _changed(self, operation: str, resource: str, name: str, detail: str = "") -> None:
        """Notes in the audit log what was done."""
        self._broker.audit.changed(self._principal, operation, resource, name, detail)

    def _leader(self, topic: str, index: int) -> int:
        """The node that leads a partition of one of the broker's own topics, and with it what is stored there. NOBODY
        where none does now."""
        topic_id = self._broker.topics.id_of(topic)
        placed = None if topic_id is None else self._broker.view.placed(topic_id, index)
        return NOBODY if placed is None or not placed.has_leader else placed.leader

    def _ask_all(self, questions: tuple[Question, ...]) -> None:
        for question in questions:
            ask(self._broker.permissions, self._principal, question)

    def _opened(self, consumer: Consumer, questions: tuple[Question, ...]) -> None:
        """A consumer that was allowed by these is open; it is ended when they are not allowed any more."""
        self._broker.open_consumers.add(consumer, self._principal, questions)

    def _readable(self, offsets: Sequence[OffsetToCommit]) -> tuple[list[OffsetToCommit], list[OffsetResult]]:
        """Offsets of topics that the principal may read, and refusals of the others."""
        errors: dict[str, NotAllowed] = {}
        for topic in {offset.topic for offset in offsets}:
            try:
                self._ask("read", "topic", topic)
            except NotAllowed as error:
                errors[topic] = error
        if not errors:
            return list(offsets), []
        return [offset for offset in offsets if offset.topic not in errors], [
            OffsetResult(offset.topic, offset.partition, errors[offset.topic])
            for offset in offsets
            if offset.topic in errors
        ]

    def _sees(self, resource: Resource, name: str) -> bool:
        """Lists leave out what the principal may not see."""
        return self._broker.permissions.allows(self._principal, "describe", resource, name)
