"""Where positions are in the partitions of a topic, asked of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from waystation.client.sync.client import Client
from waystation.topics.partitions.start_position import StartPosition

EARLIEST = "earliest"
LATEST = "latest"

TopicPartition = tuple[str, int]
"""A topic's name and a partition's number."""


class Bounds(NamedTuple):
    """A partition: the offset that was asked for, where it begins, where it ends, and for committed readers."""

    offset: int
    start: int
    end: int
    stable: int


def offsets_at(client: Client, topic: str, at: str = LATEST) -> dict[int, Bounds]:
    """By partition; `at` is a start position as people write it. NotFound if there is no such topic."""
    answer = client.view("topic-offsets", topic=topic, at=at)
    return {
        one["partition"]: Bounds(one["offset"], one["start_offset"], one["end_offset"], one["stable_offset"])
        for one in answer["offsets"]
    }


def resolve(client: Client, at: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset in each of these partitions."""
    wanted = list(places)
    found = {topic: offsets_at(client, topic, at) for topic in {topic for topic, _ in wanted}}
    return {(topic, index): found[topic][index].offset for topic, index in wanted}


def spelled(text: str, start: StartPosition) -> str:
    """What a person wrote, for later: an age is counted from when it was said."""
    return f"@{start.value}" if start.kind == "time" else text
