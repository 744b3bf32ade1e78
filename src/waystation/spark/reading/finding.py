"""What the options name, as the brokers have it: topics, partitions, and the offsets that are meant.

Asks the brokers, decides nothing about Spark. For the readers of this package; every error is one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from waystation.errors import Invalid, NotFound, near_matches
from waystation.spark.options import EARLIEST, LATEST, Partition, SourceOptions, Where
from waystation.spark.reading.fetch_wire import Topic
from waystation.spark.reading.fetching import Cluster
from waystation.spark.reading.planning import Offsets


def find_topics(cluster: Cluster, options: SourceOptions) -> dict[str, Topic]:
    """The topics that exist of those that are meant."""
    matcher = options.matcher
    if matcher is not None:
        found = cluster.topics()
        return {name: topic for name, topic in found.items() if not topic.internal and matcher.matches(name)}
    return cluster.topics(options.topics or options.assign)


def is_meant(options: SourceOptions, name: str) -> bool:
    """Whether the options name this topic, be it there or not."""
    matcher = options.matcher
    return name in (options.topics or options.assign) if matcher is None else matcher.matches(name)


def check_topics(cluster: Cluster, options: SourceOptions, found: Mapping[str, Topic], *, streaming: bool) -> None:
    """Raises NotFound unless everything that the options name exists. A stream may wait for a pattern's first topic."""
    if options.pattern is not None:
        if not found and not streaming:
            raise NotFound(f"pattern: no topic at {cluster.name} matches {options.pattern!r}{cluster.unseen}")
        return
    for name in options.topics or options.assign:
        if name not in found:
            near = near_matches(name, cluster.topics())
            hint = near or "; create it first, for instance with `waystation topics create`"
            raise NotFound(f"topic {name!r} does not exist at {cluster.name}{cluster.unseen}{hint}")
    for name, indexes in options.assign.items():
        for index in indexes:
            if index not in found[name].leaders:
                raise NotFound(
                    f"assign: topic {name!r} has no partition {index}, only 0 to {len(found[name].leaders) - 1}"
                )


def partitions_of(options: SourceOptions, topics: Mapping[str, Topic]) -> list[Partition]:
    """Every partition that is meant, in order."""
    found = [(name, index) for name, topic in topics.items() for index in topic.leaders]
    if options.assign:
        found = [(name, index) for name, index in found if index in options.assign.get(name, ())]
    return sorted(found)


def resolve(
    cluster: Cluster, options: SourceOptions, where: Where, partitions: Iterable[Partition], name: str
) -> Offsets:
    """The offset in each partition that `where` means; `name` is the option's, for errors."""
    partitions = list(partitions)
    for topic, index in (*where.each, *where.each_ms):
        if (topic, index) not in partitions:
            raise Invalid(f"{name}: topic {topic!r} partition {index} is not among what is read")
    times = where.each_ms
    if where.timestamp_ms is not None:
        times = dict.fromkeys(partitions, max(0, where.timestamp_ms))
    if times:
        others = dict.fromkeys((one for one in partitions if one not in times), where.default)
        found = cluster.offsets({**times, **others}, options.committed)
        younger = [partition for partition, offset in found.items() if offset < 0]  # than every record
        if younger and where.only_found:
            topic, index = min(younger)
            raise Invalid(
                f"{name}: topic {topic!r} partition {index} has no record from {times[topic, index]} ms on, and"
                " startingOffsetsByTimestampStrategy is error; with latest the partition is read from its end"
            )
        return found | cluster.offsets(dict.fromkeys(younger, LATEST), options.committed)
    asked = {partition: where.each.get(partition, where.default) for partition in partitions}
    found = cluster.offsets({one: place for one, place in asked.items() if place < 0}, options.committed)
    numbers = {one: place for one, place in asked.items() if place >= 0}
    _check_numbers(cluster, options, numbers, name)
    return found | numbers


def _check_numbers(cluster: Cluster, options: SourceOptions, numbers: Offsets, name: str) -> None:
    """A number above the end is a mistake, not something to wait for."""
    if not numbers:
        return
    ends = cluster.offsets(dict.fromkeys(numbers, LATEST), options.committed)
    for (topic, index), offset in numbers.items():
        end = ends.get((topic, index), 0)
        if offset > end:
            raise Invalid(
                f"{name}: topic {topic!r} partition {index} ends at offset {end}, so {offset} is not there yet"
            )


def earliest(cluster: Cluster, partitions: Iterable[Partition]) -> Offsets:
    return cluster.offsets(dict.fromkeys(partitions, EARLIEST), False)


def latest(cluster: Cluster, options: SourceOptions, partitions: Iterable[Partition]) -> Offsets:
    return cluster.offsets(dict.fromkeys(partitions, LATEST), options.committed)
