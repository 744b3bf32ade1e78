"""A KIP-848 consumer group as a pure state machine: the broker assigns, members reconcile one heartbeat at a time.

Three epochs drive it. The *group epoch* rises when members or topics change. The *assignment epoch* is the group epoch
that the target was computed for. A *member's epoch* is the assignment epoch it has reached. They only rise.

What never breaks: a partition is in the hands of at most one member (`reconcile`); a member that uses an epoch we did
not give it is fenced. No I/O, no clock: calls are told the (monotonic) time, `next_deadline_ms` says when `tick` wants
to be called, `take_changes` says what has to be written. The coordinator's shell is the only caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

import msgspec

from waystation.errors import WaystationError
from waystation.groups.machines.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from waystation.groups.machines.calls import (
    ConsumerBeat,
    ConsumerBeatAnswer,
    ConsumerGroupView,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    TopicPartition,
    TopicView,
)
from waystation.groups.machines.classic_member import CONSUMER, Subscribed, read_subscription, write_assignment
from waystation.groups.machines.consumer_member import AWAY_EPOCH, LEAVE_EPOCH, ClassicSide, ConsumerMember
from waystation.groups.machines.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroupRequest,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)
from waystation.groups.machines.reconcile import JOIN_EPOCH, Holding, Partitions, ReconcilePhase, step
from waystation.groups.machines.settings import GroupSettings
from waystation.groups.machines.subscriptions import Subscriptions, sizes
from waystation.world.deadlines import Deadlines

_MS_PER_MEMBER = 2
"""While a large group settles, its members are spread out to at most 500 heartbeats a second."""

_QUIET_SHARE = 4
"""The interval is this part of the quiet so far: from 250 ms to 5 s in 20 s, with a dozen heartbeats on the way."""


class GroupChanges(msgspec.Struct, frozen=True):
    """What has to be written: the group's own record, and records of members (removed ones: tombstones)."""

    group: bool
    members: frozenset[str]

    def __bool__(self) -> bool:
        return self.group or bool(self.members)


