"""A classic group's life, told as stories. Time is a number; decisions are read off one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.kit import join_request, subscription, sync_request
from waystation.errors import WaystationError
from waystation.groups.machines.calls import JoinAnswer, LeavingMember, SyncAnswer, SyncRequest
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_decisions import AnswerJoin, AnswerSync, Decision, Save
from waystation.groups.machines.classic_states import MOVES, ClassicState, moves_table
from waystation.groups.machines.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from waystation.groups.machines.settings import GroupSettings

SETTINGS = GroupSettings(initial_rebalance_delay_ms=100, initial_rebalance_limit_ms=1_000, max_group_size=5)


class Story:
    """A group, the time, and what was decided so far; `joined` and `synced` are the newest answers by member."""

    def __init__(self) -> None:
        self.group = ClassicGroup("g", SETTINGS)
        self.now_ms = 0
        self.joined: dict[str, JoinAnswer] = {}
        self.synced: dict[str, SyncAnswer] = {}
        self.refused: dict[str, WaystationError] = {}
        self.saves = 0

    def join(self, name: str, member_id: str = "", **changes: Any) -> None:
        """`name` is the id that a new member gets (and the id of an old one, unless said otherwise)."""
        changes = {"needs_member_id": False} | changes
        known = name if name in self.group.roster.members else member_id
        self._note(self.group.join(join_request(member_id=known, **changes), name, self.now_ms))

    def sync(self, name: str, **assignments: bytes) -> None:
        self._note(self.group.sync(sync_request(self.joined[name], **assignments), self.now_ms))

    def leave(self, *names: str) -> None:
        results, decisions = self.group.leave([LeavingMember(name) for name in names], self.now_ms)
        assert [result.error for result in results] == [None] * len(names)
        self._note(decisions)

    def beat(self, name: str) -> None:
        self.group.heartbeat(name, None, self.group.generation_id, self.now_ms)

    def wait(self, ms: int) -> None:
        """Lets time pass, ringing at every deadline on the way."""
        end = self.now_ms + ms
        while (at := self.group.next_deadline_ms()) is not None and at <= end:
            self.now_ms = max(at, self.now_ms)
            self._note(self.group.tick(self.now_ms))
        self.now_ms = end

    def _note(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Save):
                self.saves += 1
            elif isinstance(decision.answer, WaystationError):
                self.refused[decision.member_id] = decision.answer
            elif isinstance(decision, AnswerJoin) and isinstance(decision.answer, JoinAnswer):
                self.joined[decision.member_id] = decision.answer
            elif isinstance(decision, AnswerSync) and isinstance(decision.answer, SyncAnswer):
                self.synced[decision.member_id] = decision.answer

    @property
    def state(self) -> ClassicState:
        return self.group.state


def settled(*names: str, **changes: Any) -> Story:
    """A stable group of these members, the first one leading."""
    story = Story()
    for name in names:
        story.join(name, **changes)
    story.wait(300)
    for name in reversed(names):
        story.sync(name, **({other: other.encode() for other in names} if name == names[0] else {}))
    assert story.state is ClassicState.STABLE
    return story


# -- forming a generation ----------------------------------------------------------------------------------------


def test_members_that_start_together_share_the_first_generation() -> None:
    story = Story()
    story.join("a")
    story.wait(60)
    story.join("b")
    story.wait(90)  # 150 ms after a, but only 90 after b: the wait was prolonged
    assert not story.joined
    story.wait(110)
    assert story.state is ClassicState.COMPLETING
    assert story.joined["a"].generation_id == story.joined["b"].generation_id == 1
    assert story.joined["a"].leader == story.joined["b"].leader == "a"
    assert {member.member_id for member in story.joined["a"].members} == {"a", "b"}
    assert story.joined["b"].members == ()


def test_a_stream_of_newcomers_cannot_prolong_the_first_wait_forever() -> None:
    story = Story()
    for number in range(4):
        story.join(f"m{number}")
        story.wait(70)
    story.wait(5_000)
    assert story.joined["m0"].generation_id == 1
    assert len(story.joined["m0"].members) == 4


def test_a_member_that_has_its_id_and_is_about_to_join_is_waited_for() -> None:
    story = Story()
    story.join("a")
    story.wait(90)
    with pytest.raises(MemberIdRequired):
        story.join("b", needs_member_id=True)
    story.wait(50)
    assert not story.joined
    story.join("b", member_id="b")
    story.wait(300)
    assert {member.member_id for member in story.joined["a"].members} == {"a", "b"}


def test_an_id_that_is_never_used_is_forgotten() -> None:
    story = settled("a")
    with pytest.raises(MemberIdRequired):
        story.join("ghost", needs_member_id=True)
    assert story.group.roster.pending == {"ghost"}
    for _ in range(4):
        story.wait(3_000)
        story.beat("a")
    assert not story.group.roster.pending
    assert story.state is ClassicState.STABLE, "an id that nobody used is no reason to rebalance"


def test_the_leaders_assignment_reaches_every_member_and_is_saved_once() -> None:
    story = Story()
    story.join("a")
    story.join("b")
    story.wait(300)
    story.sync("b")
    assert "b" not in story.synced
    story.sync("a", a=b"left", b=b"right")
    assert story.synced["a"].assignment == b"left"
    assert story.synced["b"].assignment == b"right"
    assert story.saves == 1
    assert story.state is ClassicState.STABLE


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    story = Story()
    story.join("a")
    story.join("b")
    story.wait(300)
    story.sync("b")
    story.sync("a", a=b"everything")
    assert story.synced["b"].assignment == b""


def test_the_protocol_that_most_members_prefer_and_all_support_is_chosen() -> None:
    story = Story()
    story.join("a", protocols=(("sticky", b"1"), ("range", b"1"), ("rare", b"1")))
    story.join("b", protocols=(("range", b"2"), ("sticky", b"2")))
    story.join("c", protocols=(("range", b"3"), ("sticky", b"3")))
    story.wait(300)
    assert story.joined["a"].protocol_name == "range"
    assert [member.metadata for member in story.joined["a"].members] == [b"1", b"2", b"3"]


def test_a_draw_is_decided_by_the_leader() -> None:
    story = Story()
    story.join("a", protocols=(("sticky", b""), ("range", b"")))
    story.join("b", protocols=(("range", b""), ("sticky", b"")))
    story.wait(300)
    assert story.joined["b"].protocol_name == "sticky"


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": (("other", b""),)}, {"protocols": ()}, {"protocol_type": ""}],
)
def test_a_member_that_has_nothing_in_common_with_the_group_is_refused(changes: dict[str, Any]) -> None:
    story = settled("a")
    with pytest.raises(InconsistentProtocol):
        story.join("b", **changes)
    assert story.state is ClassicState.STABLE


def test_a_full_group_takes_no_more_members() -> None:
    story = settled("a", "b", "c", "d", "e")
    with pytest.raises(GroupFull):
        story.join("f")
    story.join("a")  # whoever is in it may rejoin
    assert story.state is ClassicState.PREPARING


# -- rebalancing -------------------------------------------------------------------------------------------------


def test_a_newcomer_calls_everybody_back() -> None:
    story = settled("a")
    story.join("b")
    with pytest.raises(RebalanceInProgress):
        story.beat("a")
    assert story.joined["a"].generation_id == 1
    story.join("a")
    assert story.joined["a"].generation_id == story.joined["b"].generation_id == 2
    assert story.state is ClassicState.COMPLETING


def test_who_does_not_come_back_in_time_is_left_behind() -> None:
    story = settled("a", "b", rebalance_timeout_ms=5_000)
    story.join("b", rebalance_timeout_ms=5_000, protocols=(("range", subscription("orders", "more")),))
    assert story.state is ClassicState.PREPARING
    story.wait(5_000)
    assert story.joined["b"].generation_id == 2
    assert story.joined["b"].leader == "b"
    assert set(story.group.roster.members) == {"b"}
    with pytest.raises(UnknownMember):
        story.beat("a")


def test_a_silent_member_loses_its_place_and_the_others_share_its_work() -> None:
    story = settled("a", "b")
    for _ in range(4):
        story.wait(3_000)
        if story.state is ClassicState.STABLE:
            story.beat("b")
    assert set(story.group.roster.members) == {"b"}
    assert story.group.roster.leader == "b"
    story.join("b")
    assert story.joined["b"].generation_id == 2


def test_a_member_that_waits_for_us_cannot_time_out() -> None:
    story = settled("a", "b", rebalance_timeout_ms=60_000)
    story.join("b", protocols=(("range", subscription("orders", "more")),))
    for _ in range(10):  # far beyond b's session: its join is still being held
        story.wait(5_000)
        with pytest.raises(RebalanceInProgress):
            story.beat("a")
    assert "b" in story.group.roster.members
    story.join("a")
    assert story.joined["b"].generation_id == 2


def test_a_member_whose_answer_comes_at_the_very_end_of_its_session_lives_on() -> None:
    """An id that nobody uses holds the rebalance up; it expires in the same moment as the waiting member's session."""
    story = settled("a", session_timeout_ms=6_000)
    with pytest.raises(MemberIdRequired):
        story.join("ghost", needs_member_id=True, session_timeout_ms=6_000)
    story.beat("a")
    story.join("a", session_timeout_ms=6_000)
    story.wait(6_000)
    assert story.joined["a"].generation_id == 2
    assert story.state is ClassicState.COMPLETING
    story.sync("a", a=b"all")


