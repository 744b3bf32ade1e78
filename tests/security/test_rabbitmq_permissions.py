"""RabbitMQ's permissions are rules, there and back, and say no more than the rules do."""

from __future__ import annotations

import pytest

from waystation.security.rabbitmq_permissions import VhostPermission, belongs, permission_of, rules_of
from waystation.security.rules import Judge, Operation, Resource, Rule


@pytest.mark.parametrize(
    ("configure", "write", "read"),
    [(".*", ".*", ".*"), ("", "", ""), ("^$", "^jobs$", "^(jobs|mail)"), ("^a", "^(a|b)", "c$")],
)
def test_there_and_back(configure: str, write: str, read: str) -> None:
    given = VhostPermission("alice", "shop", configure, write, read)
    assert permission_of(rules_of(given), "alice", "shop") == given
    assert permission_of(rules_of(given), "alice", "/") is None
    assert permission_of(rules_of(given), "bob", "shop") is None
    assert all(belongs(rule, "alice", "shop") for rule in rules_of(given))


def test_what_they_allow() -> None:
    judge = Judge(rules_of(VhostPermission("alice", "shop", "^mine-", "^(mine-|events$)", "^mine-")))
    for operation, resource, name, allowed in (
        ("create", "queue", "mine-1", True),
        ("create", "queue", "other", False),
        ("delete", "exchange", "mine-1", True),
        ("write", "exchange", "events", True),
        ("read", "queue", "events", False),
        ("read", "topic", "mine-stream", True),
    ):
        _check(judge, operation, resource, name, allowed)  # type: ignore[arg-type]
    assert judge.allows("read", "namespace", "shop", "shop")
    assert not judge.allows("read", "queue", "/", "mine-1")


def _check(judge: Judge, operation: Operation, resource: Resource, name: str, allowed: bool) -> None:
    assert judge.allows(operation, resource, "shop", name, f"shop/{name}") is allowed, (operation, resource, name)


def test_other_rules_are_told_as_expressions_where_they_hold_for_queues_and_exchanges() -> None:
    alice = "User:alice"
    rules = [
        Rule(alice, "all", "namespace", "*"),
        Rule(alice, "read", "queue", "*"),
        Rule(alice, "read", "exchange", "*"),
        Rule(alice, "write", "queue", "jobs.", "prefixed"),
        Rule(alice, "write", "exchange", "jobs.", "prefixed"),
        Rule(alice, "write", "queue", "mail"),
        Rule(alice, "delete", "queue", "*", allow=False),
    ]
    assert permission_of(rules, "alice", "/") == VhostPermission("alice", "/", "^$", r"^jobs\.", ".*")
    assert not any(belongs(rule, "alice", "/") for rule in rules)
