"""What operators ask of the broker as a machine: answered in every version."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import LISTENER, Desk, each_version
from waystation.protocols.kafka.requests.api_versions import FEATURES
from waystation.topics.partitions.partition import log_of


@each_version("describe_log_dirs")
def test_log_dirs_tell_the_size_of_partitions_and_the_room_left(desk: Desk, version: int) -> None:
    topic = desk.create("a", 2)
    desk.write("a", 1, 10)
    answer = desk.ask("describe_log_dirs", version, topics=None)
    (folder,) = answer.results
    assert (folder.error_code, folder.log_dir) == (ErrorCode.none, desk.broker.root)
    sizes = {(one.name, p.partition_index): p.partition_size for one in folder.topics for p in one.partitions}
    assert len({name for name, _ in sizes}) == len(desk.broker.topics)
    assert sizes["a", 0] == 0
    assert sizes["a", 1] == topic.partitions[1].size_bytes > 0
    if version >= 4:
        assert folder.total_bytes == shutil.disk_usage(desk.broker.root).total
        assert 0 < folder.usable_bytes <= folder.total_bytes


@each_version("describe_log_dirs")
def test_only_partitions_that_were_asked_for_are_told(desk: Desk, version: int) -> None:
    desk.create("a", 3)
    desk.create("b", 1)
    asked = [{"topic": "a", "partitions": [2, 0, 2, 7, -1]}, {"topic": "never", "partitions": [0]}]
    (folder,) = desk.ask("describe_log_dirs", version, topics=asked).results
    assert [(one.name, [p.partition_index for p in one.partitions]) for one in folder.topics] == [("a", [0, 2])]
    assert desk.ask("describe_log_dirs", version, topics=[]).results[0].topics == ()


@each_version("alter_replica_log_dirs")
def test_replicas_are_moved_to_the_one_folder_and_to_no_other(desk: Desk, version: int) -> None:
    desk.create("a", 2)
    dirs = [
        {"path": desk.broker.root, "topics": [{"name": "a", "partitions": [0]}, {"name": "never", "partitions": [0]}]},
        {"path": "/elsewhere", "topics": [{"name": "a", "partitions": [1, 7]}]},
    ]
    answer = desk.ask("alter_replica_log_dirs", version, dirs=dirs)
    told = {(one.topic_name, p.partition_index): p.error_code for one in answer.results for p in one.partitions}
    assert told == {
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.log_dir_not_found,
        ("a", 7): ErrorCode.unknown_topic_or_partition,
        ("never", 0): ErrorCode.unknown_topic_or_partition,
    }


@each_version("describe_quorum")
def test_this_broker_alone_is_the_quorum(desk: Desk, version: int) -> None:
    desk.create("a")
    asked = [{"topic_name": name, "partitions": [{"partition_index": 0}]} for name in ("__cluster_metadata", "a")]
    answer = desk.ask("describe_quorum", version, topics=asked)
    assert answer.error_code is ErrorCode.none
    told, other = (one.partitions[0] for one in answer.topics)
    assert (told.error_code, told.leader_id, told.observers) == (ErrorCode.none, 1, ())
    assert told.high_watermark == desk.broker.catalog.revision() > 0
    assert [(one.replica_id, one.log_end_offset) for one in told.current_voters] == [(1, told.high_watermark)]
    assert (other.error_code, other.leader_id) == (ErrorCode.unknown_topic_or_partition, -1)
    if version >= 2:
        (node,) = answer.nodes
        assert (node.node_id, node.listeners[0].host, node.listeners[0].port) == (1, LISTENER.host, LISTENER.port)


@each_version("offset_for_leader_epoch")
def test_end_of_an_epoch_is_told(desk: Desk, version: int) -> None:
    log = log_of(desk.create("a", 2).partitions[0])
    desk.write("a", 0, 5)
    log.epoch = 3  # as after crashes: epochs 1 and 2 wrote nothing
    desk.write("a", 0, 2)

    def ends(epoch: int, current: int = -1, partition: int = 0, topic: str = "a") -> tuple[ErrorCode, int, int]:
        entry = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        answer = desk.ask("offset_for_leader_epoch", version, topics=[{"topic": topic, "partitions": [entry]}])
        (told,) = answer.topics[0].partitions
        return told.error_code, told.leader_epoch, told.end_offset

    assert ends(0) == (ErrorCode.none, 0, 5)
    assert ends(2) == (ErrorCode.none, 0, 5)
    assert ends(3) == (ErrorCode.none, 3, 7)
    assert ends(4) == (ErrorCode.none, -1, -1)
    assert ends(0, current=3) == (ErrorCode.none, 0, 5)
    assert ends(0, current=2) == (ErrorCode.fenced_leader_epoch, -1, -1)
    assert ends(0, current=4) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert ends(0, partition=1) == (ErrorCode.none, 0, 0)
    assert ends(0, partition=2) == (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert ends(0, topic="never") == (ErrorCode.unknown_topic_or_partition, -1, -1)


@each_version("offset_for_leader_epoch")
def test_who_has_read_all_of_an_epoch_that_is_removed_goes_on_behind_it(desk: Desk, version: int) -> None:
    log = log_of(desk.create("a", 1).partitions[0])
    desk.write("a", 0, 5)
    log.epoch = 3
    desk.write("a", 0, 2)
    removed = [{"name": "a", "partitions": [{"partition_index": 0, "offset": 5}]}]
    desk.ask("delete_records", 2, topics=removed)
    assert log.epochs.entries == [(3, 5)]
    entry = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    answer = desk.ask("offset_for_leader_epoch", version, topics=[{"topic": "a", "partitions": [entry]}])
    (told,) = answer.topics[0].partitions
    # -1 would have the consumer, which has committed 5, fall back on `auto.offset.reset`.
    assert (told.error_code, told.leader_epoch, told.end_offset) == (ErrorCode.none, 0, 5)


@each_version("update_features")
def test_features_stay_at_their_level(desk: Desk, version: int) -> None:
    feature, (_, _, level) = next(iter(FEATURES.items()))

    def update(name: str, to: int) -> ErrorCode:
        asked = [{"feature": name, "max_version_level": to}]
        answer = desk.ask("update_features", version, feature_updates=asked)
        if version >= 2:
            return ErrorCode(answer.error_code)
        assert answer.error_code == ErrorCode.none
        (told,) = answer.results
        assert (told.feature, told.error_message is None) == (name, told.error_code == ErrorCode.none)
        return ErrorCode(told.error_code)

    assert update(feature, level) == ErrorCode.none
    assert update(feature, level + 1) == ErrorCode.invalid_update_version
    assert update("no.such", 1) == ErrorCode.invalid_request


@each_version("describe_client_quotas")
def test_there_are_no_quotas(desk: Desk, version: int) -> None:
    answer = desk.ask("describe_client_quotas", version, components=[{"entity_type": "user", "match_type": 2}])
    assert (answer.error_code, answer.entries) == (ErrorCode.none, ())


def parts(**named: str | None) -> list[dict[str, str | None]]:
    """An entity; None is the default."""
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in named.items()]


def alter(desk: Desk, version: int, entity: Any, validate_only: Any = False, **values: Any) -> ErrorCode:
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    asked = [{"entity": entity, "ops": ops}]
    (told,) = desk.ask("alter_client_quotas", version, entries=asked, validate_only=validate_only).entries
    assert [(one.entity_type, one.entity_name) for one in told.entity] == [tuple(part.values()) for part in entity]
    assert (told.error_message is None) == (told.error_code == ErrorCode.none)
    return ErrorCode(told.error_code)


def described(desk: Desk, version: int, *, strict: bool = False, **wanted: str | int | None) -> Any:
    """By type: a name, None for the default, 2 for whatever it is."""
    components = [
        {
            "entity_type": kind.replace("_", "-"),
            "match_type": 2 if match == 2 else 1 if match is None else 0,
            "match": match if isinstance(match, str) else None,
        }
        for kind, match in wanted.items()
    ]
    answer = desk.ask("describe_client_quotas", version, components=components, strict=strict)
    if answer.error_code != ErrorCode.none:
        return ErrorCode(answer.error_code)
    return sorted(
        (
            tuple((part.entity_type, part.entity_name or "") for part in entry.entity),
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    )


@each_version("alter_client_quotas")
def test_quotas_are_set_selected_and_removed(desk: Desk, version: int) -> None:
    alice, default, both, app, ip = (
        parts(user="alice"),
        parts(user=None),
        parts(user="alice", client_id="app"),
        parts(client_id="app"),
        parts(ip="10.0.0.1"),
    )
    for at, entity in enumerate((alice, default, both, app)):
        assert alter(desk, version, entity, producer_byte_rate=1e9 + at) == ErrorCode.none
    assert alter(desk, version, ip, connection_creation_rate=10_000) == ErrorCode.none
    assert alter(desk, version, alice, validate_only=True, consumer_byte_rate=1) == ErrorCode.none
    of_alice = ((("user", "alice"),), {"producer_byte_rate": 1e9})
    of_default = ((("user", ""),), {"producer_byte_rate": 1e9 + 1})
    of_both = ((("user", "alice"), ("client-id", "app")), {"producer_byte_rate": 1e9 + 2})
    of_app = ((("client-id", "app"),), {"producer_byte_rate": 1e9 + 3})
    of_ip = ((("ip", "10.0.0.1"),), {"connection_creation_rate": 10_000})
    assert described(desk, version) == sorted([of_alice, of_default, of_both, of_app, of_ip])
    assert described(desk, version, user="alice") == sorted([of_alice, of_both])
    assert described(desk, version, strict=True, user="alice") == [of_alice]
    assert described(desk, version, user=None) == [of_default]
    assert described(desk, version, strict=True, user=2) == sorted([of_default, of_alice])
    assert described(desk, version, user=2, client_id=2) == [of_both]
    assert described(desk, version, ip=2) == [of_ip]
    assert described(desk, version, user=2, ip=2) == ErrorCode.invalid_request
    assert described(desk, version, planet=2) == ErrorCode.unsupported_version
    assert alter(desk, version, alice, producer_byte_rate=None, consumer_byte_rate=None) == ErrorCode.none
    assert described(desk, version, strict=True, user="alice") == []
    for entity, key in ((default, "producer_byte_rate"), (both, "producer_byte_rate"), (app, "producer_byte_rate")):
        assert alter(desk, version, entity, **{key: None}) == ErrorCode.none
    assert alter(desk, version, ip, connection_creation_rate=None) == ErrorCode.none
    assert described(desk, version) == []


@each_version("alter_client_quotas")
def test_quotas_that_cannot_be_are_refused_one_by_one(desk: Desk, version: int) -> None:
    for entity, values in (
        (parts(user="alice"), {"no_such_rate": 1.0}),
        (parts(user="alice"), {"producer_byte_rate": -1.0}),
        (parts(user="alice"), {"connection_creation_rate": 1.0}),
        (parts(user="alice", ip="10.0.0.1"), {"producer_byte_rate": 1.0}),
        (parts(planet="mars"), {"producer_byte_rate": 1.0}),
        (parts(user=""), {"producer_byte_rate": 1.0}),
        ([], {"producer_byte_rate": 1.0}),
        ([*parts(user="alice"), *parts(user="bob")], {"producer_byte_rate": 1.0}),
    ):
        assert alter(desk, version, entity, **values) == ErrorCode.invalid_request
    assert described(desk, version) == []


@pytest.mark.parametrize("users", [None, []])
def test_there_are_no_credentials(desk: Desk, users: Any) -> None:
    answer = desk.ask("describe_user_scram_credentials", 0, users=users)
    assert (answer.error_code, answer.results) == (ErrorCode.none, ())


def test_credentials_of_a_user_are_not_found(desk: Desk) -> None:
    users = [{"name": name} for name in ("ann", "bob", "bob")]
    told = desk.ask("describe_user_scram_credentials", 0, users=users).results
    assert [(one.user, one.error_code) for one in told] == [
        ("ann", ErrorCode.resource_not_found),
        ("bob", ErrorCode.duplicate_resource),
    ]
