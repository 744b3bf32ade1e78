"""Permissions as RabbitMQ writes them: what a user may configure, write and read in a virtual host. Pure.

| RabbitMQ | operations, on queues and exchanges of the namespace whose names the expression is found in |
| --- | --- |
| configure | create, delete, alter |
| write | write |
| read | read |

Streams and queues on topics are topics to the rules, so that each expression is a rule about topics as well. Whoever
has any permission in a virtual host may enter it, which is the right to read the namespace.

A topic permission limits the routing keys of one topic exchange: see `topic_permissions.py`.

What must hold: permissions that were set are told again as they were. Other rules of a user are told as the expression
that comes to the same, if there is one: literal names and prefixes are; what denies, and what holds for one address, is
not, and then RabbitMQ's tools are told less than the user may do, never more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from waystation.security.rules import ALL, ANY, Operation, Resource, Rule

CONFIGURE: tuple[Operation, ...] = ("create", "delete", "alter")
THINGS: tuple[Resource, ...] = ("queue", "exchange", "topic")
NOTHING = "^$"
"""An expression that is found in no name. RabbitMQ's tools write an empty one."""


class VhostPermission(NamedTuple):
    """Of one user in one virtual host; expressions."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


def rules_of(permission: VhostPermission) -> list[Rule]:
    """The rules that it is. Raises InvalidPattern where `check_rule` is asked about them."""
    principal = f"User:{permission.user}"
    wanted: list[tuple[Operation, str]] = [
        *((operation, permission.configure) for operation in CONFIGURE),
        ("write", permission.write),
        ("read", permission.read),
    ]
    return [
        Rule(principal, "read", "namespace", permission.vhost),
        *(
            Rule(principal, operation, thing, expression, "regex", namespace=permission.vhost)
            for operation, expression in wanted
            for thing in THINGS
        ),
    ]


def permission_of(rules: Iterable[Rule], user: str, vhost: str) -> VhostPermission | None:
    """What a user's rules amount to in a virtual host; None: it may not enter it."""
    mine = [rule for rule in rules if rule.principal == f"User:{user}" and rule.allow and rule.host == ANY]
    if not any(_enters(rule, vhost) for rule in mine):
        return None
    here = [rule for rule in mine if rule.namespace in (ANY, vhost) and rule.resource in ("queue", "exchange")]
    configure = [_expressions(here, operation) for operation in CONFIGURE]
    alike = configure[0] if all(one == configure[0] for one in configure) else set.intersection(*configure)
    return VhostPermission(
        user, vhost, _joined(alike), _joined(_expressions(here, "write")), _joined(_expressions(here, "read"))
    )


def belongs(rule: Rule, user: str, vhost: str) -> bool:
    """Whether a rule is part of a user's permissions in a virtual host, so that setting them replaces it."""
    if rule.principal != f"User:{user}" or not rule.allow or rule.host != ANY:
        return False
    if rule.resource == "namespace":
        return rule.operation == "read" and rule.match == "literal" and rule.name == vhost
    return rule.namespace == vhost and rule.resource in THINGS and rule.match == "regex"


def _enters(rule: Rule, vhost: str) -> bool:
    if rule.resource != "namespace" or rule.operation not in ("read", ALL):
        return False
    return (
        rule.name in (ANY, vhost)
        if rule.match == "literal"
        else rule.match == "prefixed" and vhost.startswith(rule.name)
    )


def _expressions(rules: Iterable[Rule], operation: Operation) -> set[str]:
    """Those that hold for queues and for exchanges."""
    found: dict[str, set[Resource]] = {}
    for rule in rules:
        if rule.operation in (operation, ALL):
            found.setdefault(_expression(rule), set()).add(rule.resource)
    return {text for text, things in found.items() if {"queue", "exchange"} <= things}


def _expression(rule: Rule) -> str:
    if rule.match == "regex":
        return rule.name
    if rule.match == "literal" and rule.name == ANY:
        return ".*"
    return f"^{re.escape(rule.name)}" + ("$" if rule.match == "literal" else "")


def _joined(expressions: set[str]) -> str:
    if ".*" in expressions:
        return ".*"
    some = sorted(text for text in expressions if text not in ("", NOTHING))
    if len(some) <= 1:
        return some[0] if some else min(expressions, default=NOTHING)
    return "|".join(f"({text})" for text in some)
