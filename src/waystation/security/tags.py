"""What RabbitMQ's tags of a user allow, as rules. Pure.

| tag | what it allows |
| --- | --- |
| `administrator` | everything about the broker, its namespaces, users and rules; no message |
| `monitoring` | to see all of that, but not what is a user's: a delegation token that is seen can be used |
| `policymaker` | to change policies and see namespaces |
| `management` | nothing by itself: what the user's own rules allow |

A tag gives no right to read or write messages, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Iterable

from waystation.security.rules import ANY, Operation, Resource, Rule

ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT = "administrator", "monitoring", "policymaker", "management"
TAGS = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT)

_MANAGED: tuple[Resource, ...] = ("cluster", "namespace", "user")
_SHOWN: tuple[Resource, ...] = ("cluster", "namespace", "topic", "queue", "exchange", "group", "transactional-id")


def rules_of_tags(user: str, tags: Iterable[str]) -> list[Rule]:
    found: list[Rule] = []
    principal = f"User:{user}"
    for tag in tags:
        if tag == ADMINISTRATOR:
            found += [Rule(principal, "all", resource, ANY) for resource in _MANAGED]
        if tag in (ADMINISTRATOR, MONITORING):
            shown: tuple[Operation, ...] = ("describe", "describe-configs")
            found += [Rule(principal, operation, resource, ANY) for resource in _SHOWN for operation in shown]
        if tag == POLICYMAKER:
            found += [Rule(principal, operation, "namespace", ANY) for operation in ("describe", "alter")]
    return found
