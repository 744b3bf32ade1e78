"""`NamespaceAccess`: namespaces, which AMQP calls virtual hosts: created, deleted, limited, entered.

A family of `Access`. It is about namespaces as such; the one that a session is in, and the names in it, are `Access`'s
own. On the loop's thread only.
"""

from __future__ import annotations

from typing import Any

from waystation.broker.access.administration.users import UserAccess
from waystation.broker.access.messaging.family import Family
from waystation.routing.namespace_names import DEFAULT
from waystation.routing.namespaces import Limits, Namespace


class NamespaceAccess(Family):
    """One principal's."""

    __slots__ = ()

    def connect(self, name: str) -> None:
        """Asked before a connection enters it: NotFound, or NotAllowed if it has as many as it may have."""
        self._ask("read", "namespace", name)
        self._broker.namespaces.check_connections(name, self._broker.connections.count(name))
        UserAccess(self._broker, self._principal).check_connections()

    def connect_home(self, name: str) -> None:
        """The same by a protocol that has no word for a namespace: who is in the first one did not ask for it."""
        if name == DEFAULT:
            UserAccess(self._broker, self._principal).check_connections()
        else:
            self.connect(name)

    def check_entry(self, name: str) -> None:
        """Asked before a request is about what is in it: NotFound, or NotAllowed."""
        self._ask("read", "namespace", name)
        self._broker.namespaces.get(name)

    def exists(self, name: str) -> bool:
        self._ask("describe", "namespace", name)
        return name in self._broker.namespaces

    def names(self) -> list[str]:
        """Those that the principal may see, in order, `/` first."""
        return [name for name in self._broker.namespaces.names() if self._sees("namespace", name)]

    def describe(self, name: str) -> Namespace:
        self._ask("describe", "namespace", name)
        return self._broker.namespaces.get(name)

    def alarms(self) -> dict[str, str]:
        """Namespaces whose publishers have to wait, and why: for who may look at the broker itself."""
        self._ask_cluster("describe")
        reasons = ((name, self._broker.resource_alarms.reason(name)) for name in self._broker.namespaces.names())
        return {name: reason for name, reason in reasons if reason is not None}

    async def create(self, name: str, **known: Any) -> bool:
        """True if it is new. `known` (fields of `Namespace`) changes what is known of it."""
        self._ask("create", "namespace", name)
        return await self._changing("create", "namespace", name, self._broker.namespaces.create(name, **known))

    async def delete(self, name: str) -> None:
        """With its queues, exchanges, bindings, policies and streams. Its connections are ended."""
        self._ask("delete", "namespace", name)
        await self._changing("delete", "namespace", name, self._broker.namespaces.delete(name))

    async def set_limits(self, name: str, limits: Limits) -> None:
        """Replaces them. What is there already stays."""
        self._ask("alter", "namespace", name)
        work = self._broker.namespaces.set_limits(name, limits)
        await self._changing("alter", "namespace", name, work, f"limits: {limits}")
