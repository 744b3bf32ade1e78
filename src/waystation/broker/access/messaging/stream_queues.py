"""`StreamQueueAccess`: topics read from a chosen position on, without a group: what AMQP clients know as streams.

To read one asks for the topic. Creating and deleting one is `Access`'s own. A family of `Access`; on the loop's thread
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.broker.access.messaging.family import Family
from waystation.broker.access.messaging.open_consumers import Question
from waystation.queues.feed import Deliver
from waystation.subscriptions.tailing import OnEnd, TailFeed, TailStart

if TYPE_CHECKING:
    from waystation.admin.policy_rules import Policy
    from waystation.topics.topics import Topic


class StreamQueueAccess(Family):
    """One principal's."""

    __slots__ = ()

    def find(self, topic: str) -> Topic | None:
        """A topic, declared as a stream or not; None: there is none, it is the broker's own, or the principal may not
        see it."""
        found = self._broker.topics.find(topic) if self._sees("topic", topic) else None
        return None if found is None or found.internal else found

    def is_declared(self, topic: str, queue: str) -> bool:
        """Whether there is a stream of this name, for one who may create a queue of it."""
        self._ask("create", "queue", queue)
        found = self._broker.topics.find(topic)
        return found is not None and found.settings.stream

    def names(self) -> list[str]:
        """Topics that were declared as streams and that the principal may see, in order."""
        streams = (topic.name for topic in self._broker.topics if topic.settings.stream)
        return sorted(name for name in streams if self._sees("topic", name))

    def read(self, topic: str, start: TailStart, deliver: Deliver, on_end: OnEnd) -> TailFeed:
        """A reader; it delivers when it is given credit."""
        questions = (Question("read", "topic", topic),)
        self._ask_all(questions)
        feed = self._broker.tailing.open(topic, start, deliver, on_end)
        self._opened(feed, questions)
        return feed

    def policy(self, topic: str) -> Policy | None:
        """The one in force on a stream."""
        self._ask("describe", "topic", topic)
        return self._broker.policies.of_stream(topic)

    def readers(self, topic: str) -> int:
        """How many read it."""
        self._ask("describe", "topic", topic)
        return self._broker.tailing.count(topic)
