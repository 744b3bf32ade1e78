"""Classic groups through the coordinator: waiting, timers, durability, and what a restart remembers."""

from __future__ import annotations

import asyncio

import pytest

from tests.groups.kit import Stage, join, join_request, play, settle, sync_request
from waystation.errors import StorageFailed
from waystation.groups.machines.calls import LeavingMember, OffsetToCommit, SyncRequest
from waystation.groups.machines.errors import (
    CoordinatorUnavailable,
    InvalidGroupId,
    InvalidGroupRequest,
    InvalidSessionTimeout,
    RebalanceInProgress,
    TooManyGroups,
    UnknownMember,
)
from waystation.groups.machines.settings import GroupSettings


def state_of(stage: Stage, group_id: str = "g") -> str:
    return stage.coordinator.describe_groups([group_id])[0].state


def test_members_join_sync_and_live() -> None:
    async def story(stage: Stage) -> None:
        answers = await asyncio.gather(join(stage), join(stage), join(stage))
        assert {answer.generation_id for answer in answers} == {1}
        synced = await settle(stage, answers)
        assert [answer.assignment for answer in synced] == [answer.member_id.encode() for answer in answers]
        await stage.coordinator.heartbeat("g", answers[0].member_id, 1)
        view = stage.coordinator.describe_groups(["g"])[0]
        assert (view.state, view.protocol_name, len(view.members)) == ("Stable", "range", 3)
        assert stage.coordinator.waiting == 0

    play(story)


def test_an_assignment_is_durable_before_anyone_hears_of_it() -> None:
    async def story(stage: Stage) -> None:
        answer = await join(stage)
        log = stage.log_of("g")
        log.flush_s = 1.0
        syncing = asyncio.ensure_future(stage.coordinator.sync(sync_request(answer, g=b"")))
        await asyncio.sleep(0.9)
        assert not syncing.done()
        assert log.durable_count < len(log.batches)
        await syncing
        assert log.durable_count == len(log.batches)

    play(story)


def test_a_follower_that_syncs_while_the_assignment_is_written_waits_for_it_too() -> None:
    """Else it would work on partitions of which, after a crash, nobody knows that they are its own."""

    async def story(stage: Stage) -> None:
        leader, follower = await asyncio.gather(join(stage), join(stage))
        if leader.leader != leader.member_id:
            leader, follower = follower, leader
        log = stage.log_of("g")
        log.flush_s = 1.0
        given = sync_request(leader, **{leader.member_id: b"mine", follower.member_id: b"yours"})
        leading = asyncio.ensure_future(stage.coordinator.sync(given))
        await asyncio.sleep(0.5)
        following = asyncio.ensure_future(stage.coordinator.sync(sync_request(follower)))
        await asyncio.sleep(0.4)
        assert not leading.done()
        assert not following.done()
        assert (await following).assignment == b"yours"
        assert leading.done()
        assert log.durable_count == len(log.batches)

    play(story)


def test_a_static_member_whose_take_over_is_being_written_waits_for_it_when_it_asks_again() -> None:
    async def story(stage: Stage) -> None:
        first = await join(stage, instance_id="i")
        await settle(stage, [first])
        log = stage.log_of("g")
        log.flush_s = 1.0
        taking_over = asyncio.ensure_future(stage.coordinator.join(join_request(instance_id="i")))
        await asyncio.sleep(0.5)
        member_id = stage.coordinator.describe_groups(["g"])[0].members[0].member_id
        assert member_id != first.member_id
        asked = SyncRequest(group_id="g", member_id=member_id, generation_id=1, instance_id="i")
        again = asyncio.ensure_future(stage.coordinator.sync(asked))
        await asyncio.sleep(0.4)
        assert not taking_over.done()
        assert not again.done()
        await again
        assert log.durable_count == len(log.batches)

    play(story)


def test_a_dead_member_is_noticed_by_the_clock_alone() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [await join(stage)])
        assert state_of(stage) == "Stable"
        await asyncio.sleep(10.5)
        assert state_of(stage) == "Empty"

    play(story)


def test_a_join_whose_connection_is_gone_leaves_nothing_behind_but_its_member() -> None:
    async def story(stage: Stage) -> None:
        first = await join(stage)
        await settle(stage, [first])
        waiting = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        assert stage.coordinator.waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert stage.coordinator.waiting == 0
        assert state_of(stage) == "PreparingRebalance"
        again = await join(stage, member_id=first.member_id)
        assert len(again.members) == 2, "its client may be about to come back"
        await settle(stage, [again])
        for _ in range(12):
            await asyncio.sleep(1)
            try:
                await stage.coordinator.heartbeat("g", first.member_id, again.generation_id)
            except RebalanceInProgress:
                again = await join(stage, member_id=first.member_id)
                await settle(stage, [again])
        assert len(again.members) == 1, "it did not, and its session has ended"

    play(story)


