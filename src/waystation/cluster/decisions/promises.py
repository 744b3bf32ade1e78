"""What a leader knows of its followers in one epoch of one partition, and what it may promise. Pure.

A follower fetches from what it has fsynced, so its fetch offset is a promise: everything before it is on its disk. The
high watermark, up to which everything is acknowledged and shown, is the lowest of the leader's durable offset and the
promises of all other counted members:

- Only fetches of this epoch count: a `LeaderState` begins without promises, and one is made for each epoch. A fetch
  that is answered with divergence is no promise, nor is one of a folder that has been replaced since.
- Counted is the larger set: a replica that is being added from the moment that the write is sent, one that is being
  removed until the write is known to have been made (KIP-497). So at any time all that is acknowledged is on the disk
  of every member of the set that the store has or may get.
- It stands still while fewer members are counted than the floor, and never goes back.

A time is whatever the caller measures, in seconds, as long as it does not go back. Called by replication, on the loop.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

import msgspec

from waystation.cluster.decisions.replica_fetch import EpochEnd, EpochHistory, ReplicaFetch
from waystation.cluster.decisions.state import PartitionState
from waystation.cluster.decisions.writes import StoreEntry


class FetchVerdict(Enum):
    """Of a fetch."""

    SERVED = "the follower gets records from its offset on, when there are some"
    DIVERGING = "the follower has another history: it has to truncate"
    BEHIND_START = "the follower is behind the log's start: it has to begin again from there"
    FENCED_EPOCH = "the follower's epoch is over: it waits for its watch"
    UNKNOWN_EPOCH = "the follower's epoch is later: this leader is deposed, and waits for its watch"
    NOT_A_REPLICA = "this node is to have no copy, or the leader has not heard of it yet"
    STALE = "sent by a former process, from a replaced disk, or before one that was heard already: no answer"


class FetchDecision(NamedTuple):
    verdict: FetchVerdict
    diverging: EpochEnd | None = None


class Joiner(NamedTuple):
    """A replica that has all that may ever have been acknowledged, by the fetches of one folder."""

    node_id: int
    folder: str


class FollowerProgress(msgspec.Struct, frozen=True):
    """What was heard of a follower in this epoch."""

    folder: str
    incarnation: int
    number: int
    offset: int  # its promise; NO_PROMISE: none yet
    heard: float  # when it fetched last
    end: int  # the leader's log end then
    caught_up: float  # when it had, at the latest, all that there was


NO_PROMISE = -1
NEVER = float("-inf")


class Pending(NamedTuple):
    """A change of the in-sync set that was sent to the store and whose outcome is not known."""

    revision: int  # the partition's, that it compares
    members: frozenset[int]


def floor(state: PartitionState, min_in_sync: int) -> int:
    """How many members a set must have for anything to be acknowledged: `min.insync.replicas`, or all replicas where
    there are fewer, as in Kafka. Replicas that are being added do not raise it before they are all there."""
    return max(1, min(min_in_sync, len(state.replicas) - len(state.adding)))


class LeaderState(msgspec.Struct):
    """Of one partition that this node leads, from when it learned of its epoch until it learns of another."""

    node_id: int
    view: StoreEntry[PartitionState]  # the newest that the watch has told
    min_in_sync: int  # the topic's `min.insync.replicas`; may be changed at any time
    start: int  # the log's end when the epoch began
    high_watermark: int  # at first: what it knew as a follower, not above its log's end
    since: float  # when the epoch began
    end: int  # the log's
    durable: int
    followers: dict[int, FollowerProgress] = msgspec.field(default_factory=dict)
    pending: Pending | None = None
    broken: frozenset[int] = frozenset()
    """Members that fetched below what they had promised in this epoch: their disks have lost records. They are to be
    taken out of the set (`in_sync.shrink`), and a human has to look."""

    @property
    def epoch(self) -> int:
        return self.view.state.epoch

    # -- the store ----------------------------------------------------------------------------------------------------

    def learned(self, view: StoreEntry[PartitionState]) -> bool:
        """The watch has told a new value of the partition's entry. False: deposed, this state is over."""
        if view.state.leader != self.node_id or view.state.epoch != self.epoch:
            return False
        self.view = view
        if self.pending is not None and view.revision > self.pending.revision:
            self.pending = None  # it was made, or it never will be
        for node_id in [one for one in self.followers if one not in view.state.replicas]:
            del self.followers[node_id]
        self.broken &= frozenset(view.state.in_sync)
        self._advance()
        return True

    def proposed(self, members: Collection[int]) -> None:
        """A write that changes the in-sync set to this is about to be sent; it compares the view's revision. One at a
        time: until its outcome is known (`learned`, `refused`) there is no other."""
        if self.pending is not None:
            raise RuntimeError("there is a change of the in-sync set already whose outcome is not known")
        self.pending = Pending(self.view.revision, frozenset(members))

    def refused(self, revision: int) -> None:
        """The store has answered that the proposed write, sent by itself, was not made; and the partition's entry, read
        after that answer, has this revision. If it is the one that was compared, no attempt was made or will be: what
        one of them compared in vain never comes back. If it is later, one may have been made, and the watch will tell.

        No answer at all says nothing: then the same write is sent again. Nor does the refusal of a larger write that
        this one was a part of (`together`): another part may be why, and an earlier attempt may still be made."""
        if self.pending is not None and revision == self.pending.revision:
            self.pending = None
            self._advance()

    # -- what is acknowledged -----------------------------------------------------------------------------------------

    @property
    def counted(self) -> frozenset[int]:
        """The larger set, which acknowledging counts."""
        members = frozenset(self.view.state.in_sync)
        return members if self.pending is None else members | self.pending.members

    def wrote(self, end: int, durable: int) -> None:
        """The leader's own log ends here, and is durable up to there."""
        if end < self.end:  # a truncation came late (see `may_lead`): who had fetched what is removed has promised it
            self.start = min(self.start, end)
            self.followers = {one: known for one, known in self.followers.items() if known.offset <= end}
        self.end = end
        self.durable = durable
        self._advance()

    def _advance(self) -> None:
        counted = self.counted
        if len(counted) < floor(self.view.state, self.min_in_sync):
            return
        lowest = self.durable
        for node_id in counted:
            if node_id != self.node_id:
                follower = self.followers.get(node_id)
                if follower is None or follower.offset <= self.high_watermark:
                    return
                lowest = min(lowest, follower.offset)
        self.high_watermark = max(self.high_watermark, lowest)

    @property
    def settled(self) -> bool:
        """The high watermark has reached the start of the epoch: what an earlier leader acknowledged is below it. Until
        then "the latest offset" is not known (KIP-207), and nothing may rest on the log's tail."""
        return self.high_watermark >= self.start

    def accepts(self, now: float, lag_s: float) -> bool:
        """Whether `acks=all` is accepted: enough members of the set keep up."""
        behind = self.fell_behind(now, lag_s)
        counted = [one for one in self.view.state.in_sync if one not in behind and one not in self.broken]
        return len(counted) >= floor(self.view.state, self.min_in_sync)

    # -- followers ----------------------------------------------------------------------------------------------------

    def fetched(self, fetch: ReplicaFetch, log: EpochHistory, now: float) -> FetchDecision:
        """A follower has fetched: what it is answered. Counts its promise."""
        state = self.view.state
        if fetch.epoch != state.epoch:
            return FetchDecision(FetchVerdict.FENCED_EPOCH if fetch.epoch < state.epoch else FetchVerdict.UNKNOWN_EPOCH)
        if fetch.node_id not in state.replicas:
            return FetchDecision(FetchVerdict.NOT_A_REPLICA)
        known = self.followers.get(fetch.node_id)
        if known is not None:
            if (fetch.incarnation, fetch.number) <= (known.incarnation, known.number):
                return FetchDecision(FetchVerdict.STALE)
            if fetch.folder != known.folder:
                known = None  # another disk: what the former one had promised is void
        diverging = log.parts_from(fetch.offset, fetch.last_epoch)
        promised = NO_PROMISE if known is None else known.offset
        if promised != NO_PROMISE and (diverging is not None or fetch.offset < promised):
            self.broken |= {fetch.node_id}
        self.followers[fetch.node_id] = self._heard(fetch, known, now, counts=diverging is None)
        self._advance()
        if diverging is not None:
            return FetchDecision(FetchVerdict.DIVERGING, diverging)
        return FetchDecision(FetchVerdict.BEHIND_START if fetch.offset < log.start else FetchVerdict.SERVED)

    def _heard(
        self, fetch: ReplicaFetch, known: FollowerProgress | None, now: float, *, counts: bool
    ) -> FollowerProgress:
        caught_up = NEVER if known is None else known.caught_up
        if counts and fetch.offset >= self.end:
            caught_up = now
        elif counts and known is not None and fetch.offset >= known.end:
            caught_up = max(caught_up, known.heard)  # it has all that there was when it fetched before
        return FollowerProgress(
            folder=fetch.folder,
            incarnation=fetch.incarnation,
            number=fetch.number,
            offset=fetch.offset if counts else NO_PROMISE,
            heard=now,
            end=self.end,
            caught_up=caught_up,
        )

    def may_join(self) -> list[Joiner]:
        """Replicas outside of the set that have all that may ever have been acknowledged: up to the high watermark, and
        up to where this leader's log ended when its epoch began, because a new leader's high watermark may be behind
        what its predecessor acknowledged."""
        enough = max(self.high_watermark, self.start)
        members = self.counted
        return [
            Joiner(node_id, follower.folder)
            for node_id, follower in sorted(self.followers.items())
            if node_id not in members and follower.offset >= enough
        ]

    def fell_behind(self, now: float, lag_s: float, ended: Collection[int] = ()) -> frozenset[int]:
        """Members that did not have all that there was at any time of the last `lag_s` seconds, and those of `ended`:
        nodes that are known to be dead."""
        return frozenset(
            one
            for one in self.view.state.in_sync
            if one != self.node_id and (one in ended or now - self._caught_up(one) > lag_s)
        )

    def _caught_up(self, node_id: int) -> float:
        follower = self.followers.get(node_id)
        return self.since if follower is None else max(self.since, follower.caught_up)

    def caught_up(self) -> frozenset[int]:
        """Members that may be handed the leadership without a pause: they have all that is acknowledged, and what the
        epoch began with."""
        return frozenset(
            one
            for one in self.view.state.in_sync
            if (follower := self.followers.get(one)) is not None
            and follower.offset >= max(self.high_watermark, self.start)
            and one not in self.broken
        )

    def cut_off(self, now: float, silent_s: float, living: Collection[int]) -> bool:
        """Too few members have fetched within `silent_s` for anything to be acknowledged, though enough of them live by
        the store's word: this leader cannot be reached by them, and should resign. Not if nobody else can lead."""
        members = self.view.state.in_sync
        others = [one for one in members if one != self.node_id and one in living]
        hearing = [one for one in others if now - self._heard_of(one) <= silent_s]
        needed = floor(self.view.state, self.min_in_sync) - 1
        return len(hearing) < needed <= len(others)

    def _heard_of(self, node_id: int) -> float:
        follower = self.followers.get(node_id)
        return self.since if follower is None else max(self.since, follower.heard)
