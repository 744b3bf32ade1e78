"""One member of a KIP-848 group: what it asked for, what it has, and what it is to have."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from waystation.groups.machines.calls import ConsumerBeat, ConsumerMemberView
from waystation.groups.machines.reconcile import JOIN_EPOCH, NONE, Holding, Partitions, ReconcilePhase

LEAVE_EPOCH = -1
AWAY_EPOCH = -2
"""A static member that stopped and is expected back: its partitions wait for it until its session ends."""

NOTHING = Holding(JOIN_EPOCH, ReconcilePhase.STABLE, NONE)


class ClassicSide(msgspec.Struct, frozen=True):
    """What a member that speaks the classic protocol has besides: it joins and syncs while its group changes over."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(msgspec.Struct):
    """Mutable; owned by its group alone. `holding` is immutable and replaced as a whole."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 300_000
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str | None = None
    previous_epoch: int = 0
    """The epoch before the present one: a heartbeat that still carries it did not get our last answer."""
    holding: Holding = NOTHING
    target: Partitions = NONE
    classic: ClassicSide | None = None
    """Of one that speaks the classic protocol; its epoch is its generation."""

    @property
    def epoch(self) -> int:
        return self.holding.epoch

    @property
    def in_broker(self) -> bool:
        """A consumer of another protocol than Kafka's, whose member lives in its broker and has no address."""
        return not self.client_host and self.classic is None

    @property
    def is_away(self) -> bool:
        return self.holding.epoch == AWAY_EPOCH

    def has(self) -> Partitions:
        """Everything that nobody else may be given."""
        return self.holding.assigned | self.holding.revoking

    def start_over(self) -> None:
        """It says that it owns nothing, so nothing is its own any longer; what it is to have stays."""
        self.holding = NOTHING
        self.previous_epoch = JOIN_EPOCH

    def hand_over(self, new_id: str) -> ConsumerMember:
        """The same place in the group for the process that comes back under a new id."""
        held = Holding(JOIN_EPOCH, ReconcilePhase.STABLE, self.holding.assigned)
        return replace(self, member_id=new_id, previous_epoch=JOIN_EPOCH, holding=held, classic=None)

    def go_away(self) -> None:
        self.holding = Holding(AWAY_EPOCH, ReconcilePhase.STABLE, self.holding.assigned)

    def advance(self, holding: Holding) -> None:
        if holding.epoch != self.holding.epoch:
            self.previous_epoch = self.holding.epoch
        self.holding = holding

    def update(self, beat: ConsumerBeat) -> tuple[bool, bool]:
        """Takes what the heartbeat says. Returns (anything changed, its wishes about partitions changed)."""
        wishes = (self.topics, self.pattern, self.assignor)
        rest = (self.instance_id, self.rack_id, self.client_id, self.client_host, self.rebalance_timeout_ms)
        if beat.topics is not None:
            self.topics = tuple(sorted(set(beat.topics)))
        if beat.pattern is not None:
            self.pattern = beat.pattern or None
        if beat.assignor is not None:
            self.assignor = beat.assignor
        self.instance_id = beat.instance_id if beat.instance_id is not None else self.instance_id
        self.rack_id = beat.rack_id if beat.rack_id is not None else self.rack_id
        self.client_id, self.client_host = beat.client_id, beat.client_host
        if beat.rebalance_timeout_ms >= 0:
            self.rebalance_timeout_ms = beat.rebalance_timeout_ms
        wished = wishes != (self.topics, self.pattern, self.assignor)
        other = rest != (self.instance_id, self.rack_id, self.client_id, self.client_host, self.rebalance_timeout_ms)
        return wished or other, wished

    def view(self) -> ConsumerMemberView:
        return ConsumerMemberView(
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            member_epoch=self.epoch,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=self.topics,
            pattern=self.pattern,
            assignment=self.has(),
            target=self.target,
            classic=self.classic is not None,
        )
