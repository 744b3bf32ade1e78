"""A classic consumer group as a pure state machine.

No I/O and no clock: each call is told the (monotonic) time and returns decisions; `next_deadline_ms` says when `tick`
wants to be called. A request that is at fault raises; one that has to wait gets its answer in a later decision. The
coordinator's shell is the only caller.

What never breaks: a generation's members are fixed when it is made; an assignment is handed only to members of the
generation it was computed for; the group is saved before any member hears of its assignment (`Save` comes before the
answers, and the shell holds back all that a stable group tells until it is durable); the only moves are those of
`classic_states.MOVES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from waystation.errors import WaystationError
from waystation.groups.machines.calls import (
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from waystation.groups.machines.classic_decisions import AnswerJoin, AnswerSync, Decision, Save
from waystation.groups.machines.classic_member import ClassicMember
from waystation.groups.machines.classic_roster import Roster
from waystation.groups.machines.classic_states import ClassicState, check_move
from waystation.groups.machines.errors import (
    CoordinatorUnavailable,
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from waystation.groups.machines.settings import GroupSettings
from waystation.world.deadlines import Deadlines

_JOIN = ("join", "")  # the join phase ends
_SYNC = ("sync", "")  # the sync phase ends


class ClassicGroup:
    """See the module."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = ClassicState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster(group_id)
        self.emptied_at_ms: int | None = None
        """Wall time, set by the shell when it saves an empty group; what expiry counts from."""
        self._unsynced: set[str] = set()
        self._initial_until_ms: int | None = None  # set while the first generation gathers
        self._newcomer = False
        self._timers: Deadlines[tuple[str, str]] = Deadlines()

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    def subscribed(self) -> frozenset[str] | None:
        """The topics that members read; None if that cannot be known."""
        return self.roster.subscribed(self.protocol_type, self.protocol_name)

    # -- join ------------------------------------------------------------------------------------------------

    def join(self, join: JoinRequest, fresh_id: str, now_ms: int) -> list[Decision]:
        """`fresh_id` is the id that a new member gets; the decision answers `join.member_id or fresh_id`."""
        self._check_alive()
        old_id = None if join.member_id else self.roster.static(join.instance_id)
        self._check_room(old_id or join.member_id)
        if not self.roster.fits(join, self.protocol_type):
            raise InconsistentProtocol(
                f"group {self.group_id!r} is of type {self.protocol_type!r}; the member offers {join.protocol_type!r} "
                f"with {[name for name, _ in join.protocols]}"
            )
        if old_id is not None:
            return self._replace_static(join, old_id, fresh_id, now_ms)
        if join.member_id:
            return self._rejoin(join, now_ms)
        if join.needs_member_id and join.instance_id is None:
            self.roster.pending.add(fresh_id)
            self._timers.set(("session", fresh_id), now_ms + join.session_timeout_ms)
            raise MemberIdRequired(fresh_id)
        return self._add(join, fresh_id, now_ms)

    def _check_room(self, member_id: str) -> None:
        roster = self.roster
        if member_id in roster.members or member_id in roster.pending:
            return
        if len(roster) + len(roster.pending) >= self.settings.max_group_size:
            raise GroupFull(f"group {self.group_id!r} has {self.settings.max_group_size} members, which is its limit")

    def _rejoin(self, join: JoinRequest, now_ms: int) -> list[Decision]:
        if join.member_id in self.roster.pending and join.instance_id is None:
            return self._add(join, join.member_id, now_ms)
        member = self.roster.find(join.member_id, join.instance_id)
        leads = member.member_id == self.roster.leader
        settled = self.state is ClassicState.COMPLETING or (self.state is ClassicState.STABLE and not leads)
        if settled and member.protocols == join.protocols:
            # The answer to its join was lost, or it asks again for no reason: nothing has changed. A leader that
            # rejoins a stable group, though, has seen something (a new partition, say) and wants to assign again.
            self._touch(member, now_ms)
            return [AnswerJoin(member.member_id, self._join_answer(member))]
        self._update(member, join)
        return self._gather(now_ms)

    def _add(self, join: JoinRequest, member_id: str, now_ms: int) -> list[Decision]:
        if not self.roster.members:
            self.protocol_type = join.protocol_type
        member = ClassicMember(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
            awaits_join=True,
            is_new=True,
        )
        self.roster.add(member)
        self._newcomer = True
        self._touch(member, now_ms)
        return self._gather(now_ms)

    def _replace_static(self, join: JoinRequest, old_id: str, new_id: str, now_ms: int) -> list[Decision]:
        """The process behind an instance id was restarted: it takes over the old member's place and assignment."""
        member = self.roster.members[old_id]
        old_leader, before = self.roster.leader, member.metadata(self.protocol_name)
        decisions = self._answer_waiting(
            member, FencedInstance(f"{join.instance_id!r} joined group {self.group_id!r} again as {new_id!r}")
        )
        self._timers.cancel(("session", old_id))
        self.roster.rename(old_id, new_id)
        if old_id in self._unsynced:
            self._unsynced = self._unsynced - {old_id} | {new_id}
        self._update(member, join)
        self._touch(member, now_ms)
        if self.state is ClassicState.STABLE and self.roster.still_fits(
            before, member, self.protocol_type, self.protocol_name
        ):
            member.awaits_join = False
            return [*decisions, Save(), AnswerJoin(new_id, self._take_over_answer(member, join, old_leader))]
        return [*decisions, *self._gather(now_ms)]

    def _take_over_answer(self, member: ClassicMember, join: JoinRequest, old_leader: str | None) -> JoinAnswer:
        if join.can_skip_assignment:
            return self._join_answer(member, skip_assignment=member.member_id == self.roster.leader)
        # An older client would assign if it were told that it leads; it hears of the leader that was.
        return self._join_answer(member, leader=old_leader)

    def _join_answer(
        self, member: ClassicMember, *, skip_assignment: bool = False, leader: str | None = None
    ) -> JoinAnswer:
        leader = leader or self.roster.leader or ""
        return JoinAnswer(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            leader=leader,
            skip_assignment=skip_assignment,
            members=self.roster.joined(self.protocol_name) if member.member_id == leader else (),
        )

    @staticmethod
    def _update(member: ClassicMember, join: JoinRequest) -> None:
        member.protocols = join.protocols
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host
        member.awaits_join = True

    # -- the join phase --------------------------------------------------------------------------------------

    def _gather(self, now_ms: int) -> list[Decision]:
        """A member has just joined: begin a rebalance, or see whether it was the last to be waited for."""
        return self._maybe_finish_joining(now_ms) if self.state is ClassicState.PREPARING else self._rebalance(now_ms)

    def _rebalance(self, now_ms: int) -> list[Decision]:
        """Calls everybody back to join."""
        decisions: list[Decision] = []
        for member in self.roster.members.values():
            if self.state is ClassicState.COMPLETING:
                member.assignment = b""
            if member.awaits_sync:
                member.awaits_sync = False
                decisions.append(AnswerSync(member.member_id, self._in_progress()))
                self._touch(member, now_ms)
        self._unsynced.clear()
        self._timers.cancel(_SYNC)
        initial = self.state is ClassicState.EMPTY
        self._move(ClassicState.PREPARING)
        timeout_ms = self.roster.rebalance_timeout_ms()
        if not initial:
            self._timers.set(_JOIN, now_ms + timeout_ms)
            return [*decisions, *self._maybe_finish_joining(now_ms)]
        limit_ms = min(self.settings.initial_rebalance_limit_ms, timeout_ms)
        self._initial_until_ms = now_ms + limit_ms
        self._newcomer = False
        self._timers.set(_JOIN, now_ms + min(self.settings.initial_rebalance_delay_ms, limit_ms))
        return decisions

    def call_back(self, now_ms: int) -> list[Decision]:
        """Everybody has to join again: the group was of the other protocol, and has lost its last member of that."""
        return self._rebalance(now_ms)

    def _maybe_finish_joining(self, now_ms: int) -> list[Decision]:
        if self.state is not ClassicState.PREPARING or self._initial_until_ms is not None:
            return []
        if self.roster.pending or not all(member.awaits_join for member in self.roster.members.values()):
            return []
        return self._finish_joining(now_ms)

    def _join_time_is_up(self, now_ms: int) -> list[Decision]:
        until_ms = self._initial_until_ms
        if until_ms is not None and now_ms < until_ms and (self._newcomer or self.roster.pending):
            self._newcomer = False
            self._timers.set(_JOIN, min(now_ms + self.settings.initial_rebalance_delay_ms, until_ms))
            return []
        return self._finish_joining(now_ms)

    def _finish_joining(self, now_ms: int) -> list[Decision]:
        """Makes the next generation of those who joined. A static member is kept until its session ends."""
        roster = self.roster
        for member in [m for m in roster.members.values() if not m.awaits_join and m.instance_id is None]:
            self._dismiss(member.member_id)
        joined = [member for member in roster.members.values() if member.awaits_join]
        if roster.members and not joined:
            self._timers.set(_JOIN, now_ms + roster.rebalance_timeout_ms())
            return []
        self._timers.cancel(_JOIN)
        self._initial_until_ms = None
        self.generation_id = self.generation_id % 0x7FFFFFFF + 1
        if not joined:
            self.protocol_name = None
            self._move(ClassicState.EMPTY)
            return [Save()]
        if not roster.members[roster.leader or ""].awaits_join:
            roster.leader = joined[0].member_id
        self.protocol_name = roster.vote()
        self._move(ClassicState.COMPLETING)
        self._timers.set(_SYNC, now_ms + roster.rebalance_timeout_ms())
        self._unsynced = set(roster.members)
        answers: list[Decision] = []
        for member in joined:
            member.awaits_join = member.is_new = False
            self._touch(member, now_ms)
            answers.append(AnswerJoin(member.member_id, self._join_answer(member)))
        return answers

    # -- sync, heartbeat, leave ------------------------------------------------------------------------------

    def sync(self, sync: SyncRequest, now_ms: int) -> list[Decision]:
        self._check_alive()
        member = self.roster.find(sync.member_id, sync.instance_id)
        self._check_generation(sync.generation_id)
        spoken = (sync.protocol_type or self.protocol_type, sync.protocol_name or self.protocol_name)
        if spoken != (self.protocol_type, self.protocol_name):
            raise InconsistentProtocol(
                f"generation {self.generation_id} of group {self.group_id!r} chose "
                f"{(self.protocol_type, self.protocol_name)}, the member speaks {spoken}"
            )
        if self.state is ClassicState.PREPARING:
            raise self._in_progress()
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._timers.cancel(_SYNC)
        self._touch(member, now_ms)
        if self.state is ClassicState.STABLE:
            return [AnswerSync(member.member_id, self._sync_answer(member))]
        member.awaits_sync = True
        return self._stabilise(dict(sync.assignments), now_ms) if member.member_id == self.roster.leader else []

    def _stabilise(self, assignments: dict[str, bytes], now_ms: int) -> list[Decision]:
        self._move(ClassicState.STABLE)
        decisions: list[Decision] = [Save()]
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.awaits_sync:
                member.awaits_sync = False
                self._touch(member, now_ms)
                decisions.append(AnswerSync(member.member_id, self._sync_answer(member)))
        return decisions

    def _sync_answer(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(self.protocol_type or "", self.protocol_name or "", member.assignment)

    def heartbeat(self, member_id: str, instance_id: str | None, generation_id: int, now_ms: int) -> None:
        """Returns when all is well, raises RebalanceInProgress to call the member back to join."""
        self._check_alive()
        member = self.roster.find(member_id, instance_id)
        self._check_generation(generation_id)
        self._touch(member, now_ms)
        if self.state is ClassicState.PREPARING:
            raise self._in_progress()

    def leave(self, leaving: Iterable[LeavingMember], now_ms: int) -> tuple[list[LeaveResult], list[Decision]]:
        self._check_alive()
        results: list[LeaveResult] = []
        decisions: list[Decision] = []
        size = len(self.roster)
        for one in leaving:
            error: WaystationError | None = None
            try:
                # Without a member id, an administrator removes whoever has the instance id.
                member_id = one.member_id or self.roster.static(one.instance_id) or ""
                if member_id not in self.roster.pending:
                    self.roster.find(member_id, one.instance_id)
                decisions += self._dismiss(member_id)
            except WaystationError as caught:
                error = caught
            results.append(LeaveResult(one.member_id, one.instance_id, error))
        return results, [*decisions, *self._after_removal(now_ms, lost=size - len(self.roster))]

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Decision]:
        """Does everything whose time has come."""
        decisions: list[Decision] = []
        for timer in self._timers.due(now_ms):
            if timer in self._timers:
                continue  # set again by what was done just before
            if timer == _JOIN and self.state is ClassicState.PREPARING:
                decisions += self._join_time_is_up(now_ms)
            elif timer == _SYNC and self.state in (ClassicState.COMPLETING, ClassicState.STABLE):
                decisions += self._expire(sorted(self._unsynced), now_ms)
            elif timer[0] == "session":
                decisions += self._session_is_over(timer[1], now_ms)
        return decisions

    def _session_is_over(self, member_id: str, now_ms: int) -> list[Decision]:
        member = self.roster.members.get(member_id)
        if member is not None and not member.is_new and (member.awaits_join or member.awaits_sync):
            return []  # it waits for us; its session starts again with the answer
        return self._expire([member_id], now_ms)

    def _expire(self, member_ids: Sequence[str], now_ms: int) -> list[Decision]:
        size = len(self.roster)
        decisions = [decision for member_id in member_ids for decision in self._dismiss(member_id)]
        return [*decisions, *self._after_removal(now_ms, lost=size - len(self.roster))]

    # -- offsets ---------------------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, now_ms: int, *, transactional: bool
    ) -> None:
        """Raises unless this caller may commit offsets now. A commit counts as a sign of life."""
        self._check_alive()
        if generation_id < 0 and self.state is ClassicState.EMPTY:
            return  # a simple consumer or an administrator; nobody is in the way
        if generation_id >= 0 or member_id or instance_id is not None:
            member = self.roster.find(member_id, instance_id)
            self._check_generation(generation_id)
            self._touch(member, now_ms)
        elif not transactional:
            raise UnknownMember(f"group {self.group_id!r} has members; only they can commit its offsets")
        if self.state is ClassicState.COMPLETING and not transactional:
            raise self._in_progress()

    # -- restoring and ending --------------------------------------------------------------------------------

    def restore(
        self,
        *,
        generation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        leader: str | None,
        members: Collection[ClassicMember],
    ) -> None:
        """Takes the state a record holds. Sessions start with `start_sessions`, when the broker is ready."""
        self.generation_id = generation_id
        self.protocol_type = protocol_type or None
        self.protocol_name = protocol_name
        self.roster.replace(members, leader)
        self.state = ClassicState.STABLE if members else ClassicState.EMPTY

    def start_sessions(self, now_ms: int) -> None:
        for member in self.roster.members.values():
            self._touch(member, now_ms)

    def die(self) -> None:
        self._move(ClassicState.DEAD)

    # -- small parts -----------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.state is ClassicState.DEAD:
            raise CoordinatorUnavailable(
                f"group {self.group_id!r} was removed just now; look for its coordinator again"
            )

    def _check_generation(self, generation_id: int) -> None:
        if generation_id != self.generation_id:
            raise IllegalGeneration(
                f"group {self.group_id!r} is at generation {self.generation_id}, the request says {generation_id}"
            )

    def _in_progress(self) -> RebalanceInProgress:
        return RebalanceInProgress(f"group {self.group_id!r} is rebalancing; rejoin")

    def _touch(self, member: ClassicMember, now_ms: int) -> None:
        """The member lives. A new one cannot heartbeat before its join is answered, so it is given longer."""
        timeout_ms = self.settings.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
        self._timers.set(("session", member.member_id), now_ms + timeout_ms)

    def _dismiss(self, member_id: str) -> list[Decision]:
        """Removes a member (or a pending id) and answers what it still waits for, so that a living client rejoins."""
        self._timers.cancel(("session", member_id))
        self._unsynced.discard(member_id)
        member = self.roster.remove(member_id)
        if member is None:
            return []
        return self._answer_waiting(member, UnknownMember(f"{member_id!r} was removed from group {self.group_id!r}"))

    @staticmethod
    def _answer_waiting(member: ClassicMember, error: WaystationError) -> list[Decision]:
        decisions: list[Decision] = []
        if member.awaits_join:
            decisions.append(AnswerJoin(member.member_id, error))
        if member.awaits_sync:
            decisions.append(AnswerSync(member.member_id, error))
        member.awaits_join = member.awaits_sync = False
        return decisions

    def _after_removal(self, now_ms: int, *, lost: int) -> list[Decision]:
        if lost and self.state in (ClassicState.STABLE, ClassicState.COMPLETING):
            return self._rebalance(now_ms)
        if self.state is ClassicState.PREPARING and not self.roster.members and not self.roster.pending:
            return self._finish_joining(now_ms)  # nobody is left to wait for, not even in the initial wait
        return self._maybe_finish_joining(now_ms)

    def _move(self, new: ClassicState) -> None:
        check_move(self.state, new)
        self.state = new
