"""Rules: deny wins, nothing matches means no, an operation implies others, names by literal, prefix and expression."""

from __future__ import annotations

import pytest

from waystation.errors import WaystationError
from waystation.security.rules import OPERATIONS, Judge, Match, Rule, RuleBook, check_rule


def judge(*rules: Rule, user: str = "alice", groups: tuple[str, ...] = (), host: str = "10.0.0.1") -> Judge:
    return Judge(RuleBook(rules).concerning(user, groups, host))


def test_without_a_rule_nothing_is_allowed() -> None:
    assert not any(judge().allows(operation, "topic", "/", "orders") for operation in OPERATIONS)


def test_a_rule_allows_its_operation_on_its_name_alone() -> None:
    reads = judge(Rule("User:alice", "read", "topic", "orders"))
    assert reads.allows("read", "topic", "/", "orders")
    assert not reads.allows("write", "topic", "/", "orders")
    assert not reads.allows("read", "topic", "/", "orders2")
    assert not reads.allows("read", "group", "/", "orders")


@pytest.mark.parametrize("operation", ["read", "write", "delete", "alter"])
def test_who_may_use_a_thing_may_describe_it(operation: str) -> None:
    assert judge(Rule("User:alice", operation, "topic", "orders")).allows("describe", "topic", "/", "orders")  # type: ignore[arg-type]


def test_who_may_create_a_thing_may_not_describe_it() -> None:
    assert not judge(Rule("User:alice", "create", "topic", "orders")).allows("describe", "topic", "/", "orders")


def test_all_operations() -> None:
    everything = judge(Rule("User:alice", "all", "topic", "*"))
    assert all(everything.allows(operation, "topic", "/", "orders") for operation in OPERATIONS)
    assert not everything.allows("read", "group", "/", "orders")


def test_deny_wins_whatever_the_order() -> None:
    allow = Rule("User:alice", "all", "topic", "*")
    deny = Rule("User:alice", "write", "topic", "pay", match="prefixed", allow=False)
    for rules in ((allow, deny), (deny, allow)):
        assert not judge(*rules).allows("write", "topic", "/", "payments")
        assert judge(*rules).allows("write", "topic", "/", "orders")
        assert judge(*rules).allows("read", "topic", "/", "payments")


def test_denying_describe_denies_nothing_else() -> None:
    rules = judge(
        Rule("User:alice", "read", "topic", "orders"), Rule("User:alice", "describe", "topic", "orders", allow=False)
    )
    assert rules.allows("read", "topic", "/", "orders")
    assert not rules.allows("describe", "topic", "/", "orders")


@pytest.mark.parametrize(
    ("match", "pattern", "name", "found"),
    [
        ("literal", "*", "anything", True),
        ("literal", "a", "ab", False),
        ("prefixed", "a", "ab", True),
        ("prefixed", "*", "ab", False),
        ("regex", "", "a", False),
        ("regex", ".*", "a", True),
        ("regex", "^a$", "ab", False),
        ("regex", "b", "abc", True),
        ("regex", "^(a|b)", "bc", True),
        ("regex", "^a|c$", "bc", True),
    ],
)  # fmt: skip
def test_how_names_match(match: Match, pattern: str, name: str, found: bool) -> None:
    assert judge(Rule("User:alice", "read", "queue", pattern, match)).allows("read", "queue", "/", name) is found


def test_a_rule_of_a_namespace_holds_there_alone() -> None:
    shop = judge(Rule("User:alice", "read", "queue", ".*", "regex", namespace="shop"))
    assert shop.allows("read", "queue", "shop", "jobs")
    assert not shop.allows("read", "queue", "/", "jobs")


def test_a_rule_of_no_namespace_is_about_full_names() -> None:
    rules = judge(Rule("User:alice", "read", "queue", "shop/jobs"), Rule("User:alice", "read", "queue", "mail"))
    assert rules.allows("read", "queue", "shop", "jobs", "shop/jobs")
    assert not rules.allows("read", "queue", "shop", "mail", "shop/mail")
    assert rules.allows("read", "queue", "/", "mail")
    everything = judge(Rule("User:alice", "read", "queue", "*"))
    assert everything.allows("read", "queue", "shop", "mail", "shop/mail")


def test_what_holds_for_all_that_begins_so() -> None:
    rules = judge(
        Rule("User:alice", "read", "topic", "orders.", "prefixed"),
        Rule("User:alice", "read", "topic", "*", namespace="shop"),
    )
    assert rules.allows_under("read", "topic", "*", "orders.eu", "orders.eu")
    assert not rules.allows_under("read", "topic", "*", "ord", "ord")
    assert rules.allows_under("read", "topic", "shop", "", "shop.")
    assert not rules.allows_under("read", "topic", "*", "", "")
    for denied in (
        Rule("User:alice", "read", "topic", "orders.eu.secret", allow=False),
        Rule("User:alice", "read", "topic", "secret", allow=False, namespace="orders"),
        Rule("User:alice", "read", "topic", "ord", "prefixed", allow=False),
    ):
        some = judge(Rule("User:alice", "read", "topic", "*"), denied)
        assert not some.allows_under("read", "topic", "*", "orders.eu", "orders.eu")


def test_rules_for_groups_for_everybody_and_from_one_host() -> None:
    rules = (
        Rule("Group:ops", "alter", "cluster", "*"),
        Rule("User:*", "describe", "cluster", "*"),
        Rule("User:alice", "read", "topic", "orders", host="10.0.0.9"),
    )
    assert judge(*rules, groups=("ops",)).allows("alter", "cluster", "/", "*")
    assert not judge(*rules).allows("alter", "cluster", "/", "*")
    assert judge(*rules, user="bob").allows("describe", "cluster", "/", "*")
    assert not judge(*rules).allows("read", "topic", "/", "orders")
    assert judge(*rules, host="10.0.0.9").allows("read", "topic", "/", "orders")


def test_answers_that_are_remembered_are_bounded() -> None:
    one = judge(Rule("User:alice", "read", "topic", "*"))
    for number in range(Judge.REMEMBERED + 10):
        assert one.allows("read", "topic", "/", f"t{number}")
    assert len(one._answers) <= Judge.REMEMBERED


@pytest.mark.parametrize(
    "rule",
    [
        Rule("alice", "read", "topic", "orders"),
        Rule("User:", "read", "topic", "orders"),
        Rule("Robot:x", "read", "topic", "orders"),
        Rule("User:alice", "read", "topic", ""),
        Rule("User:alice", "read", "topic", "x" * 1000),
        Rule("User:alice", "read", "queue", "(", "regex"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: Rule) -> None:
    with pytest.raises(WaystationError):
        check_rule(rule)
