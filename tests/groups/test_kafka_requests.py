"""Every registered version of every group API works, and old clients get the answers that they understand."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.groups.kafka_requests import VERSIONS, ask, versions
from tests.groups.kit import Stage, play, subscription
from waystation.groups.machines.calls import OffsetToCommit

MS = timedelta(milliseconds=1)


def each(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", versions(name))


def test_all_versions_that_the_codec_knows_are_offered() -> None:
    offered = {name: (min(numbers), max(numbers)) for name, numbers in VERSIONS.items()}
    assert offered == {
        "find_coordinator": (0, 6),
        "join_group": (0, 9),
        "sync_group": (0, 5),
        "heartbeat": (0, 4),
        "leave_group": (0, 5),
        "describe_groups": (0, 6),
        "list_groups": (0, 5),
        "delete_groups": (0, 2),
        "offset_commit": (2, 10),
        "offset_fetch": (1, 10),
        "offset_delete": (0, 0),
        "consumer_group_heartbeat": (0, 1),
        "consumer_group_describe": (0, 1),
    }


async def join(stage: Stage, version: int = 9, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": "g",
        "session_timeout": 10_000 * MS,
        "rebalance_timeout": 60_000 * MS,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
    }
    answer = await ask(stage, "join_group", version, **(fields | changes))
    if answer.error_code is ErrorCode.member_id_required:
        answer = await ask(stage, "join_group", version, **(fields | changes | {"member_id": answer.member_id}))
    return answer


async def sync(stage: Stage, joined: Any, version: int = 5) -> Any:
    return await ask(
        stage,
        "sync_group",
        version,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member.member_id, "assignment": b"work"} for member in joined.members],
    )


@each("find_coordinator")
def test_find_coordinator(version: int) -> None:
    async def story(stage: Stage) -> None:
        answer = await ask(stage, "find_coordinator", version, key="g", key_type=1, coordinator_keys=["g", "h"])
        found = [answer] if version < 4 else answer.coordinators
        assert [(one.node_id, one.host, one.port, one.error_code) for one in found] == [
            (1, "localhost", 9092, ErrorCode.none)
        ] * len(found)
        if version >= 1:
            answer = await ask(stage, "find_coordinator", version, key="g", key_type=9, coordinator_keys=["g"])
            found = [answer] if version < 4 else answer.coordinators
            assert found[0].error_code is ErrorCode.invalid_request

    play(story)


@each("join_group")
def test_join(version: int) -> None:
    async def story(stage: Stage) -> None:
        first, second = await asyncio.gather(join(stage, version), join(stage, version))
        assert (first.error_code, first.generation_id, first.protocol_name) == (ErrorCode.none, 1, "range")
        leader, follower = (first, second) if first.leader == first.member_id else (second, first)
        assert {member.member_id for member in leader.members} == {first.member_id, second.member_id}
        assert leader.members[0].metadata == subscription("orders")
        assert follower.members == ()
        if version >= 7:
            assert first.protocol_type == "consumer"
        refused = await join(stage, version, session_timeout=1 * MS)
        assert refused.error_code is ErrorCode.invalid_session_timeout
        assert refused.generation_id == -1
        refused = await join(stage, version, protocols=[])
        assert refused.error_code is ErrorCode.inconsistent_group_protocol

    play(story)


def test_the_first_join_of_a_modern_client_is_answered_with_an_id() -> None:
    async def story(stage: Stage) -> None:
        fields: dict[str, Any] = {"session_timeout": 10_000 * MS, "protocol_type": "consumer"}
        fields["protocols"] = [{"name": "range", "metadata": b""}]
        answer = await ask(stage, "join_group", 4, group_id="g", **fields)
        assert answer.error_code is ErrorCode.member_id_required
        assert answer.member_id.startswith("app-")
        # A static member has a name of its own and needs none.
        answer = await ask(stage, "join_group", 5, group_id="g", group_instance_id="s", **fields)
        assert answer.error_code is ErrorCode.none

    play(story)


@each("sync_group")
def test_sync(version: int) -> None:
    async def story(stage: Stage) -> None:
        joined = await join(stage)
        answer = await sync(stage, joined, version)
        assert (answer.error_code, answer.assignment) == (ErrorCode.none, b"work")
        answer = await ask(stage, "sync_group", version, group_id="g", generation_id=9, member_id=joined.member_id)
        assert answer.error_code is ErrorCode.illegal_generation

    play(story)


@each("heartbeat")
def test_heartbeat(version: int) -> None:
    async def story(stage: Stage) -> None:
        joined = await join(stage)
        await sync(stage, joined)

        async def beat(generation: int, member_id: str) -> ErrorCode:
            answer = await ask(stage, "heartbeat", version, group_id="g", generation_id=generation, member_id=member_id)
            code: ErrorCode = answer.error_code
            return code

        assert await beat(1, joined.member_id) is ErrorCode.none
        assert await beat(2, joined.member_id) is ErrorCode.illegal_generation
        assert await beat(1, "stranger") is ErrorCode.unknown_member_id
        newcomer = asyncio.ensure_future(join(stage))
        await asyncio.sleep(0.01)
        assert await beat(1, joined.member_id) is ErrorCode.rebalance_in_progress
        newcomer.cancel()

    play(story)


@each("leave_group")
def test_leave(version: int) -> None:
    async def story(stage: Stage) -> None:
        joined = await join(stage)
        await sync(stage, joined)
        members = [{"member_id": joined.member_id}, {"member_id": "stranger"}]
        answer = await ask(stage, "leave_group", version, group_id="g", member_id=joined.member_id, members=members)
        assert answer.error_code is ErrorCode.none
        if version >= 3:
            codes = [member.error_code for member in answer.members]
            assert codes == [ErrorCode.none, ErrorCode.unknown_member_id]
        else:
            again = await ask(stage, "leave_group", version, group_id="g", member_id=joined.member_id)
            assert again.error_code is ErrorCode.unknown_member_id
        refused = await ask(stage, "leave_group", version, group_id="", member_id="x", members=[])
        assert refused.error_code is ErrorCode.invalid_group_id

    play(story)


@each("describe_groups")
def test_describe(version: int) -> None:
    async def story(stage: Stage) -> None:
        joined = await join(stage)
        await sync(stage, joined)
        answer = await ask(
            stage, "describe_groups", version, groups=["g", "nowhere"], include_authorized_operations=True
        )
        group, nowhere = answer.groups
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        assert group.members[0].member_assignment == b"work"
        assert group.members[0].client_host == "/127.0.0.1"
        assert nowhere.group_state == "Dead"
        assert nowhere.error_code is (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
        if version >= 3:
            assert group.authorized_operations == 328

    play(story)


@each("list_groups")
def test_list(version: int) -> None:
    async def story(stage: Stage) -> None:
        await sync(stage, await join(stage))
        await stage.coordinator.commit_offsets("simple", [OffsetToCommit("orders", 0, 1)])
        answer = await ask(stage, "list_groups", version, states_filter=["Stable"], types_filter=["classic"])
        names = {group.group_id for group in answer.groups}
        assert names == ({"g"} if version >= 4 else {"g", "simple"})
        if version >= 5:
            assert answer.groups[0].group_type == "Classic"

    play(story)


@each("delete_groups")
def test_delete(version: int) -> None:
    async def story(stage: Stage) -> None:
        await join(stage)
        await stage.coordinator.commit_offsets("simple", [OffsetToCommit("orders", 0, 1)])
        answer = await ask(stage, "delete_groups", version, groups_names=["simple", "g", "nowhere"])
        assert [result.error_code for result in answer.results] == [
            ErrorCode.none,
            ErrorCode.non_empty_group,
            ErrorCode.group_id_not_found,
        ]

    play(story)


async def commit(stage: Stage, version: int, topic: str, *partitions: int, **changes: Any) -> list[ErrorCode]:
    fields: dict[str, Any] = {
        "group_id": "g",
        "retention_time": -1 * MS,
        "topics": [
            {
                "name": topic,
                "topic_id": stage.topics.id_of(topic) or uuid4(),
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": 40 + partition,
                        "committed_leader_epoch": 3,
                        "committed_metadata": "note",
                    }
                    for partition in partitions
                ],
            }
        ],
    }
    answer = await ask(stage, "offset_commit", version, **(fields | changes))
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


@each("offset_commit")
def test_commit(version: int) -> None:
    async def story(stage: Stage) -> None:
        codes = await commit(stage, version, "orders", 0, 1, 9)
        assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        fetched = stage.coordinator.fetch_offsets("g")
        assert [(one.offset, one.metadata) for one in fetched] == [(40, "note"), (41, "note")]
        assert fetched[0].leader_epoch == (3 if version >= 6 else -1)
        unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
        assert await commit(stage, version, "nowhere", 0) == [unknown]
        codes = await commit(
            stage, version, "orders", 0, group_id="none", generation_id_or_member_epoch=4, member_id="m"
        )
        assert codes == [ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation]

    play(story)


@each("offset_fetch")
def test_fetch(version: int) -> None:
    async def story(stage: Stage) -> None:
        await commit(stage, 10, "orders", 0)
        await stage.coordinator.commit_transactional_offsets("g", 7, 0, [OffsetToCommit("orders", 1, 5)])
        ids = {"name": "orders", "topic_id": stage.topics.id_of("orders"), "partition_indexes": [0, 1, 2]}
        lost = {"name": "nowhere", "topic_id": uuid4(), "partition_indexes": [0]}
        group = {"group_id": "g", "topics": [ids, lost]}
        answer = await ask(
            stage, "offset_fetch", version, group_id="g", topics=[ids, lost], groups=[group], require_stable=True
        )
        first = answer.groups[0] if version >= 8 else answer
        known, unknown = first.topics
        assert [part.committed_offset for part in known.partitions] == [40, -1, -1]
        unstable = ErrorCode.unstable_offset_commit if version >= 7 else ErrorCode.none
        assert [part.error_code for part in known.partitions] == [ErrorCode.none, unstable, ErrorCode.none]
        assert known.partitions[0].metadata == "note"
        no_id = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.none
        assert [part.error_code for part in unknown.partitions] == [no_id]

    play(story)


@pytest.mark.parametrize("version", [number for number in versions("offset_fetch") if number >= 2])
def test_fetching_everything(version: int) -> None:
    async def story(stage: Stage) -> None:
        await commit(stage, 10, "orders", 0, 2)
        await commit(stage, 10, "payments", 1)
        groups = [{"group_id": "g", "topics": None}, {"group_id": "nowhere", "topics": None}]
        answer = await ask(stage, "offset_fetch", version, group_id="g", topics=None, groups=groups)
        topics = answer.groups[0].topics if version >= 8 else answer.topics
        names = [stage.topics.name_of(topic.topic_id) if version >= 10 else topic.name for topic in topics]
        assert names == ["orders", "payments"]
        assert [[part.partition_index for part in topic.partitions] for topic in topics] == [[0, 2], [1]]
        if version >= 8:
            assert answer.groups[1].topics == ()
            assert answer.groups[1].error_code is ErrorCode.none

    play(story)


@pytest.mark.parametrize("version", [9, 10])
def test_fetching_with_a_stale_epoch_is_an_error_of_the_group(version: int) -> None:
    async def story(stage: Stage) -> None:
        await beat(stage, 1)
        group = {"group_id": "g", "member_id": "m", "member_epoch": 99, "topics": None}
        answer = await ask(stage, "offset_fetch", version, groups=[group])
        assert answer.groups[0].error_code is ErrorCode.stale_member_epoch

    play(story)


def test_delete_offsets() -> None:
    async def story(stage: Stage) -> None:
        topics = [{"name": "orders", "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
        answer = await ask(stage, "offset_delete", 0, group_id="g", topics=topics)
        assert answer.error_code is ErrorCode.group_id_not_found
        await commit(stage, 9, "orders", 0)
        answer = await ask(stage, "offset_delete", 0, group_id="g", topics=topics)
        codes = [part.error_code for part in answer.topics[0].partitions]
        assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert stage.coordinator.fetch_offsets("g") == []

    play(story)


async def beat(stage: Stage, version: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 30_000 * MS,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    return await ask(stage, "consumer_group_heartbeat", version, **(fields | changes))


@each("consumer_group_heartbeat")
def test_consumer_heartbeat(version: int) -> None:
    async def story(stage: Stage) -> None:
        answer = await beat(stage, version)
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, "m", 1)
        given = answer.assignment.topic_partitions
        assert [(one.topic_id, one.partitions) for one in given] == [(stage.topics.id_of("orders"), (0, 1, 2, 3))]
        quiet: dict[str, Any] = {"rebalance_timeout": -1 * MS, "subscribed_topic_names": None, "topic_partitions": None}
        again = await beat(stage, version, member_epoch=1, **quiet)
        assert (again.error_code, again.assignment) == (ErrorCode.none, None)
        assert again.heartbeat_interval == 250 * MS
        fenced = await beat(stage, version, member_epoch=7, **quiet)
        assert fenced.error_code is ErrorCode.fenced_member_epoch
        assert "epoch" in fenced.error_message
        owned = [{"topic_id": stage.topics.id_of("orders"), "partitions": [0, 1]}]
        assert (await beat(stage, version, member_epoch=1, topic_partitions=owned)).error_code is ErrorCode.none
        assert (await beat(stage, version, server_assignor="x")).error_code is ErrorCode.unsupported_assignor
        nameless = await beat(stage, version, member_id="")
        if version == 0:
            assert nameless.error_code is ErrorCode.none
            assert len(nameless.member_id) == 36
        else:
            assert nameless.error_code is ErrorCode.invalid_request
            assert (await beat(stage, 1, subscribed_topic_regex="(")).error_code is ErrorCode.invalid_regular_expression

    play(story)


@each("consumer_group_describe")
def test_consumer_describe(version: int) -> None:
    async def story(stage: Stage) -> None:
        await beat(stage, 1, subscribed_topic_regex="pay.*")
        answer = await ask(stage, "consumer_group_describe", version, group_ids=["g", "nowhere"])
        group, nowhere = answer.groups
        assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 1, "uniform")
        member = group.members[0]
        assert {one.topic_name for one in member.assignment.topic_partitions} == {"orders", "payments"}
        assert member.target_assignment == member.assignment
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("orders",), "pay.*")
        assert nowhere.error_code is ErrorCode.group_id_not_found

    play(story)
