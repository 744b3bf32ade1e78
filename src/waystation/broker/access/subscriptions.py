"""`SubscriptionAccess`: topics consumed by subscription or as a member of a group.

Every verb asks before it has any effect: to read the topics, by name or pattern as the client wrote them, and to read
as the group. `count` alone does not: it is part of the answer to a publish, which was asked about and is stored by
then. On the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waystation.admin.overview import commit_offsets
from waystation.broker.access.family import Family
from waystation.protocol import Subscribe, SubscribeAnswer
from waystation.queues.feed import Deliver, Feed
from waystation.subscriptions.group_member import GroupMember
from waystation.subscriptions.subscriptions import OnEnd
from waystation.transactions.transacting import Tx


class SubscriptionAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    async def open(
        self, command: Subscribe, consumer_name: str, deliver: Deliver, on_end: OnEnd
    ) -> tuple[Feed, SubscribeAnswer]:
        """A subscription of any mode: the feed, which delivers when it is given credit, and what the client is told."""
        self._may_read(command.group, command.topics)
        return await self._broker.subscriptions.open(command, consumer_name, deliver, on_end)

    async def join(self, group: str, topics: list[str], consumer_name: str, on_end: OnEnd) -> GroupMember:
        """A member of a consumer group that asks for its partitions and reads them by itself."""
        self._may_read(group, topics)
        return await self._broker.subscriptions.join(group, topics, consumer_name, on_end)

    async def commit_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]], tx: Tx | None = None) -> None:
        """Offsets of a group, by one who is no member: all of them are durable when this returns, or the first error is
        raised. `tx`: they are committed with it."""
        self._may_read(group, (topic for topic, _, _ in offsets))
        if tx is not None:
            await tx.commit_offsets(group, offsets)
        else:
            await commit_offsets(self._broker, group, offsets)

    def count(self, topic: str) -> int:
        """To how many a message of the topic goes; for one who has just published it."""
        return self._broker.subscriptions.count(topic)

    def counts(self) -> dict[str, int]:
        """The topics that somebody subscribes to and that the principal may see, and to how many each goes."""
        counts = self._broker.subscriptions.counts()
        return {topic: count for topic, count in counts.items() if self._sees("topic", topic)}

    def total(self) -> int:
        """How many subscriptions are open."""
        self._ask_cluster("describe")
        return self._broker.subscriptions.total()

    def _may_read(self, group: str | None, topics: Iterable[str]) -> None:
        if group:
            self._ask("read", "group", group)
        for topic in set(topics):
            self._ask("read", "topic", topic)
