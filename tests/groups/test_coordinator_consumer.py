"""KIP-848 groups through the coordinator: durability, restarts, timers, and groups that change their protocol."""

from __future__ import annotations

import asyncio

import pytest

from tests.groups.kit import Stage, first_beat, join, play, settle
from waystation.errors import InvalidPattern, InvalidSetting, StorageFailed
from waystation.groups.machines.calls import ConsumerBeat, ConsumerBeatAnswer, LeavingMember, OffsetToCommit
from waystation.groups.machines.errors import (
    InconsistentProtocol,
    InvalidGroupRequest,
    TooManyGroups,
    UnknownGroup,
    UnknownMember,
    UnsupportedAssignor,
)
from waystation.groups.machines.settings import GroupSettings


async def beat(stage: Stage, answer: ConsumerBeatAnswer, **changes: object) -> ConsumerBeatAnswer:
    values: dict[str, object] = {"member_id": answer.member_id, "member_epoch": answer.member_epoch}
    return await stage.coordinator.consumer_heartbeat(ConsumerBeat(group_id="g", **(values | changes)))  # type: ignore[arg-type]


def test_an_epoch_is_durable_before_its_member_hears_of_it() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.flush_s = 1.0
        joining = asyncio.ensure_future(stage.coordinator.consumer_heartbeat(first_beat("a")))
        await asyncio.sleep(0.9)
        assert not joining.done()
        await joining
        assert log.durable_count == len(log.batches)
        count = len(log.batches)
        await beat(stage, joining.result())
        assert len(log.batches) == count, "a heartbeat that changes nothing writes nothing"

    play(story)


def test_a_restart_remembers_who_has_what() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.coordinator.consumer_heartbeat(first_beat("a"))
        await stage.coordinator.consumer_heartbeat(first_beat("b"))
        first = await beat(stage, first)  # told to let go of two, in the middle of which the broker dies
        before = stage.coordinator.describe_consumer_groups(["g"])
        reborn = await stage.restart(only_durable=True)
        assert reborn.coordinator.describe_consumer_groups(["g"]) == before
        second = await reborn.coordinator.consumer_heartbeat(
            ConsumerBeat(group_id="g", member_id="b", member_epoch=before[0].members[1].member_epoch)
        )
        assert not second.assignment
        await beat(reborn, first, owned=first.assignment)
        second = await beat(reborn, second)
        assert len(second.assignment or ()) == 2
        await asyncio.sleep(44)
        assert len(reborn.coordinator.describe_consumer_groups(["g"])[0].members) == 2
        await asyncio.sleep(2)
        assert reborn.coordinator.describe_consumer_groups(["g"])[0].state == "Empty"
        await reborn.coordinator.close()

    play(story)


def test_who_lived_in_a_broker_that_was_restarted_is_not_waited_for() -> None:
    async def story(stage: Stage) -> None:
        await stage.coordinator.consumer_heartbeat(first_beat("inside"))
        await stage.coordinator.consumer_heartbeat(first_beat("kafka", client_host="10.0.0.1"))
        for restarted, members in ((False, ["inside", "kafka"]), (True, ["kafka"]), (False, ["kafka"])):
            reborn = await stage.restart(restarted=restarted)
            await asyncio.sleep(0.1)
            view = reborn.coordinator.describe_consumer_groups(["g"])[0]
            assert [member.member_id for member in view.members] == members
            stage.logs = reborn.logs
            await reborn.coordinator.close()

    play(story)


def test_members_that_left_do_not_come_back_with_a_restart() -> None:
    async def story(stage: Stage) -> None:
        for name in "abc":
            await stage.coordinator.consumer_heartbeat(first_beat(name))
        await stage.coordinator.consumer_heartbeat(ConsumerBeat(group_id="g", member_id="b", member_epoch=-1))
        for compacted in (False, True):
            reborn = await stage.restart(compacted=compacted)
            view = reborn.coordinator.describe_consumer_groups(["g"])[0]
            assert [member.member_id for member in view.members] == ["a", "c"]
            await reborn.coordinator.close()

    play(story)


