"""`SubscriptionAccess`: topics consumed by subscription or as a member of a group.

Every verb asks before it has any effect: to read the topics, by name or pattern as the client wrote them, to read as
the group, and to write to where dead letters go. `count` alone does not: it is part of the answer to a publish, which
was asked about and is stored by then. On the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waystation.admin.views.overview import commit_offsets
from waystation.broker.access.messaging.family import Family
from waystation.broker.access.messaging.open_consumers import Question
from waystation.protocol import Subscribe, SubscribeAnswer
from waystation.queues.feed import Deliver, Feed
from waystation.routing.matching.patterns import fixed_part
from waystation.security.whereabouts import dead_letter_target_of, group_dead_letter_target_of
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
        questions = _reading(command.group, command.topics, command.syntax)
        self._ask_all(questions)
        if command.dead_letter:
            target_of = dead_letter_target_of if command.mode == "stream" else group_dead_letter_target_of
            questions += (self._ask_dead_letters(*target_of(command.dead_letter)),)
        feed, answer = await self._broker.subscriptions.open(command, consumer_name, deliver, on_end)
        self._opened(feed, questions)
        return feed, answer

    async def join(self, group: str, topics: list[str], consumer_name: str, on_end: OnEnd) -> GroupMember:
        """A member of a consumer group that asks for its partitions and reads them by itself."""
        questions = _reading(group, topics)
        self._ask_all(questions)
        member = await self._broker.subscriptions.join(group, topics, consumer_name, on_end)
        self._opened(member, questions)
        return member

    async def commit_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]], tx: Tx | None = None) -> None:
        """Offsets of a group, by one who is no member: all of them are durable when this returns, or the first error is
        raised. `tx`: they are committed with it."""
        self._ask_all(_reading(group, [topic for topic, _, _ in offsets], ""))
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


def _reading(group: str | None, topics: Iterable[str], syntax: str = "wildcard") -> tuple[Question, ...]:
    """What is asked of one who reads these; a pattern is about every topic that it may match, now or later."""
    found: list[Question] = [Question("read", "group", group)] if group else []
    for topic in dict.fromkeys(topics):
        names, prefix = fixed_part(topic, syntax)
        found += [Question("read", "topic", name) for name in names]
        if prefix is not None:
            found.append(Question("read", "topic", prefix, under=True))
    return tuple(found)
