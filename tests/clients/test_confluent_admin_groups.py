"""confluent-kafka's AdminClient: groups are listed and described as they are, and their offsets can be moved."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState as State
from confluent_kafka import ConsumerGroupTopicPartitions as Offsets
from confluent_kafka import ConsumerGroupType as Kind
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as TP
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.members import Member, pump
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

PROTOCOLS: dict[str, dict[str, str | int]] = {
    "classic": {"session.timeout.ms": kit.SESSION_MS, "partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture(params=list(PROTOCOLS))
def member(request: pytest.FixtureRequest, bootstrap: str, new_topic: NewTopicCall, group: str) -> Iterator[Member]:
    """The one member of a group over a topic of two partitions, in each protocol."""
    topic = new_topic(partitions=2)
    member = Member(bootstrap, group, [topic], name="the-member", config=PROTOCOLS[request.param])
    pump([member], lambda: len(member.owned) == 2, "it owns both partitions")
    yield member
    member.close()


def kind_of(request: pytest.FixtureRequest) -> Kind:
    """Which protocol the `member` fixture speaks in this run."""
    return Kind.CONSUMER if "consumer" in request.node.callspec.id else Kind.CLASSIC


def refusal(future: Future[Any]) -> int:
    """The error code an admin call is answered with."""
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    return kit.code_of(refused.value)


def listed(admin: AdminClient, **filters: Any) -> dict[str, Any]:
    """The groups, by id."""
    told = admin.list_consumer_groups(**filters).result(DEADLINE_S)
    assert told.errors == []
    return {group.group_id: group for group in told.valid}


def offsets_of(admin: AdminClient, group: str, places: list[TP] | None = None) -> dict[tuple[str, int], int]:
    """The committed offsets of a group."""
    told = admin.list_consumer_group_offsets([Offsets(group, places)])[group].result(DEADLINE_S)
    return {(tp.topic, tp.partition): tp.offset for tp in told.topic_partitions}


def test_group_is_listed_with_state_and_type(
    admin: AdminClient, member: Member, group: str, request: pytest.FixtureRequest
) -> None:
    kind = kind_of(request)
    other = Kind.CLASSIC if kind is Kind.CONSUMER else Kind.CONSUMER
    wait_for(lambda: group in listed(admin, states={State.STABLE}), "listed as stable")
    entry = listed(admin)[group]
    assert (entry.state, entry.type, entry.is_simple_consumer_group) == (State.STABLE, kind, False)
    assert group not in listed(admin, states={State.EMPTY})
    assert group in listed(admin, types={kind})
    assert group not in listed(admin, types={other})


def test_group_is_described_with_its_members_and_their_partitions(
    admin: AdminClient, member: Member, group: str, request: pytest.FixtureRequest
) -> None:
    told = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert (told.group_id, told.state, told.type) == (group, State.STABLE, kind_of(request))
    assert told.partition_assignor == ("range" if told.type is Kind.CLASSIC else "uniform")
    assert told.coordinator.port > 0
    (one,) = told.members
    assert (one.client_id, one.member_id != "") == ("the-member", True)
    assert {(tp.topic, tp.partition) for tp in one.assignment.topic_partitions} == member.owned


def test_group_with_members_cannot_be_deleted_or_moved(admin: AdminClient, member: Member, group: str) -> None:
    (topic, partition) = min(member.owned)
    assert refusal(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    moved = admin.alter_consumer_group_offsets([Offsets(group, [TP(topic, partition, 0)])])[group]
    (told,) = moved.result(DEADLINE_S).topic_partitions
    assert told.error.code() == KafkaError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_empty_group_keeps_its_offsets_until_it_is_deleted(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str, protocol: str
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(7))
    client = kit.consumer(bootstrap, group, PROTOCOLS[protocol])
    client.subscribe([topic])
    client.commit(message=kit.take(client, 7)[-1], asynchronous=False)
    client.close()
    wait_for(lambda: listed(admin, states={State.EMPTY}).get(group), "the group is empty")
    assert offsets_of(admin, group) == {(topic, 0): 7}
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert group not in listed(admin)
    assert offsets_of(admin, group, [TP(topic, 0)]) == {(topic, 0): -1001}


def test_offsets_of_an_empty_group_can_be_moved(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(partitions=2)
    kit.produce(bootstrap, topic, kit.numbered(10), partition=0)
    places = [TP(topic, 0, 4), TP(topic, 1, 0)]
    admin.alter_consumer_group_offsets([Offsets(group, places)])[group].result(DEADLINE_S)
    assert offsets_of(admin, group) == {(topic, 0): 4, (topic, 1): 0}
    client = kit.consumer(bootstrap, group)
    client.subscribe([topic])
    assert kit.values(kit.take(client, 6)) == kit.numbered(6, start=4)
    client.close()


def test_partition_without_a_commit_has_no_offset(admin: AdminClient, new_topic: NewTopicCall, group: str) -> None:
    topic = new_topic()
    assert offsets_of(admin, group, [TP(topic, 0)]) == {(topic, 0): -1001}


def test_unknown_group_is_described_as_dead_and_cannot_be_deleted(admin: AdminClient) -> None:
    never = unique("never")
    told = admin.describe_consumer_groups([never])[never].result(DEADLINE_S)
    assert (told.state, told.members) == (State.DEAD, [])
    assert refusal(admin.delete_consumer_groups([never])[never]) == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_group_listing_tells_members_too(admin: AdminClient, bootstrap: str, new_topic: NewTopicCall) -> None:
    """`list_groups` is the call that older tools use: ListGroups and DescribeGroups in their early versions."""
    topic, group = new_topic(), unique("g")
    member = Member(bootstrap, group, [topic], name="seen", config=PROTOCOLS["classic"])
    pump([member], lambda: len(member.owned) == 1, "it owns the partition")
    told: Any = admin.list_groups(group, timeout=DEADLINE_S)[0]
    assert (told.id, told.state, told.protocol_type, told.protocol) == (group, "Stable", "consumer", "range")
    assert [one.client_id for one in told.members] == ["seen"]
    member.close()
