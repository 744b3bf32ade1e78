"""Kafka's share consumers are assigned partitions so that all of them have work, where there is enough of it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.groups.kit import topic_id
from tests.protocols.kafka.admin_kit import Desk, MakeDesk
from tests.protocols.kafka.conftest import make_desk as make_desk
from waystation.groups.machines.calls import TopicPartition
from waystation.share.machines.assignor import assign

Assignment = dict[str, frozenset[TopicPartition]]


def partitions(**counts: int) -> dict[str, list[TopicPartition]]:
    return {name: [(topic_id(name), index) for index in range(count)] for name, count in counts.items()}


def members(count: int, *names: str) -> dict[str, frozenset[str]]:
    return {f"m{number}": frozenset(names) for number in range(count)}


def shares(made: Assignment) -> list[int]:
    return sorted(len(one) for one in made.values())


def test_partitions_are_spread_over_members_when_there_are_enough() -> None:
    topics = partitions(orders=4)
    assert shares(assign(members(2, "orders"), topics, {})) == [2, 2]
    assert shares(assign(members(3, "orders"), topics, {})) == [1, 1, 2]
    assert shares(assign(members(1, "orders"), topics, {})) == [4]


def test_members_share_partitions_when_there_are_not_enough() -> None:
    made = assign(members(5, "orders"), partitions(orders=2), {})
    assert shares(made) == [1] * 5
    assert sorted(Counter(one for own in made.values() for one in own).values()) == [2, 3]


def test_topics_that_all_want_are_dealt_together() -> None:
    topics = partitions(a=1, b=1, c=1)
    assert shares(assign(members(3, "a", "b", "c"), topics, {})) == [1, 1, 1]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.booleans(), st.data())
def test_everybody_has_work_and_all_work_is_done(
    first: int, second: int, count: int, alike: bool, data: st.DataObject
) -> None:
    topics = partitions(a=first, b=second)
    everyone = frozenset({"a", "b"})
    wanted = {
        f"m{number}": everyone if alike else data.draw(st.sampled_from([everyone, frozenset({"a"}), frozenset({"b"})]))
        for number in range(count)
    }
    every = [one for own in topics.values() for one in own]
    before = {
        member: frozenset(data.draw(st.lists(st.sampled_from(every), max_size=5)) if every else ()) for member in wanted
    }
    made = assign(wanted, topics, before)
    assert made.keys() == wanted.keys()
    for name, own in topics.items():
        readers = [member for member, names in wanted.items() if name in names]
        for one in own if readers else ():
            assert any(one in made[member] for member in readers)
    for member, names in wanted.items():
        allowed = {one for name in names for one in topics[name]}
        assert made[member] <= allowed
        assert bool(made[member]) == bool(allowed)
    if len(set(wanted.values())) == 1 and every:
        loads = [len(made[member]) for member in wanted]
        assert max(loads) - min(loads) <= 1
    assert assign(wanted, topics, made) == made, "what is fair stays as it is"


def test_who_has_something_keeps_it_as_far_as_that_is_fair() -> None:
    topics = partitions(orders=6)
    two = assign(members(2, "orders"), topics, {})
    three = assign(members(3, "orders"), topics, two)
    assert shares(three) == [2, 2, 2]
    assert three["m0"] < two["m0"]
    assert three["m1"] < two["m1"]


# -- through Kafka's requests ------------------------------------------------------------------------------------------


def beat(desk: Desk, member: str, epoch: int) -> Any:
    topics = ["t"] if epoch == 0 else None
    fields = {"group_id": "g", "member_id": member, "member_epoch": epoch, "subscribed_topic_names": topics}
    answer = desk.ask("share_group_heartbeat", 1, **fields)
    assert answer.error_code is ErrorCode.none
    return answer


def assigned(answer: Any) -> list[int]:
    return sorted(index for one in answer.assignment.topic_partitions for index in one.partitions)


def fetched(desk: Desk, member: str, topic: Any, indexes: list[int]) -> int:
    wanted = [{"topic_id": topic.id, "partitions": [{"partition_index": index} for index in indexes]}]
    limits = {"max_bytes": 2**20, "max_records": 1000, "max_wait": timedelta(0), "min_bytes": 1}
    answer = desk.ask("share_fetch", 2, group_id="g", member_id=member, share_session_epoch=0, topics=wanted, **limits)
    ranges = [one for part in answer.responses[0].partitions for one in part.acquired_records]
    return sum(one.last_offset - one.first_offset + 1 for one in ranges)


def test_two_members_of_four_partitions_get_half_each(make_desk: MakeDesk) -> None:
    desk = make_desk()
    topic = desk.create("t", 4)
    one = beat(desk, "one", 0)
    assert assigned(one) == [0, 1, 2, 3]
    two = beat(desk, "two", 0)
    one = beat(desk, "one", one.member_epoch)
    assert len(assigned(one)) == len(assigned(two)) == 2
    assert sorted(assigned(one) + assigned(two)) == [0, 1, 2, 3]
    for index in range(4):
        desk.write("t", index, 100)
    assert fetched(desk, "one", topic, assigned(one)) == 200
    assert fetched(desk, "two", topic, assigned(two)) == 200
    (view,) = desk.ask("share_group_describe", 1, group_ids=["g"]).groups
    assert view.assignor_name == "simple"
    told = {one.member_id: assigned(one) for one in view.members}
    assert told == {"one": assigned(one), "two": assigned(two)}
    desk.ask("share_group_heartbeat", 1, group_id="g", member_id="two", member_epoch=-1)
    assert assigned(beat(desk, "one", one.member_epoch)) == [0, 1, 2, 3]
