"""Mistakes made on purpose in a cluster: each of them breaks a promise, and the simulation has to notice.

Each is a context manager that puts the mistake into the product's own code and takes it out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from waystation.cluster import elections, following
from waystation.cluster.following import Append, BeginAgain, Drop, Truncate
from waystation.cluster.membership import Membership
from waystation.cluster.promises import LeaderState
from waystation.cluster.replica_fetch import FetchAnswer, History, ReplicaFetch
from waystation.cluster.replication.fetching import Fetcher
from waystation.cluster.state import PartitionState, changed
from waystation.cluster.writes import Identity


@contextmanager
def acknowledge_from_the_leader_alone() -> Iterator[None]:
    def advance(self: LeaderState) -> None:
        self.high_watermark = max(self.high_watermark, self.durable)

    with patch.object(LeaderState, "_advance", advance):
        yield


@contextmanager
def fetch_before_fsync() -> Iterator[None]:
    real = following.next_fetch

    def next_fetch(me: Identity, state: PartitionState, log: History, durable: int, number: int) -> ReplicaFetch | None:
        return real(me, state, log, log.end, number)

    async def sync(self: Fetcher) -> None:
        """Some other time."""

    with patch.object(following, "next_fetch", next_fetch), patch.object(Fetcher, "_sync", sync):
        yield


@contextmanager
def truncate_to_the_high_watermark() -> Iterator[None]:
    real = following.received

    def received(
        state: PartitionState, answer: FetchAnswer, log: History, high_watermark: int
    ) -> Append | Truncate | BeginAgain | Drop:
        decision = real(state, answer, log, high_watermark)
        if isinstance(decision, Append) and log.last_epoch < state.epoch and high_watermark < log.end:
            return Truncate(high_watermark, below_high_watermark=False)
        return decision

    with patch.object(following, "received", received):
        yield


@contextmanager
def a_restarted_leader_goes_on_in_its_epoch() -> Iterator[None]:
    async def claim(self: Membership, log_epochs: Mapping[str, int]) -> None:
        """It goes on as if nothing had happened."""

    def may_lead(me: Identity, state: PartitionState, barred: int, log_epoch: int, *, truncating: bool = False) -> bool:
        return state.leader == me.node_id and not me.leaving

    with patch.object(Membership, "claim", claim), patch.object(elections, "may_lead", may_lead):
        yield


@contextmanager
def take_over_from_outside_the_in_sync_set() -> Iterator[None]:
    real = elections.takeover

    def takeover(me: Identity, partition: Any, living: Any, min_in_sync: int, log_epoch: int, *, silent: bool) -> Any:
        state = partition.state
        if me.node_id not in state.in_sync and me.node_id in state.replicas:
            pretended = changed(state, in_sync={*state.in_sync, me.node_id})
            partition = type(partition)(partition.key, pretended, partition.revision)
        return real(me, partition, living, min_in_sync, log_epoch, silent=silent)

    with patch.object(elections, "takeover", takeover):
        yield


@contextmanager
def show_what_is_above_the_high_watermark() -> Iterator[None]:
    from waystation.topics.replicated_partition import ReplicatedPartition

    with patch.object(ReplicatedPartition, "visible_offset", property(lambda self: self._log.written_offset)):
        yield


MISTAKES: dict[str, Callable[[], Any]] = {
    mistake.__name__: mistake
    for mistake in (
        acknowledge_from_the_leader_alone,
        fetch_before_fsync,
        truncate_to_the_high_watermark,
        a_restarted_leader_goes_on_in_its_epoch,
        take_over_from_outside_the_in_sync_set,
        show_what_is_above_the_high_watermark,
    )
}
