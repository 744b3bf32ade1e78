"""Rules as Kafka writes them: ACLs, and filters that select them. Pure.

Kafka knows topics, groups, transactional ids, users and the cluster, and patterns that are literal or prefixed. A rule
about anything else is none that a Kafka client can be told of; neither is one of a namespace, unless full names say the
same. What must hold: what a client is told is true, and what it deletes is what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from waystation.errors import Invalid
from waystation.routing.namespace_names import DEFAULT, topic_prefix_of
from waystation.security.rules import ALL, ANY, CLUSTER, Match, Operation, Resource, Rule

ANY_CODE = 1
"""In a filter: whatever it is. 0 is what the client's own version does not know."""
MATCHING = 2
"""In a filter, as a pattern: all that are about a resource of this name."""

RESOURCES: Mapping[int, Resource] = {2: "topic", 3: "group", 4: "cluster", 5: "transactional-id", 7: "user"}
PATTERNS: Mapping[int, Match] = {3: "literal", 4: "prefixed"}
OPERATIONS: Mapping[int, Operation | str] = {
    2: ALL, 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe", 9: "cluster-action",
    10: "describe-configs", 11: "alter-configs", 12: "idempotent-write",
}  # fmt: skip
PERMISSIONS: Mapping[int, bool] = {2: False, 3: True}

_RESOURCE_CODES = {resource: code for code, resource in RESOURCES.items()}
_PATTERN_CODES = {match: code for code, match in PATTERNS.items()}
_OPERATION_CODES = {operation: code for code, operation in OPERATIONS.items()}


class KafkaAcl(NamedTuple):
    """As it is on the wire."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """The same, of which some may be anything (None, or ANY_CODE)."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def rule_of(acl: KafkaAcl) -> Rule:
    """Raises Invalid if there is no such rule."""
    try:
        resource, match = RESOURCES[acl.resource], PATTERNS[acl.pattern]
        operation, allow = OPERATIONS[acl.operation], PERMISSIONS[acl.permission]
    except KeyError as error:
        raise Invalid(f"a rule cannot be made of the code {error}: this broker does not know what it means") from None
    if resource == "cluster" and (acl.name != CLUSTER or match != "literal"):
        raise Invalid(f"the one resource of the type CLUSTER is {CLUSTER!r}, by its literal name")
    return Rule(acl.principal, operation, resource, acl.name, match, allow, acl.host)  # type: ignore[arg-type]


def acl_of(rule: Rule) -> KafkaAcl | None:
    """None: Kafka has no words for it."""
    found = _full(rule)
    resource = _RESOURCE_CODES.get(rule.resource)
    if found is None or resource is None:
        return None
    name, match = found
    return KafkaAcl(
        resource,
        CLUSTER if rule.resource == "cluster" else name,
        _PATTERN_CODES[match],
        rule.principal,
        rule.host,
        _OPERATION_CODES[rule.operation],
        3 if rule.allow else 2,
    )


def _full(rule: Rule) -> tuple[str, Match] | None:
    """The full name, or its beginning, that says the same."""
    if rule.match == "regex":
        return None
    if rule.namespace == ANY:
        return rule.name, rule.match
    if rule.resource != "topic":
        return (rule.name, rule.match) if rule.namespace == DEFAULT else None
    prefix = topic_prefix_of(rule.namespace)
    everything = rule.match == "literal" and rule.name == ANY
    if rule.namespace == DEFAULT:
        return None if everything or rule.match == "prefixed" else (rule.name, "literal")
    return (prefix, "prefixed") if everything else (prefix + rule.name, rule.match)


def check_filter(wanted: AclFilter) -> None:
    """Raises Invalid for what cannot be a filter."""
    if (
        (wanted.resource != ANY_CODE and wanted.resource not in (*RESOURCES, 6))
        or (wanted.pattern not in (ANY_CODE, MATCHING) and wanted.pattern not in PATTERNS)
        or (wanted.operation != ANY_CODE and wanted.operation not in (*OPERATIONS, 13, 14))
        or (wanted.permission != ANY_CODE and wanted.permission not in PERMISSIONS)
    ):
        raise Invalid("the filter has a code that this broker does not know")


def selects(wanted: AclFilter, acl: KafkaAcl) -> bool:
    return (
        wanted.resource in (ANY_CODE, acl.resource)
        and wanted.operation in (ANY_CODE, acl.operation)
        and wanted.permission in (ANY_CODE, acl.permission)
        and wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and _selects_name(wanted, acl)
    )


def _selects_name(wanted: AclFilter, acl: KafkaAcl) -> bool:
    if wanted.pattern == MATCHING and wanted.name is not None:
        if PATTERNS[acl.pattern] == "prefixed":
            return wanted.name.startswith(acl.name)
        return acl.name in (wanted.name, ANY)
    return wanted.pattern in (ANY_CODE, MATCHING, acl.pattern) and wanted.name in (None, acl.name)


def bits(operations: list[Operation]) -> int:
    """As answers tell which operations a client may do."""
    return sum(1 << _OPERATION_CODES[operation] for operation in operations)
