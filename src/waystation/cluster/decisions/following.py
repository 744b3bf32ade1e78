"""What a follower asks its leader for, and what it does with the answer. Pure.

- It fetches from what it has fsynced, naming the epoch of its view and its folder: that offset is its promise.
- It takes only answers of the epoch that its view names, and only to the fetch that it has made last: records of a
  former leader would be history that nobody has acknowledged.
- It truncates where the leader's epochs say that the logs part, never to its high watermark: that may be behind what
  was acknowledged.

Called by replication, on the loop.
"""

from __future__ import annotations

import msgspec

from waystation.cluster.decisions.elections import store_went_back
from waystation.cluster.decisions.replica_fetch import EpochHistory, FetchAnswer, ReplicaFetch
from waystation.cluster.decisions.state import NOBODY, PartitionState
from waystation.cluster.decisions.writes import Identity


class Append(msgspec.Struct, frozen=True):
    """The answer's records, if there are any; they are durable before the next fetch. Then the log's start and the high
    watermark, neither above the log's end."""

    log_start: int
    high_watermark: int


class Truncate(msgspec.Struct, frozen=True):
    """To this offset or before it, durably, before the next fetch."""

    offset: int
    below_high_watermark: bool
    """It removes what this node has seen as acknowledged. That happens only after an unclean election, or if a disk or
    the store has lost something: somebody should be told."""


class BeginAgain(msgspec.Struct, frozen=True):
    """Nothing of the log is of use: all of it is removed, and it begins at this offset."""

    offset: int
    below_high_watermark: bool


class Drop(msgspec.Struct, frozen=True):
    """The answer belongs to another epoch, or to an earlier fetch: nothing is done with it."""


def next_fetch(
    me: Identity, state: PartitionState, log: EpochHistory, durable: int, number: int
) -> ReplicaFetch | None:
    """None: there is nobody to fetch from, or this node may not, or its log is not durable up to its end yet."""
    if state.leader in (NOBODY, me.node_id) or me.leaving or me.node_id not in state.replicas:
        return None
    if durable < log.end or store_went_back(state, log.last_epoch):
        return None
    disk = me.disk.state
    return ReplicaFetch(
        node_id=me.node_id,
        epoch=state.epoch,
        folder=disk.folder,
        incarnation=disk.incarnation,
        number=number,
        offset=log.end,
        last_epoch=log.last_epoch,
    )


def received(
    state: PartitionState, answer: FetchAnswer, log: EpochHistory, high_watermark: int
) -> Append | Truncate | BeginAgain | Drop:
    """What is done with a leader's answer. `state`: this node's view now, which may be another than when it asked."""
    if answer.epoch != state.epoch or answer.leader != state.leader or answer.offset != log.end:
        return Drop()
    if answer.diverging is not None:
        offset = min(log.end_of(answer.diverging.epoch).end, answer.diverging.end)
        if offset < max(log.start, answer.log_start):
            return BeginAgain(answer.log_start, answer.log_start < high_watermark)
        return Truncate(offset, offset < high_watermark)
    if answer.log_start > log.end:
        return BeginAgain(answer.log_start, below_high_watermark=False)
    return Append(answer.log_start, max(high_watermark, answer.high_watermark))
