"""`TopicQueueAccess`: queues on topics: share groups that clients which know queues alone consume by a queue's name.

What is asked for is the queue, and whoever declares one asks to read its topic too. A family of `Access`; on the loop's
thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.broker.access.messaging.family import Family
from waystation.broker.access.messaging.open_consumers import Question
from waystation.queues.feed import Deliver
from waystation.security.whereabouts import group_dead_letter_target_of
from waystation.share.feed import OnEnd, SharedFeed
from waystation.share.topic_queue_settings import TopicQueueSettings
from waystation.share.topic_queues import Counts, TopicQueue

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.security.principals import Principal


class TopicQueueAccess(Family):
    """One principal's."""

    __slots__ = ("_ask_use",)

    def __init__(self, broker: Broker, principal: Principal, ask_use: Callable[[str], None]) -> None:
        """`ask_use`: raises where the principal may not create a topic that is not there."""
        super().__init__(broker, principal)
        self._ask_use = ask_use

    def find(self, queue: str) -> TopicQueue | None:
        self._ask("describe", "queue", queue)
        return self._broker.topic_queues.find(queue)

    def names(self, prefix: str = "") -> list[str]:
        """Those that the principal may see, in order."""
        return [name for name in self._broker.topic_queues.names(prefix) if self._sees("queue", name)]

    def counts(self, queue: str) -> Counts:
        self._ask("describe", "queue", queue)
        return self._broker.topic_queues.counts(queue)

    async def declare(self, queue: str, settings: TopicQueueSettings) -> TopicQueue:
        """Created if it is not there, and its topic with it; one that differs is a Conflict. It is durable when this
        returns."""
        self._ask("create", "queue", queue)
        self._ask("read", "topic", settings.topic)
        self._ask_use(settings.topic)
        if settings.dead_letter:
            self._ask_dead_letters(*group_dead_letter_target_of(settings.dead_letter))
        there = self._broker.topic_queues.find(queue) is not None
        work = self._broker.topic_queues.declare(queue, settings)
        return await (work if there else self._changing("create", "queue", queue, work, f"on topic {settings.topic}"))

    async def consume(
        self,
        queue: str,
        consumer: str,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
    ) -> SharedFeed:
        """A consumer; it delivers when it is given credit."""
        questions = (Question("read", "queue", queue),)
        self._ask_all(questions)
        feed = await self._broker.topic_queues.consume(
            queue,
            consumer,
            deliver,
            on_end,
            visibility_timeout_ms=visibility_timeout_ms,
            auto_ack=auto_ack,
            exclusive=exclusive,
        )
        self._opened(feed, questions)
        return feed

    async def getter(
        self, queue: str, consumer: str, *, visibility_timeout_ms: int | None = None, auto_ack: bool = False
    ) -> SharedFeed:
        """One who asks for single messages (`SharedFeed.take`) and is not counted as a consumer."""
        questions = (Question("read", "queue", queue),)
        self._ask_all(questions)
        feed = await self._broker.topic_queues.getter(
            queue, consumer, visibility_timeout_ms=visibility_timeout_ms, auto_ack=auto_ack
        )
        self._opened(feed, questions)
        return feed

    async def purge(self, queue: str) -> int:
        """Everything that the topic has now is done for this queue. Returns how many messages were ready."""
        self._ask("read", "queue", queue)
        return await self._changing("purge", "queue", queue, self._broker.topic_queues.purge(queue))

    async def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """The queue and its position in the topic. Returns how many messages were ready."""
        self._ask("delete", "queue", queue)
        work = self._broker.topic_queues.delete(queue, if_unused=if_unused, if_empty=if_empty)
        return await self._changing("delete", "queue", queue, work)
