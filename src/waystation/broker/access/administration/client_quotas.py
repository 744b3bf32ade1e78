"""`QuotaAccess`: client quotas, as those who administer the broker see and change them.

They are a matter of the broker's configuration, as in Kafka: that is what is asked for. What a session uses of its own
quotas is in `used.py`. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Mapping

from waystation.broker.access.messaging.family import Family
from waystation.security.quotas.client_quotas import Values
from waystation.security.quotas.entities import QuotaEntity


class QuotaAccess(Family):
    """One principal's."""

    __slots__ = ()

    def listing(self) -> list[tuple[QuotaEntity, Values]]:
        """All of them, in an order that stays."""
        self._ask_cluster("describe-configs")
        return self._broker.quotas.listing()

    def check(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        """Raises what `alter` would raise now."""
        self._ask_cluster("alter-configs")
        self._broker.quotas.check(entity, changes)

    def check_alter(self) -> None:
        """Raises if the principal may not change quotas."""
        self._ask_cluster("alter-configs")

    async def alter(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        """Sets quotas of an entity; None removes one. In force when this returns."""
        self._ask_cluster("alter-configs")
        self._broker.quotas.check(entity, changes)
        detail = ", ".join(f"{key}={'none' if value is None else f'{value:g}'}" for key, value in changes.items())
        work = self._broker.quotas.alter(entity, changes)
        await self._changing("alter-configs", "quota", str(entity), work, detail)
