"""What topics there are and how they are set, asked of a running broker.

Every function is one question or one change over a `Connection`, answers in plain values, and raises an error of
`errors.py` that names the topic. Used by the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from waystation.client.refusals import check
from waystation.client.wire import Connection, retried
from waystation.errors import NotFound, UnknownTopic

EARLIEST = -2
LATEST = -1
"""Kafka's special timestamps in a lookup of offsets."""

NO_OFFSET = -1
"""The answer of a lookup by time when nothing is that new."""

_TOPIC_RESOURCE = 2
_SET, _UNSET = 0, 1
_SOURCE_NAMES = {1: "topic", 2: "broker (run time)", 3: "broker (run time)", 4: "broker", 5: "default"}
_TIMEOUT_MS = 30_000

Place = tuple[str, int]
"""A topic's name and a partition's number."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic, as metadata tells it."""

    name: str
    id: str
    internal: bool
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting of a topic: its value, and who set it."""

    name: str
    value: str | None
    source: str
    own: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Where a lookup of offsets ended: the offset, and the timestamp of the record there (-1: not told)."""

    offset: int
    timestamp_ms: int


def list_topics(connection: Connection) -> list[TopicInfo]:
    """All topics, by name."""
    answer = connection.call("metadata", topics=None)
    return sorted((_topic_info(topic) for topic in answer.topics), key=lambda topic: topic.name)


def find_topic(connection: Connection, name: str, *, create: bool = False) -> TopicInfo:
    """One topic; with `create`, made on the spot where the broker allows it (auto.create.topics.enable)."""
    answer = retried(
        lambda: connection.call("metadata", topics=[{"name": name}], allow_auto_topic_creation=create).topics[0],
        lambda topic: _leaderless(topic),
    )
    if answer.error_code is ErrorCode.unknown_topic_or_partition:
        raise UnknownTopic(f"there is no topic {name!r}; create it with `waystation topics create {name}`")
    check(answer.error_code, f"topic {name!r}")
    return _topic_info(answer)


def _leaderless(topic: object) -> ErrorCode:
    """A topic that is being created has partitions without a leader for a moment."""
    codes: list[ErrorCode] = [topic.error_code, *(part.error_code for part in topic.partitions)]  # type: ignore[attr-defined]
    return next((code for code in codes if code is ErrorCode.leader_not_available), codes[0])


def _topic_info(topic: object) -> TopicInfo:
    partitions = tuple(sorted(int(part.partition_index) for part in topic.partitions))  # type: ignore[attr-defined]
    return TopicInfo(topic.name or "", str(topic.topic_id), topic.is_internal, partitions)  # type: ignore[attr-defined]


def create_topic(
    connection: Connection, name: str, *, partitions: int | None = None, settings: Mapping[str, str] | None = None
) -> int:
    """Creates a topic and returns how many partitions it got; without a number the broker's num.partitions holds."""
    topic = {
        "name": name,
        "num_partitions": -1 if partitions is None else partitions,
        "replication_factor": -1,
        "configs": [{"name": key, "value": value} for key, value in (settings or {}).items()],
    }
    (result,) = connection.call("create_topics", topics=[topic], timeout=_TIMEOUT_MS).topics
    check(result.error_code, f"topic {name!r}", result.error_message)
    return int(result.num_partitions)


def delete_topic(connection: Connection, name: str) -> None:
    (result,) = connection.call("delete_topics", topics=[{"name": name}], timeout=_TIMEOUT_MS).responses
    check(result.error_code, f"topic {name!r}", result.error_message)


def grow_topic(connection: Connection, name: str, partitions: int) -> None:
    """Raises the number of partitions to `partitions`."""
    topic = {"name": name, "count": partitions, "assignments": None}
    (result,) = connection.call("create_partitions", topics=[topic], timeout=_TIMEOUT_MS).results
    check(result.error_code, f"topic {name!r}", result.error_message)


def alter_topic(connection: Connection, name: str, changed: Mapping[str, str], taken_back: Iterable[str]) -> None:
    """Sets some of a topic's settings and returns others to their defaults; what is not named stays."""
    configs: list[dict[str, object]] = [{"name": k, "config_operation": _SET, "value": v} for k, v in changed.items()]
    configs += [{"name": key, "config_operation": _UNSET, "value": None} for key in taken_back]
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configs": configs}
    (result,) = connection.call("incremental_alter_configs", resources=[resource]).responses
    check(result.error_code, f"topic {name!r}", result.error_message)


def topic_settings(connection: Connection, name: str) -> list[SettingInfo]:
    """Every setting of a topic, by name."""
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
    (result,) = connection.call("describe_configs", resources=[resource]).results
    check(result.error_code, f"topic {name!r}", result.error_message)
    return sorted(
        (
            SettingInfo(c.name, c.value, _SOURCE_NAMES.get(int(c.config_source), "unknown"), int(c.config_source) == 1)
            for c in result.configs
        ),
        key=lambda setting: setting.name,
    )


def partition_sizes(connection: Connection, places: Sequence[Place]) -> dict[Place, int]:
    """Bytes on the broker's disk."""
    topics = [{"topic": name, "partitions": numbers} for name, numbers in group_places(places).items()]
    answer = connection.call("describe_log_dirs", topics=topics)
    return {
        (str(topic.name), int(part.partition_index)): int(part.partition_size)
        for folder in answer.results
        for topic in folder.topics
        for part in topic.partitions
    }


def find_offsets(connection: Connection, wanted: Mapping[Place, int], *, committed: bool = False) -> dict[Place, Found]:
    """The offset for a timestamp (or EARLIEST, LATEST) in each partition; `NO_OFFSET` where nothing is that new."""
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": n, "timestamp": wanted[name, n]} for n in numbers],
        }
        for name, numbers in group_places(wanted).items()
    ]
    answer = connection.call("list_offsets", replica_id=-1, isolation_level=int(committed), topics=topics)
    found: dict[Place, Found] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"partition {part.partition_index} of topic {topic.name!r}")
            found[str(topic.name), int(part.partition_index)] = Found(int(part.offset), int(part.timestamp))
    missing = wanted.keys() - found.keys()
    if missing:
        raise NotFound(f"the server said nothing about {_spell(sorted(missing)[0])}")
    return found


def group_places(places: Iterable[Place]) -> dict[str, list[int]]:
    """Partition numbers by topic, as most requests want them."""
    grouped: dict[str, list[int]] = {}
    for name, number in sorted(places):
        grouped.setdefault(name, []).append(number)
    return grouped


def _spell(place: Place) -> str:
    return f"partition {place[1]} of topic {place[0]!r}"
