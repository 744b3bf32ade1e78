"""What tests of a cluster's decisions are told in: entries of the store, and nodes that decide."""

from __future__ import annotations

from waystation.cluster.decisions.promises import LeaderState
from waystation.cluster.decisions.replica_fetch import NO_EPOCH, EpochHistory, ReplicaFetch
from waystation.cluster.decisions.state import DiskState, NodeState, PartitionState, disk_key, node_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write

KEY = "partitions/0190163d-8694-739b-aea5-966c26f8ad90/0"
REVISION = 40  # of the partition's entry
DISK_REVISION = 7
NODE_REVISION = 9


def disk(node_id: int, folder: str = "", incarnation: int = 1, *, leaving: bool = False) -> StoreEntry[DiskState]:
    state = DiskState(folder or f"folder {node_id}", incarnation, leaving)
    return StoreEntry(disk_key(node_id), state, DISK_REVISION)


def node(node_id: int, incarnation: int = 1, *, folder: str = "", draining: bool = False) -> StoreEntry[NodeState]:
    state = NodeState(incarnation, {}, folder=folder or f"folder {node_id}", draining=draining)
    return StoreEntry(node_key(node_id), state, NODE_REVISION)


def identity(node_id: int, *, leaving: bool = False) -> Identity:
    return Identity(node_id, disk(node_id, leaving=leaving))


def partition(
    leader: int = 1,
    in_sync: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    epoch: int = 5,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    revision: int = REVISION,
) -> StoreEntry[PartitionState]:
    state = PartitionState(replicas, leader, epoch, in_sync, 0, adding, removing)
    return StoreEntry(KEY, state, revision)


def after(write: Write | None) -> PartitionState:
    """What the write makes of the partition."""
    assert write is not None
    state = write.changes[KEY]
    assert isinstance(state, PartitionState)
    return state


def leader(
    view: StoreEntry[PartitionState] | None = None, *, end: int = 0, high_watermark: int = 0, min_in_sync: int = 2
) -> LeaderState:
    """Of node 1, from time 0 on; its log is durable up to its end."""
    return LeaderState(
        node_id=1,
        view=view or partition(),
        min_in_sync=min_in_sync,
        start=end,
        high_watermark=high_watermark,
        since=0.0,
        end=end,
        durable=end,
    )


def log(end: int, *epochs: tuple[int, int], start: int = 0) -> EpochHistory:
    """By default all of epoch 5."""
    return EpochHistory(start, end, list(epochs) or [(5, start)])


def fetch(
    node_id: int,
    offset: int,
    number: int = 1,
    *,
    epoch: int = 5,
    last_epoch: int | None = None,
    folder: str = "",
    incarnation: int = 1,
) -> ReplicaFetch:
    if last_epoch is None:
        last_epoch = 5 if offset else NO_EPOCH
    return ReplicaFetch(node_id, epoch, folder or f"folder {node_id}", incarnation, number, offset, last_epoch)
