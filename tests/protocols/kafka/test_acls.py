"""CreateAcls, DescribeAcls, DeleteAcls and SCRAM credentials: the broker's rules and users, in Kafka's words."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk, each_version
from waystation.security.credentials import matches, read
from waystation.security.kafka_acls import AclFilter, KafkaAcl, acl_of, rule_of, selects
from waystation.security.rules import Rule

TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3


def creation(**fields: Any) -> dict[str, Any]:
    given = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return given | fields


def wanted(**fields: Any) -> dict[str, Any]:
    given = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return given | fields


def told(desk: Desk, version: int = 3, **fields: Any) -> list[tuple[Any, ...]]:
    answer = desk.ask("describe_acls", version, **wanted(**fields))
    assert answer.error_code == ErrorCode.none
    return [
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for one in answer.resources
        for acl in one.acls
    ]


@each_version("create_acls")
def test_rules_are_created_described_and_deleted(desk: Desk, version: int) -> None:
    made = desk.ask("create_acls", version, creations=[creation(), creation(operation=WRITE, permission_type=DENY)])
    assert [one.error_code for one in made.results] == [ErrorCode.none] * 2
    assert sorted(told(desk, version)) == [
        (TOPIC, "orders", LITERAL, "User:alice", READ, ALLOW),
        (TOPIC, "orders", LITERAL, "User:alice", WRITE, DENY),
    ]
    assert {rule.operation for rule in desk.broker.permissions.rules()} == {"read", "write"}
    deleted = desk.ask("delete_acls", version, filters=[wanted(operation=READ), wanted(resource_type_filter=GROUP)])
    assert [len(one.matching_acls) for one in deleted.filter_results] == [1, 0]
    assert [one[4] for one in told(desk, version)] == [WRITE]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 0},
        {"resource_type": 6},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"permission_type": ANY},
        {"principal": "alice"},
        {"resource_name": ""},
        {"resource_type": CLUSTER, "resource_name": "other"},
    ],
)
def test_a_rule_that_cannot_be_is_refused_and_the_others_are_made(desk: Desk, fields: dict[str, Any]) -> None:
    made = desk.ask("create_acls", 3, creations=[creation(**fields), creation()])
    assert [one.error_code for one in made.results] == [ErrorCode.invalid_request, ErrorCode.none]
    assert len(desk.broker.permissions.rules()) == 1


def test_filters(desk: Desk) -> None:
    desk.ask(
        "create_acls",
        3,
        creations=[
            creation(),
            creation(resource_name="*"),
            creation(resource_name="ord", resource_pattern_type=PREFIXED),
            creation(resource_name="pay", resource_pattern_type=PREFIXED, principal="User:bob"),
            creation(resource_type=GROUP, resource_name="orders"),
            creation(resource_type=CLUSTER, resource_name="kafka-cluster"),
        ],
    )

    def names(**fields: Any) -> list[str]:
        return sorted(one[1] for one in told(desk, **fields))

    assert len(names()) == 6
    about = {"resource_type_filter": TOPIC, "resource_name_filter": "orders"}
    assert names(**about) == ["orders"]
    assert names(**about, pattern_type_filter=MATCH) == ["*", "ord", "orders"]
    assert names(**about, pattern_type_filter=LITERAL) == ["orders"]
    assert names(**about, pattern_type_filter=PREFIXED) == []
    assert names(resource_name_filter="ord", pattern_type_filter=PREFIXED) == ["ord"]
    assert names(principal_filter="User:bob") == ["pay"]
    assert names(resource_type_filter=CLUSTER) == ["kafka-cluster"]
    assert names(host_filter="10.0.0.1") == []
    assert names(permission_type=DENY) == []
    refused = desk.ask("describe_acls", 3, **wanted(pattern_type_filter=0))
    assert refused.error_code == ErrorCode.invalid_request


def test_rules_of_namespaces_are_told_by_full_names_where_there_are_such() -> None:
    def name_of(rule: Rule) -> tuple[str, int] | None:
        acl = acl_of(rule)
        return None if acl is None else (acl.name, acl.pattern)

    alice = "User:alice"
    assert name_of(Rule(alice, "read", "topic", "orders", namespace="shop")) == ("shop.orders", LITERAL)
    assert name_of(Rule(alice, "read", "topic", "ord", "prefixed", namespace="shop")) == ("shop.ord", PREFIXED)
    assert name_of(Rule(alice, "read", "topic", "*", namespace="shop")) == ("shop.", PREFIXED)
    assert name_of(Rule(alice, "read", "topic", "orders", namespace="/")) == ("orders", LITERAL)
    for untold in (
        Rule(alice, "read", "topic", "*", namespace="/"),
        Rule(alice, "read", "topic", ".*", "regex"),
        Rule(alice, "read", "queue", "jobs"),
        Rule(alice, "read", "namespace", "shop"),
    ):
        assert acl_of(untold) is None


def test_there_and_back() -> None:
    acl = KafkaAcl(TOPIC, "orders", PREFIXED, "Group:ops", "10.0.0.1", 11, DENY)
    assert acl_of(rule_of(acl)) == acl
    assert selects(AclFilter(ANY, None, ANY, None, None, ANY, ANY), acl)


def test_authorized_operations_are_those_of_the_client(desk: Desk) -> None:
    """A client without users may do all that there is."""
    answer = desk.ask("describe_cluster", 0, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def test_credentials_are_stored_as_the_client_computes_them(desk: Desk) -> None:
    salt = b"salt"
    upsertion = {
        "name": "alice",
        "mechanism": 1,
        "iterations": 4096,
        "salt": salt,
        "salted_password": hashlib.pbkdf2_hmac("sha256", b"secret", salt, 4096),
    }
    answer = desk.ask("alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion])
    assert [(one.user, one.error_code) for one in answer.results] == [("alice", ErrorCode.none)]
    user = desk.broker.users.get("alice")
    assert matches(map(read, user.verifiers), b"secret")
    assert not matches(map(read, user.verifiers), b"other")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mechanism": 9}, ErrorCode.unsupported_sasl_mechanism),
        ({"iterations": 1}, ErrorCode.unacceptable_credential),
        ({"salt": b""}, ErrorCode.unacceptable_credential),
    ],
)
def test_a_credential_that_cannot_be_is_refused(desk: Desk, fields: dict[str, Any], code: ErrorCode) -> None:
    upsertion = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"x" * 32}
    answer = desk.ask("alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion | fields])
    assert [one.error_code for one in answer.results] == [code]
    assert not len(desk.broker.users)
    gone = desk.ask("alter_user_scram_credentials", 0, deletions=[{"name": "bob", "mechanism": 1}], upsertions=[])
    assert [one.error_code for one in gone.results] == [ErrorCode.resource_not_found]