def test_topics_that_changed_while_the_broker_was_down_are_noticed() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.coordinator.consumer_heartbeat(first_beat("a", "orders", "later"))
        stage.topics._counts["later"] = 3
        reborn = await stage.restart()
        await asyncio.sleep(0.01)
        first = await beat(reborn, first)
        assert len(first.assignment or ()) == 7
        await reborn.coordinator.close()

    play(story)


def test_topics_that_change_reach_the_group_through_the_coordinator() -> None:
    async def story(stage: Stage) -> None:
        first = await stage.coordinator.consumer_heartbeat(first_beat("a", topics=None, pattern="or.*"))
        stage.topics.put("orange", 1)
        stage.topics.put("oregano", 1)
        await asyncio.sleep(0.01)
        first = await beat(stage, first)
        assert len(first.assignment or ()) == 6

    play(story)


def test_a_group_has_its_own_session_timeout_and_interval_also_after_a_restart() -> None:
    async def story(stage: Stage) -> None:
        own = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "9000"}
        await stage.coordinator.alter_settings("g", own)  # before there is a group
        answer = await stage.coordinator.consumer_heartbeat(first_beat("a"))
        other = await stage.coordinator.consumer_heartbeat(first_beat("z", group_id="other"))
        for at_rest_s in (20, 20, 20):
            await asyncio.sleep(at_rest_s)
            answer = await beat(stage, answer)
        assert (answer.heartbeat_interval_ms, other.heartbeat_interval_ms) == (9_000, 250)
        stage = await stage.restart(only_durable=True, compacted=True)
        assert stage.coordinator.own_settings("g") == own
        assert stage.coordinator.groups_with_settings() == ["g"]
        await asyncio.sleep(59)
        assert len(stage.coordinator.describe_consumer_groups(["g"])[0].members) == 1, "45 s is the broker's"
        await asyncio.sleep(2)
        assert stage.coordinator.describe_consumer_groups(["g"])[0].state == "Empty"
        await stage.coordinator.alter_settings("g", {})
        stage = await stage.restart(only_durable=True)
        assert stage.coordinator.groups_with_settings() == []
        await stage.coordinator.close()

    play(story)


@pytest.mark.parametrize(
    "own",
    [
        {"consumer.session.timeout.ms": "44999"},
        {"consumer.session.timeout.ms": "60001"},
        {"consumer.heartbeat.interval.ms": "4999"},
        {"consumer.heartbeat.interval.ms": "often"},
        {"share.session.timeout.ms": "50000"},
    ],
)
def test_a_group_cannot_have_settings_outside_of_the_brokers_limits(own: dict[str, str]) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(InvalidSetting):
            await stage.coordinator.alter_settings("g", own)
        assert stage.coordinator.groups_with_settings() == []

    play(story)


def test_a_session_is_longer_than_the_heartbeat_interval() -> None:
    async def story(stage: Stage) -> None:
        await stage.coordinator.alter_settings("g", {"consumer.session.timeout.ms": "9001"})
        with pytest.raises(InvalidSetting, match="has to be above"):
            await stage.coordinator.alter_settings("g", {"consumer.session.timeout.ms": "5000"})

    wide = GroupSettings(consumer_session_timeout_bounds_ms=(1, 60_000))
    play(story, wide)


def test_groups_with_settings_are_bounded() -> None:
    async def story(stage: Stage) -> None:
        own = {"consumer.session.timeout.ms": "50000"}
        for name in ("a", "b"):
            await stage.coordinator.alter_settings(name, own)
        with pytest.raises(TooManyGroups):
            await stage.coordinator.alter_settings("c", own)
        await stage.coordinator.alter_settings("a", {"consumer.session.timeout.ms": "51000"})

    play(story, GroupSettings(max_groups=2))


def test_what_could_not_be_written_is_written_with_the_next_change() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.failure = StorageFailed("disk full")
        answer = await stage.coordinator.consumer_heartbeat(first_beat("a"))
        assert answer.assignment  # a full disk keeps nobody from reading
        log.failure = None
        await stage.coordinator.consumer_heartbeat(first_beat("b"))
        reborn = await stage.restart(only_durable=True)
        view = reborn.coordinator.describe_consumer_groups(["g"])[0]
        assert [member.member_id for member in view.members] == ["a", "b"]
        await reborn.coordinator.close()

    play(story)


