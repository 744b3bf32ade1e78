"""Where things are, for rules: a thing's namespace and its name in it, by the name that the broker knows it by. And
what a target names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.routing.namespace_names import DEFAULT, topic_prefix_of
from waystation.security.rules import ANY, CLUSTER, Resource

if TYPE_CHECKING:
    from waystation.routing.namespaces import Namespaces

NAMED = frozenset({"queue", "exchange", "group", "transactional-id"})
"""What has the namespace before a slash in its full name."""
DEFAULT_EXCHANGE = "amq.default"
"""What RabbitMQ's permissions call the exchange that has no name."""


class Whereabouts:
    """Users are in no namespace, which is `/` for rules; a namespace is in itself."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def __call__(self, resource: Resource, name: str) -> tuple[str, str, str]:
        if resource == "topic":
            namespace = self._namespaces.of_topic(name)
            return namespace, name.removeprefix(topic_prefix_of(namespace)), name
        if resource in NAMED:
            namespace = self._namespaces.of(name)
            local = self._namespaces.local(name)
            if resource == "exchange" and not local:
                return namespace, DEFAULT_EXCHANGE, name + DEFAULT_EXCHANGE
            return namespace, local, name
        if resource == "cluster":
            return ANY, CLUSTER, CLUSTER
        return (name if resource == "namespace" else DEFAULT), name, name

    def beneath(self, topic_prefix: str) -> Sequence[str]:
        """Of topics whose names begin so: the namespaces that some may be in, beside that of the prefix itself."""
        return self._namespaces.topics_beneath(topic_prefix)


def target_of(binding_target: str) -> tuple[Resource, str]:
    """`queue:NAME`, `topic:NAME` or `exchange:NAME`, as permissions call it."""
    kind, _, name = binding_target.partition(":")
    return ("topic" if kind == "topic" else "exchange" if kind == "exchange" else "queue"), name


def group_dead_letter_target_of(name: str) -> tuple[Resource, str]:
    """A queue by its name, `topic:NAME` or `exchange:NAME`: where dead letters of a share group go to."""
    return target_of(name) if name.startswith(("topic:", "exchange:")) else ("queue", name)


def dead_letter_target_of(name: str) -> tuple[Resource, str]:
    """A queue by its name, or `topic:NAME`: where dead letters go to, or are sent back to."""
    return target_of(name) if name.startswith("topic:") else ("queue", name)
