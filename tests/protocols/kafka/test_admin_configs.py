"""Settings are told truly and changed at run time over Kafka's config requests, in every version."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk, MakeDesk, each_version
from waystation import config_kafka
from waystation.config import BROKER_SETTINGS, MAX_VALUE_CHARACTERS, TOPIC_SETTINGS, UNUSED_SETTINGS
from waystation.protocols.kafka.admin.configs import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
)

NODE = "1"
THROTTLED = "leader.replication.throttled.replicas"


def resource(kind: int, name: str, *keys: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}


def told(desk: Desk, kind: int, name: str, *keys: str, version: int = 4) -> dict[str, Any]:
    """The settings of a resource, by name."""
    asked = [resource(kind, name, *keys)]
    (result,) = desk.ask(
        "describe_configs", version, resources=asked, include_synonyms=True, include_documentation=True
    ).results
    assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.none, kind, name)
    return {config.name: config for config in result.configs}


def replaced(
    desk: Desk, version: int, kind: int, name: str, only_try: bool = False, **configs: str | None
) -> ErrorCode:
    """AlterConfigs of one resource."""
    entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    asked = [{"resource_type": kind, "resource_name": name, "configs": entries}]
    (result,) = desk.ask("alter_configs", version, resources=asked, validate_only=only_try).responses
    return ErrorCode(result.error_code)


def changed(
    desk: Desk, version: int, kind: int, name: str, *changes: tuple[str, int, str | None], only_try: bool = False
) -> ErrorCode:
    """IncrementalAlterConfigs of one resource."""
    entries = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    asked = [{"resource_type": kind, "resource_name": name, "configs": entries}]
    (result,) = desk.ask("incremental_alter_configs", version, resources=asked, validate_only=only_try).responses
    assert (result.error_message is None) == (result.error_code == ErrorCode.none)
    return ErrorCode(result.error_code)


# -- DescribeConfigs -----------------------------------------------------------------------------------------------


@each_version("describe_configs")
def test_topic_settings_tell_value_source_and_synonyms(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(log_retention_ms="2000")
    desk.create("a", retention_ms="1000")
    desk.run(desk.broker.alter_settings({"log.retention.ms": "3000"}))
    configs = told(desk, TOPIC, "a", version=version)
    assert set(configs) == set(TOPIC_SETTINGS)
    retention, segment = configs["retention.ms"], configs["segment.bytes"]
    assert (retention.value, retention.config_source, retention.read_only, retention.is_sensitive) == (
        "1000",
        1,
        False,
        False,
    )
    assert [(one.name, one.value, one.source) for one in retention.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "3000", 2),
        ("log.retention.ms", "2000", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (segment.value, segment.config_source) == ("1073741824", 5)
    assert [(one.name, one.value, one.source) for one in segment.synonyms] == [("log.segment.bytes", "1073741824", 5)]
    if version >= 3:
        types = {name: config.config_type for name, config in configs.items()}
        expected = {"preallocate": 1, "compression.type": 2, "segment.bytes": 3, "retention.ms": 5, "cleanup.policy": 7}
        assert {name: types[name] for name in expected} == expected
        assert types["min.cleanable.dirty.ratio"] == 6
        assert retention.documentation == TOPIC_SETTINGS["retention.ms"].doc


@each_version("describe_configs")
def test_synonyms_and_documentation_are_told_only_when_asked_for(desk: Desk, version: int) -> None:
    desk.create("a")
    (result,) = desk.ask(
        "describe_configs", version, resources=[resource(TOPIC, "a", "retention.ms", "no.such")]
    ).results
    (config,) = result.configs
    assert (config.name, config.synonyms, getattr(config, "documentation", None)) == ("retention.ms", (), None)


def test_empty_list_of_keys_means_all(desk: Desk) -> None:
    desk.create("a")
    asked = [{"resource_type": TOPIC, "resource_name": "a", "configuration_keys": []}]
    assert len(desk.ask("describe_configs", 4, resources=asked).results[0].configs) == len(TOPIC_SETTINGS)


def test_resource_asked_for_twice_is_told_once(desk: Desk) -> None:
    assert len(desk.ask("describe_configs", 4, resources=[resource(BROKER, NODE)] * 3).results) == 1


def test_values_that_hold_are_told_in_their_usual_spelling(desk: Desk) -> None:
    desk.create("a", preallocate="TRUE", cleanup_policy="compact, delete")
    configs = told(desk, TOPIC, "a")
    assert (configs["preallocate"].value, configs["cleanup.policy"].value) == ("true", "compact,delete")


@each_version("describe_configs")
def test_broker_settings_are_told(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(num_partitions="3")
    desk.run(desk.broker.alter_settings({"message.max.bytes": "2000000"}))
    configs = told(desk, BROKER, NODE, version=version)
    assert set(configs) == set(BROKER_SETTINGS) | set(UNUSED_SETTINGS)
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("3", 4)
    assert (configs["message.max.bytes"].value, configs["message.max.bytes"].config_source) == ("2000000", 2)
    assert configs["auto.create.topics.enable"].config_source == 5
    assert configs["offsets.topic.num.partitions"].read_only
    assert not configs["num.partitions"].read_only


@each_version("describe_configs")
def test_cluster_defaults_are_what_was_changed(desk: Desk, version: int) -> None:
    assert told(desk, BROKER, "", version=version) == {}
    desk.run(desk.broker.alter_settings({"message.max.bytes": "2000000"}))
    configs = told(desk, BROKER, "", version=version)
    assert {name: (one.value, one.config_source) for name, one in configs.items()} == {
        "message.max.bytes": ("2000000", 3)
    }


@each_version("describe_configs")
def test_groups_and_client_metrics_and_loggers_are_answered(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(group_consumer_session_timeout_ms="6000")
    group = told(desk, GROUP, "readers", version=version)
    assert group["consumer.session.timeout.ms"].value == "6000"
    assert not group["consumer.session.timeout.ms"].read_only
    assert told(desk, CLIENT_METRICS, "some", version=version) == {}
    loggers = told(desk, BROKER_LOGGER, NODE, version=version)
    assert loggers["waystation"].config_source == 6


@each_version("describe_configs")
def test_resources_that_do_not_exist_are_refused(desk: Desk, version: int) -> None:
    cases = {
        (TOPIC, "never"): ErrorCode.unknown_topic_or_partition,
        (TOPIC, ""): ErrorCode.invalid_topic_exception,
        (TOPIC, "a/b"): ErrorCode.invalid_topic_exception,
        (BROKER, "2"): ErrorCode.invalid_request,
        (BROKER, "x"): ErrorCode.invalid_request,
        (BROKER_LOGGER, ""): ErrorCode.invalid_request,
        (GROUP, ""): ErrorCode.invalid_request,
        (CLIENT_METRICS, ""): ErrorCode.invalid_request,
        (0, "x"): ErrorCode.invalid_request,
        (77, "x"): ErrorCode.invalid_request,
    }
    results = desk.ask("describe_configs", version, resources=[resource(kind, name) for kind, name in cases]).results
    assert {(one.resource_type, one.resource_name): one.error_code for one in results} == cases
    assert all(one.error_message and one.configs == () for one in results)


# -- AlterConfigs --------------------------------------------------------------------------------------------------


@each_version("alter_configs")
def test_old_alter_replaces_all_settings_of_a_topic(desk: Desk, version: int) -> None:
    topic = desk.create("a", retention_ms="1000", segment_bytes="2000")
    assert replaced(desk, version, TOPIC, "a", retention_ms="7", only_try=True) == ErrorCode.none
    assert topic.overrides == {"retention.ms": "1000", "segment.bytes": "2000"}
    assert replaced(desk, version, TOPIC, "a", retention_ms="7") == ErrorCode.none
    assert topic.overrides == {"retention.ms": "7"}
    assert topic.settings.retention_ms == 7
    assert replaced(desk, version, TOPIC, "a") == ErrorCode.none
    assert topic.overrides == {}


@each_version("alter_configs")
def test_old_alter_replaces_all_changes_of_the_broker(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(message_max_bytes="1500000")
    desk.create("a")
    for name in (NODE, ""):
        assert replaced(desk, version, BROKER, name, message_max_bytes="2000000", num_partitions="3") == ErrorCode.none
        assert desk.broker.topics.get("a").settings.max_message_bytes == 2_000_000
        assert replaced(desk, version, BROKER, name, num_partitions="4") == ErrorCode.none
        assert desk.broker.settings.changed == {"num.partitions": "4"}
        assert desk.broker.topics.get("a").settings.max_message_bytes == 1_500_000


@each_version("alter_configs")
def test_bad_old_alter_changes_nothing(desk: Desk, version: int) -> None:
    topic = desk.create("a", retention_ms="1000")
    for kind, name, configs, code in (
        (TOPIC, "a", {"retention_ms": "soon"}, ErrorCode.invalid_config),
        (TOPIC, "a", {"no_such": "1"}, ErrorCode.invalid_config),
        (TOPIC, "a", {"retention_ms": None}, ErrorCode.invalid_request),
        (TOPIC, "never", {}, ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", {}, ErrorCode.invalid_request),
        (BROKER, NODE, {"num_partitions": "5", "message_max_bytes": "many"}, ErrorCode.invalid_config),
        (BROKER, NODE, {"offsets_topic_num_partitions": "5"}, ErrorCode.invalid_config),
        (BROKER, NODE, {"no_such": "5"}, ErrorCode.invalid_config),
        (BROKER, "2", {}, ErrorCode.invalid_request),
        (BROKER_LOGGER, NODE, {}, ErrorCode.invalid_request),
        (GROUP, "readers", {"share.record.lock.duration.ms": "-1"}, ErrorCode.invalid_config),
        (CLIENT_METRICS, "some", {}, ErrorCode.invalid_request),
        (77, "x", {}, ErrorCode.invalid_request),
    ):
        assert replaced(desk, version, kind, name, **configs) == code, (kind, name, configs)
    assert topic.overrides == {"retention.ms": "1000"}
    assert desk.broker.settings.changed == {}


@each_version("alter_configs", "incremental_alter_configs")
def test_resource_or_setting_given_twice_is_refused(desk: Desk, api: str, version: int) -> None:
    topic = desk.create("a")
    entry = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    one = {"resource_type": TOPIC, "resource_name": "a", "configs": [entry]}
    for resources in ([one, one], [{**one, "configs": [entry, entry]}]):
        codes = {result.error_code for result in desk.ask(api, version, resources=resources).responses}
        assert codes == {ErrorCode.invalid_request}
    assert topic.overrides == {}


@each_version("alter_configs", "incremental_alter_configs")
def test_one_bad_resource_does_not_stop_the_others(desk: Desk, api: str, version: int) -> None:
    topic = desk.create("a")
    entry = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": [entry]} for name in ("never", "a")]
    results = desk.ask(api, version, resources=resources).responses
    assert [one.error_code for one in results] == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]
    assert topic.overrides == {"retention.ms": "5"}


# -- IncrementalAlterConfigs ---------------------------------------------------------------------------------------


@each_version("incremental_alter_configs")
def test_topic_settings_change_one_by_one_and_take_effect(desk: Desk, version: int) -> None:
    topic = desk.create("a", retention_ms="1000", segment_bytes="2000")
    changes = (("retention.ms", DELETE, None), ("max.message.bytes", SET, "500"), ("no.such", DELETE, None))
    assert changed(desk, version, TOPIC, "a", *changes, only_try=True) == ErrorCode.none
    assert topic.overrides == {"retention.ms": "1000", "segment.bytes": "2000"}
    assert changed(desk, version, TOPIC, "a", *changes) == ErrorCode.none
    assert topic.overrides == {"segment.bytes": "2000", "max.message.bytes": "500"}
    assert topic.settings.max_message_bytes == 500


@each_version("incremental_alter_configs")
def test_lists_take_append_and_subtract(desk: Desk, version: int) -> None:
    topic = desk.create("a")
    for how, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact, delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        assert changed(desk, version, TOPIC, "a", ("cleanup.policy", how, value)) == ErrorCode.none
        assert topic.overrides == {"cleanup.policy": expected}
    assert changed(desk, version, TOPIC, "a", ("cleanup.policy", SUBTRACT, "compact")) == ErrorCode.none
    assert topic.overrides == {"cleanup.policy": ""}
    assert not topic.settings.compacts
    assert not topic.settings.deletes
    assert changed(desk, version, BROKER, NODE, ("log.cleanup.policy", APPEND, "compact")) == ErrorCode.none
    assert desk.broker.settings.text("log.cleanup.policy") == "delete,compact"


@each_version("incremental_alter_configs")
def test_broker_settings_change_and_go_back(desk: Desk, version: int) -> None:
    desk.create("a")
    for name in (NODE, ""):
        assert changed(desk, version, BROKER, name, ("log.retention.ms", SET, "99"), only_try=True) == ErrorCode.none
        assert desk.broker.settings.changed == {}
        assert changed(desk, version, BROKER, name, ("log.retention.ms", SET, "99")) == ErrorCode.none
        assert desk.broker.topics.get("a").settings.retention_ms == 99
        assert desk.broker.catalog.settings() == {"log.retention.ms": "99"}
        assert changed(desk, version, BROKER, name, ("log.retention.ms", DELETE, None)) == ErrorCode.none
        assert desk.broker.topics.get("a").settings.retention_ms == 604_800_000
        assert desk.broker.catalog.settings() == {}


@each_version("incremental_alter_configs")
def test_bad_change_is_refused_and_changes_nothing(desk: Desk, version: int) -> None:
    topic = desk.create("a", retention_ms="1000")
    for kind, name, change, code in (
        (TOPIC, "a", ("retention.ms", SET, "soon"), ErrorCode.invalid_config),
        (TOPIC, "a", ("no.such", SET, "1"), ErrorCode.invalid_config),
        (TOPIC, "a", ("no.such", APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, "a", ("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, "a", ("cleanup.policy", APPEND, "burn"), ErrorCode.invalid_config),
        (TOPIC, "a", ("retention.ms", SET, None), ErrorCode.invalid_request),
        (TOPIC, "a", ("retention.ms", 9, "1"), ErrorCode.invalid_request),
        (TOPIC, "never", ("retention.ms", DELETE, None), ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ("retention.ms", DELETE, None), ErrorCode.invalid_request),
        (BROKER, NODE, ("message.max.bytes", SET, "many"), ErrorCode.invalid_config),
        (BROKER, NODE, ("offsets.topic.num.partitions", SET, "9"), ErrorCode.invalid_config),
        (BROKER, NODE, ("no.such", SET, "9"), ErrorCode.invalid_config),
        (BROKER, "2", ("log.retention.ms", SET, "9"), ErrorCode.invalid_request),
        (GROUP, "readers", ("consumer.session.timeout.ms", SET, "9"), ErrorCode.invalid_config),
        (CLIENT_METRICS, "some", ("interval.ms", SET, "9"), ErrorCode.invalid_request),
        (77, "x", ("x", SET, "9"), ErrorCode.invalid_request),
    ):
        for only_try in (True, False):
            assert changed(desk, version, kind, name, change, only_try=only_try) == code, (kind, name, change)
    assert topic.overrides == {"retention.ms": "1000"}
    assert desk.broker.settings.changed == {}


def test_a_group_has_settings_of_its_own(desk: Desk) -> None:
    """Of the new protocol, and of share groups, by one name: which kind it is shows when its first member joins."""
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    changes = ((session, SET, "50000"), (interval, SET, "7000"), ("share.delivery.count.limit", SET, "3"))
    assert changed(desk, 1, GROUP, "readers", *changes, only_try=True) == ErrorCode.none
    assert told(desk, GROUP, "readers")[session].value == "45000"
    assert changed(desk, 1, GROUP, "readers", *changes) == ErrorCode.none
    for name, _, value in changes:
        assert told(desk, GROUP, "readers")[name].value == value
    synonyms = [(one.name, one.value) for one in told(desk, GROUP, "readers")[session].synonyms]
    assert synonyms == [(session, "50000"), ("group.consumer.session.timeout.ms", "45000")]
    listed = desk.ask("list_config_resources", 1, resource_types=(GROUP,)).config_resources
    assert [one.resource_name for one in listed] == ["readers"]
    bad = ((interval, SET, "8000"), ("share.delivery.count.limit", SET, "none"))
    assert changed(desk, 1, GROUP, "readers", *bad) == ErrorCode.invalid_config
    assert told(desk, GROUP, "readers")[interval].value == "7000"
    assert changed(desk, 1, GROUP, "readers", (session, DELETE, None)) == ErrorCode.none
    assert told(desk, GROUP, "readers")[session].value == "45000"


def test_what_is_known_of_the_broker_is_told_by_kafkas_names(make_desk: MakeDesk) -> None:
    desk = make_desk(node_id="7", log_retention_ms="7200000")
    configs = told(desk, BROKER, "7")
    values = {name: configs[name].value for name in UNUSED_SETTINGS}
    assert (values["broker.id"], configs["node.id"].value) == ("7", "7")
    assert values["advertised.listeners"] == values["listeners"] == "PLAINTEXT://broker.test:19092"
    assert values["log.dirs"] == values["log.dir"] == desk.broker.root
    assert (values["log.retention.hours"], values["log.retention.minutes"]) == ("2", "120")
    assert (values["default.replication.factor"], values["num.network.threads"]) == ("1", "3")
    assert all(configs[name].read_only for name in (*config_kafka.TOLD, "broker.id"))


def test_kafkas_settings_without_effect_are_accepted_and_those_that_promise_something_are_not(desk: Desk) -> None:
    assert changed(desk, 1, BROKER, NODE, ("num.network.threads", SET, "5")) == ErrorCode.none
    assert told(desk, BROKER, NODE)["num.network.threads"].value == "5"
    assert told(desk, BROKER, "")["num.network.threads"].value == "5"
    assert changed(desk, 1, BROKER, NODE, ("num.network.threads", DELETE, None)) == ErrorCode.none
    assert told(desk, BROKER, NODE)["num.network.threads"].value == "3"
    for name, value in (
        ("num.network.threads", "many"),
        ("authorizer.class.name", "org.acme.Authorizer"),
        ("max.connections.per.ip", "3"),
        ("default.replication.factor", "3"),
        ("listeners", "PLAINTEXT://0.0.0.0:9092"),
        ("log.retention.hours", "1"),
        ("broker.id", "3"),
    ):
        assert changed(desk, 1, BROKER, NODE, (name, SET, value)) == ErrorCode.invalid_config, name
    assert desk.broker.settings.changed == {}


def test_the_value_of_a_setting_has_a_limit(desk: Desk) -> None:
    """It is stored in the catalog and held in memory."""
    topic = desk.create("a")
    for count, code in ((MAX_VALUE_CHARACTERS // 4, ErrorCode.none), (20_000, ErrorCode.invalid_config)):
        assert changed(desk, 1, TOPIC, "a", (THROTTLED, SET, ",".join(["0:1"] * count))) == code
    assert len(topic.overrides[THROTTLED]) == MAX_VALUE_CHARACTERS - 1


@pytest.fixture
def quiet_logger() -> Iterator[logging.Logger]:
    """A logger of the broker whose level a test may change."""
    logger = logging.getLogger("waystation.kafka")
    before = logger.level
    yield logger
    logger.setLevel(before)


@each_version("incremental_alter_configs")
def test_log_levels_change_at_run_time(desk: Desk, version: int, quiet_logger: logging.Logger) -> None:
    name = quiet_logger.name
    assert changed(desk, version, BROKER_LOGGER, NODE, (name, SET, "ERROR"), only_try=True) == ErrorCode.none
    assert changed(desk, version, BROKER_LOGGER, NODE, (name, SET, "DEBUG")) == ErrorCode.none
    assert told(desk, BROKER_LOGGER, NODE)[name].value == "DEBUG"
    assert quiet_logger.level == logging.DEBUG
    assert changed(desk, version, BROKER_LOGGER, NODE, (name, DELETE, None)) == ErrorCode.none
    assert quiet_logger.level == logging.NOTSET
    for change, code in (
        ((name, SET, "LOUD"), ErrorCode.invalid_config),
        ((name, APPEND, "INFO"), ErrorCode.invalid_request),
        (("root", SET, "INFO"), ErrorCode.invalid_config),
        (("waystation", DELETE, None), ErrorCode.invalid_request),
    ):
        assert changed(desk, version, BROKER_LOGGER, NODE, change) == code
    assert changed(desk, version, BROKER_LOGGER, "2", (name, SET, "INFO")) == ErrorCode.invalid_request


# -- ListConfigResources -------------------------------------------------------------------------------------------


def test_resources_with_settings_are_listed(desk: Desk) -> None:
    desk.create("a")

    def listed(version: int, *kinds: int) -> tuple[ErrorCode, set[tuple[str, int]]]:
        answer = desk.ask("list_config_resources", version, resource_types=kinds)
        return answer.error_code, {
            (one.resource_name, getattr(one, "resource_type", CLIENT_METRICS)) for one in answer.config_resources
        }

    assert listed(0) == (ErrorCode.none, set())
    assert listed(1, BROKER, BROKER_LOGGER) == (ErrorCode.none, {(NODE, BROKER), (NODE, BROKER_LOGGER)})
    assert listed(1, GROUP, CLIENT_METRICS) == (ErrorCode.none, set())
    topics = {(topic.name, TOPIC) for topic in desk.broker.topics}
    assert listed(1, TOPIC) == (ErrorCode.none, topics)
    assert listed(1) == (ErrorCode.none, topics | {(NODE, BROKER), (NODE, BROKER_LOGGER)})
    assert listed(1, 99) == (ErrorCode.unsupported_version, set())