def test_who_joins_but_never_syncs_is_removed() -> None:
    story = Story()
    story.join("a", rebalance_timeout_ms=8_000)
    story.join("b", rebalance_timeout_ms=8_000)
    story.wait(300)
    story.sync("a", a=b"all", b=b"")
    for _ in range(3):
        story.wait(3_000)
        if story.state is ClassicState.STABLE:
            story.beat("a")
            story.beat("b")
    assert set(story.group.roster.members) == {"a"}


def test_a_change_while_syncing_sends_everybody_back_to_join() -> None:
    story = Story()
    story.join("a")
    story.join("b")
    story.wait(300)
    story.sync("b")
    story.join("c")
    assert isinstance(story.refused["b"], RebalanceInProgress)
    story.join("a")
    story.join("b")
    assert story.joined["c"].generation_id == 2
    with pytest.raises(IllegalGeneration):
        story.group.sync(
            SyncRequest(group_id="g", member_id="a", generation_id=1, assignments=(("a", b"old"),)), story.now_ms
        )


def test_a_follower_that_asks_again_gets_the_same_answer_without_a_rebalance() -> None:
    story = settled("a", "b")
    story.join("b")
    assert story.state is ClassicState.STABLE
    assert story.joined["b"].generation_id == 1
    story.sync("b")
    assert story.synced["b"].assignment == b"b"


