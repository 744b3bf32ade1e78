"""Share groups through the handlers of the Kafka protocol: sessions, acknowledgements and offsets, asked in every
version.

What real clients never send is asked for here: wrong epochs, foreign records, types that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk, each_version
from waystation.errors import StorageFailed
from waystation.log.batches import batch as batches
from waystation.security.principals import Principal
from waystation.share import partition as share_partition
from waystation.share.machines import sessions
from waystation.topics.partitions.partition import log_of

MEMORY = Path("/dev/shm")
SETTINGS = {"share.coordinator.state.topic.num.partitions": "1", "waystation.queue.shards": "1"}
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


@pytest.fixture
def desk() -> Iterator[Desk]:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        desk = Desk(Path(folder), SETTINGS)
        yield desk
        desk.close()


class Member:
    """A share consumer by hand."""

    def __init__(self, desk: Desk, name: str = "m", group: str = "g", version: int = 2) -> None:
        self.desk, self.name, self.group, self.version = desk, name, group, version
        self.epoch = 0

    def join(self, *topics: str) -> Any:
        return self.desk.ask(
            "share_group_heartbeat",
            1,
            group_id=self.group,
            member_id=self.name,
            member_epoch=0,
            subscribed_topic_names=list(topics),
        )

    def fetch(self, topic: UUID | None = None, partitions: tuple[int, ...] = (0,), **fields: Any) -> Any:
        epoch = fields.pop("epoch", self.epoch)
        acks = fields.pop("acks", [])
        wanted = [{"partition_index": index, "acknowledgement_batches": acks} for index in partitions]
        fields = {"max_bytes": 2**20, "max_records": 500, "max_wait": timedelta(0), "min_bytes": 1, **fields}
        answer = self.desk.ask(
            "share_fetch",
            self.version,
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=[{"topic_id": topic, "partitions": wanted}] if topic else [],
            **fields,
        )
        if answer.error_code is ErrorCode.none:
            self.epoch = epoch + 1
        return answer

    def acknowledge(self, topic: UUID, *given: tuple[int, int, list[int]], **fields: Any) -> Any:
        epoch = fields.pop("epoch", self.epoch)
        answer = self.desk.ask(
            "share_acknowledge",
            self.version,
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=[
                {"topic_id": topic, "partitions": [{"partition_index": 0, "acknowledgement_batches": acked(*given)}]}
            ],
            **fields,
        )
        if answer.error_code is ErrorCode.none:
            self.epoch = epoch + 1
        return answer


def acked(*given: tuple[int, int, list[int]]) -> list[dict[str, Any]]:
    return [{"first_offset": a, "last_offset": b, "acknowledge_types": types} for a, b, types in given]


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def result(answer: Any) -> ErrorCode:
    """Of the one partition."""
    ((partition,),) = [topic.partitions for topic in answer.responses]
    code = getattr(partition, "acknowledge_error_code", partition.error_code)
    return ErrorCode(code)


def stage(desk: Desk, count: int = 10, **fields: Any) -> tuple[UUID, Member]:
    """A topic with so many records and a member whose session has begun at its beginning."""
    desk.run(change(desk, "share.auto.offset.reset", "earliest"))
    topic = desk.create("t")
    member = Member(desk, **fields)
    assert member.join("t").error_code is ErrorCode.none
    desk.write("t", count=count)
    return topic.id, member


@each_version("share_fetch")
def test_fetch_acquires_and_acknowledges(desk: Desk, version: int) -> None:
    topic, member = stage(desk, version=version)
    first = member.fetch(topic, max_records=4)
    assert acquired(first) == [(0, 3, 1)]
    assert first.acquisition_lock_timeout.total_seconds() == 30
    second = member.fetch(topic, acks=acked((0, 1, [ACCEPT]), (2, 3, [RELEASE, REJECT])))
    assert result(second) is ErrorCode.none
    assert acquired(second) == [(2, 2, 2), (4, 9, 1)]
    assert member.fetch(topic, epoch=-1, acks=acked((2, 2, [ACCEPT]), (4, 9, [ACCEPT]))).error_code is ErrorCode.none
    (offset,) = desk.broker.shared_admin.offsets("g")
    assert (offset.start, offset.lag) == (10, 0)


def test_sessions_count_and_end(desk: Desk) -> None:
    topic, member = stage(desk)
    assert member.fetch(topic, epoch=3).error_code is ErrorCode.share_session_not_found
    assert member.fetch(topic, acks=acked((0, 0, [ACCEPT]))).error_code is ErrorCode.invalid_request
    assert member.acknowledge(topic, epoch=0).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch(topic).error_code is ErrorCode.none
    assert member.fetch(topic, epoch=9).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch(topic, epoch=-1).error_code is ErrorCode.none
    assert member.fetch(topic, epoch=1).error_code is ErrorCode.share_session_not_found
    heir = Member(desk, "heir")
    assert acquired(heir.fetch(topic)) == [(0, 9, 2)], "the session's end gave the records back"


def test_a_connection_forgets_sessions_that_another_one_ends(desk: Desk) -> None:
    topic, _ = stage(desk)
    first: dict[object, Callable[[], None]] = desk.at_close
    second: dict[object, Callable[[], None]] = {}
    for n in range(3):
        desk.at_close = first
        member = Member(desk, f"m{n}")
        assert member.fetch(topic).error_code is ErrorCode.none
        assert len(first) == 1
        desk.at_close = second
        if n == 0:
            member.epoch = 0
            assert member.fetch(topic).error_code is ErrorCode.none
            assert (len(first), len(second)) == (0, 1), "it goes on here"
        assert member.fetch(epoch=-1).error_code is ErrorCode.none
        assert (first, second) == ({}, {})
    desk.at_close = first
    member = Member(desk, "m")
    member.fetch(topic)

    async def disconnect() -> None:
        for end in tuple(first.values()):
            end()

    desk.run(disconnect())
    assert first == {}
    assert len(desk.broker.shared.sessions) == 0


def test_a_session_of_a_member_whose_name_is_too_long_is_refused(desk: Desk) -> None:
    topic, _ = stage(desk)
    assert Member(desk, "m" * 1025).fetch(topic).error_code is ErrorCode.invalid_request
    assert len(desk.broker.shared.sessions) == 0


def test_a_new_session_of_a_member_gives_back_what_the_old_one_held(desk: Desk) -> None:
    topic, member = stage(desk)
    assert acquired(member.fetch(topic)) == [(0, 9, 1)]
    member.epoch = 0
    assert acquired(member.fetch(topic)) == [(0, 9, 2)]


def test_who_has_most_share_sessions_makes_room_for_others_and_gets_no_more() -> None:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        desk = Desk(Path(folder), {**SETTINGS, "group.share.max.share.sessions": "3"})
        try:
            alice, bob = desk.principal, Principal("bob")
            topic, mine = stage(desk)
            desk.principal = bob
            greedy = [Member(desk, f"greedy-{n}") for n in range(3)]
            assert [acquired(one.fetch(topic)) for one in greedy] == [[(0, 9, 1)], [], []]
            assert Member(desk, "greedy-3").fetch(topic).error_code is ErrorCode.share_session_limit_reached
            desk.principal = alice
            assert acquired(mine.fetch(topic)) == [(0, 9, 2)], "what was in flight in the session that ended for it"
            assert mine.fetch(topic).error_code is ErrorCode.none
            desk.principal = bob
            again = [one.fetch(topic).error_code for one in greedy]
            assert again == [ErrorCode.share_session_not_found, ErrorCode.none, ErrorCode.none]
            greedy[0].epoch = 0
            assert greedy[0].fetch(topic).error_code is ErrorCode.share_session_limit_reached
        finally:
            desk.close()


def test_who_has_most_partitions_in_share_sessions_makes_room_for_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PARTITIONS", 10)
    alice, bob = desk.principal, Principal("bob")
    topic, mine = stage(desk)
    desk.principal = bob
    first, second = Member(desk, "first"), Member(desk, "second")
    for greedy in (first, second):
        assert greedy.fetch(topic, tuple(range(5))).error_code is ErrorCode.none
    assert second.fetch(topic, (5,)).error_code is ErrorCode.share_session_limit_reached
    desk.principal = alice
    assert acquired(mine.fetch(topic)) == [(0, 9, 2)]
    desk.principal = bob
    assert first.fetch().error_code is ErrorCode.share_session_not_found
    second.epoch += 1  # the request that was refused was its own
    assert second.fetch().error_code is ErrorCode.none


@each_version("share_acknowledge")
def test_records_that_are_not_held_are_refused_and_untouched(desk: Desk, version: int) -> None:
    topic, member = stage(desk, version=version)
    member.fetch(topic, max_records=3)
    other = Member(desk, "other", version=version)
    other.fetch(topic, max_records=3)
    assert result(other.acknowledge(topic, (0, 2, [ACCEPT]))) is ErrorCode.invalid_record_state
    assert result(member.acknowledge(topic, (0, 2, [ACCEPT]))) is ErrorCode.none
    assert result(member.acknowledge(topic, (0, 2, [ACCEPT]))) is ErrorCode.invalid_record_state
    assert result(member.acknowledge(topic, (500, 500, [ACCEPT]))) is ErrorCode.invalid_record_state
    assert result(member.acknowledge(UUID(int=7), (0, 0, [ACCEPT]))) is ErrorCode.unknown_topic_id


@pytest.mark.parametrize(
    "given",
    [
        [(3, 2, [ACCEPT])],
        [(0, 3, [ACCEPT, ACCEPT])],
        [(0, 3, [])],
        [(0, 0, [7])],
        [(0, 0, [-1])],
        [(0, 0, [RENEW])],  # only where the request says that there are renewals in it
        [(2, 3, [ACCEPT]), (0, 1, [ACCEPT])],
        [(0, 2, [ACCEPT]), (2, 3, [ACCEPT])],
        [(0, 2**62, [ACCEPT])],
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(desk: Desk, given: list[tuple[int, int, list[int]]]) -> None:
    topic, member = stage(desk)
    member.fetch(topic)
    assert result(member.acknowledge(topic, *given)) is ErrorCode.invalid_request
    assert result(member.acknowledge(topic, (0, 9, [ACCEPT]))) is ErrorCode.none


def test_renewal_prolongs_locks(desk: Desk) -> None:
    topic, member = stage(desk)
    desk.run(change(desk, "share.record.lock.duration.ms", "300"))
    member.fetch(topic)
    desk.run(change(desk, "share.record.lock.duration.ms", "60000"))
    assert result(member.acknowledge(topic, (0, 8, [RENEW]), is_renew_ack=True)) is ErrorCode.none
    other = Member(desk, "other")
    answer = other.fetch(topic, max_wait=timedelta(seconds=10))
    assert acquired(answer) == [(9, 9, 2)], "the one that was not renewed"
    assert result(member.fetch(topic, acks=acked((0, 8, [RENEW])), is_renew_ack=True, max_records=0)) is ErrorCode.none
    assert result(member.acknowledge(topic, (0, 8, [ACCEPT]))) is ErrorCode.none


async def change(desk: Desk, name: str, text: str) -> None:
    desk.broker.shared.change_settings("g", {**desk.broker.shared.own_settings("g"), name: text})


def test_record_limit_is_exact_and_batches_are_whole_without_it(desk: Desk) -> None:
    topic, member = stage(desk, 0)

    async def one_batch() -> None:
        data = batches.build([(None, b"v", ())] * 10, desk.broker.world.clock.now_ms())
        desk.broker.topics.get("t").partition(0).append(data, batches.read_header(data))

    desk.run(one_batch())
    assert acquired(member.fetch(topic, max_records=3, share_acquire_mode=1)) == [(0, 2, 1)]
    assert acquired(member.fetch(topic, max_records=3)) == [(3, 9, 1)]


def test_max_bytes_bounds_an_answer_but_for_its_first_batch(desk: Desk) -> None:
    topic, member = stage(desk)
    size = log_of(desk.broker.topics.get("t").partition(0)).size_bytes // 10
    assert acquired(member.fetch(topic, max_bytes=1)) == [(0, 0, 1)]
    assert acquired(member.fetch(topic, max_bytes=3 * size)) == [(1, 3, 1)]


def test_unknown_places_have_their_errors(desk: Desk) -> None:
    topic, member = stage(desk)
    answer = member.fetch(topic, partitions=(5,))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    member.epoch = 0
    answer = member.fetch(UUID(int=9))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    stranger = Member(desk, group="nowhere")
    assert stranger.fetch(topic).error_code is ErrorCode.group_id_not_found
    assert stranger.acknowledge(topic, (0, 0, [1]), epoch=1).error_code is ErrorCode.group_id_not_found
    inner = desk.broker.topics.get("__share_group_state").id
    member.epoch = 0
    assert member.fetch(inner).responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


def test_records_that_cannot_be_read_are_not_acquired(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is no delivery: nobody has received them."""
    monkeypatch.setattr(share_partition, "UNREADABLE_MS", 0)
    topic, member = stage(desk)
    window = next(iter(desk.broker.shared.get("g").partitions.values())).window

    def broken(_: object) -> list[bytes]:
        raise StorageFailed("cannot read")

    with monkeypatch.context() as patch:
        patch.setattr(window, "stored", broken)
        answer = member.fetch(topic)
    assert answer.responses[0].partitions[0].error_code is ErrorCode.kafka_storage_error
    assert acquired(answer) == []
    assert acquired(member.fetch(topic)) == [(0, 9, 1)]


