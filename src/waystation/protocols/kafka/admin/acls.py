"""CreateAcls, DescribeAcls and DeleteAcls: the broker's rules, as Kafka writes them.

What a filter selects is what Kafka has words for; rules about queues, exchanges and namespaces are told by the command
line and RabbitMQ's API. Called through the registry only.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import AclFilter, KafkaAcl, Rule, acl_of, check_filter, rule_of, selects
from waystation.errors import WaystationError
from waystation.protocols.kafka.requests.registry import Call


def describe_acls(call: Call) -> object:
    make = call.make
    try:
        found = _selected(call.access.rules.listing(), _filter(call.request))
    except WaystationError as error:
        return make(
            "DescribeAclsResponse",
            throttle_time=0,
            error_code=call.code(error),
            error_message=str(error),
            resources=(),
        )
    by_resource: dict[tuple[int, str, int], list[KafkaAcl]] = {}
    for acl, _ in found:
        by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    resources = tuple(
        make(
            "DescribeAclsResource",
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            acls=tuple(
                make(
                    "AclDescription",
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in acls
            ),
        )
        for (kind, name, pattern), acls in by_resource.items()
    )
    return make(
        "DescribeAclsResponse", throttle_time=0, error_code=ErrorCode.none, error_message=None, resources=resources
    )


async def create_acls(call: Call) -> object:
    """Each by itself: those that can be are added, the others are told why not."""
    errors: list[WaystationError | None] = []
    rules: list[Rule] = []
    for creation in call.request.creations:
        try:
            call.access.rules.to_alter()
            rule = rule_of(_acl(creation))
            call.access.rules.check(rule)
            rules.append(rule)
            errors.append(None)
        except WaystationError as error:
            errors.append(error)
    if rules:
        try:
            await call.access.rules.add(rules)
        except WaystationError as error:
            errors = [earlier or error for earlier in errors]
    results = tuple(
        call.make("AclCreationResult", error_code=call.code(error), error_message=None if error is None else str(error))
        for error in errors
    )
    return call.make("CreateAclsResponse", throttle_time=0, results=results)


async def delete_acls(call: Call) -> object:
    results = [await _deleted(call, wanted) for wanted in call.request.filters]
    return call.make("DeleteAclsResponse", throttle_time=0, filter_results=tuple(results))


async def _deleted(call: Call, asked: Any) -> object:
    make = call.make
    try:
        found = _selected(call.access.rules.to_alter(), _filter(asked))
        await call.access.rules.remove([rule for _, rule in found])
    except WaystationError as error:
        return make("DeleteAclsFilterResult", error_code=call.code(error), error_message=str(error), matching_acls=())
    matching = tuple(
        make(
            "DeleteAclsMatchingAcl",
            error_code=ErrorCode.none,
            error_message=None,
            resource_type=acl.resource,
            resource_name=acl.name,
            pattern_type=acl.pattern,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl, _ in found
    )
    return make("DeleteAclsFilterResult", error_code=ErrorCode.none, error_message=None, matching_acls=matching)


def _selected(rules: list[Rule], wanted: AclFilter) -> list[tuple[KafkaAcl, Rule]]:
    told = ((acl_of(rule), rule) for rule in rules)
    return [(acl, rule) for acl, rule in told if acl is not None and selects(wanted, acl)]


def _acl(creation: Any) -> KafkaAcl:
    return KafkaAcl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _filter(asked: Any) -> AclFilter:
    wanted = AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
    check_filter(wanted)
    return wanted