def test_what_is_not_acceptable_is_refused_and_makes_no_group() -> None:
    async def story(stage: Stage) -> None:
        refusals: list[tuple[ConsumerBeat, type[Exception]]] = [
            (first_beat(""), InvalidGroupRequest),
            (first_beat("a", rebalance_timeout_ms=-1), InvalidGroupRequest),
            (first_beat("a", topics=(), pattern=None), InvalidGroupRequest),
            (first_beat("a", owned=None), InvalidGroupRequest),
            (first_beat("a", member_epoch=-3), InvalidGroupRequest),
            (first_beat("a", member_epoch=-2), InvalidGroupRequest),
            (first_beat("a", instance_id=""), InvalidGroupRequest),
            (first_beat("a", assignor="magic"), UnsupportedAssignor),
            (first_beat("a", pattern="["), InvalidPattern),
            (first_beat("a", member_epoch=3), UnknownMember),
            (first_beat("a", member_epoch=-1), UnknownMember),
        ]
        for wrong, error in refusals:
            with pytest.raises(error):
                await stage.coordinator.consumer_heartbeat(wrong)
        assert stage.coordinator.list_groups() == []
        assert isinstance(stage.coordinator.describe_consumer_groups(["g"])[0].error, UnknownGroup)

    play(story)


# -- from one protocol to the other ------------------------------------------------------------------------------


def test_a_group_without_members_may_change_its_protocol_and_keeps_its_offsets() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        answer = await join(stage)
        await settle(stage, [answer])
        await coordinator.commit_offsets(
            "g", [OffsetToCommit("orders", 0, 5)], member_id=answer.member_id, generation_id=1
        )
        with pytest.raises(InconsistentProtocol):
            await coordinator.consumer_heartbeat(first_beat("a"))
        await coordinator.leave("g", [LeavingMember(answer.member_id)])

        await coordinator.consumer_heartbeat(first_beat("a"))
        assert [listing.kind for listing in coordinator.list_groups()] == ["Consumer"]
        assert coordinator.fetch_offsets("g")[0].offset == 5
        with pytest.raises(UnknownMember):
            await coordinator.heartbeat("g", answer.member_id, 1)
        await coordinator.consumer_heartbeat(ConsumerBeat(group_id="g", member_id="a", member_epoch=-1))

        back = await join(stage)
        await settle(stage, [back])
        assert [listing.kind for listing in coordinator.list_groups()] == ["Classic"]
        for compacted in (False, True):
            reborn = await stage.restart(compacted=compacted)
            assert [listing.kind for listing in reborn.coordinator.list_groups()] == ["Classic"]
            assert reborn.coordinator.fetch_offsets("g")[0].offset == 5
            await reborn.coordinator.close()

    play(story)


def test_a_request_that_is_refused_does_not_convert_a_group_either() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        await coordinator.commit_offsets("g", [OffsetToCommit("orders", 0, 5)])
        with pytest.raises(InvalidPattern):
            await coordinator.consumer_heartbeat(first_beat("a", pattern="("))
        assert [listing.kind for listing in coordinator.list_groups()] == ["Classic"]
        await coordinator.consumer_heartbeat(first_beat("a"))
        await coordinator.consumer_heartbeat(ConsumerBeat(group_id="g", member_id="a", member_epoch=-1))
        with pytest.raises(InconsistentProtocol):
            await join(stage, protocols=())
        assert [listing.kind for listing in coordinator.list_groups()] == ["Consumer"]

    play(story)


def test_a_stray_request_of_the_other_protocol_does_not_convert_a_group() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        await coordinator.consumer_heartbeat(first_beat("a"))
        await coordinator.consumer_heartbeat(ConsumerBeat(group_id="g", member_id="a", member_epoch=-1))
        with pytest.raises(UnknownMember):
            await join(stage, member_id="from another time")
        assert [listing.kind for listing in coordinator.list_groups()] == ["Consumer"]

    play(story)