def test_heartbeats_are_checked(desk: Desk) -> None:
    def beat(**fields: Any) -> ErrorCode:
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"], **fields}
        return ErrorCode(desk.ask("share_group_heartbeat", 1, **fields).error_code)

    assert beat(group_id="") is ErrorCode.invalid_group_id
    assert beat(member_id="") is ErrorCode.invalid_request
    assert beat(member_epoch=-5) is ErrorCode.invalid_request
    assert beat(member_epoch=3) is ErrorCode.unknown_member_id
    assert beat(subscribed_topic_names=None) is ErrorCode.invalid_request
    assert beat(member_id="m" * 1025) is ErrorCode.invalid_request
    assert beat(rack_id="r" * 1025) is ErrorCode.invalid_request
    assert beat(subscribed_topic_names=["t" * 200_000] * 6) is ErrorCode.invalid_request
    assert beat() is ErrorCode.none
    assert beat(member_epoch=77) is ErrorCode.fenced_member_epoch


def test_describe_list_and_delete(desk: Desk) -> None:
    topic, _ = stage(desk)
    (told,) = desk.ask("share_group_describe", 1, group_ids=["g"]).groups
    assert (told.group_state, [member.member_id for member in told.members]) == ("Stable", ["m"])
    (place,) = told.members[0].assignment.topic_partitions
    assert (place.topic_id, place.topic_name, place.partitions) == (topic, "t", (0,))
    (none,) = desk.ask("share_group_describe", 1, group_ids=["nowhere"]).groups
    assert none.error_code is ErrorCode.group_id_not_found
    listed = desk.ask("list_groups", 5, states_filter=[], types_filter=["share"]).groups
    assert [(one.group_id, one.group_type, one.group_state) for one in listed] == [("g", "Share", "Stable")]
    (refused,) = desk.ask("delete_groups", 2, groups_names=["g"]).results
    assert refused.error_code is ErrorCode.non_empty_group
    leave(desk)
    (deleted,) = desk.ask("delete_groups", 2, groups_names=["g"]).results
    assert deleted.error_code is ErrorCode.none
    assert not desk.ask("list_groups", 5, states_filter=[], types_filter=["share"]).groups


