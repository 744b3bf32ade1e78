"""Which members of a share group fetch from which partitions: Kafka's `simple` assignor (KIP-932), as a pure function.

What holds: every partition has a member, every member a partition, if there are any that it subscribes to. With as many
partitions as members or more, each partition has one member; with fewer, each member has one partition. Either way
the shares differ by one at most. Whoever has something keeps it, as far as that allows.

Members that all want the same topics are dealt all of their partitions at once; else the topics are dealt one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from waystation.groups.machines.calls import TopicPartition

Item = TypeVar("Item", bound=Hashable)
Bin = TypeVar("Bin", bound=Hashable)

Topic = Sequence[TopicPartition]
"""All partitions of a topic."""


def assign(
    wanted: Mapping[str, frozenset[str]],
    topics: Mapping[str, Topic],
    present: Mapping[str, Iterable[TopicPartition]],
) -> dict[str, frozenset[TopicPartition]]:
    """By member: `wanted` are the topics that it subscribes to and that exist, `present` is what it has now."""
    given: dict[str, set[TopicPartition]] = {member: set() for member in wanted}
    subscriptions = set(wanted.values())
    read = [name for name in topics if any(name in one for one in subscriptions)]
    pools = [read] if len(subscriptions) <= 1 else [[name] for name in read]
    for names in pools:
        members = sorted(member for member, subscribed in wanted.items() if not subscribed.isdisjoint(names))
        partitions = [partition for name in names for partition in topics[name]]
        for member, partition in _deal(members, partitions, present):
            given[member].add(partition)
    return {member: frozenset(partitions) for member, partitions in given.items()}


def _deal(
    members: Sequence[str], partitions: Sequence[TopicPartition], present: Mapping[str, Iterable[TopicPartition]]
) -> Iterable[tuple[str, TopicPartition]]:
    if not members or not partitions:
        return []
    known = set(partitions)
    had = [(member, one) for member in members for one in present.get(member, ()) if one in known]
    if len(partitions) >= len(members):
        return [(member, one) for one, member in _spread(partitions, members, {one: m for m, one in had}).items()]
    return _spread(members, partitions, dict(had)).items()


def _spread(items: Sequence[Item], bins: Sequence[Bin], present: Mapping[Item, Bin]) -> dict[Item, Bin]:
    """Each item in one bin, the bins' sizes differing by one at most. There are not fewer items than bins."""
    least, extra = divmod(len(items), len(bins))
    sizes = dict.fromkeys(bins, 0)
    placed: dict[Item, Bin] = {}
    for most in (least, least + 1):  # the second time round some bins may have one more
        for item in items:
            home = present.get(item)
            if item in placed or home is None or sizes[home] >= most or (most > least and extra == 0):
                continue
            placed[item] = home
            sizes[home] += 1
            extra -= most > least
    room = [one for one in bins for _ in range(least - sizes[one])]
    room += [one for one in bins if sizes[one] <= least][:extra]
    left = [item for item in items if item not in placed]
    placed.update(zip(left, room, strict=True))
    return placed
