"""kafka-python's admin client, which speaks more admin requests than any other Python client: also the rare ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.admin import (
    AbortTransactionSpec,
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    OffsetSpec,
    OffsetTimestamp,
    TransactionState,
)
from kafka.errors import (
    GroupSubscribedToTopicError,
    NoError,
    TopicAlreadyExistsError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)

from tests.clients import kit
from tests.clients.members import Member, pump
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture
def kadmin(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def described(kadmin: Any, topic: str) -> dict[str, Any]:
    """What metadata says about one topic."""
    (told,) = kadmin.describe_topics([topic])
    return dict(told)


def test_topics_are_created_described_by_name_and_id_and_deleted(kadmin: Any) -> None:
    topic = unique("kp")
    kadmin.create_topics(
        {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5000000"}}}
    )
    kadmin.wait_for_topics([topic])
    told = described(kadmin, topic)
    assert (told["name"], len(told["partitions"])) == (topic, 2)
    (by_id,) = kadmin.describe_topics([UUID(told["topic_id"])])
    assert by_id["name"] == topic
    assert topic in kadmin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        kadmin.create_topics([topic])
    kadmin.create_partitions({topic: 3})
    wait_for(lambda: len(described(kadmin, topic)["partitions"]) == 3, "three partitions")
    kadmin.delete_topics([topic])
    wait_for(lambda: topic not in kadmin.list_topics(), "gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        kadmin.delete_topics([topic])


def test_topic_partitions_are_described_page_by_page(kadmin: Any, new_topic: NewTopicCall) -> None:
    one, two = sorted([new_topic(partitions=3), new_topic(partitions=3)])
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        page = kadmin.describe_topic_partitions([one, two], response_partition_limit=2, cursor=cursor)
        seen += [(topic["name"], part["partition_index"]) for topic in page["topics"] for part in topic["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [(one, 0), (one, 1), (one, 2), (two, 0), (two, 1), (two, 2)]


def test_cluster_versions_and_features_are_told(kadmin: Any) -> None:
    told = kadmin.describe_cluster()
    assert told["cluster_id"]
    assert told["controller_id"] in {broker["broker_id"] for broker in told["brokers"]}
    assert "Produce" in str(kadmin.api_versions())
    kadmin.describe_features()


def test_topic_settings_change_and_reset(kadmin: Any, new_topic: NewTopicCall) -> None:
    topic = new_topic()

    def resource(configs: Any = None) -> Any:
        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    def modified() -> dict[str, Any]:
        return dict(kadmin.describe_configs([resource()])["topic"][topic])

    for incremental, value in ((True, "7000000"), (False, "8000000")):
        kadmin.alter_configs([resource({"retention.ms": value})], incremental=incremental)
        wait_for(lambda: str(modified().get("retention.ms", {}).get("value")) == value, value)  # noqa: B023
    kadmin.reset_configs([resource({"retention.ms": None})])
    wait_for(lambda: "retention.ms" not in modified(), "back to the default")


def test_log_dirs_tell_the_size_of_partitions(bootstrap: str, kadmin: Any, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=2)
    kit.produce(bootstrap, topic, [b"x" * 1000] * 10, partition=1)
    (broker,) = kadmin.describe_log_dirs({topic: [0, 1]})
    (folder,) = broker["log_dirs"]
    (told,) = folder["topics"]
    sizes = {part["partition_index"]: part["partition_size"] for part in told["partitions"]}
    assert told["name"] == topic
    assert sizes[0] == 0
    assert sizes[1] >= 10_000


def test_records_are_deleted_and_offsets_listed(bootstrap: str, kadmin: Any, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    kit.produce(bootstrap, topic, kit.numbered(10))
    kadmin.delete_records({place: 4})
    for spec, offset in ((OffsetSpec.EARLIEST, 4), (OffsetSpec.LATEST, 10)):
        assert kadmin.list_partition_offsets({place: spec})[place].offset == offset


def test_groups_are_listed_described_moved_and_deleted(bootstrap: str, kadmin: Any, new_topic: NewTopicCall) -> None:
    topic, group = new_topic(partitions=2), unique("kp")
    places = [TopicPartition(topic, n) for n in (0, 1)]
    kit.produce(bootstrap, topic, kit.numbered(10), partition=0)
    member = Member(bootstrap, group, [topic], name="watched", config={"session.timeout.ms": kit.SESSION_MS})
    pump([member], lambda: len(member.owned) == 2, "it owns both")
    told = kadmin.describe_groups([group])[group]
    assert told["group_state"] == "Stable"
    assert [one["client_id"] for one in told["members"]] == ["watched"]
    (listed,) = [one for one in kadmin.list_groups(states_filter=["Stable"]) if one["group_id"] == group]
    assert listed["group_type"] in ("classic", "Classic")
    refused = kadmin.delete_group_offsets(group, places[:1])
    assert refused[places[0]] is GroupSubscribedToTopicError or refused[places[0]] is NoError
    member.close()
    wait_for(lambda: kadmin.describe_groups([group])[group]["group_state"] == "Empty", "the group is empty")
    kadmin.alter_group_offsets(group, {place: OffsetAndMetadata(5, "", -1) for place in places})
    kadmin.reset_group_offsets(group, {places[0]: OffsetSpec.EARLIEST, places[1]: OffsetTimestamp(1)})
    held = kadmin.list_group_offsets([group])[group]
    assert {place: one.offset for place, one in held.items()} == dict.fromkeys(places, 0)
    assert kadmin.delete_group_offsets(group, [places[1]])[places[1]] is NoError
    assert set(kadmin.list_group_offsets([group])[group]) == {places[0]}
    assert kadmin.delete_groups([group]) == {group: "OK"}
    assert kadmin.delete_groups([group]) == {group: "GroupIdNotFoundError"}


def test_static_member_can_be_removed_by_an_admin(bootstrap: str, kadmin: Any, new_topic: NewTopicCall) -> None:
    topic, group = new_topic(), unique("kp")
    config = {"session.timeout.ms": 45_000, "group.instance.id": "static-one"}
    member = Member(bootstrap, group, [topic], name="static", config=config)
    pump([member], lambda: len(member.owned) == 1, "it owns the partition")
    member.close()
    assert kadmin.describe_groups([group])[group]["members"], "a static member stays when its client closes"
    answers = kadmin.remove_group_members(group, [MemberToRemove(group_instance_id="static-one")])
    assert list(answers.values()) == [NoError]
    assert kadmin.describe_groups([group])[group]["members"] == []


def test_transactions_are_listed_described_and_aborted_by_an_admin(
    bootstrap: str, kadmin: Any, new_topic: NewTopicCall
) -> None:
    topic, name = new_topic(), unique("tx")
    place = TopicPartition(topic, 0)
    writer = kit.producer(bootstrap, {"transactional.id": name, "message.timeout.ms": 20_000})
    writer.init_transactions(DEADLINE_S)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    kit.flush(writer)
    listed = [one for rows in kadmin.list_transactions().values() for one in rows if one.transactional_id == name]
    assert [one.state for one in listed] == [TransactionState.ONGOING]
    told = kadmin.describe_transactions([name])[name]
    assert (told.state, told.topic_partitions, told.producer_id) == (
        TransactionState.ONGOING,
        {place},
        listed[0].producer_id,
    )
    assert told.transaction_timeout_ms == 60_000
    (active,) = kadmin.describe_producers([place])[place].active_producers
    assert (active.producer_id, active.current_transaction_start_offset) == (told.producer_id, 0)
    kadmin.abort_transaction(AbortTransactionSpec(place, told.producer_id, told.producer_epoch))
    wait_for(
        lambda: kadmin.describe_producers([place])[place].active_producers[0].current_transaction_start_offset == -1,
        "the transaction no longer holds up the partition",
    )
    assert kit.read_all(bootstrap, topic, {"isolation.level": "read_committed"}) == []


def test_unknown_transaction_is_not_found(kadmin: Any) -> None:
    never = unique("never")
    with pytest.raises(TransactionalIdNotFoundError):
        kadmin.describe_transactions([never])
