"""How far groups are behind, for metrics and health: looked at only while somebody asks, and not often.

Adding up the lag of every group takes a while where there are many, so what was found is good for `FRESH_S`, and the
next look happens in the background, in slices. At most `MOST_GROUPS` groups are looked at, in the order of names.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import WaystationError
from waystation.observe.events import event_logger

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

logger = event_logger("waystation.lags")

FRESH_S = 10.0
MOST_GROUPS = 1_000


class GroupLag(NamedTuple):
    group: str
    kind: str
    state: str
    members: int
    lag: int


class Lags:
    """One per broker."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._known: list[GroupLag] = []
        self._again_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def known(self) -> list[GroupLag]:
        """What the last look found; has another look if that was long ago."""
        if self._task is None and self._broker.world.clock.monotonic() >= self._again_s:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="lags")
        return self._known

    async def fresh(self) -> list[GroupLag]:
        """The same, but never older than `FRESH_S`."""
        self.known()
        if self._task is not None:
            await asyncio.shield(self._task)
        return self._known

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        from waystation.admin.views.view_groups import GroupsQuery, groups_view  # loaded when somebody asks

        try:
            page = await groups_view(self._broker, GroupsQuery(limit=MOST_GROUPS))
            self._known = [GroupLag(one.group, one.kind, one.state, one.members, one.lag) for one in page.groups]
        except WaystationError as error:
            logger.warning("lag.unknown", "the lag of groups cannot be added up now: {error}", error=error)
        finally:
            self._again_s = self._broker.world.clock.monotonic() + FRESH_S
            self._task = None