def test_a_leader_that_rejoins_has_a_reason_and_starts_a_rebalance() -> None:
    story = settled("a", "b")
    story.join("a")
    assert story.state is ClassicState.PREPARING


def test_the_last_member_to_leave_turns_off_the_light() -> None:
    story = settled("a", "b")
    story.leave("a")
    story.join("b")
    story.sync("b", b=b"all")
    saves = story.saves
    story.leave("b")
    assert story.state is ClassicState.EMPTY
    assert story.saves == saves + 1
    assert story.group.generation_id == 3


def test_leaving_answers_the_join_that_is_held() -> None:
    story = settled("a")
    story.join("b")
    story.leave("b")
    assert isinstance(story.refused["b"], UnknownMember)
    story.join("a")
    assert [member.member_id for member in story.joined["a"].members] == ["a"]


def test_several_members_leave_at_once_and_each_gets_its_own_answer() -> None:
    story = settled("a", "b", "c")
    results, _ = story.group.leave([LeavingMember("a"), LeavingMember("nobody"), LeavingMember("b")], story.now_ms)
    assert [type(result.error) for result in results] == [type(None), UnknownMember, type(None)]
    assert set(story.group.roster.members) == {"c"}
    assert story.state is ClassicState.PREPARING


# -- static members ----------------------------------------------------------------------------------------------


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    story = settled("a", "b", instance_id=None)
    story.join("s1", instance_id="s")
    for name in ("a", "b"):
        story.join(name)
    for name in ("b", "s1", "a"):
        story.sync(name, **({"s1": b"mine"} if name == "a" else {}))
    generation = story.group.generation_id
    # It does not list what it owned, so its metadata differs; its topics are the same.
    story.join("s2", instance_id="s", protocols=(("range", subscription("orders", owned=b"???")),))
    assert story.state is ClassicState.STABLE
    assert story.joined["s2"].generation_id == generation
    story.sync("s2")
    assert story.synced["s2"].assignment == b"mine"
    with pytest.raises(FencedInstance):
        story.group.heartbeat("s1", "s", generation, story.now_ms)


