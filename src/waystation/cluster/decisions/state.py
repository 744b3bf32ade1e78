"""What the nodes of a cluster agree on: entries of the store about nodes, their disks, and partitions.

| key | value | written by |
| --- | --- | --- |
| `nodes/ID` (under the node's lease) | a `NodeState` | that node; a peer that is refused connections may delete it |
| `disks/ID` (no lease: it outlives the node's key) | a `DiskState` | that node |
| `partitions/TOPIC/N` | a `PartitionState` | its leader, or a replica that takes over or leaves; always compared |

Everything else of a cluster's names and settings is what a broker alone has in its catalog, under the same keys
(`catalog/rows.py`). Pure. Nothing but this module knows how these keys are spelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

import msgspec

from waystation.errors import Corrupt

NODES = "nodes/"
DISKS = "disks/"
PARTITIONS = "partitions/"

NOBODY = -1
"""As a leader: the partition has none, and whichever replica in the in-sync set claims it first leads."""


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int


class NodeState(msgspec.Struct, frozen=True):
    """A node that lives, or whose lease has not run out yet."""

    incarnation: int  # one more at each start of the node
    listeners: dict[str, Address]  # by protocol: kafka (and the native protocol), amqp, http
    rack: str = ""
    version: str = ""
    folder: str = ""  # the id of its data folder
    draining: bool = False  # it hands its leaderships over, and gets no new ones and no new replicas


class DiskState(msgspec.Struct, frozen=True):
    """Which data folder made the promises of a node."""

    folder: str
    incarnation: int
    leaving: bool = False
    """The folder is not the one that made the promises: the node is leaving every in-sync set, and until it has, it
    neither fetches, leads nor joins."""


class PartitionState(msgspec.Struct, frozen=True):
    """Who has a partition and who leads it."""

    replicas: tuple[int, ...]  # in the order of preference
    leader: int
    epoch: int  # the leader epoch: one more with each leader
    in_sync: tuple[int, ...]  # in ascending order: all of these have what was acknowledged, on disk
    version: int = 0  # Kafka's partition epoch: one more with each change
    adding: tuple[int, ...] = ()  # of a reassignment: replicas that are new
    removing: tuple[int, ...] = ()  # replicas that will leave when all of those are in sync


def changed(
    state: PartitionState,
    *,
    leader: int | None = None,
    epoch: int | None = None,
    in_sync: Iterable[int] | None = None,
    replicas: tuple[int, ...] | None = None,
    adding: tuple[int, ...] | None = None,
    removing: tuple[int, ...] | None = None,
) -> PartitionState:
    """The partition's next version; what is not given stays."""
    return PartitionState(
        replicas=state.replicas if replicas is None else replicas,
        leader=state.leader if leader is None else leader,
        epoch=state.epoch if epoch is None else epoch,
        in_sync=state.in_sync if in_sync is None else tuple(sorted(in_sync)),
        version=state.version + 1,
        adding=state.adding if adding is None else adding,
        removing=state.removing if removing is None else removing,
    )


T = TypeVar("T")

_node = msgspec.json.Decoder(NodeState)
_disk = msgspec.json.Decoder(DiskState)
_partition = msgspec.json.Decoder(PartitionState)


def encode(state: NodeState | DiskState | PartitionState) -> bytes:
    return msgspec.json.encode(state)


def read_node(value: bytes) -> NodeState:
    return _read(_node, value)


def read_disk(value: bytes) -> DiskState:
    return _read(_disk, value)


def read_partition(value: bytes) -> PartitionState:
    return _read(_partition, value)


def _read(decoder: msgspec.json.Decoder[T], value: bytes) -> T:
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        raise Corrupt(f"an entry of the cluster's store cannot be read ({error}): {value[:100]!r}") from error


# -- keys -------------------------------------------------------------------------------------------------------------


def node_key(node_id: int) -> str:
    return f"{NODES}{node_id}"


def node_of(key: str) -> int:
    """Of a node's or a disk's key."""
    return int(key.rpartition("/")[2])


def disk_key(node_id: int) -> str:
    return f"{DISKS}{node_id}"


def partitions_of(topic_id: UUID) -> str:
    """What the keys of a topic's partitions begin with."""
    return f"{PARTITIONS}{topic_id}/"


def partition_key(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


def partition_of(key: str) -> tuple[UUID, int]:
    topic, _, index = key.removeprefix(PARTITIONS).partition("/")
    return UUID(topic), int(index)
