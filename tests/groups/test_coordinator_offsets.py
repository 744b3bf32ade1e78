"""Offsets through the coordinator: who may commit, what is durable, transactions, expiry, administration."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.groups.kit import Stage, first_beat, join, play, settle
from waystation.errors import StorageFailed, UnknownTopic
from waystation.groups.machines.calls import FetchedOffset, LeavingMember, OffsetToCommit
from waystation.groups.machines.errors import (
    CoordinatorUnavailable,
    GroupSubscribed,
    IllegalGeneration,
    InvalidGroupRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from waystation.groups.machines.settings import GroupSettings

DAY_MS = 86_400_000


async def commit(stage: Stage, offset: int, topic: str = "orders", partition: int = 0, group_id: str = "g") -> None:
    results = await stage.coordinator.commit_offsets(group_id, [OffsetToCommit(topic, partition, offset)])
    assert results[0].error is None


def offset_of(stage: Stage, topic: str = "orders", partition: int = 0, group_id: str = "g") -> int:
    return stage.coordinator.fetch_offsets(group_id, [(topic, partition)])[0].offset


def test_a_simple_consumer_commits_and_finds_its_offsets_after_a_restart() -> None:
    async def story(stage: Stage) -> None:
        offsets = [OffsetToCommit("orders", 0, 5, 2, "note"), OffsetToCommit("orders", 1, 6)]
        await stage.coordinator.commit_offsets("g", offsets)
        found = [FetchedOffset("orders", 0, 5, 2, "note"), FetchedOffset("orders", 1, 6)]
        assert stage.coordinator.fetch_offsets("g") == found
        reborn = await stage.restart(only_durable=True)
        assert reborn.coordinator.fetch_offsets("g") == found
        assert reborn.coordinator.fetch_offsets("g", [("orders", 3)]) == [FetchedOffset("orders", 3)]
        assert [(listing.state, listing.kind) for listing in reborn.coordinator.list_groups()] == [("Empty", "Classic")]
        await reborn.coordinator.close()

    play(story)


def test_a_commit_is_answered_when_it_is_durable() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.flush_s = 1.0
        committing = asyncio.ensure_future(commit(stage, 5))
        await asyncio.sleep(0.9)
        assert not committing.done()
        await committing
        assert log.durable_count == len(log.batches)

    play(story)


def test_a_commit_that_cannot_be_written_fails_and_changes_nothing() -> None:
    async def story(stage: Stage) -> None:
        await commit(stage, 5)
        stage.log_of("g").failure = StorageFailed("disk full")
        with pytest.raises(CoordinatorUnavailable):
            await commit(stage, 6)
        assert offset_of(stage) == 5
        stage.log_of("g").failure = None
        await commit(stage, 7)
        assert offset_of(stage) == 7

    play(story)


def test_each_partition_of_a_commit_has_its_own_fate() -> None:
    async def story(stage: Stage) -> None:
        results = await stage.coordinator.commit_offsets(
            "g",
            [
                OffsetToCommit("orders", 0, 1),
                OffsetToCommit("orders", 4, 1),
                OffsetToCommit("nowhere", 0, 1),
                OffsetToCommit("orders", 1, 1, metadata="x" * 4_097),
                OffsetToCommit("orders", -1, 1),
            ],
        )
        kinds = [type(result.error) for result in results]
        assert kinds == [type(None), UnknownTopic, UnknownTopic, OffsetMetadataTooLarge, UnknownTopic]
        assert len(stage.coordinator.fetch_offsets("g")) == 1

    play(story)


def test_only_members_of_the_present_generation_commit() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        with pytest.raises(UnknownGroup):
            await coordinator.commit_offsets("g", [OffsetToCommit("orders", 0, 1)], member_id="m", generation_id=3)
        answer = await join(stage)
        await settle(stage, [answer])
        one = [OffsetToCommit("orders", 0, 1)]
        await coordinator.commit_offsets("g", one, member_id=answer.member_id, generation_id=1)
        with pytest.raises(IllegalGeneration):
            await coordinator.commit_offsets("g", one, member_id=answer.member_id, generation_id=2)
        with pytest.raises(UnknownMember):
            await coordinator.commit_offsets("g", one)
        with pytest.raises(UnknownMember):
            await coordinator.commit_offsets("g", one, member_id="stranger", generation_id=1)

    play(story)


def test_members_of_the_new_protocol_use_their_epoch() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        answer = await coordinator.consumer_heartbeat(first_beat("a"))
        one = [OffsetToCommit("orders", 0, 1)]
        await coordinator.commit_offsets("g", one, member_id="a", generation_id=answer.member_epoch)
        with pytest.raises(StaleMemberEpoch):
            await coordinator.commit_offsets("g", one, member_id="a", generation_id=answer.member_epoch + 1)
        assert coordinator.fetch_offsets("g", member_id="a", member_epoch=answer.member_epoch)[0].offset == 1
        with pytest.raises(StaleMemberEpoch):
            coordinator.fetch_offsets("g", member_id="a", member_epoch=answer.member_epoch + 1)
        assert coordinator.fetch_offsets("g")[0].offset == 1

    play(story)


# -- transactions ------------------------------------------------------------------------------------------------


async def commit_in_transaction(stage: Stage, producer_id: int, offset: int, partition: int = 0) -> None:
    results = await stage.coordinator.commit_transactional_offsets(
        "g", producer_id, 0, [OffsetToCommit("orders", partition, offset)]
    )
    assert results[0].error is None


def end(stage: Stage, producer_id: int, *, commit: bool) -> None:
    """What the broker does: the marker goes into the log, and the coordinator is told."""
    stage.log_of("g").mark(producer_id, "commit" if commit else "abort")
    stage.coordinator.on_marker(stage.coordinator.partition_for("g"), producer_id, 0, commit)


def test_offsets_in_a_transaction_appear_with_its_marker() -> None:
    async def story(stage: Stage) -> None:
        await commit(stage, 1)
        await commit_in_transaction(stage, 7, 2)
        assert offset_of(stage) == 1
        unstable = stage.coordinator.fetch_offsets("g", [("orders", 0), ("orders", 1)], require_stable=True)
        assert isinstance(unstable[0].error, UnstableOffset)
        assert unstable[1].error is None
        end(stage, 7, commit=True)
        assert offset_of(stage) == 2
        assert stage.coordinator.fetch_offsets("g", [("orders", 0)], require_stable=True)[0].offset == 2
        await commit_in_transaction(stage, 8, 3)
        end(stage, 8, commit=False)
        assert offset_of(stage) == 2

    play(story)


def test_an_open_transaction_survives_a_restart_undecided() -> None:
    async def story(stage: Stage) -> None:
        await commit_in_transaction(stage, 7, 2)
        reborn = await stage.restart(only_durable=True)
        assert offset_of(reborn) == -1
        fetched = reborn.coordinator.fetch_offsets("g", [("orders", 0)], require_stable=True)
        assert isinstance(fetched[0].error, UnstableOffset)
        end(reborn, 7, commit=True)
        assert offset_of(reborn) == 2
        await reborn.coordinator.close()

    play(story)


def test_a_transactional_commit_needs_a_producer_and_a_group_in_the_right_state() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        one = [OffsetToCommit("orders", 0, 1)]
        with pytest.raises(InvalidGroupRequest):
            await coordinator.commit_transactional_offsets("g", -1, 0, one)
        with pytest.raises(UnknownGroup):
            await coordinator.commit_transactional_offsets("g", 7, 0, one, member_id="m", generation_id=2)
        answer = await join(stage)
        await settle(stage, [answer])
        await coordinator.commit_transactional_offsets("g", 7, 0, one)  # old producers say nothing of members
        await coordinator.commit_transactional_offsets("g", 7, 0, one, member_id=answer.member_id, generation_id=1)
        with pytest.raises(IllegalGeneration):
            await coordinator.commit_transactional_offsets("g", 7, 0, one, member_id=answer.member_id, generation_id=9)

    play(story)


# -- the end of offsets and groups -------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_expire_and_the_group_with_them() -> None:
    async def story(stage: Stage) -> None:
        answer = await join(stage, session_timeout_ms=1_800_000)
        await settle(stage, [answer])
        await stage.coordinator.commit_offsets(
            "g", [OffsetToCommit("payments", 0, 5)], member_id=answer.member_id, generation_id=1
        )
        await stage.coordinator.commit_offsets(
            "g", [OffsetToCommit("orders", 0, 5)], member_id=answer.member_id, generation_id=1
        )
        await stage.coordinator.expire(stage.world.clock.now_ms() + 6 * DAY_MS)
        assert len(stage.coordinator.fetch_offsets("g")) == 2
        for _ in range(8 * 24 * 4):
            await asyncio.sleep(900)
            await stage.coordinator.heartbeat("g", answer.member_id, 1)
        assert [one.topic for one in stage.coordinator.fetch_offsets("g")] == ["orders"], "nobody reads payments"
        await stage.coordinator.leave("g", [LeavingMember(answer.member_id)])
        await asyncio.sleep(6 * DAY_MS / 1000)
        assert len(stage.coordinator.list_groups()) == 1, "the retention counts from when the last member left"
        await asyncio.sleep(1 * DAY_MS / 1000 + 1_000)
        assert stage.coordinator.list_groups() == []
        reborn = await stage.restart()
        assert reborn.coordinator.list_groups() == []
        await reborn.coordinator.close()

    play(story)


def test_a_retention_that_the_client_asked_for_is_kept() -> None:
    async def story(stage: Stage) -> None:
        await stage.coordinator.commit_offsets("g", [OffsetToCommit("orders", 0, 5)], retention_ms=60_000)
        reborn = await stage.restart()
        now_ms = stage.world.clock.now_ms()
        await reborn.coordinator.expire(now_ms + 50_000)
        assert offset_of(reborn) == 5
        await reborn.coordinator.expire(now_ms + 60_000)
        assert offset_of(reborn) == -1
        await reborn.coordinator.close()

    play(story)


def test_groups_that_never_came_to_anything_are_cleared_away() -> None:
    async def story(stage: Stage) -> None:
        waiting = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await stage.coordinator.consumer_heartbeat(first_beat("a", group_id="h"))
        assert len(stage.coordinator.list_groups()) == 2
        await asyncio.sleep(2_000)
        assert stage.coordinator.list_groups() == []

    play(story)


def test_a_wrong_clock_does_not_end_sessions() -> None:
    async def story(stage: Stage) -> None:
        answer = await join(stage)
        await settle(stage, [answer])
        stage.world.clock.jump_ms = 3_600_000  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        await stage.coordinator.heartbeat("g", answer.member_id, 1)
        assert stage.coordinator.describe_groups(["g"])[0].state == "Stable"

    play(story)


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    async def story(stage: Stage) -> None:
        await commit(stage, 5)
        await commit(stage, 6, "payments")
        await commit_in_transaction(stage, 7, 8)
        stage.topics.drop("orders")
        stage.coordinator.on_topics_deleted(["orders"])
        stage.topics.put("orders", 4)
        end(stage, 7, commit=True)
        for compacted in (False, True):
            assert [one.topic for one in stage.coordinator.fetch_offsets("g")] == ["payments"]
            reborn = await stage.restart(compacted=compacted)
            assert [one.topic for one in reborn.coordinator.fetch_offsets("g")] == ["payments"]
            await reborn.coordinator.close()

    play(story)


def test_offsets_are_deleted_unless_somebody_reads_the_topic() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        with pytest.raises(UnknownGroup):
            await coordinator.delete_offsets("g", [("orders", 0)])
        answer = await join(stage)
        await settle(stage, [answer])
        both = [OffsetToCommit("orders", 0, 5), OffsetToCommit("payments", 0, 5)]
        await coordinator.commit_offsets("g", both, member_id=answer.member_id, generation_id=1)
        results = await coordinator.delete_offsets("g", [("orders", 0), ("payments", 0), ("payments", 9)])
        assert [type(result.error) for result in results] == [GroupSubscribed, type(None), UnknownTopic]
        assert [one.topic for one in coordinator.fetch_offsets("g")] == ["orders"]

        other = await join(stage, group_id="connect", protocol_type="connect", protocols=(("x", b"?"),))
        await settle(stage, [other], "connect")
        with pytest.raises(NonEmptyGroup):
            await coordinator.delete_offsets("connect", [("orders", 0)])

    play(story)


def test_a_group_is_deleted_when_nobody_is_in_it() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        answer = await join(stage)
        await settle(stage, [answer])
        await coordinator.commit_offsets(
            "g", [OffsetToCommit("orders", 0, 5)], member_id=answer.member_id, generation_id=1
        )
        await coordinator.consumer_heartbeat(first_beat("a", group_id="new"))
        results = await coordinator.delete_groups(["g", "new", "nowhere"])
        assert [type(result.error) for result in results] == [NonEmptyGroup, NonEmptyGroup, UnknownGroup]
        await coordinator.leave("g", [LeavingMember(answer.member_id)])
        assert (await coordinator.delete_groups(["g"]))[0].error is None
        assert isinstance(coordinator.describe_groups(["g"])[0].error, UnknownGroup)
        assert coordinator.fetch_offsets("g") == []
        reborn = await stage.restart(only_durable=True)
        assert [listing.group_id for listing in reborn.coordinator.list_groups()] == ["new"]
        await reborn.coordinator.close()

    play(story)


def test_groups_are_listed_by_state_and_kind() -> None:
    async def story(stage: Stage) -> None:
        coordinator = stage.coordinator
        await commit(stage, 1, group_id="simple")
        await settle(stage, [await join(stage, group_id="classic")], "classic")
        await coordinator.consumer_heartbeat(first_beat("a", group_id="new"))

        def names(states: tuple[str, ...] = (), kinds: tuple[str, ...] = ()) -> set[str]:
            return {listing.group_id for listing in coordinator.list_groups(states, kinds)}

        assert names() == {"simple", "classic", "new"}
        assert names(("stable",)) == {"classic", "new"}
        assert names(("Empty",), ("classic",)) == {"simple"}
        assert names((), ("Consumer",)) == {"new"}
        assert names((), ("share",)) == set()

    play(story)


# -- what is shown -------------------------------------------------------------------------------------------------


def test_an_offset_is_shown_when_the_replicas_have_it() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.replicated = True
        await commit(stage, 5)
        log.flush_s = 1.0
        committing = asyncio.ensure_future(commit(stage, 6))
        await asyncio.sleep(0.5)
        assert offset_of(stage) == 5
        assert stage.coordinator.fetch_offsets("g") == [FetchedOffset("orders", 0, 5)]
        assert stage.coordinator.committed("g") == [("orders", 0, 5)]
        assert stage.coordinator.newest_offset("g", "orders", 0) == 6
        [found] = stage.coordinator.fetch_offsets("g", [("orders", 0)], require_stable=True)
        assert isinstance(found.error, UnstableOffset)
        await committing
        [found] = stage.coordinator.fetch_offsets("g", [("orders", 0)], require_stable=True)
        assert found == FetchedOffset("orders", 0, 6)

    play(story)


def test_the_end_of_a_transaction_is_shown_when_the_replicas_have_it() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.replicated = True
        await stage.coordinator.commit_transactional_offsets("g", 7, 0, [OffsetToCommit("orders", 0, 9)])
        log.mark(7, "commit")
        stage.coordinator.on_marker(stage.coordinator.partition_for("g"), 7, 0, True)
        assert offset_of(stage) == -1
        [found] = stage.coordinator.fetch_offsets("g", [("orders", 0)], require_stable=True)
        assert isinstance(found.error, UnstableOffset)
        await log.committed()
        assert offset_of(stage) == 9

    play(story)


def test_a_coordinator_that_begins_shows_what_the_replicas_have() -> None:
    async def story(stage: Stage) -> None:
        log = stage.log_of("g")
        log.replicated = True
        await commit(stage, 5)
        log.flush_s = 1.0
        committing = asyncio.ensure_future(commit(stage, 6))
        await asyncio.sleep(0.5)
        stage.coordinator.drop(log.partition)
        stage.coordinator.lead(log)
        assert offset_of(stage) == 5
        await log.committed()
        assert offset_of(stage) == 6
        await committing

    play(story)


# -- replay ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_replaying_the_log_compacted_or_not_gives_the_same_groups_and_offsets(seed: int) -> None:
    async def story(stage: Stage) -> None:
        rng = random.Random(seed)
        coordinator = stage.coordinator
        open_producers: dict[int, str] = {}
        for number in range(60):
            group_id = rng.choice(["g", "h", "i"])
            partition = rng.randrange(4)
            match rng.randrange(8):
                case 0 | 1 | 2:
                    if all(listing.state == "Empty" for listing in coordinator.list_groups()):
                        await commit(stage, number, partition=partition, group_id=group_id)
                case 3 | 4:
                    producer = rng.randrange(3)
                    if open_producers.setdefault(producer, group_id) == group_id:
                        await coordinator.commit_transactional_offsets(
                            group_id, producer, 0, [OffsetToCommit("orders", partition, number)]
                        )
                case 5:
                    if open_producers:
                        producer, group_id = open_producers.popitem()
                        outcome = rng.random() < 0.7
                        stage.log_of(group_id).mark(producer, "commit" if outcome else "abort")
                        coordinator.on_marker(coordinator.partition_for(group_id), producer, 0, outcome)
                case 6:
                    if rng.random() < 0.3:
                        await coordinator.delete_groups([group_id])
                case 7:
                    answer = await join(stage, group_id=f"{group_id}-members")
                    await settle(stage, [answer], f"{group_id}-members")
                    if rng.random() < 0.8:
                        await coordinator.leave(f"{group_id}-members", [LeavingMember(answer.member_id)])
                    else:
                        await asyncio.sleep(15)
        for compacted in (False, True):
            reborn = await stage.restart(compacted=compacted)
            assert picture(reborn) == picture(stage)
            await reborn.coordinator.close()

    play(story, GroupSettings(), seed)


def picture(stage: Stage) -> dict[str, object]:
    """Everything that a client could see, of groups that hold something."""
    coordinator = stage.coordinator
    seen: dict[str, object] = {}
    for listing in coordinator.list_groups():
        group_id = listing.group_id
        unstable = coordinator.fetch_offsets(group_id, require_stable=True)
        offsets = coordinator.fetch_offsets(group_id)
        if offsets or listing.protocol_type or any(one.error for one in unstable):
            kinds = [(one.topic, one.partition, one.offset, type(one.error)) for one in unstable]
            seen[group_id] = (listing, offsets, kinds, coordinator.describe_groups([group_id]))
    return seen
