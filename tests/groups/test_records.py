"""The bytes in `__consumer_offsets`: Kafka's own for offsets and classic groups, and read back as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.groups.kit import topic_id
from waystation.errors import Corrupt
from waystation.groups import records
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_member import ClassicMember
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.consumer_member import ConsumerMember
from waystation.groups.machines.offsets import Committed
from waystation.groups.machines.reconcile import Holding, ReconcilePhase
from waystation.groups.machines.settings import GroupSettings

SETTINGS = GroupSettings()
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_longs = st.integers(0, 2**63 - 1)


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    key, value = records.offset_record("grp", "top", 7, Committed(258, 3, "m", 1_000))
    assert key == b"\x00\x01\x00\x03grp\x00\x03top\x00\x00\x00\x07"
    assert value == (
        b"\x00\x03\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x03\x00\x01m\x00\x00\x00\x00\x00\x00\x03\xe8"
    )


def test_a_classic_group_is_written_as_kafka_writes_it() -> None:
    group = ClassicGroup("g", SETTINGS)
    member = ClassicMember("m", None, "c", "/h", 10, 20, (("range", b"SUB"),), b"ASG")
    group.restore(generation_id=2, protocol_type="consumer", protocol_name="range", leader="m", members=[member])
    key, value = records.classic_record(group, 5)
    assert key == b"\x00\x02\x00\x01g"
    assert value == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x02\x00\x05range\x00\x01m\x00\x00\x00\x00\x00\x00\x00\x05"
        b"\x00\x00\x00\x01"
        b"\x00\x01m\xff\xff\x00\x01c\x00\x02/h\x00\x00\x00\x14\x00\x00\x00\x0a\x00\x00\x00\x03SUB\x00\x00\x00\x03ASG"
    )


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # Java: Math.abs("…".hashCode()) % 50, with 0 for Integer.MIN_VALUE.
    [
        ("", 0),
        ("a", 97 % 50),
        ("test", 3_556_498 % 50),
        ("polygenelubricants", 0),
        ("Ω", 937 % 50),
        ("console", 951_510_359 % 50),
    ],
)
def test_a_group_lives_where_kafka_would_put_it(group_id: str, partition: int) -> None:
    assert records.partition_for(group_id, 50) == partition


@given(_texts, _texts, st.integers(0, 2**31 - 1), _longs, st.integers(-1, 9), _texts, _longs, st.sampled_from([-1, 5]))
def test_offsets_come_back(
    group: str, topic: str, partition: int, offset: int, epoch: int, text: str, at_ms: int, expires_at_ms: int
) -> None:
    entry = Committed(offset, -1 if expires_at_ms >= 0 else epoch, text, at_ms, expires_at_ms)
    key, value = records.offset_record(group, topic, partition, entry)
    assert records.read_key(key) == records.OffsetKey(group, topic, partition)
    assert value is not None
    assert records.read_offset(value) == entry


_members = st.builds(
    ClassicMember,
    _texts,
    st.none() | _texts,
    _texts,
    _texts,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.tuples(st.tuples(st.just("range"), st.binary(max_size=50))),
    st.binary(max_size=50),
)


@given(st.lists(_members, max_size=4, unique_by=lambda member: member.member_id), st.integers(0, 2**31 - 1))
def test_classic_groups_come_back(members: list[ClassicMember], generation: int) -> None:
    group = ClassicGroup("g", SETTINGS)
    leader = members[-1].member_id if members else None
    name = "range" if members else None
    group.restore(
        generation_id=generation, protocol_type="consumer", protocol_name=name, leader=leader, members=members
    )
    _, value = records.classic_record(group, 5)
    again = ClassicGroup("g", SETTINGS)
    records.read_classic(value or b"", again)
    assert again.roster.members == group.roster.members
    assert again.roster.leader == group.roster.leader
    assert (again.state, again.generation_id, again.protocol_name) == (group.state, generation, name)
    assert again.emptied_at_ms == (None if members else 5)


_partitions = st.frozensets(st.tuples(st.sampled_from([topic_id("t"), topic_id("u")]), st.integers(0, 5)))


@given(
    st.builds(
        ConsumerMember,
        st.just("m"),
        st.none() | _texts,
        st.none() | _texts,
        _texts,
        _texts,
        st.integers(0, 2**31 - 1),
        st.lists(_texts, max_size=3).map(tuple),
        st.none() | _texts,
        st.none() | st.just("range"),
        st.integers(0, 99),
        st.builds(Holding, st.integers(-2, 99), st.sampled_from(ReconcilePhase), _partitions, _partitions),
        _partitions,
    )
)
def test_consumer_members_come_back(member: ConsumerMember) -> None:
    key, value = records.consumer_member_record("g", member)
    assert records.read_key(key) == records.ConsumerMemberKey("g", "m")
    assert records.read_consumer_member(value or b"", "m") == member


def test_consumer_groups_come_back() -> None:
    group = ConsumerGroup("g", SETTINGS)
    group.restore(epoch=9, assignment_epoch=8, seen={topic_id("t"): 4})
    group.emptied_at_ms = 77
    key, value = records.consumer_record(group)
    assert records.read_key(key) == records.ConsumerKey("g")
    again = ConsumerGroup("g", SETTINGS)
    records.read_consumer(value or b"", again)
    assert (again.epoch, again.assignment_epoch, again.seen, again.emptied_at_ms) == (9, 8, group.seen, 77)


def test_keys_of_another_time_are_left_alone() -> None:
    assert records.read_key(b"\x00\x0fwhatever") == records.Unknown(15)


@given(st.binary(max_size=40))
def test_garbage_is_corrupt_and_nothing_else(data: bytes) -> None:
    for read in (
        records.read_key,
        records.read_offset,
        lambda value: records.read_classic(value, ClassicGroup("g", SETTINGS)),
        lambda value: records.read_consumer(value, ConsumerGroup("g", SETTINGS)),
        lambda value: records.read_consumer_member(value, "m"),
    ):
        try:
            read(data)
        except Corrupt:
            pass
