"""confluent-kafka's AdminClient: settings of topics and of the broker are told truly, and changes take effect."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests.clients import kit
from tests.clients.stage import NewTopicCall, OwnServerCall, create_topic
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


def describe(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    """The settings of a topic or broker."""
    resource = ConfigResource(kind, name)
    told: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return told


def change(
    admin: AdminClient, kind: ResourceType, name: str, key: str, value: str, how: str = "SET", **options: Any
) -> None:
    """One incremental change."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType[how])
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource], **options)[resource].result(DEADLINE_S)


def is_now(admin: AdminClient, topic: str, key: str, value: str) -> None:
    """A change may take a moment to reach the broker that answers."""
    wait_for(lambda: describe(admin, ResourceType.TOPIC, topic)[key].value == value, f"{key} is {value}")


def node(admin: AdminClient) -> str:
    """The id of the only broker."""
    return str(min(admin.list_topics(timeout=DEADLINE_S).brokers))


def test_topic_settings_tell_value_and_origin(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"retention.ms": 123_456, "cleanup.policy": "compact"})
    told = describe(admin, ResourceType.TOPIC, topic)
    assert told["retention.ms"].value == "123456"
    assert ConfigSource(told["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert told["cleanup.policy"].value == "compact"
    assert ConfigSource(told["segment.bytes"].source) is ConfigSource.DEFAULT_CONFIG
    assert told["segment.bytes"].is_default
    expected = {
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "max.message.bytes",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
    }
    assert expected <= set(told)


def test_incremental_change_leaves_other_settings_alone(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"retention.ms": 1000_000, "segment.bytes": 2_000_000})
    change(admin, ResourceType.TOPIC, topic, "retention.ms", "2000000")
    is_now(admin, topic, "retention.ms", "2000000")
    assert describe(admin, ResourceType.TOPIC, topic)["segment.bytes"].value == "2000000"
    change(admin, ResourceType.TOPIC, topic, "retention.ms", "", "DELETE")
    is_now(admin, topic, "retention.ms", "604800000")


def test_list_settings_take_append_and_subtract(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"cleanup.policy": "delete"})
    change(admin, ResourceType.TOPIC, topic, "cleanup.policy", "compact", "APPEND")
    is_now(admin, topic, "cleanup.policy", "delete,compact")
    change(admin, ResourceType.TOPIC, topic, "cleanup.policy", "delete", "SUBTRACT")
    is_now(admin, topic, "cleanup.policy", "compact")


def test_no_cleanup_policy_at_all_is_accepted(admin: AdminClient, new_topic: NewTopicCall) -> None:
    """Kafka's way to say that nothing is deleted and nothing compacted."""
    topic = new_topic(config={"cleanup.policy": "compact"})
    change(admin, ResourceType.TOPIC, topic, "cleanup.policy", "compact", how="SUBTRACT")
    is_now(admin, topic, "cleanup.policy", "")
    other = new_topic(config={"cleanup.policy": ""})
    assert describe(admin, ResourceType.TOPIC, other)["cleanup.policy"].value == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_alter_replaces_all_settings(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"retention.ms": 1000_000, "segment.bytes": 2_000_000})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "3000000"})
    admin.alter_configs([resource])[resource].result(DEADLINE_S)
    is_now(admin, topic, "segment.bytes", "3000000")
    is_now(admin, topic, "retention.ms", "604800000")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("leader.replication.throttled.replicas", "0:1,1:1"),
        ("follower.replication.throttled.replicas", "*"),
        ("remote.storage.enable", "false"),
        ("remote.log.copy.disable", "false"),
        ("remote.log.delete.on.disable", "false"),
        ("local.retention.ms", "-2"),
        ("local.retention.bytes", "1000000"),
        ("compression.gzip.level", "6"),
        ("compression.lz4.level", "9"),
        ("compression.zstd.level", "-3"),
    ],
)
def test_settings_of_what_is_not_offered_are_accepted_and_shown(
    admin: AdminClient, new_topic: NewTopicCall, key: str, value: str
) -> None:
    """Reassignment tools and topic definitions for other clusters set them."""
    topic = new_topic(config={key: value})
    assert describe(admin, ResourceType.TOPIC, topic)[key].value == value
    change(admin, ResourceType.TOPIC, topic, key, value, how="DELETE")
    assert describe(admin, ResourceType.TOPIC, topic)[key].is_default


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("no.such.setting", "1"),
        ("segment.bytes", "-5"),
        ("leader.replication.throttled.replicas", "0:1,all"),
        ("remote.storage.enable", "true"),
        ("compression.zstd.level", "23"),
    ],
)
def test_bad_change_is_refused_and_changes_nothing(
    admin: AdminClient, new_topic: NewTopicCall, key: str, value: str
) -> None:
    topic = new_topic()
    before = {name: entry.value for name, entry in describe(admin, ResourceType.TOPIC, topic).items()}
    with pytest.raises(KafkaException) as refused:
        change(admin, ResourceType.TOPIC, topic, key, value)
    assert kit.code_of(refused.value) == KafkaError.INVALID_CONFIG
    after = {name: entry.value for name, entry in describe(admin, ResourceType.TOPIC, topic).items()}
    assert after == before


