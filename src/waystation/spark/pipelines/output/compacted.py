"""The compacted topics of sinks that upsert: whether one is compacted, and creating one that is.

Used by `checking.py`, which has the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.protocol import TopicInfo

POLICY = "cleanup.policy"
COMPACTED = f"{POLICY}=compact"


def creates_topics(settings: dict[str, str]) -> bool:
    """Whether the broker creates topics for publishers."""
    return settings.get("auto.create.topics.enable") == "true"


def broker_settings(mq: Client) -> dict[str, str]:
    return {one["name"]: str(one["value"]) for one in mq.view("settings")["settings"]}


def compaction_problems(topic: TopicInfo, settings: dict[str, str]) -> list[str]:
    """What is wrong with a topic that is to be upserted into. `settings` are the broker's."""
    policy = topic.settings.get(POLICY) or settings.get(f"log.{POLICY}", "delete")
    if "compact" in policy.split(","):
        return []
    return [
        f"topic {topic.topic!r} is not compacted, so it would keep every version of a row: change that with"
        f" `waystation topics alter {topic.topic} --set {COMPACTED}`, or write with mode update"
    ]


def prepare_compacted(mq: Client, topic: str) -> list[str]:
    """Creates the topic, compacted, where the broker creates topics for publishers; returns what is wrong with one that
    is there. NotFound if it is not, and is not created."""
    settings = broker_settings(mq)
    try:
        return compaction_problems(mq.describe_topic(topic), settings)
    except NotFound:
        if not creates_topics(settings):
            raise
    try:
        mq.create_topic(topic, settings={POLICY: "compact"})
    except AlreadyExists:
        return compaction_problems(mq.describe_topic(topic), settings)  # another one was faster
    return []
