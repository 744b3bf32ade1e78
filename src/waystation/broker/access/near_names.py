"""What a client is told that asks for what is not there: the names that are nearly it, of those that it may see.

Invariant: a name is told only to who may describe what it names, and only if that is in the namespace of what was asked
for. So an error tells nobody what a list would leave out. A search asks about a few dozen names at most
(`errors.near_names`): it costs the broker no more than a few requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING

from waystation.errors import NotFound, did_you_mean, near_names
from waystation.routing.namespace_names import prefix_of, topic_prefix_of
from waystation.security.permissions import Resource

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.security.principals import Principal

MOST_LOOKED_AT = 10_000
"""Names of a kind, whatever namespace they are in."""

KINDS: Mapping[str, Resource] = {
    "topic": "topic",
    "queue": "queue",
    "exchange": "exchange",
    "group": "group",
    "namespace": "namespace",
}
"""What an error may name (`NotFound.kind`), as permissions call it."""


def nearly(broker: Broker, principal: Principal, error: NotFound) -> str:
    """`; did you mean 'orders'?`, or nothing."""
    resource = KINDS.get(error.kind)
    if resource is None:
        return ""
    prefix, known = _beside(broker, resource, error.name)

    def seen(name: str) -> bool:
        return broker.permissions.allows(principal, "describe", resource, prefix + name)

    near = near_names(error.name.removeprefix(prefix), known, seen)
    return did_you_mean([prefix + name for name in near])


def _beside(broker: Broker, resource: Resource, name: str) -> tuple[str, Iterator[str]]:
    """The prefix of the namespace that was asked about, and what those in it call the others."""
    some = islice(_names(broker, resource), MOST_LOOKED_AT)
    if resource == "namespace":
        return "", some
    of = broker.namespaces.of_topic if resource == "topic" else broker.namespaces.of
    namespace = of(name)
    prefix = topic_prefix_of(namespace) if resource == "topic" else prefix_of(namespace)
    return prefix, (one[len(prefix) :] for one in some if one.startswith(prefix) and of(one) == namespace)


def _names(broker: Broker, resource: Resource) -> Iterable[str]:
    if resource == "topic":
        return broker.topics.names()
    if resource == "queue":
        return broker.queues.unordered_names()
    if resource == "exchange":
        return broker.routing.exchange_names()
    if resource == "group":
        return chain(broker.groups.names(), broker.shared.names())
    return broker.namespaces.names()
