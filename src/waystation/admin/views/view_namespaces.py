"""Namespaces (virtual hosts) and their policies as every protocol shows them, in pages, and as they are changed.

RabbitMQ's management API has them in RabbitMQ's shape; these are for the native protocol, HTTP and the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.admin.policy_rules import Policy
from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import NotFound, near_matches
from waystation.paging import After, Limit, Next, Search, Total, matching, page_of
from waystation.routing.namespaces import Limits

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

NO_LIMIT = -1

NewLimit = Annotated[int, Meta(ge=NO_LIMIT, description="-1: no limit; null: as it is")] | None


# -- namespaces --------------------------------------------------------------------------------------------------------


class NamespaceOut(msgspec.Struct):
    """A namespace as it is now."""

    namespace: str
    description: str
    queues: int
    connections: int
    policies: int
    max_queues: int | None
    max_bytes: Annotated[int, Meta(description="of messages in its queues and topics; null: no limit")] | None
    max_connections: int | None
    max_topics: int | None
    max_partitions: Annotated[int, Meta(description="of all its topics; null: no limit")] | None
    alarm: Annotated[str, Meta(description="why its publishers have to wait; null: they need not")] | None


class NamespaceList(msgspec.Struct):
    namespaces: list[NamespaceOut]
    next: Next
    total: Total


class NamespacesQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class NamespaceQuery(msgspec.Struct):
    namespace: str


class NamespaceTerms(msgspec.Struct, kw_only=True):
    """What is to be known of it. What is null stays as it is."""

    description: str | None = None
    max_queues: NewLimit = None
    max_bytes: NewLimit = None
    max_connections: NewLimit = None
    max_topics: NewLimit = None
    max_partitions: NewLimit = None


class SetNamespace(NamespaceTerms, kw_only=True):
    namespace: str


async def namespaces_page(broker: ManagedBroker, query: NamespacesQuery, sight: Sight = EVERYTHING) -> NamespaceList:
    """In the order of their names."""
    names = await sight.names("namespace", sorted(broker.namespaces.names()), query.search)
    page = await page_of(names, "", query.after or None, query.limit)
    shown = [_shown(broker, name) for name in page.names if name in broker.namespaces]
    return NamespaceList(shown, page.next, page.total)


def namespace_view(broker: ManagedBroker, query: NamespaceQuery) -> NamespaceOut:
    """NotFound names those that are nearly it."""
    return _shown(broker, query.namespace)


async def set_namespace(broker: ManagedBroker, asked: SetNamespace) -> NamespaceOut:
    """Makes it, or changes what is known of it."""
    name = asked.namespace
    known: dict[str, Any] = {} if asked.description is None else {"description": asked.description}
    limits = {field: getattr(asked, field) for field in Limits.__struct_fields__}
    chosen = {field: None if limit == NO_LIMIT else limit for field, limit in limits.items() if limit is not None}
    if chosen:
        present = broker.namespaces.limits(name) if name in broker.namespaces else Limits()
        known["limits"] = msgspec.structs.replace(present, **chosen)
    await broker.namespaces.create(name, **known)
    return _shown(broker, name)


async def delete_namespace(broker: ManagedBroker, query: NamespaceQuery) -> None:
    """With its queues, exchanges, bindings, policies and streams. Its connections are ended."""
    await broker.namespaces.delete(query.namespace)


def _shown(broker: ManagedBroker, name: str) -> NamespaceOut:
    known = broker.namespaces.get(name)
    return NamespaceOut(
        name,
        known.description,
        broker.namespaces.queue_count(name),
        broker.connections.count(name),
        len(broker.policies.listing(name)),
        known.limits.max_queues,
        known.limits.max_bytes,
        known.limits.max_connections,
        known.limits.max_topics,
        known.limits.max_partitions,
        broker.resource_alarms.reason(name),
    )


# -- policies ----------------------------------------------------------------------------------------------------------


class PolicyOut(msgspec.Struct):
    """A policy. `definition` has RabbitMQ's words: message-ttl, max-length, …"""

    namespace: str
    policy: str
    pattern: str
    definition: dict[str, Any]
    priority: int
    apply_to: str


class PolicyList(msgspec.Struct):
    policies: list[PolicyOut]
    next: Next
    total: Total


class PoliciesQuery(msgspec.Struct):
    namespace: Annotated[str, Meta(description="only those of this one; empty: all")] = ""
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class PolicyQuery(msgspec.Struct):
    namespace: str
    policy: str


class PolicyTerms(msgspec.Struct, kw_only=True):
    pattern: Annotated[str, Meta(description="a regular expression; names in which it occurs are meant")]
    definition: Annotated[dict[str, Any], Meta(description="message-ttl, max-length, dead-letter-exchange, …")] = {}
    priority: Annotated[int, Meta(description="of several that match, the one with the highest is in force")] = 0
    apply_to: Annotated[str, Meta(description="all, queues, classic_queues, quorum_queues, streams, exchanges")] = "all"


class SetPolicy(PolicyTerms, kw_only=True):
    namespace: str
    policy: str


async def policies_page(broker: ManagedBroker, query: PoliciesQuery, sight: Sight = EVERYTHING) -> PolicyList:
    """In the order of namespaces and names; a place in it is NAMESPACE, a line feed and the name."""
    if query.namespace:
        broker.namespaces.get(query.namespace)
    listing: Sequence[Policy] = broker.policies.listing(query.namespace or sight.within or None)
    if not sight.sees_all("namespace"):
        listing = await sight.sifted(listing, lambda one: sight.sees("namespace", one.namespace))
    known = {f"{one.namespace}\n{one.name}": one for one in listing}
    names = await matching(sorted(known), query.search, _policy_alone if sight.within else None)
    page = await page_of(names, "", query.after or None, query.limit)
    return PolicyList([_policy(known[place]) for place in page.names], page.next, page.total)


def _policy_alone(place: str) -> str:
    return place.partition("\n")[2]


def policy_view(broker: ManagedBroker, query: PolicyQuery) -> PolicyOut:
    """NotFound names those that are nearly it."""
    return _policy(_find(broker, query))


async def set_policy(broker: ManagedBroker, asked: SetPolicy) -> PolicyOut:
    """Makes it, or replaces it. Answers when it is in force."""
    broker.namespaces.get(asked.namespace)
    policy = Policy(asked.namespace, asked.policy, asked.pattern, asked.definition, asked.priority, asked.apply_to)
    await broker.policies.set(policy)
    return _policy(policy)


async def delete_policy(broker: ManagedBroker, query: PolicyQuery) -> None:
    """What it changed is again as it was declared, or as another policy says."""
    policy = _find(broker, query)
    await broker.policies.delete(policy.namespace, policy.name)


def _find(broker: ManagedBroker, query: PolicyQuery) -> Policy:
    broker.namespaces.get(query.namespace)
    found = broker.policies.find(query.namespace, query.policy)
    if found is None:
        near = near_matches(query.policy, [one.name for one in broker.policies.listing(query.namespace)])
        raise NotFound(f"there is no policy {query.policy[:255]!r} in namespace {query.namespace!r}{near}")
    return found


def _policy(policy: Policy) -> PolicyOut:
    return PolicyOut(policy.namespace, policy.name, policy.pattern, policy.definition, policy.priority, policy.apply_to)