def test_a_static_leader_that_restarts_is_told_not_to_assign() -> None:
    story = settled("s1", instance_id="s")
    story.join("s2", instance_id="s")
    answer = story.joined["s2"]
    assert answer.leader == "s2"
    assert answer.skip_assignment
    assert [member.member_id for member in answer.members] == ["s2"]


def test_an_older_static_leader_hears_of_the_leader_that_was_and_does_not_assign() -> None:
    story = settled("s1", instance_id="s")
    story.join("s2", instance_id="s", can_skip_assignment=False)
    assert story.joined["s2"].leader == "s1"
    assert story.joined["s2"].members == ()


def test_a_static_member_that_restarts_with_other_topics_causes_a_rebalance() -> None:
    story = settled("s1", instance_id="s")
    story.join("s2", instance_id="s", protocols=(("range", subscription("payments")),))
    assert story.joined["s2"].generation_id == 2
    assert not story.joined["s2"].skip_assignment


def test_a_twin_fences_the_one_before_it_even_while_that_waits() -> None:
    story = settled("a")
    story.join("s1", instance_id="s")
    story.join("s2", instance_id="s")
    assert isinstance(story.refused["s1"], FencedInstance)
    story.join("a")
    assert {member.member_id for member in story.joined["a"].members} == {"a", "s2"}


def test_a_static_member_is_waited_for_until_its_session_ends() -> None:
    story = settled("a", rebalance_timeout_ms=2_000)
    story.join("s1", instance_id="s", session_timeout_ms=30_000, rebalance_timeout_ms=2_000)
    story.join("a", rebalance_timeout_ms=2_000)
    for name in ("s1", "a"):
        story.sync(name)
    story.join("b", rebalance_timeout_ms=2_000)
    story.join("a", rebalance_timeout_ms=2_000)
    story.wait(2_000)  # s1 is away; it keeps its place in the next generation
    assert {member.member_id for member in story.joined["a"].members} == {"a", "b", "s1"}


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    story = settled("s1", instance_id="s")
    results, _ = story.group.leave([LeavingMember("", "s"), LeavingMember("", "t")], story.now_ms)
    assert results[0].error is None
    assert isinstance(results[1].error, UnknownMember)
    assert story.state is ClassicState.EMPTY


# -- requests from the past --------------------------------------------------------------------------------------


def test_heartbeats_of_another_generation_and_of_strangers_are_refused() -> None:
    story = settled("a")
    with pytest.raises(IllegalGeneration):
        story.group.heartbeat("a", None, 0, story.now_ms)
    with pytest.raises(UnknownMember):
        story.beat("nobody")


def test_a_sync_for_another_protocol_is_refused() -> None:
    story = Story()
    story.join("a")
    story.wait(300)
    request = SyncRequest(group_id="g", member_id="a", generation_id=1, protocol_name="sticky")
    with pytest.raises(InconsistentProtocol):
        story.group.sync(request, story.now_ms)


def test_who_may_commit_offsets() -> None:
    story = Story()
    commit = story.group.check_commit
    commit("", None, -1, 0, transactional=False)  # nobody is in the group: a simple consumer may
    story.join("a")
    story.wait(300)
    with pytest.raises(RebalanceInProgress):
        commit("a", None, 1, story.now_ms, transactional=False)
    commit("a", None, 1, story.now_ms, transactional=True)
    story.sync("a", a=b"all")
    commit("a", None, 1, story.now_ms, transactional=False)
    with pytest.raises(IllegalGeneration):
        commit("a", None, 0, story.now_ms, transactional=False)
    with pytest.raises(UnknownMember):
        commit("", None, -1, story.now_ms, transactional=False)
    commit("", None, -1, story.now_ms, transactional=True)
    story.join("b")
    commit("a", None, 1, story.now_ms, transactional=False)  # before it rejoins it hands in what it has done


def test_the_table_of_moves_names_every_state() -> None:
    text = moves_table()
    assert all(state.value in text for state in ClassicState)
    assert len(text.splitlines()) == len(MOVES)
