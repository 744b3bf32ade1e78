"""One partition of a cluster, its replicas and the store, as values; and the product's decisions about them.

`Rules` are the product's decisions, as `checker_world.py` asks for them. A deliberate mistake overrides one of them
(`checker_mistakes.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from waystation.cluster.decisions import elections, following, in_sync, starting
from waystation.cluster.decisions.promises import FollowerProgress, Joiner, LeaderState
from waystation.cluster.decisions.replica_fetch import EpochHistory, FetchAnswer, ReplicaFetch
from waystation.cluster.decisions.starting import FolderIdentity, StartWrites
from waystation.cluster.decisions.state import DiskState, NodeState, PartitionState, node_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write

T = TypeVar("T")

Record = tuple[int, int]
"""Epoch and value."""
Log = tuple[Record, ...]

KEY = "partitions/one/0"
NODE = NodeState(1, {})
NODE_REVISION = 1  # of every node entry that is there

DOWN = 0
READ = 1  # has read the store, and found that its folder is not the promised one
BEGUN = 2  # has written its disk entry
RUNS = 3


@dataclass(frozen=True)
class Bounds:
    """How far to look: every run that stays within all of these is explored."""

    nodes: int = 3
    min_in_sync: int = 2
    values: int = 1  # records that are produced
    epochs: int = 1  # the latest leader epoch; the first is 0
    faults: int = 2  # crashes, lost leases, lost disks
    disks: int = 1  # lost disks among them
    changes: int = 1  # changes of the in-sync set that leaders propose
    transfers: int = 0  # leaderships that a living leader gives up
    moves: int = 0  # reassignments that are begun or cancelled
    split: bool = False  # a fetch in three steps (send, serve, receive) with a separate fsync, instead of in one
    late: bool = False  # writes of elections reach the store later than they were decided, too
    outside: int = 0  # replicas that begin outside the in-sync set
    strangers: int = 0  # nodes that begin without a replica
    keys: bool = True  # node entries. Without them anybody in sync may take over at any time: fewer states, more runs


# -- the state --------------------------------------------------------------------------------------------------------


Remembered = tuple[tuple[int, FollowerProgress], ...]


class Request(NamedTuple):
    leader: int
    fetch: ReplicaFetch
    orphan: bool = False  # the sender's process has ended: nobody waits for the answer


class Answer(NamedTuple):
    follower: int
    head: FetchAnswer
    records: Log


class Sent(NamedTuple):
    """A write on its way to the store."""

    author: int
    what: str
    state: PartitionState
    expected: tuple[tuple[str, int], ...]


class Node(NamedTuple):
    # on disk
    log: Log
    synced: int
    folder: FolderIdentity
    # the process
    phase: int
    me: Identity
    view: StoreEntry[PartitionState]
    barred: int
    high_watermark: int = 0
    leads: LeaderState | None = None  # never changed in place: steps make a copy
    remembered: Remembered = ()
    cut: int | None = None  # a truncation to this offset is under way


class State(NamedTuple):
    part: StoreEntry[PartitionState]
    past: tuple[StoreEntry[PartitionState], ...]  # values of the entry, from the oldest view on; the last is `part`
    keys: tuple[bool, ...]
    disks: tuple[StoreEntry[DiskState] | None, ...]
    writes: tuple[Sent, ...]
    nodes: tuple[Node, ...]
    requests: tuple[Request, ...] = ()
    answers: tuple[Answer, ...] = ()
    acked: Log = ()
    shown: Log = ()
    owners: tuple[tuple[int, int], ...] = ()  # (epoch, node) of every leadership that ever began
    broken: str = ""
    used: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)  # values, faults, disks, changes, transfers, moves


VALUES, FAULTS, DISKS, CHANGES, TRANSFERS, MOVES = range(6)

Step = tuple[str, Callable[[], "State"]]
"""What happens, in words; and the state after it."""


def put(items: tuple[T, ...], i: int, item: T) -> tuple[T, ...]:
    return (*items[:i], item, *items[i + 1 :])


def is_prefix(short: Log, long: Log) -> bool:
    return long[: len(short)] == short


@lru_cache(maxsize=100_000)
def history(log: Log) -> EpochHistory:
    epochs: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(log):
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, offset))
    return EpochHistory(0, len(log), epochs)


# -- what the product decides -----------------------------------------------------------------------------------------


class Rules:
    """The product's decisions, and what the shell around them does where a rule says so."""

    leader_state: type[LeaderState] = LeaderState
    judged = "abcdefgh"
    """Which of the promises are checked."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.min_in_sync = bounds.min_in_sync

    # a start

    def trusted(self, s: State, n: int) -> bool:
        return starting.trusted(s.nodes[n].folder, s.disks[n])

    def begin(self, s: State, n: int, new_id: str) -> StartWrites:
        return starting.begin(s.nodes[n].folder, s.disks[n], new_id)

    def reads_at_start(self, s: State) -> StoreEntry[PartitionState]:
        return s.part

    def announces(self, s: State, n: int) -> bool:
        """Whether a node with another disk writes its disk entry now."""
        return s.nodes[n].phase == READ

    def leave(self, s: State, n: int) -> list[Write]:
        return starting.leave_all(s.nodes[n].me, [s.part]) if s.nodes[n].me.leaving else []

    def left(self, after: State, n: int) -> State:
        """It has just left the in-sync set."""
        return after

    def settles(self, s: State, n: int) -> bool:
        """Whether a node with another disk may stop leaving now."""
        me = s.nodes[n].me
        return s.nodes[n].phase == BEGUN and me.leaving and not starting.leave_all(me, [s.part])

    def reads_before_joining(self, s: State, n: int, *, settled: bool) -> tuple[StoreEntry[PartitionState], int]:
        """Its first view, and the epoch that is barred. `settled`: it has just left the in-sync sets."""
        return s.part, s.part.state.epoch

    def claim(self, me: Identity, part: StoreEntry[PartitionState], log_epoch: int) -> list[Write]:
        return starting.claim_all(me, [part], {part.key: log_epoch})

    def register(self, me: Identity, present: bool) -> Write:
        known = StoreEntry(node_key(me.node_id), NODE, NODE_REVISION) if present else None
        return starting.register(me, NODE, known)

    def catches_up_from(self, oldest: int) -> int:
        """Values of the entry before this revision are needed by nobody, as every view is as late."""
        return oldest

    # elections

    def may_lead(self, node: Node, log_epoch: int) -> bool:
        truncating = node.cut is not None
        return elections.may_lead(node.me, node.view.state, node.barred, log_epoch, truncating=truncating)

    def takeover(
        self, me: Identity, view: StoreEntry[PartitionState], living: set[int], log_epoch: int
    ) -> Write | None:
        return elections.takeover(me, view, living, self.min_in_sync, log_epoch, silent=True)

    # the in-sync set

    def grow(
        self, me: Identity, view: StoreEntry[PartitionState], joiner: Joiner, disks: dict[int, StoreEntry[DiskState]]
    ) -> Write | None:
        return in_sync.grow(me, view, [joiner], disks)

    def shrink(self, me: Identity, view: StoreEntry[PartitionState], behind: int) -> Write | None:
        return in_sync.shrink(me, view, [behind], self.min_in_sync)

    def refused(self, s: State, leads: LeaderState) -> None:
        """The store has refused a change of the in-sync set; then the entry is read."""
        leads.refused(s.part.revision)

    # reassignments

    def moved(self, before: PartitionState, write: Write | None) -> Write | None:
        """A step of a reassignment."""
        return write

    # copying

    def remembers(self, former: LeaderState) -> Remembered:
        """What a deposed leader still knows of its followers."""
        return ()

    def may_show(self, node: Node, high_watermark: int) -> int:
        """Up to where a leader shows its log to readers."""
        return high_watermark

    def next_fetch(self, node: Node) -> ReplicaFetch | None:
        if node.cut is not None:
            return None
        return following.next_fetch(node.me, node.view.state, history(node.log), node.synced, 1)

    def received(
        self, node: Node, answer: Answer
    ) -> following.Append | following.Truncate | following.BeginAgain | following.Drop:
        return following.received(node.view.state, answer.head, history(node.log), node.high_watermark)

    def syncs_at_once(self) -> bool:
        """Where a fetch is one step: whether the records are fsynced in it."""
        return True

    def truncates_at_new_epoch(self, node: Node) -> Node:
        return node
