"""`RuleAccess`: who may do what: the rules, as those who administer the broker see and change them, and what the
principal itself may.

A rule concerns the broker as a whole, so that is what is asked for. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from waystation.broker.access.messaging.family import Family
from waystation.security.permissions import describe
from waystation.security.rules import OPERATIONS, Operation, Resource, Rule, check_rule


def spelled(rules: Iterable[Rule]) -> str:
    """For the audit log."""
    return "; ".join(map(describe, rules)) or "none"


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
        added = list(rules)
        await self._changing("create", "rule", "", self._broker.permissions.add(added), spelled(added))

    async def remove(self, rules: Iterable[Rule]) -> None:
        """Fine if they are not there."""
        self._ask_cluster("alter")
        removed = list(rules)
        await self._changing("delete", "rule", "", self._broker.permissions.remove(removed), spelled(removed))

    async def replace(self, old: Iterable[Rule], new: Iterable[Rule]) -> None:
        """The old ones end as the new ones begin."""
        self._ask_cluster("alter")
        replaced, added = list(old), list(new)
        detail = f"{spelled(added)} instead of {spelled(replaced)}"
        await self._changing("alter", "rule", "", self._broker.permissions.replace(replaced, added), detail)

    def operations(self, resource: Resource, name: str) -> list[Operation]:
        """What the principal itself may do with something; nobody is asked for that."""
        allows = self._broker.permissions.allows
        return [operation for operation in OPERATIONS if allows(self._principal, operation, resource, name)]
