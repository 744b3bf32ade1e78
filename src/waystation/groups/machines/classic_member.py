"""One member of a classic group, and what the members together agree on.

The metadata inside a protocol belongs to the clients and passes through untouched. Only for groups of type "consumer"
do we look inside, and only for the topic names, which decide about expiry and deletion of offsets and about whether a
static member that comes back needs a rebalance.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

CONSUMER = "consumer"
"""The protocol type of consumers (Kafka Connect and others bring their own)."""


class ClassicMember(msgspec.Struct):
    """Mutable; owned by its group alone."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    awaits_join: bool = False
    awaits_sync: bool = False
    is_new: bool = False
    """It waits for the answer to its first join, so it cannot heartbeat, and may be timed out while it waits."""

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def size_bytes(self) -> int:
        return sum(len(metadata) for _, metadata in self.protocols) + len(self.assignment)


def common_protocols(members: Collection[ClassicMember]) -> set[str]:
    """The protocols that every member supports."""
    counts = Counter(name for member in members for name in {name for name, _ in member.protocols})
    return {name for name, count in counts.items() if count == len(members)}


def vote(members: Collection[ClassicMember], leader: ClassicMember) -> str:
    """The protocol of the next generation: each member votes for the first of its own list that all support.

    A draw is decided by the leader's order, so that the outcome does not depend on the order of arrival.
    """
    candidates = common_protocols(members)
    votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in members)
    ranks = {name: rank for rank, (name, _) in reversed(list(enumerate(leader.protocols)))}
    return max(candidates, key=lambda name: (votes[name], -ranks[name], name))


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topic names in a consumer's metadata (ConsumerProtocolSubscription); None if it is something else."""
    try:
        _version, count = struct.unpack_from(">hi", metadata)
        at = 6
        topics: set[str] = set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + length]
            if length < 0 or len(name) != length:
                return None
            topics.add(name.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


class Subscribed(NamedTuple):
    """What a consumer says in its metadata (ConsumerProtocolSubscription)."""

    version: int
    topics: frozenset[str]
    owned: list[tuple[str, list[int]]]
    """What it has and keeps while it rejoins (cooperative assignors); empty if it gave up everything, or cannot say."""


def read_subscription(metadata: bytes) -> Subscribed | None:
    """None if it is something else."""
    topics = subscribed_topics(metadata)
    if topics is None:
        return None
    version, count = struct.unpack_from(">hi", metadata)
    try:
        at = 6
        for _ in range(count):
            at += 2 + int(struct.unpack_from(">h", metadata, at)[0])
        if version >= 1:
            at += 4 + max(0, int(struct.unpack_from(">i", metadata, at)[0]))
    except struct.error:
        return None
    # Behind the members' own data, the owned partitions are written as an assignment's, without its version.
    owned = (
        assigned_partitions(struct.pack(">h", version) + metadata[at:]) if version >= 1 and at < len(metadata) else []
    )
    return None if owned is None else Subscribed(version, topics, owned)


def write_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """A consumer's assignment (ConsumerProtocolAssignment), in the version of its subscription."""
    parts = [struct.pack(">hi", version, len(partitions))]
    for topic, indexes in sorted(partitions.items()):
        name, numbers = topic.encode(), sorted(indexes)
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join((*parts, struct.pack(">i", -1)))


def assigned_partitions(assignment: bytes) -> list[tuple[str, list[int]]] | None:
    """The partitions in what a consumer was given (ConsumerProtocolAssignment); None if it is something else."""
    try:
        _version, count = struct.unpack_from(">hi", assignment)
        at = 6
        found: list[tuple[str, list[int]]] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", assignment, at)
            topic = assignment[at + 2 : at + 2 + length]
            at += 2 + length
            (partitions,) = struct.unpack_from(">i", assignment, at)
            if length < 0 or partitions < 0:
                return None
            found.append((topic.decode(), list(struct.unpack_from(f">{partitions}i", assignment, at + 4))))
            at += 4 + 4 * partitions
    except (struct.error, UnicodeDecodeError, MemoryError):
        return None
    return found
