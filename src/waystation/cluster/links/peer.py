"""What nodes of a cluster say to each other: requests and answers, as plain data. Pure.

They travel as msgpack between processes (`link.py`), and as they are within one. A peer that does not know a request
of a later version answers `PeerRefusal`. Fetching keeps a session: a request names only the partitions whose position
has changed since the one before, so that a thousand idle partitions cost nothing.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from waystation.cluster.decisions.replica_fetch import EpochEnd

Key = tuple[UUID, int]
"""A partition: the topic's id, and its index."""


class PartitionAsk(msgspec.Struct, frozen=True, array_like=True):
    """From where on a follower wants a partition. The offset is its promise: all before it is on its disk."""

    topic: UUID
    index: int
    epoch: int
    offset: int
    last_epoch: int

    @property
    def key(self) -> Key:
        return self.topic, self.index


class PartitionGiven(msgspec.Struct, frozen=True, array_like=True):
    """What the leader answers of a partition: whole batches, as they are in its log, or where the logs part."""

    topic: UUID
    index: int
    leader: int
    epoch: int
    offset: int  # the one that this answers
    log_start: int
    high_watermark: int
    records: bytes = b""
    diverging: EpochEnd | None = None
    refused: bool = False
    """Not in this epoch: the follower waits for what its watch tells."""

    @property
    def key(self) -> Key:
        return self.topic, self.index


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A follower asks for all partitions that it follows this leader in. Answered by `Fetched` when there is something,
    or after `wait_ms`."""

    node_id: int
    folder: str
    incarnation: int
    number: int  # one more with each fetch of this incarnation to any leader
    session: int  # 0: a new one, and `changed` has all partitions
    changed: tuple[PartitionAsk, ...]
    forgotten: tuple[tuple[UUID, int], ...] = ()
    wait_ms: int = 0
    max_bytes: int = 0


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    session: int
    partitions: tuple[PartitionGiven, ...] = ()


class Hurry(msgspec.Struct, frozen=True, tag="hurry"):
    """The fetch of this session that waits is answered now: its follower wants other partitions."""

    node_id: int
    session: int


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The process of a node stops, and has fetched for the last time: no leader waits for it. Answered by
    `PeerDone`."""

    node_id: int
    incarnation: int
    number: int  # counted as a fetch: what was sent before it, or by an earlier process of the node, is older


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """The end of a transaction in one partition. `topics/markers.py` says what the last two are for; -1: a node of an
    earlier version asks."""

    topic: str
    index: int
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    attempt: int = -1  # one more with each that this coordinator makes
    leader_epoch: int = -1  # of the partition, as the coordinator knows it


class WriteMarkers(msgspec.Struct, frozen=True, tag="markers"):
    """Answered by `MarkersWritten` when those that could be written are durable."""

    markers: tuple[Marker, ...]


class MarkersWritten(msgspec.Struct, frozen=True, tag="marked"):
    failures: tuple[str, ...]
    """For each of them, in order: empty, or the name of the error."""


class JoinTransaction(msgspec.Struct, frozen=True, tag="join"):
    """The leader of a partition asks the coordinator of a transaction before it takes the first batch. Answered by
    `PeerDone` when the partition is durably in the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    index: int
    joins: bool
    """The partition joins by this, if it is not in the transaction; else it has to be."""


class SnapshotAsk(msgspec.Struct, frozen=True, tag="snapshot"):
    """A follower wants a part of a snapshot of a queue shard that the leader has. Answered by `SnapshotPart`."""

    topic: UUID
    index: int
    epoch: int
    name: str  # empty: the newest
    position: int


class SnapshotPart(msgspec.Struct, frozen=True, tag="snapshot-part"):
    name: str
    size: int  # of all of it
    data: bytes


class ShareAsk(msgspec.Struct, frozen=True, tag="share"):
    """For the coordinator of a share group: a verb, and what it needs, encoded (`share/peer_calls.py`). Answered by
    `ShareTold`."""

    group_id: str
    verb: str
    body: bytes


class ShareTold(msgspec.Struct, frozen=True, tag="shared"):
    body: bytes


class WriteAudit(msgspec.Struct, frozen=True, tag="audit"):
    """Entries of the audit log, of a node that leads no partition of it: (key, value) of each record. Answered by
    `PeerDone` when they are written."""

    records: tuple[tuple[bytes, bytes], ...]


class PeerDone(msgspec.Struct, frozen=True, tag="done"):
    pass


class PeerRefusal(msgspec.Struct, frozen=True, tag="refused"):
    error: str  # a class of `errors.py`
    text: str


Request = Fetch | Hurry | Leaving | WriteMarkers | JoinTransaction | ShareAsk | SnapshotAsk | WriteAudit
Answer = Fetched | SnapshotPart | MarkersWritten | ShareTold | PeerDone | PeerRefusal
