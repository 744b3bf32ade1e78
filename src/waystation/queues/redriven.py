"""Messages on their way back to the one group of subscribers that had given them up.

A topic is everybody's, so a dead letter that were published to it again would reach the groups that had acknowledged
it. It goes to a topic of the broker's own instead, one for each group that anything was redriven to, and only the
group's members of our own protocols read that, beside the topics that they subscribe to. They are told the topic, the
partition and the offset that the message came from, which its failure history knows.

The names are digests: a group may be called what no topic can be. Pure; for redriving, shared and stream subscriptions.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from waystation.message import Delivered, Message
from waystation.queues.failure_history import TOPIC_TARGET, failure_history_of

PREFIX = "__redrive-"
_DIGITS = 32


class Origin(NamedTuple):
    """Where a message was first, and for which group it died there."""

    topic: str
    partition: int
    offset: int
    group: str


def redrive_topic(group: str) -> str:
    """The topic of what is redriven to a group."""
    return PREFIX + sha256(group.encode(errors="replace")).hexdigest()[:_DIGITS]


def is_redrive_topic(topic: str) -> bool:
    return topic.startswith(PREFIX)


def origin_of(message: Message) -> Origin | None:
    """Where a message died that a group of subscribers gave up; None if it died elsewhere, or never."""
    history = failure_history_of(message)
    latest = history[0] if history else {}
    source, group = latest.get("queue"), latest.get("group")
    partition, offset = latest.get("partition"), latest.get("offset")
    if not (isinstance(source, str) and source.startswith(TOPIC_TARGET) and isinstance(group, str)):
        return None
    if not (isinstance(partition, int) and isinstance(offset, int)):
        return None
    return Origin(source.removeprefix(TOPIC_TARGET), partition, offset, group)


def as_before(redriven: Delivered) -> Delivered:
    """A message of a redrive topic as its consumer is told of it: from where it was first."""
    origin = origin_of(redriven.message)
    if origin is None:
        return redriven
    tag, deliveries, taken_ms = redriven.tag, redriven.deliveries, redriven.taken_ms
    return Delivered(tag, deliveries, taken_ms, redriven.message, origin.topic, origin.partition, origin.offset)
