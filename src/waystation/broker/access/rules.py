"""`RuleAccess`: who may do what: the rules, as those who administer the broker see and change them, and what the
principal itself may.

A rule concerns the broker as a whole, so that is what is asked for. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from waystation.broker.access.family import Family
from waystation.security.rules import OPERATIONS, Operation, Resource, Rule, check_rule


class RuleAccess(Family):
    """One principal's."""

    __slots__ = ()

    def listing(self) -> list[Rule]:
        """All of them, in an order that stays."""
        self._ask_cluster("describe")
        return self._broker.permissions.rules()

    def to_alter(self) -> list[Rule]:
        """The same, for one who is about to change them."""
        self._ask_cluster("alter")
        return self._broker.permissions.rules()

    def check(self, rule: Rule) -> None:
        """Raises what adding it would raise now."""
        self._ask_cluster("alter")
        check_rule(rule)

    async def add(self, rules: Iterable[Rule]) -> None:
        """In force when this returns; Invalid if there cannot be such a rule. Those that are there already stay."""
        self._ask_cluster("alter")
        await self._broker.permissions.add(rules)

    async def remove(self, rules: Iterable[Rule]) -> None:
        """Fine if they are not there."""
        self._ask_cluster("alter")
        await self._broker.permissions.remove(rules)

    async def replace(self, old: Iterable[Rule], new: Iterable[Rule]) -> None:
        """The old ones end as the new ones begin."""
        self._ask_cluster("alter")
        await self._broker.permissions.replace(old, new)

    def operations(self, resource: Resource, name: str) -> list[Operation]:
        """What the principal itself may do with something; nobody is asked for that."""
        allows = self._broker.permissions.allows
        return [operation for operation in OPERATIONS if allows(self._principal, operation, resource, name)]