def test_an_unknown_setting_is_refused_in_kafkas_words(admin: AdminClient, new_topic: NewTopicCall) -> None:
    """Tools, and tests of tools, look for them."""
    words = "Unknown topic config name: no.such.setting"
    with pytest.raises(KafkaException) as refused:
        change(admin, ResourceType.TOPIC, new_topic(), "no.such.setting", "1")
    assert words in refused.value.args[0].str()
    with pytest.raises(KafkaException) as refused:
        new_topic(config={"no.such.setting": "1"})
    assert words in refused.value.args[0].str()


def test_validate_only_changes_nothing(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    change(admin, ResourceType.TOPIC, topic, "retention.ms", "77", validate_only=True)
    assert describe(admin, ResourceType.TOPIC, topic)["retention.ms"].value == "604800000"


def test_settings_of_an_unknown_topic_are_an_error(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        describe(admin, ResourceType.TOPIC, unique("never"))
    assert kit.code_of(refused.value) == KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(KafkaException) as refused:
        change(admin, ResourceType.TOPIC, unique("never"), "retention.ms", "77")
    assert kit.code_of(refused.value) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_size_limit_changed_at_run_time_takes_effect(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall
) -> None:
    topic = new_topic()
    big = b"x" * 20_000
    kit.produce(bootstrap, topic, [big])
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", "10000")

    def refused() -> bool:
        try:
            kit.produce(bootstrap, topic, [big])
        except KafkaException as error:
            return kit.code_of(error) == KafkaError.MSG_SIZE_TOO_LARGE
        return False

    wait_for(refused, "the smaller limit holds")
    change(admin, ResourceType.TOPIC, topic, "max.message.bytes", "30000")
    wait_for(lambda: not refused(), "the larger limit holds")


def test_broker_settings_are_told(admin: AdminClient) -> None:
    told = describe(admin, ResourceType.BROKER, node(admin))
    for key in ("log.retention.ms", "message.max.bytes", "num.partitions", "auto.create.topics.enable"):
        assert key in told


def test_broker_setting_can_be_changed_and_taken_back(admin: AdminClient) -> None:
    broker = node(admin)
    before = describe(admin, ResourceType.BROKER, broker)["log.retention.ms"].value
    change(admin, ResourceType.BROKER, broker, "log.retention.ms", "99999999")
    wait_for(
        lambda: describe(admin, ResourceType.BROKER, broker)["log.retention.ms"].value == "99999999", "it is changed"
    )
    change(admin, ResourceType.BROKER, broker, "log.retention.ms", "", "DELETE")
    wait_for(lambda: describe(admin, ResourceType.BROKER, broker)["log.retention.ms"].value == before, "it is back")


def test_bad_broker_setting_is_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        change(admin, ResourceType.BROKER, node(admin), "message.max.bytes", "many")
    assert kit.code_of(refused.value) in (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST)


def test_unknown_topic_is_refused_while_auto_creation_is_off(own_server: OwnServerCall) -> None:
    server = own_server(auto_create_topics_enable=False)
    never = unique("never")
    client = kit.producer(server.bootstrap, {"topic.metadata.propagation.max.ms": 1000})
    reports = kit.Deliveries()
    client.produce(never, b"x", on_delivery=reports)
    kit.flush(client)
    unknown = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
    assert {error.code() for error in reports.bad} <= unknown
    assert len(reports.bad) == 1
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    assert never not in admin.list_topics(timeout=DEADLINE_S).topics


def test_a_broker_has_the_id_that_it_was_given(own_server: OwnServerCall) -> None:
    """Clients find leaders and coordinators by it, and tools read what Kafka calls it and where it listens."""
    server = own_server(node_id=7)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    assert set(admin.list_topics(timeout=DEADLINE_S).brokers) == {7}
    topic = create_topic(admin, unique("led"))
    kit.produce(server.bootstrap, topic, kit.numbered(3))
    reader = kit.consumer(server.bootstrap, unique("group"))
    reader.subscribe([topic])
    assert len(kit.take(reader, 3)) == 3
    reader.close()
    told = {name: entry.value for name, entry in describe(admin, ResourceType.BROKER, "7").items()}
    assert (told["broker.id"], told["node.id"], told["default.replication.factor"]) == ("7", "7", "1")
    assert told["advertised.listeners"] == told["listeners"] == f"PLAINTEXT://{server.bootstrap}"
    assert told["log.dirs"] == str(server.data)


def test_a_consumer_group_has_its_own_session_timeout_and_interval(
    admin: AdminClient, bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    """Set before the group has members; a consumer of the new protocol gets its interval from the broker."""
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    before = describe(admin, ResourceType.GROUP, group)
    change(admin, ResourceType.GROUP, group, session, "50000")
    change(admin, ResourceType.GROUP, group, interval, "6000")
    told = describe(admin, ResourceType.GROUP, group)
    assert (told[session].value, told[interval].value) == ("50000", "6000")
    with pytest.raises(KafkaException, match=session):
        change(admin, ResourceType.GROUP, group, session, "1")
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(3))
    reader = kit.consumer(bootstrap, group, {"group.protocol": "consumer"})
    reader.subscribe([topic])
    assert len(kit.take(reader, 3)) == 3
    reader.close()
    for name in (interval, session):  # the interval stays below the timeout at every step
        change(admin, ResourceType.GROUP, group, name, "", "DELETE")
        assert describe(admin, ResourceType.GROUP, group)[name].value == before[name].value
