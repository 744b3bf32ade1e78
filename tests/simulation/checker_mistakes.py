"""Deliberate mistakes in the decisions of a cluster, one for each rule: what breaks without it?

Each overrides one of the product's decisions, or one step of the shell around them; `test_cluster_checker.py` shows
that the checker finds every one of them. A `script` is a run that was found by a search (`--mistake NAME`) or by walks,
which take too long to be repeated each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from tests.simulation.checker_rules import (
    BEGUN,
    KEY,
    READ,
    Answer,
    Bounds,
    Node,
    Remembered,
    Rules,
    State,
    history,
    put,
)
from waystation.cluster.decisions import following, in_sync, starting
from waystation.cluster.decisions.promises import FetchDecision, FetchVerdict, Joiner, LeaderState
from waystation.cluster.decisions.replica_fetch import EpochHistory, ReplicaFetch
from waystation.cluster.decisions.starting import FolderIdentity, StartWrites
from waystation.cluster.decisions.state import DiskState, PartitionState, changed, disk_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write


class Mistaken(Rules):
    judged = "abcde"


# -- what is acknowledged and shown -----------------------------------------------------------------------------------


class AckLeaderAlone(Mistaken):
    class leader_state(LeaderState):
        def _advance(self) -> None:
            self.high_watermark = max(self.high_watermark, self.durable)


class ExposeAboveHighWatermark(Mistaken):
    def may_show(self, node: Node, high_watermark: int) -> int:
        return len(node.log)


class HighWatermarkBelowFloor(Mistaken):
    judged = "abcdef"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.min_in_sync = 1


class ShrinkEarly(Mistaken):
    class leader_state(LeaderState):
        @property
        def counted(self) -> frozenset[int]:
            members = frozenset(self.view.state.in_sync)
            return members if self.pending is None else max(members, self.pending.members) & self.pending.members


class PendingAddUncounted(Mistaken):
    class leader_state(LeaderState):
        @property
        def counted(self) -> frozenset[int]:
            return frozenset(self.view.state.in_sync)


class BelieveRefusal(Mistaken):
    def refused(self, s: State, leads: LeaderState) -> None:
        leads.pending = None


class KeepPromises(Mistaken):
    def remembers(self, former: LeaderState) -> Remembered:
        return tuple(sorted(former.followers.items()))


class CountOldEpoch(Mistaken):
    class leader_state(LeaderState):
        def fetched(self, fetch: ReplicaFetch, log: EpochHistory, now: float) -> FetchDecision:
            epoch = max(fetch.epoch, self.epoch)
            return super().fetched(msgspec.structs.replace(fetch, epoch=epoch), log, now)


class CountDiverging(Mistaken):
    class leader_state(LeaderState):
        def fetched(self, fetch: ReplicaFetch, log: EpochHistory, now: float) -> FetchDecision:
            found = super().fetched(fetch, log, now)
            if found.verdict is FetchVerdict.DIVERGING:
                known = self.followers[fetch.node_id]
                self.followers[fetch.node_id] = msgspec.structs.replace(known, offset=fetch.offset)
                self._advance()
            return found


class CountOldFolder(Mistaken):
    class leader_state(LeaderState):
        def fetched(self, fetch: ReplicaFetch, log: EpochHistory, now: float) -> FetchDecision:
            known = self.followers.get(fetch.node_id)
            if known is not None and known.incarnation > fetch.incarnation:
                fetch = msgspec.structs.replace(fetch, incarnation=known.incarnation)
            return super().fetched(fetch, log, now)


# -- who may join -----------------------------------------------------------------------------------------------------


class JoinAtHighWatermark(Mistaken):
    class leader_state(LeaderState):
        def may_join(self) -> list[Joiner]:
            start, self.start = self.start, 0
            joiners = super().may_join()
            self.start = start
            return joiners


class JoinAnyDisk(Mistaken):
    def grow(
        self, me: Identity, view: StoreEntry[PartitionState], joiner: Joiner, disks: dict[int, StoreEntry[DiskState]]
    ) -> Write | None:
        key = disk_key(joiner.node_id)
        write = in_sync.grow(me, view, [joiner], {joiner.node_id: StoreEntry(key, DiskState(joiner.folder, 1), 0)})
        if write is None:
            return None
        return Write(write.changes, {name: revision for name, revision in write.expected.items() if name != key})


# -- who leads --------------------------------------------------------------------------------------------------------


class TakeoverOutsideInSync(Mistaken):
    def takeover(
        self, me: Identity, view: StoreEntry[PartitionState], living: set[int], log_epoch: int
    ) -> Write | None:
        state = changed(view.state, in_sync={*view.state.in_sync, me.node_id})
        return super().takeover(me, StoreEntry(view.key, state, view.revision), living, log_epoch)


class TakeoverUncompared(Mistaken):
    def takeover(
        self, me: Identity, view: StoreEntry[PartitionState], living: set[int], log_epoch: int
    ) -> Write | None:
        write = super().takeover(me, view, living, log_epoch)
        if write is None:
            return None
        return Write(write.changes, {key: revision for key, revision in write.expected.items() if key != KEY})


class IgnoreKey(Mistaken):
    judged = "h"

    def takeover(
        self, me: Identity, view: StoreEntry[PartitionState], living: set[int], log_epoch: int
    ) -> Write | None:
        write = super().takeover(me, view, living - {view.state.leader}, log_epoch)
        if write is None:
            return None
        expected = {key: revision for key, revision in write.expected.items() if not key.startswith("nodes/")}
        return Write(write.changes, expected)


class SameEpoch(Mistaken):
    def claim(self, me: Identity, part: StoreEntry[PartitionState], log_epoch: int) -> list[Write]:
        return []

    def may_lead(self, node: Node, log_epoch: int) -> bool:
        return node.view.state.leader == node.me.node_id and not node.me.leaving


class LeadWhileTruncating(Mistaken):
    class leader_state(LeaderState):
        def wrote(self, end: int, durable: int) -> None:
            self.end = end
            super().wrote(end, durable)

    def may_lead(self, node: Node, log_epoch: int) -> bool:
        return super().may_lead(node._replace(cut=None), log_epoch)


class StaleReadAtStart(Mistaken):
    def catches_up_from(self, oldest: int) -> int:
        return 0  # nothing is ever forgotten

    def reads_at_start(self, s: State) -> StoreEntry[PartitionState]:
        members = tuple(range(self.bounds.nodes - self.bounds.outside))
        return StoreEntry(KEY, PartitionState(tuple(range(self.bounds.nodes)), 0, 0, members), 1)

    def reads_before_joining(self, s: State, n: int, *, settled: bool) -> tuple[StoreEntry[PartitionState], int]:
        view = self.reads_at_start(s)
        return view, view.state.epoch


# -- disks ------------------------------------------------------------------------------------------------------------


def as_promised(s: State, n: int, new_id: str) -> StartWrites:
    """A start that takes the folder for the promised one."""
    disk, folder = s.disks[n], s.nodes[n].folder
    if disk is None:
        raise TypeError("every node has a disk entry here")
    pretended = StoreEntry(disk.key, DiskState(folder.id, disk.state.incarnation), disk.revision)
    return starting.begin(FolderIdentity(n, folder.id, disk.state.incarnation), pretended, new_id)


class BadDiskStays(Mistaken):
    def trusted(self, s: State, n: int) -> bool:
        return True

    def begin(self, s: State, n: int, new_id: str) -> StartWrites:
        return as_promised(s, n, new_id)


class DiskKeyUnderLease(Mistaken):
    def trusted(self, s: State, n: int) -> bool:
        return not s.keys[n] or super().trusted(s, n)

    def begin(self, s: State, n: int, new_id: str) -> StartWrites:
        return super().begin(s, n, new_id) if s.keys[n] else as_promised(s, n, new_id)


class LeaveThenAnnounce(Mistaken):
    def announces(self, s: State, n: int) -> bool:
        return s.nodes[n].phase == READ and n not in s.nodes[n].view.state.in_sync

    def leave(self, s: State, n: int) -> list[Write]:
        node, disk = s.nodes[n], s.disks[n]
        if disk is None or node.phase != READ or n not in s.part.state.in_sync:
            return []
        me = Identity(n, StoreEntry(disk.key, DiskState(node.folder.id, 0, leaving=True), disk.revision))
        return starting.leave_all(me, [s.part])

    def left(self, after: State, n: int) -> State:
        return after._replace(nodes=put(after.nodes, n, after.nodes[n]._replace(view=after.part)))

    def begin(self, s: State, n: int, new_id: str) -> StartWrites:
        beginning = super().begin(s, n, new_id)
        ((key, state),) = beginning.write.changes.items()
        if not isinstance(state, DiskState):
            raise TypeError(state)
        settled = DiskState(state.folder, state.incarnation)
        return StartWrites(beginning.folder, Write({key: settled}, beginning.write.expected))


class LeaveByOldView(Mistaken):
    def leave(self, s: State, n: int) -> list[Write]:
        return super().leave(s, n) if n in s.nodes[n].view.state.in_sync else []

    def left(self, after: State, n: int) -> State:
        return after._replace(nodes=put(after.nodes, n, after.nodes[n]._replace(view=after.part)))

    def settles(self, s: State, n: int) -> bool:
        node = s.nodes[n]
        return node.phase == BEGUN and node.me.leaving and n not in node.view.state.in_sync


class SettleWithoutReading(Mistaken):
    def reads_before_joining(self, s: State, n: int, *, settled: bool) -> tuple[StoreEntry[PartitionState], int]:
        if settled:
            return s.nodes[n].view, s.nodes[n].barred
        return super().reads_before_joining(s, n, settled=settled)


# -- followers --------------------------------------------------------------------------------------------------------


class FetchBeforeFsync(Mistaken):
    def next_fetch(self, node: Node) -> ReplicaFetch | None:
        return super().next_fetch(node._replace(synced=len(node.log)))

    def syncs_at_once(self) -> bool:
        return False


class TruncateToHighWatermark(Mistaken):
    def truncates_at_new_epoch(self, node: Node) -> Node:
        end = node.high_watermark
        return node._replace(log=node.log[:end], synced=min(node.synced, end))


class AcceptOldAnswer(Mistaken):
    def received(
        self, node: Node, answer: Answer
    ) -> following.Append | following.Truncate | following.BeginAgain | following.Drop:
        if node.leads is not None:
            return following.Drop()
        state = changed(node.view.state, epoch=answer.head.epoch, leader=answer.head.leader)
        return following.received(state, answer.head, history(node.log), node.high_watermark)


# -- reassignments ----------------------------------------------------------------------------------------------------


class RemoveInSameEpoch(Mistaken):
    def moved(self, before: PartitionState, write: Write | None) -> Write | None:
        if write is None:
            return None
        ((key, state),) = write.changes.items()
        if not isinstance(state, PartitionState) or state.leader != before.leader:
            return write
        return Write({key: changed(state, epoch=before.epoch)}, write.expected)


@dataclass(frozen=True)
class Mistake:
    what: str
    rules: type[Rules]
    bounds: Bounds  # in which a search finds it
    script: str = ""  # a run that shows it, where the search takes long
    walks: Bounds | None = None  # in which random walks find it, where a search is hopeless


E1 = Bounds(nodes=2, values=1, epochs=1, faults=1, changes=0)
QUIET = Bounds(nodes=2, values=1, epochs=1, faults=0, changes=0, keys=False)  # elections only
WALKS = Bounds(values=8, epochs=8, faults=10, disks=3, changes=8, transfers=3, split=True, late=True)
QUIET_WALKS = Bounds(values=2, epochs=4, faults=0, changes=0, split=True, keys=False)

MISTAKES = {
    "ack-leader-alone": Mistake("the leader acknowledges what it alone has fsynced", AckLeaderAlone, E1),
    "fetch-before-fsync": Mistake(
        "a follower's fetch offset includes what it has not fsynced", FetchBeforeFsync, replace(E1, faults=2)
    ),
    "truncate-to-hw": Mistake(
        "a follower of a new epoch truncates to its own high watermark",
        TruncateToHighWatermark,
        replace(E1, epochs=2, faults=2),
    ),
    "takeover-outside-isr": Mistake(
        "any replica may take over", TakeoverOutsideInSync, replace(QUIET, nodes=3, changes=1)
    ),
    "takeover-uncompared": Mistake(
        "a takeover does not compare the revision", TakeoverUncompared, replace(QUIET, nodes=3)
    ),
    "shrink-early": Mistake(
        "the leader stops counting a replica before the store has removed it",
        ShrinkEarly,
        replace(QUIET, nodes=3, changes=1),
    ),
    "pending-add-uncounted": Mistake(
        "the leader counts a joining replica only when it is told that the write was made",
        PendingAddUncounted,
        replace(QUIET, nodes=3, changes=1, outside=1),
    ),
    "believe-refusal": Mistake(
        "a change of the set that is sent again, as its answer was lost, is refused; so it was not made",
        BelieveRefusal,
        replace(QUIET, nodes=3, changes=1, outside=1),
    ),
    "same-epoch": Mistake("a restarted leader goes on in its epoch", SameEpoch, replace(E1, values=2)),
    "bad-disk-stays": Mistake(
        "a node with an empty or old disk stays in the in-sync set", BadDiskStays, replace(QUIET, faults=2)
    ),
    "expose-above-hw": Mistake("readers see all that the leader has", ExposeAboveHighWatermark, E1),
    "ignore-key": Mistake(
        "takeover while the leader's node entry is there: nothing is lost, but any slow answer deposes a leader",
        IgnoreKey,
        E1,
    ),
    "hw-below-min-isr": Mistake(
        "the set shrinks below min.insync.replicas and the high watermark goes on",
        HighWatermarkBelowFloor,
        replace(QUIET, changes=1),
    ),
    "keep-promises": Mistake(
        "a leader elected again remembers the promises of its earlier epoch",
        KeepPromises,
        replace(QUIET, nodes=3, epochs=3),
        "append 0, fetch 1, fetch-lost 1, takeover-all 2, learn 0, takeover 0, learn 0, fsync 0, learn 1, learn 2,"
        " fetch 1, learn 1, takeover 1, learn 1",
    ),
    "count-old-epoch": Mistake(
        "a leader counts fetches of an older epoch",
        CountOldEpoch,
        replace(QUIET, nodes=3, epochs=2, split=True),
        "takeover-all 2, append 0, fsync 0, send 1, learn 0, takeover 0, learn 0, serve 0 1, receive 1 0, fsync 1,"
        " send 1, serve 0 1, receive 1 0, learn 1, learn 2, send 1, serve 2 1, receive 1 2",
        QUIET_WALKS,
    ),
    "count-diverging": Mistake(
        "a fetch that is answered with divergence counts as a promise",
        CountDiverging,
        replace(QUIET, values=2, epochs=2),
    ),
    "accept-old-response": Mistake(
        "a follower accepts an answer of an older epoch",
        AcceptOldAnswer,
        replace(QUIET, nodes=3, epochs=2, split=True),
        "append 0, fsync 0, send 1, serve 0 1, receive 1 0, fsync 1, takeover-all 2, learn 2, learn 1, send 1,"
        " serve 2 1, learn 0, takeover 0, learn 0, learn 1, send 1, serve 0 1, receive 1 0, receive 1 2",
        QUIET_WALKS,
    ),
    "join-at-hw": Mistake(
        "a replica joins the set at the high watermark, though below the start of the epoch",
        JoinAtHighWatermark,
        replace(QUIET, nodes=3, epochs=2, changes=1, outside=1),
    ),
    "join-any-disk": Mistake(
        "growing the set does not compare the joining replica's disk entry",
        JoinAnyDisk,
        replace(QUIET, min_in_sync=1, faults=2, changes=1, outside=1),
    ),
    "leave-then-announce": Mistake(
        "a node with another disk leaves the set first and writes its disk entry after",
        LeaveThenAnnounce,
        replace(QUIET, faults=2, changes=1),
    ),
    "leave-by-old-view": Mistake(
        "it looks whether it is in the set before its disk entry is written, not after",
        LeaveByOldView,
        replace(QUIET, min_in_sync=1, faults=2, changes=1, outside=1),
    ),
    "disk-key-under-lease": Mistake(
        "the promised folder is known only while the node entry is there", DiskKeyUnderLease, replace(E1, faults=3)
    ),
    "count-old-folder": Mistake(
        "a leader counts a late fetch that a replaced folder had sent",
        CountOldFolder,
        replace(QUIET, faults=2, changes=1, split=True),
    ),
    "settle-without-reading": Mistake(
        "a node that has left the sets does not read the entry afresh before it takes part",
        SettleWithoutReading,
        replace(QUIET, faults=2, transfers=1),
    ),
    "lead-while-truncating": Mistake(
        "a node that becomes leader in the middle of a truncation leads at once, and its log is cut after that",
        LeadWhileTruncating,
        replace(QUIET, epochs=2, split=True),
    ),
    "stale-read-at-start": Mistake(
        "a restarted node begins with an old value of the entry and catches up by its watch",
        StaleReadAtStart,
        replace(QUIET, values=2, faults=1),
    ),
    "remove-in-same-epoch": Mistake(
        "a replica is removed and added again in one epoch, and what its deleted copy had fetched still counts",
        RemoveInSameEpoch,
        replace(QUIET, min_in_sync=1, changes=1, moves=2, split=True),
    ),
}
