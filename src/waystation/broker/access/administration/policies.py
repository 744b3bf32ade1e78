"""`PolicyAccess`: the policies of a namespace, which change settings of the queues and exchanges that they match.

A policy concerns all of its namespace, so that is what is asked for. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.admin.policy_rules import Policy
from waystation.broker.access.messaging.family import Family


class PolicyAccess(Family):
    """One principal's."""

    __slots__ = ()

    def listing(self, namespace: str | None = None) -> list[Policy]:
        """In the order of namespaces and names; None: of all namespaces that the principal may see."""
        if namespace is not None:
            self._ask("describe", "namespace", namespace)
            return self._broker.policies.listing(namespace)
        return [policy for policy in self._broker.policies.listing() if self._sees("namespace", policy.namespace)]

    def find(self, namespace: str, name: str) -> Policy | None:
        self._ask("describe", "namespace", namespace)
        return self._broker.policies.find(namespace, name)

    async def set(self, policy: Policy) -> bool:
        """Creates or replaces it; True if it is new. Returns when it is in force everywhere."""
        self._ask("alter", "namespace", policy.namespace)
        work = self._broker.policies.set(policy)
        return await self._changing("alter", "namespace", policy.namespace, work, f"policy {policy.name}")

    async def set_all(self, policies: Sequence[Policy]) -> None:
        """Many of them, and one look through the queues."""
        for policy in policies:
            self._ask("alter", "namespace", policy.namespace)
        await self._broker.policies.set_all(policies)
        for policy in policies:
            self._changed("alter", "namespace", policy.namespace, f"policy {policy.name}")

    async def delete(self, namespace: str, name: str) -> None:
        """Returns when everything has again what was declared, or what another policy says."""
        self._ask("alter", "namespace", namespace)
        work = self._broker.policies.delete(namespace, name)
        await self._changing("alter", "namespace", namespace, work, f"policy {name} is deleted")
