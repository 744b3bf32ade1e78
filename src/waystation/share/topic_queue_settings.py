"""What the one who declares a queue on a topic chooses, and what that means for the queue's share group. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.errors import Conflict, Invalid
from waystation.share.checks import check_own
from waystation.share.machines.settings import DEAD_LETTER, DEAD_LETTER_KEY, DELIVERIES, MOST_DELIVERIES, RESET

MAX_LOCKS = 20_000
"""Records of one partition that consumers may have in hand at once; consumers of queues take more than Kafka's do."""


class TopicQueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the one who declares it chooses."""

    topic: str
    start: Literal["earliest", "latest"] = "earliest"  # where it begins in the topic when it is declared
    max_deliveries: int = 0  # then a message is dead; 0: no limit
    dead_letter: str | None = None  # a queue's name, "topic:" or "exchange:" and a name; None: the dead are dropped
    dead_letter_key: str | None = None  # for an exchange: instead of the messages' own routing keys
    durable: bool = True  # False: it is deleted when the broker at which it was declared starts again
    auto_delete: bool = False  # the queue goes with its last consumer


def group_settings(settings: TopicQueueSettings) -> dict[str, str]:
    """The group's own, checked."""
    if settings.start not in ("earliest", "latest"):
        raise Invalid(f"start: {settings.start!r} is neither 'earliest' nor 'latest'")
    if not 0 <= settings.max_deliveries <= MOST_DELIVERIES:
        raise Invalid(f"max_deliveries: {settings.max_deliveries} is not between 0 and {MOST_DELIVERIES}")
    own = {
        RESET: settings.start,
        "share.isolation.level": "read_committed",
        "share.partition.max.record.locks": str(MAX_LOCKS),
        DELIVERIES: str(settings.max_deliveries),
        DEAD_LETTER: settings.dead_letter or "",
        DEAD_LETTER_KEY: settings.dead_letter_key or "",
    }
    check_own(own)
    return own


def check_same(name: str, present: TopicQueueSettings, settings: TopicQueueSettings) -> None:
    for field in TopicQueueSettings.__struct_fields__:
        there, asked = getattr(present, field), getattr(settings, field)
        if there != asked:
            raise Conflict(
                f"queue {name!r} is there with {field} {there!r}, not {asked!r};"
                " declare it as it is, or delete it first"
            )
