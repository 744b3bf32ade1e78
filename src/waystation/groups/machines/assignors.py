"""Server-side assignors (KIP-848): who should have which partition.

Pure functions of the members' subscriptions, the topics' sizes and the present target. Every partition of a subscribed
topic goes to exactly one member that is subscribed to it. The same input gives the same output.

`uniform` balances the whole: no member could be given a partition of another, directly or through others passing
one on, so that the two came closer together; with equal subscriptions that means they differ by at most one. It is
sticky: what need not move does not. `range` gives each member a consecutive stretch of every topic, so that topics
with the same number of partitions line up (joins).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from waystation.groups.machines.calls import TopicPartition

Assignment = dict[str, frozenset[TopicPartition]]


class Subscriber(msgspec.Struct, frozen=True):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    current: frozenset[TopicPartition] = frozenset()
    """Its present target: what stickiness keeps."""
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
Topics = Mapping[UUID, int]
"""Partition counts of the topics that exist."""

Assignor = Callable[[Subscribers, Topics], Assignment]


def uniform(subscribers: Subscribers, topics: Topics) -> Assignment:
    """Balanced and sticky."""
    if len({subscriber.topics for subscriber in subscribers.values()}) == 1:
        return _equal_shares(subscribers, topics)
    plan = _Plan(subscribers, topics)
    plan.keep()
    plan.share_out()
    plan.balance()
    return plan.assignment()


def ranged(subscribers: Subscribers, topics: Topics) -> Assignment:
    """Consecutive stretches of every topic, in the order of instance ids (which survive a restart) and member ids."""
    assigned: dict[str, set[TopicPartition]] = {member_id: set() for member_id in subscribers}
    order = sorted(subscribers, key=lambda member_id: (subscribers[member_id].instance_id or member_id, member_id))
    for topic, count in topics.items():
        readers = [member_id for member_id in order if topic in subscribers[member_id].topics]
        for rank, member_id in enumerate(readers):
            first = rank * count // len(readers)
            last = (rank + 1) * count // len(readers)
            assigned[member_id].update((topic, partition) for partition in range(first, last))
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranged}
"""By the name that clients use; the first is the default."""

DEFAULT_ASSIGNOR = "uniform"


def _equal_shares(subscribers: Subscribers, topics: Topics) -> Assignment:
    """The usual case, all subscribed to the same: count, keep, fill up. No search, so that large groups stay cheap."""
    wanted = next(iter(subscribers.values())).topics
    free = {(topic, partition) for topic in wanted & topics.keys() for partition in range(topics[topic])}
    share, extra = divmod(len(free), len(subscribers))
    keeps: dict[str, list[TopicPartition]] = {}
    claimed: set[TopicPartition] = set()
    for member_id in sorted(subscribers):
        keeps[member_id] = sorted((subscribers[member_id].current & free) - claimed)
        claimed.update(keeps[member_id])
    for kept in sorted(keeps.values(), key=len, reverse=True):  # those who have most keep the odd ones
        room = share + (1 if extra and len(kept) > share else 0)
        extra -= room - share
        del kept[room:]
        free.difference_update(kept)
    left = sorted(free, reverse=True)
    for kept in sorted(keeps.values(), key=len):
        while left and len(kept) < share:
            kept.append(left.pop())
    for kept in sorted(keeps.values(), key=len):
        if left:
            kept.append(left.pop())
    return {member_id: frozenset(kept) for member_id, kept in keeps.items()}


class _Plan:
    """An assignment in the making: per member, its partitions by topic."""

    def __init__(self, subscribers: Subscribers, topics: Topics) -> None:
        self._subscribers = subscribers
        self._topics = topics
        self._members = sorted(subscribers)
        self._owned: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in self._members}
        self._load = dict.fromkeys(self._members, 0)
        self._readers = {
            topic: readers
            for topic in sorted(topics)
            if (readers := [member_id for member_id in self._members if topic in subscribers[member_id].topics])
        }
        self._free = {topic: set(range(topics[topic])) for topic in self._readers}

    def keep(self) -> None:
        """Everybody keeps what they have, where that is still theirs to have."""
        for member_id in self._members:
            subscriber = self._subscribers[member_id]
            for topic, partition in subscriber.current:
                if topic in subscriber.topics and partition in self._free.get(topic, ()):
                    self._give(member_id, topic, partition)

    def share_out(self) -> None:
        """What is left goes to the least busy reader; first the topics that have the fewest readers to choose from."""
        for topic in sorted(self._readers, key=lambda topic: (len(self._readers[topic]), topic)):
            readers = self._readers[topic]
            for partition in sorted(self._free[topic]):
                self._give(min(readers, key=self._load.__getitem__), topic, partition)

    def balance(self) -> None:
        """Moves partitions, in chains where subscriptions differ, until no move brings two members closer together."""
        settled = False
        while not settled:
            settled = True
            for member_id in sorted(self._members, key=self._load.__getitem__, reverse=True):
                while self._relieve(member_id):
                    settled = False

    def _relieve(self, busy: str) -> bool:
        """Hands one partition from `busy` along the shortest chain to somebody with at least two fewer."""
        if self._load[busy] - min(self._load.values()) < 2:
            return False
        reached_by: dict[str, tuple[str, UUID]] = {}
        seen = {busy}
        seen_topics: set[UUID] = set()
        queue = deque([busy])
        while queue:
            giver = queue.popleft()
            for topic in sorted(self._owned[giver]):
                if topic in seen_topics or not self._owned[giver][topic]:
                    continue
                seen_topics.add(topic)
                for reader in sorted(self._readers[topic], key=self._load.__getitem__):
                    if reader in seen:
                        continue
                    seen.add(reader)
                    reached_by[reader] = (giver, topic)
                    if self._load[reader] <= self._load[busy] - 2:
                        self._pass_along(reader, reached_by)
                        return True
                    queue.append(reader)
        return False

    def _pass_along(self, receiver: str, reached_by: dict[str, tuple[str, UUID]]) -> None:
        while receiver in reached_by:
            giver, topic = reached_by[receiver]
            partition = max(self._owned[giver][topic])
            self._owned[giver][topic].remove(partition)
            self._load[giver] -= 1
            self._free[topic].add(partition)
            self._give(receiver, topic, partition)
            receiver = giver

    def _give(self, member_id: str, topic: UUID, partition: int) -> None:
        self._owned[member_id].setdefault(topic, set()).add(partition)
        self._load[member_id] += 1
        self._free[topic].discard(partition)

    def assignment(self) -> Assignment:
        return {
            member_id: frozenset((topic, partition) for topic, parts in owned.items() for partition in parts)
            for member_id, owned in self._owned.items()
        }