def test_a_client_that_asks_twice_gets_one_answer_per_request() -> None:
    async def story(stage: Stage) -> None:
        first = await join(stage)
        await settle(stage, [first])
        other = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        # The member rejoins, its connection breaks unnoticed, it rejoins on a new one.
        blocked = asyncio.ensure_future(join(stage, session_timeout_ms=20_000))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(join(stage, member_id=first.member_id))
        await asyncio.gather(other, blocked, second)
        generation = second.result().generation_id
        assert generation == other.result().generation_id == blocked.result().generation_id == 2

        held = asyncio.ensure_future(stage.coordinator.sync(sync_request(other.result())))
        await asyncio.sleep(0.01)
        again = asyncio.ensure_future(stage.coordinator.sync(sync_request(other.result())))
        await asyncio.sleep(0.01)
        assert isinstance(held.exception(), RebalanceInProgress)
        await settle(stage, [second.result(), blocked.result()])
        await again

    play(story)


def test_a_restart_remembers_members_and_gives_them_a_full_session() -> None:
    async def story(stage: Stage) -> None:
        answers = await asyncio.gather(join(stage), join(stage, instance_id="s"))
        await settle(stage, answers)
        before = stage.coordinator.describe_groups(["g"])
        reborn = await stage.restart(only_durable=True)
        assert reborn.coordinator.describe_groups(["g"]) == before
        for answer in answers:
            instance = "s" if answer.member_id.startswith("s-") else None
            await reborn.coordinator.heartbeat("g", answer.member_id, 1, instance)
        await asyncio.sleep(9)
        assert state_of(reborn) == "Stable"
        await asyncio.sleep(2)
        # The dynamic one's silence starts a rebalance; nobody comes to it.
        assert state_of(reborn) != "Stable"
        await asyncio.sleep(120)
        assert state_of(reborn) == "Empty"
        await reborn.coordinator.close()

    play(story)


def test_a_group_that_emptied_stays_empty_after_a_restart() -> None:
    async def story(stage: Stage) -> None:
        answer = await join(stage)
        await settle(stage, [answer])
        results = await stage.coordinator.leave("g", [LeavingMember(answer.member_id)])
        assert results[0].error is None
        reborn = await stage.restart()
        assert state_of(reborn) == "Empty"
        assert (await join(reborn)).generation_id == 3
        await reborn.coordinator.close()

    play(story)


def test_a_full_disk_keeps_nobody_from_joining_and_reading() -> None:
    async def story(stage: Stage) -> None:
        answer = await join(stage)
        log = stage.log_of("g")
        log.failure = StorageFailed("disk full")
        synced = await stage.coordinator.sync(sync_request(answer, **{answer.member_id: b"x"}))
        assert synced.assignment == b"x"
        assert state_of(stage) == "Stable"
        log.failure = None
        again = await join(stage, member_id=answer.member_id)
        await settle(stage, [again])
        reborn = await stage.restart()
        assert state_of(reborn) == "Stable"
        await reborn.coordinator.close()

    play(story)


def test_closing_answers_everybody_who_waits() -> None:
    async def story(stage: Stage) -> None:
        waiting = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        await stage.coordinator.close()
        with pytest.raises(CoordinatorUnavailable):
            await waiting

    play(story)


def test_what_is_not_acceptable_is_refused_and_makes_no_group() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        refusals = [
            (join_request(group_id=""), InvalidGroupId),
            (join_request(group_id="x" * 2000), InvalidGroupId),
            (join_request(session_timeout_ms=5_999), InvalidSessionTimeout),
            (join_request(session_timeout_ms=1_800_001), InvalidSessionTimeout),
            (join_request(protocols=(("range", b"x" * 2_000_000),)), InvalidGroupRequest),
            (join_request(instance_id="x" * 2000), InvalidGroupRequest),
            (join_request(protocols=(("x" * 2000, b""),)), InvalidGroupRequest),
            (join_request(member_id="who"), UnknownMember),
        ]
        for request, error in refusals:
            with pytest.raises(error):
                await coordinator.join(request)
        assert coordinator.list_groups() == []
        with pytest.raises(UnknownMember):
            await coordinator.heartbeat("g", "m", 1)
        results = await coordinator.leave("g", [LeavingMember("m")])
        assert isinstance(results[0].error, UnknownMember)

    play(story)


def test_there_is_an_end_to_inventing_groups() -> None:
    async def story(stage: Stage) -> None:
        for number in range(3):
            await stage.coordinator.commit_offsets(f"g{number}", [OffsetToCommit("orders", 0, 1)])
        with pytest.raises(TooManyGroups):
            await stage.coordinator.commit_offsets("one too many", [OffsetToCommit("orders", 0, 1)])
        with pytest.raises(TooManyGroups):
            await join(stage)

    play(story, GroupSettings(max_groups=3))


def test_a_changed_setting_takes_effect_on_groups_that_exist() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [await join(stage)])
        stage.coordinator.settings = GroupSettings(min_session_timeout_ms=20_000)
        with pytest.raises(InvalidSessionTimeout):
            await join(stage)

    play(story)