def leave(desk: Desk) -> None:
    desk.ask("share_group_heartbeat", 1, group_id="g", member_id="m", member_epoch=-1)


@each_version("describe_share_group_offsets")
def test_offsets_are_described_altered_and_deleted(desk: Desk, version: int) -> None:
    topic, member = stage(desk)
    member.fetch(topic)
    member.acknowledge(topic, (0, 3, [ACCEPT]), (6, 6, [ACCEPT]), epoch=1)
    wanted = [{"topic_name": "t", "partitions": [0, 4]}, {"topic_name": "no", "partitions": [0]}]

    def told(topics: Any) -> dict[tuple[str, int], tuple[int, ErrorCode]]:
        (group,) = desk.ask(
            "describe_share_group_offsets", version, groups=[{"group_id": "g", "topics": topics}]
        ).groups
        return {
            (one.topic_name, part.partition_index): (part.start_offset, ErrorCode(part.error_code))
            for one in group.topics
            for part in one.partitions
        }

    unknown = ErrorCode.unknown_topic_or_partition
    assert told(wanted) == {("t", 0): (4, ErrorCode.none), ("t", 4): (-1, unknown), ("no", 0): (-1, unknown)}
    change = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 8}]}]
    assert desk.ask("alter_share_group_offsets", 0, group_id="g", topics=change).error_code is ErrorCode.non_empty_group
    leave(desk)
    altered = desk.ask("alter_share_group_offsets", 0, group_id="g", topics=change)
    assert altered.responses[0].partitions[0].error_code is ErrorCode.none
    assert told(None) == {("t", 0): (8, ErrorCode.none)}
    heir = Member(desk, "heir")
    assert acquired(heir.fetch(topic)) == [(8, 9, 1)]
    heir.fetch(topic, epoch=-1)
    names = [{"topic_name": "t"}, {"topic_name": "no"}]
    deleted = desk.ask("delete_share_group_offsets", 0, group_id="g", topics=names)
    assert [one.error_code for one in deleted.responses] == [ErrorCode.none, unknown]
    assert told(None) == {}
    assert desk.ask("delete_share_group_offsets", 0, group_id="x", topics=[]).error_code is ErrorCode.group_id_not_found


def test_lag_leaves_out_what_is_done_in_the_window(desk: Desk) -> None:
    topic, member = stage(desk)
    member.fetch(topic)
    member.acknowledge(topic, (0, 3, [ACCEPT]), (6, 6, [ACCEPT]))
    (group,) = desk.ask("describe_share_group_offsets", 1, groups=[{"group_id": "g", "topics": None}]).groups
    ((partition,),) = [one.partitions for one in group.topics]
    assert (partition.start_offset, partition.lag) == (4, 5)
