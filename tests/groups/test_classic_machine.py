"""Whatever classic members do, in whatever order: no illegal move, and every request is answered exactly once.

A machine plays members that join, sync, heartbeat, leave, restart and fall silent. It remembers which requests are
being held; each must be answered once, by an answer of the generation it belongs to. When all fall silent the group
empties.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.groups.kit import join_request, subscription
from waystation.errors import WaystationError
from waystation.groups.machines.calls import JoinAnswer, LeavingMember, SyncRequest
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_decisions import AnswerJoin, AnswerSync, Decision
from waystation.groups.machines.classic_states import ClassicState
from waystation.groups.machines.errors import MemberIdRequired
from waystation.groups.machines.settings import GroupSettings

SETTINGS = GroupSettings(max_group_size=4, new_member_join_timeout_ms=30_000)


class Members(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = ClassicGroup("g", SETTINGS)
        self.now_ms = 0
        self.number = 0
        self.joins: set[str] = set()
        self.syncs: set[str] = set()
        self.generations: dict[str, int] = {}
        self.instances: dict[str, str | None] = {}

    def note(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, AnswerJoin):
                self.joins.remove(decision.member_id)
                if isinstance(decision.answer, JoinAnswer):
                    assert decision.answer.generation_id == self.group.generation_id
                    assert decision.answer.member_id == decision.member_id
                    leads = decision.answer.leader == decision.member_id
                    assert bool(decision.answer.members) == leads
                    self.generations[decision.member_id] = decision.answer.generation_id
            elif isinstance(decision, AnswerSync):
                self.syncs.remove(decision.member_id)

    def known(self, data: st.DataObject) -> str:
        names = sorted(self.group.roster.members.keys() | self.group.roster.pending | self.generations.keys())
        return data.draw(st.sampled_from(names or ["nobody"]))

    @rule(
        instance=st.sampled_from([None, None, "s1", "s2"]),
        asks_for_id=st.booleans(),
        topic=st.sampled_from(["orders", "payments"]),
        skip=st.booleans(),
        session=st.sampled_from([6_000, 20_000]),
    )
    def join_again(self, instance: str | None, asks_for_id: bool, topic: str, skip: bool, session: int) -> None:
        self.number += 1
        name = f"m{self.number}"
        request = join_request(
            instance_id=instance,
            needs_member_id=asks_for_id,
            can_skip_assignment=skip,
            session_timeout_ms=session,
            protocols=(("range", subscription(topic)), ("sticky", subscription(topic))),
        )
        self.joins.add(name)
        try:
            self.note(self.group.join(request, name, self.now_ms))
            self.instances[name] = instance
        except MemberIdRequired as required:
            self.joins.discard(name)
            self.instances[required.member_id] = None
        except WaystationError:
            self.joins.discard(name)

    @rule(data=st.data(), topic=st.sampled_from(["orders", "payments"]))
    def rejoin(self, data: st.DataObject, topic: str) -> None:
        name = self.known(data)
        request = join_request(
            member_id=name,
            instance_id=self.instances.get(name),
            protocols=(("range", subscription(topic)), ("sticky", subscription(topic))),
        )
        held = name in self.joins  # a client that asks again: the shell answers its first request
        self.joins.add(name)
        try:
            self.note(self.group.join(request, "unused", self.now_ms))
        except WaystationError:
            if not held:
                self.joins.discard(name)

    @rule(data=st.data(), stale=st.booleans())
    def sync(self, data: st.DataObject, stale: bool) -> None:
        name = self.known(data)
        held = name in self.syncs
        self.syncs.add(name)
        request = SyncRequest(
            group_id="g",
            member_id=name,
            generation_id=self.generations.get(name, 0) - stale,
            instance_id=self.instances.get(name),
            assignments=tuple((other, other.encode()) for other in self.group.roster.members),
        )
        try:
            self.note(self.group.sync(request, self.now_ms))
        except WaystationError:
            if not held:
                self.syncs.discard(name)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        name = self.known(data)
        try:
            self.group.heartbeat(name, self.instances.get(name), self.generations.get(name, 0), self.now_ms)
        except WaystationError:
            pass

    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data: st.DataObject, by_instance: bool) -> None:
        name = self.known(data)
        leaving = LeavingMember("", self.instances.get(name)) if by_instance else LeavingMember(name)
        self.note(self.group.leave([leaving], self.now_ms)[1])

    @rule(ms=st.sampled_from([1, 60, 700, 5_000, 15_000, 61_000]))
    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while (at := self.group.next_deadline_ms()) is not None and at <= end:
            self.now_ms = max(at, self.now_ms)
            self.note(self.group.tick(self.now_ms))
        self.now_ms = end

    @precondition(lambda self: self.group.is_empty)
    @rule()
    def stays_empty(self) -> None:
        assert not self.group.roster.members

    @invariant()
    def it_agrees_with_itself(self) -> None:
        roster, state = self.group.roster, self.group.state
        assert {name for name, member in roster.members.items() if member.awaits_join} == self.joins
        assert {name for name, member in roster.members.items() if member.awaits_sync} == self.syncs
        assert not self.joins or state is ClassicState.PREPARING
        assert not self.syncs or state is ClassicState.COMPLETING
        assert (roster.leader in roster.members) == bool(roster.members)
        assert not roster.pending & roster.members.keys()
        assert len(roster.members) + len(roster.pending) <= SETTINGS.max_group_size
        assert state is not ClassicState.EMPTY or not roster.members
        assert (state is ClassicState.EMPTY) or roster.members or roster.pending
        assert self.group.next_deadline_ms() is not None or (not roster.members and not roster.pending)

    def teardown(self) -> None:
        self.pass_time(600_000)
        assert not self.joins
        assert not self.syncs
        assert self.group.state is ClassicState.EMPTY
        assert not self.group.roster.pending


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
