"""A coordinator leads some partitions of its state and not others: what it leads it knows from the log, and what it
does not lead it knows nothing of."""

from __future__ import annotations

import asyncio

import pytest

from tests.groups.kit import Stage, first_beat, join, play, settle
from waystation.groups.machines.calls import OffsetToCommit
from waystation.groups.machines.errors import NotCoordinator
from waystation.protocols.kafka.requests.errors_map import code_of


async def commit(stage: Stage, offset: int, group_id: str = "g") -> None:
    [result] = await stage.coordinator.commit_offsets(group_id, [OffsetToCommit("orders", 0, offset)])
    assert result.error is None


def test_what_is_not_led_is_refused_with_the_code_that_makes_clients_look_for_the_coordinator() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [first := await join(stage)])
        stage.coordinator.drop(stage.coordinator.partition_for("g"))
        with pytest.raises(NotCoordinator) as refused:
            await stage.coordinator.heartbeat("g", first.member_id, 1)
        assert code_of(refused.value).name == "not_coordinator"
        stage.coordinator.tell_whereabouts(lambda partition: f"on node 2, for {partition}")
        at = stage.coordinator.partition_for("g")
        with pytest.raises(NotCoordinator, match=f"^the coordinator of group 'g' is on node 2, for {at}$"):
            await stage.coordinator.heartbeat("g", first.member_id, 1)
        for ask in (
            lambda: join(stage),
            lambda: commit(stage, 6),
            lambda: stage.coordinator.consumer_heartbeat(first_beat("m")),
        ):
            with pytest.raises(NotCoordinator):
                await ask()
        with pytest.raises(NotCoordinator):
            stage.coordinator.fetch_offsets("g")
        assert stage.coordinator.list_groups() == []

    play(story)


def test_groups_of_other_partitions_go_on() -> None:
    async def story(stage: Stage) -> None:
        mine = stage.coordinator.partition_for("g")
        other = next(name for name in map(str, range(100)) if stage.coordinator.partition_for(name) != mine)
        await commit(stage, 5, other)
        stage.coordinator.drop(mine)
        await commit(stage, 6, other)
        assert stage.coordinator.fetch_offsets(other)[0].offset == 6

    play(story)


def test_who_waits_when_leadership_goes_is_told_at_once() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [await join(stage)])
        waiting = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        assert stage.coordinator.waiting == 1
        stage.coordinator.drop(stage.coordinator.partition_for("g"))
        with pytest.raises(NotCoordinator):
            await waiting
        assert stage.coordinator.waiting == 0

    play(story)


def test_a_partition_that_is_led_again_is_what_its_log_says() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [member := await join(stage)])
        await commit(stage, 5, "simple")
        partitions = {stage.coordinator.partition_for(name) for name in ("g", "simple")}
        for partition in partitions:
            stage.coordinator.drop(partition)
        await asyncio.sleep(60)  # longer than any session: nobody's time runs where nobody leads
        for partition in partitions:
            stage.coordinator.lead(stage.log_for(partition))
        assert stage.coordinator.fetch_offsets("simple")[0].offset == 5
        await stage.coordinator.heartbeat("g", member.member_id, member.generation_id)
        await asyncio.sleep(60)
        assert stage.coordinator.describe_groups(["g"])[0].state == "Empty", "its session runs again"

    play(story)