class ConsumerGroup:
    """See the module."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.epoch = 0
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.seen: dict[UUID, int] = {}
        """The subscribed topics and their sizes, as of the group epoch."""
        self.emptied_at_ms: int | None = None
        """Wall time, set by the shell when it saves an empty group; what expiry counts from."""
        self._statics: dict[str, str] = {}
        self._holders: dict[TopicPartition, str] = {}
        self._subscriptions = Subscriptions(group_id)
        self._timers: Deadlines[tuple[str, str]] = Deadlines()
        self._changed_group = False
        self._changed_members: set[str] = set()
        self._restless_at_ms = 0  # when something last moved

    # -- what others may ask ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.assignment_epoch < self.epoch:
            return "Assigning"
        return "Stable" if all(self._is_settled(member) for member in self.members.values()) else "Reconciling"

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    def take_changes(self) -> GroupChanges:
        changes = GroupChanges(self._changed_group, frozenset(self._changed_members))
        self._changed_group = False
        self._changed_members.clear()
        return changes

    def mark_changed(self) -> None:
        """Whatever was written may not have been kept: everything has to be written again."""
        self._changed_group = True
        self._changed_members.update(self.members)

    def subscribed(self, topics: TopicView) -> frozenset[str]:
        """The names of all topics that members read."""
        return frozenset().union(*self._subscriptions.names(self.members.values(), topics).values())

    def view(self) -> ConsumerGroupView:
        return ConsumerGroupView(
            group_id=self.group_id,
            error=None,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self._assignor(),
            members=tuple(member.view() for _, member in sorted(self.members.items())),
        )

    # -- heartbeats ------------------------------------------------------------------------------------------

    def heartbeat(self, beat: ConsumerBeat, topics: TopicView, now_ms: int) -> ConsumerBeatAnswer:
        """A member joins, lives, acknowledges or leaves."""
        if beat.pattern:
            self._subscriptions.check(beat.pattern, topics)
        if beat.member_epoch in (LEAVE_EPOCH, AWAY_EPOCH):
            return self._leave(beat)
        epoch = self.epoch
        member = self._join(beat) if beat.member_epoch == JOIN_EPOCH else self._known(beat)
        had = member.holding
        changed, wished = member.update(beat)
        if changed:
            self._changed_members.add(member.member_id)
        if wished and self.epoch == epoch:
            self._bump()
        if self.assignment_epoch < self.epoch:
            self._retarget(topics)
        lost = beat.member_epoch != had.epoch  # it does not know yet what we told it last
        self._reconcile(member, None if lost else beat.owned, now_ms)
        self._touch(member, now_ms)
        subscribes = beat.topics is not None or beat.pattern is not None
        full = beat.rebalance_timeout_ms >= 0 and beat.owned is not None and subscribes
        news = full or lost or had.epoch == JOIN_EPOCH or had.assigned != member.holding.assigned
        return ConsumerBeatAnswer(
            member.member_id,
            member.epoch,
            self._interval_ms(now_ms),
            member.holding.assigned if news else None,
        )

    def _join(self, beat: ConsumerBeat) -> ConsumerMember:
        present = self.members.get(beat.member_id)
        if present is not None:
            return self._rejoin(present, beat)
        if beat.instance_id is not None and beat.instance_id in self._statics:
            return self._take_over(self.members[self._statics[beat.instance_id]], beat)
        self._check_room()
        member = ConsumerMember(beat.member_id, beat.instance_id)
        self._put(member)
        self._bump()
        return member

    def _rejoin(self, member: ConsumerMember, beat: ConsumerBeat) -> ConsumerMember:
        """It was fenced, or our answer to its join was lost. Either way it says that it owns nothing."""
        if member.instance_id != beat.instance_id:
            raise InvalidGroupRequest(f"member {beat.member_id!r} joins again with another group.instance.id")
        self._release(member)
        member.start_over()
        self._timers.cancel(("rebalance", member.member_id))
        self._changed_members.add(member.member_id)
        return member

    def _take_over(self, old: ConsumerMember, beat: ConsumerBeat) -> ConsumerMember:
        if not old.is_away and old.classic is None:  # a static classic member says nothing when it stops
            raise UnreleasedInstance(
                f"group.instance.id {beat.instance_id!r} of group {self.group_id!r} is in use by {old.member_id!r}; "
                f"stop that process first, or wait for its session to end"
            )
        self._drop(old)
        member = old.hand_over(beat.member_id)
        self._put(member)
        return member

    def _known(self, beat: ConsumerBeat) -> ConsumerMember:
        member = self._find(beat.member_id, beat.instance_id)
        if beat.member_epoch == member.epoch:
            return member
        # Our last answer may have been lost; then it says (and it has to say) that it owns no more than we know of.
        lost = beat.member_epoch == member.previous_epoch and beat.owned is not None and beat.owned <= member.has()
        if beat.member_epoch > member.epoch or not lost:
            raise FencedMemberEpoch(
                f"member {beat.member_id!r} of group {self.group_id!r} is at epoch {member.epoch}, it says "
                f"{beat.member_epoch}; it must let go of its partitions and rejoin with epoch 0"
            )
        return member

    def _leave(self, beat: ConsumerBeat) -> ConsumerBeatAnswer:
        member = self._find(beat.member_id, beat.instance_id)
        if beat.member_epoch == AWAY_EPOCH and member.instance_id is not None:
            self._release(member)
            member.go_away()
            self._hold(member)
            self._timers.cancel(("rebalance", member.member_id))
            self._changed_members.add(member.member_id)
        else:
            self._remove(member)
        return ConsumerBeatAnswer(beat.member_id, beat.member_epoch, self.settings.consumer_heartbeat_interval_ms, None)

    # -- classic members, while the group changes from one protocol to the other -------------------------------

    @property
    def all_classic(self) -> bool:
        """Nobody speaks the consumer protocol any longer, and there is somebody."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def classic_bytes(self) -> int:
        """What its classic members have brought, which has to fit into one record if it is a classic group again."""
        sides = (member.classic for member in self.members.values() if member.classic is not None)
        return sum(len(metadata) for side in sides for _, metadata in side.protocols)

    def classic_join(
        self, join: JoinRequest, wish: Subscribed, fresh_id: str, topics: TopicView, now_ms: int
    ) -> JoinAnswer:
        """Answered at once: nobody is waited for. Who joins has what it says it owns, and has let go of all else."""
        self._check_protocols(join)
        epoch = self.epoch
        member = self._classic_joiner(join, fresh_id)
        beat = ConsumerBeat(
            group_id=self.group_id,
            member_id=member.member_id,
            member_epoch=member.epoch,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            topics=tuple(wish.topics),
        )
        _, wished = member.update(beat)
        member.classic = ClassicSide(join.session_timeout_ms, join.protocols)
        self._changed_members.add(member.member_id)
        if wished and self.epoch == epoch:
            self._bump()
        if self.assignment_epoch < self.epoch:
            self._retarget(topics)
        owned = member.has() & partitions_of(wish.owned, topics)
        self._release(member)
        member.holding = Holding(member.epoch, ReconcilePhase.WAITING, owned)
        self._hold(member)
        self._timers.cancel(("rebalance", member.member_id))
        self._reconcile(member, owned, now_ms)
        self._touch(member, now_ms)
        return JoinAnswer(
            member_id=member.member_id,
            generation_id=member.epoch,
            protocol_type=CONSUMER,
            protocol_name=join.protocols[0][0],
            leader="",  # the broker assigns
        )

    def _check_protocols(self, join: JoinRequest) -> None:
        """Classic members have an assignor in common: the group may become a classic one again."""
        others = [m.classic for m in self.members.values() if m.classic is not None and m.member_id != join.member_id]
        common = {name for name, _ in join.protocols}
        for other in others:
            common &= {name for name, _ in other.protocols}
        if not common:
            raise InconsistentProtocol(
                f"the classic members of group {self.group_id!r} have no assignor in common with this one"
            )

    def _classic_joiner(self, join: JoinRequest, fresh_id: str) -> ConsumerMember:
        if join.member_id:
            return self._find_classic(join.member_id, join.instance_id)
        static = None if join.instance_id is None else self._statics.get(join.instance_id)
        if static is not None:
            old = self.members[static]
            if not old.is_away and old.classic is None:
                raise FencedInstance(f"group.instance.id {join.instance_id!r} is in use by {old.member_id!r}")
            self._drop(old)
            member = old.hand_over(fresh_id)
            self._put(member)
            return member
        self._check_room()
        member = ConsumerMember(fresh_id, join.instance_id)
        self._put(member)
        self._bump()
        return member

    def classic_sync(self, sync: SyncRequest, topics: TopicView, now_ms: int) -> SyncAnswer:
        """What the member has at this generation."""
        member = self._find_classic(sync.member_id, sync.instance_id)
        self._check_generation(member, sync.generation_id)
        side = member.classic
        if side is None or (sync.protocol_name or side.protocols[0][0]) != side.protocols[0][0]:
            raise InconsistentProtocol(f"member {sync.member_id!r} did not join with {sync.protocol_name!r}")
        self._touch(member, now_ms)
        if member.epoch < self.epoch and member.holding.phase is not ReconcilePhase.REVOKING:
            raise self._call_back(member, now_ms)
        return SyncAnswer(CONSUMER, side.protocols[0][0], self.classic_assignment(member, topics))

    def classic_heartbeat(
        self, member_id: str, instance_id: str | None, generation_id: int, topics: TopicView, now_ms: int
    ) -> None:
        """Returns if the member is fine; RebalanceInProgress if it has to join, for what it is to get or to give up."""
        member = self._find_classic(member_id, instance_id)
        self._check_generation(member, generation_id)
        self._touch(member, now_ms)
        if self.assignment_epoch < self.epoch:
            self._retarget(topics)
        phase = member.holding.phase
        awaited = member.target - member.holding.assigned
        if (
            member.epoch < self.assignment_epoch
            or phase is ReconcilePhase.REVOKING
            or (phase is ReconcilePhase.WAITING and any(one not in self._holders for one in awaited))
        ):
            raise self._call_back(member, now_ms)

    def classic_leave(self, leaving: Iterable[LeavingMember]) -> list[LeaveResult]:
        results = []
        for one in leaving:
            error: WaystationError | None = None
            try:
                static = None if one.instance_id is None else self._statics.get(one.instance_id)
                self._remove(self._find(one.member_id or static or "", one.instance_id))
            except WaystationError as caught:
                error = caught
            results.append(LeaveResult(one.member_id, one.instance_id, error))
        return results

    def _call_back(self, member: ConsumerMember, now_ms: int) -> RebalanceInProgress:
        """It has its rebalance timeout to join again; then it is removed, so that others get what it has."""
        timer = ("rebalance", member.member_id)
        if timer not in self._timers:
            self._timers.set(timer, now_ms + member.rebalance_timeout_ms)
        return RebalanceInProgress(f"group {self.group_id!r} is rebalancing; rejoin")

    def _find_classic(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = self._find(member_id, instance_id)
        if member.classic is None:
            raise UnknownMember(f"{member_id!r} of group {self.group_id!r} uses the consumer protocol (KIP-848)")
        return member

    def _check_generation(self, member: ConsumerMember, generation_id: int) -> None:
        if generation_id != member.epoch:
            raise IllegalGeneration(
                f"member {member.member_id!r} is at generation {member.epoch}, the request says {generation_id}"
            )

    @staticmethod
    def classic_assignment(member: ConsumerMember, topics: TopicView) -> bytes:
        """What the member has, as the classic protocol writes it."""
        wish = None if member.classic is None else read_subscription(member.classic.protocols[0][1])
        names: dict[str, list[int]] = {}
        for topic_id, index in member.holding.assigned:
            name = topics.name_of(topic_id)
            if name is not None:
                names.setdefault(name, []).append(index)
        return write_assignment(0 if wish is None else wish.version, names)

    # -- the target and the way to it ------------------------------------------------------------------------

    def topics_changed(self, topics: TopicView) -> None:
        """Topics came, grew or went: if it concerns this group, the next heartbeat computes a new target."""
        sizes_now = sizes(self.subscribed(topics), topics)
        if self.members and sizes_now != self.seen:
            self.seen = sizes_now
            self._bump()

    def _bump(self) -> None:
        self.epoch += 1
        self._changed_group = True

    def _retarget(self, topics: TopicView) -> None:
        names = self._subscriptions.names(self.members.values(), topics)
        self.seen = sizes(frozenset().union(*names.values()), topics)
        ids = {name: topics.id_of(name) for name in frozenset().union(*names.values())}
        subscribers = {
            member_id: Subscriber(
                frozenset(topic_id for name in names[member_id] if (topic_id := ids[name]) is not None),
                member.target,
                member.instance_id,
            )
            for member_id, member in self.members.items()
        }
        for member_id, target in ASSIGNORS[self._assignor()](subscribers, self.seen).items():
            if self.members[member_id].target != target:
                self.members[member_id].target = target
                self._changed_members.add(member_id)
        self.assignment_epoch = self.epoch
        self._changed_group = True

    def _assignor(self) -> str:
        """What most members that have a preference prefer; in a draw the one that comes first in our list."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor in ASSIGNORS)
        return max(ASSIGNORS, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None, now_ms: int) -> None:
        if self._is_settled(member):
            return
        self._release(member)
        taken = self._holders
        holding = step(member.holding, member.target, self.assignment_epoch, owned, lambda part: part not in taken)
        if holding != member.holding:
            self._changed_members.add(member.member_id)
            self._restless_at_ms = now_ms
            timer = ("rebalance", member.member_id)
            if holding.phase is ReconcilePhase.REVOKING:
                self._timers.set(timer, now_ms + member.rebalance_timeout_ms)
            else:
                self._timers.cancel(timer)
            member.advance(holding)
        self._hold(member)

    def _is_settled(self, member: ConsumerMember) -> bool:
        return member.holding.phase is ReconcilePhase.STABLE and member.epoch == self.assignment_epoch

    def _interval_ms(self, now_ms: int) -> int:
        """When members are to heartbeat next: soon while the group settles, then less and less often.

        A change seldom comes alone (consumers are started one after the other), and each member hears of it only at
        its next heartbeat. So the interval grows with the quiet since the last change, up to the configured one.
        """
        settings = self.settings
        settled = self.assignment_epoch == self.epoch and all(
            self._is_settled(member) or member.is_away for member in self.members.values()
        )
        if not settled:
            self._restless_at_ms = now_ms
        least_ms = max(settings.consumer_settling_interval_ms, _MS_PER_MEMBER * len(self.members))
        quiet_ms = now_ms - self._restless_at_ms
        return min(settings.consumer_heartbeat_interval_ms, max(least_ms, quiet_ms // _QUIET_SHARE))

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Removes members that were silent, or held on to what they had to let go of, for too long."""
        for _, member_id in self._timers.due(now_ms):
            member = self.members.get(member_id)
            if member is not None:
                self._remove(member)

    # -- offsets ---------------------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, now_ms: int, *, transactional: bool
    ) -> None:
        """Raises unless this caller may commit offsets now."""
        if epoch < 0 and not self.members:
            return  # an administrator, or a consumer that does not use the group's management
        if transactional and epoch < 0 and not member_id:
            return  # an old producer that cannot say for whom it commits
        member = self._find(member_id, instance_id)
        if epoch != member.epoch:
            if transactional or member.classic is not None:
                raise IllegalGeneration(f"member {member_id!r} is at epoch {member.epoch}, the request says {epoch}")
            raise self._stale(member, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if epoch < 0 and not member_id:
            return
        member = self._find(member_id or "", None)
        if epoch != member.epoch:
            raise self._stale(member, epoch)

    @staticmethod
    def _stale(member: ConsumerMember, epoch: int) -> StaleMemberEpoch:
        return StaleMemberEpoch(f"member {member.member_id!r} is at epoch {member.epoch}, the request says {epoch}")

    # -- restoring -------------------------------------------------------------------------------------------

    def restore(self, *, epoch: int, assignment_epoch: int, seen: dict[UUID, int]) -> None:
        self.epoch, self.assignment_epoch, self.seen = epoch, assignment_epoch, seen

    def restore_member(self, member: ConsumerMember) -> None:
        self.forget_member(member.member_id)
        self._put(member)
        self._changed_members.clear()

    def forget_member(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._drop(member)
            self._changed_members.clear()

    def start_sessions(self, now_ms: int) -> None:
        """Everybody gets a full session from now; those that were revoking get their full time for that too."""
        self._restless_at_ms = now_ms
        for member in self.members.values():
            self._touch(member, now_ms)
            if member.holding.phase is ReconcilePhase.REVOKING:
                self._timers.set(("rebalance", member.member_id), now_ms + member.rebalance_timeout_ms)

    def end_sessions_in_broker(self, now_ms: int) -> None:
        """The broker that they lived in was restarted: those members do not come back, and others need not wait."""
        for member in self.members.values():
            if member.in_broker:
                self._timers.set(("session", member.member_id), now_ms)

    # -- small parts -----------------------------------------------------------------------------------------

    def _check_room(self) -> None:
        if len(self.members) >= self.settings.max_group_size:
            raise GroupFull(f"group {self.group_id!r} has {self.settings.max_group_size} members, which is its limit")

    def _touch(self, member: ConsumerMember, now_ms: int) -> None:
        """The member lives. A classic one has said how long it may be silent."""
        classic, settings = member.classic, self.settings
        timeout_ms = settings.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self._timers.set(("session", member.member_id), now_ms + timeout_ms)

    def _find(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            current = self._statics.get(instance_id)
            if current is None:
                raise UnknownMember(f"group {self.group_id!r} has no member with group.instance.id {instance_id!r}")
            if current != member_id:
                raise FencedInstance(f"{instance_id!r} is another member of group {self.group_id!r} by now")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is not a member of group {self.group_id!r}; rejoin with epoch 0")
        return member

    def _remove(self, member: ConsumerMember) -> None:
        self._drop(member)
        self._bump()

    def _drop(self, member: ConsumerMember) -> None:
        self._release(member)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._statics.pop(member.instance_id, None)
        self._timers.cancel(("session", member.member_id))
        self._timers.cancel(("rebalance", member.member_id))
        self._changed_members.add(member.member_id)

    def _put(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id
        self._hold(member)
        self._changed_members.add(member.member_id)

    def _hold(self, member: ConsumerMember) -> None:
        for partition in member.has():
            self._holders[partition] = member.member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.has():
            self._holders.pop(partition, None)

    def holders(self) -> Iterable[tuple[TopicPartition, str]]:
        """Who has what, for tests and for `describe`."""
        return self._holders.items()


def partitions_of(named: Iterable[tuple[str, list[int]]], topics: TopicView) -> Partitions:
    """By their topics' ids; those of topics that are not there are left out."""
    return frozenset(
        (topic_id, index)
        for name, indexes in named
        if (topic_id := topics.id_of(name)) is not None
        for index in indexes
    )
