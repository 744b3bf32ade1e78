"""Authorized operations: what the client may do with a topic, a group or the cluster, as answers tell it (a bit field).

Of all operations, those that Kafka has for the kind of resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.broker.access.types import Resource, operation_bits

if TYPE_CHECKING:
    from waystation.protocols.kafka.requests.registry import Call

NOT_ASKED = -(2**31)
"""The bit field's value when it was not asked for."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)  # fmt: skip
GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE)

_KNOWN: dict[Resource, int] = {
    "topic": TOPIC_OPERATIONS,
    "cluster": CLUSTER_OPERATIONS,
    "group": GROUP_OPERATIONS,
}


def authorized(call: Call, resource: Resource, name: str, *, asked: bool = True) -> int:
    """`asked`: whether the client wants to know."""
    return operation_bits(call.access.rules.operations(resource, name)) & _KNOWN[resource] if asked else NOT_ASKED
