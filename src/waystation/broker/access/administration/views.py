"""`ViewAccess`: what administrators look at, and what they do.

A view or an action is a row of `view_rows.py`; every protocol hands its query on by name, and permissions are asked
here, for what the row names, before the row's function is called. A list that names nothing is made of what the
principal may see: its rows, where the next page begins, and how many there are. What is no row: what is made without
waiting for whoever watches, figures that come from everywhere, settings, connections, and health.

How the broker is may be asked by anybody, since what probes it has no credentials; the reasons name things, so those
who may not look at the broker are not told them. On the loop's thread only. The views are loaded when somebody looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.admin.sight import PrincipalSight, Sight
from waystation.admin.views import overview
from waystation.broker.access.messaging.family import Family, spelled

if TYPE_CHECKING:
    from waystation.admin.views.figures import Figures
    from waystation.admin.views.view_overview import Overview
    from waystation.admin.views.view_settings import Given
    from waystation.broker.access.administration.view_rows import Listed
    from waystation.broker.broker import Broker
    from waystation.health.health import Health
    from waystation.health.sampling import Point
    from waystation.security.principals import Principal

Query = msgspec.Struct | Mapping[str, Any]
"""As the row's struct, or as what it is read from."""


class ViewAccess(Family):
    """Made by `Access`."""

    __slots__ = ("_mutate",)

    def __init__(self, broker: Broker, principal: Principal, mutate: Callable[[int], None] | None = None) -> None:
        """`mutate`: as that of `TopicAccess`."""
        super().__init__(broker, principal)
        self._mutate = mutate

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def view(self, what: str, query: Query) -> Any:
        """A view by its name; NotFound says which there are."""
        return await self._answer("view", what, query)

    async def act(self, what: str, query: Query) -> Any:
        """An action by its name."""
        return await self._answer("action", what, query)

    async def _answer(self, kind: str, what: str, query: Query) -> Any:
        from waystation.broker.access.administration.view_rows import find, read

        row = find(kind, what)
        asked = query if isinstance(query, msgspec.Struct) else read(query, row.query)
        if row.asks.is_about_one(asked) or not row.lists:  # one may be called `*`, too
            self._ask(row.asks.operation, row.asks.resource, row.asks.name_in(asked))
        self._ask_all(row.also(asked))
        if row.mutates is not None and self._mutate is not None:
            self._mutate(row.mutates(self._broker, asked))
        about, detail = row.about(asked), row.detail(asked)
        answer = row.answered(self._broker, asked, self._sight)
        if kind == "action":
            # The audit log has what was done by its action's name: the query may have a password in it.
            work = answer if isinstance(answer, Awaitable) else _at_once(answer)
            answer = await self._changing(what, row.asks.resource, about, work, detail)
        elif isinstance(answer, Awaitable):
            answer = await answer
        return self._seen(row.lists, answer) if row.lists else answer

    @property
    def _sight(self) -> Sight:
        return PrincipalSight(self._broker.permissions, self._principal, self._broker.world.clock)

    def _seen(self, lists: Sequence[Listed], answer: Any) -> Any:
        """A page without what the principal may not see now: rules may have changed while it was made. Names were
        left out before, by its function (`admin/sight.py`), so that `next` and the totals tell of none."""
        left = {
            each.field: [row for row in getattr(answer, each.field) if all(self._sees(*one) for one in each.about(row))]
            for each in lists
        }
        fewer = [each for each in lists if len(left[each.field]) != len(getattr(answer, each.field))]
        if not fewer:
            return answer
        totals = {each.total: len(left[each.field]) for each in fewer}
        return msgspec.structs.replace(answer, **left, **totals)

    # -- the broker ---------------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """The view of this name, at once."""
        self._ask_cluster("describe")
        from waystation.admin.views.view_overview import overview_view

        return overview_view(self._broker)

    def stats(self) -> dict[str, Any]:
        """Counters, and what there is."""
        self._ask_cluster("describe")
        return overview.stats(self._broker)

    async def figures(self) -> Figures:
        """What is measured, brought up to this moment."""
        self._ask_cluster("describe")
        from waystation.admin.views.figures import figures

        return await figures(self._broker)

    def watch(self, on_point: Callable[[Point], None]) -> Callable[[], None]:
        """Every new point of the history; returns how to end it."""
        self._ask_cluster("describe")
        return self._broker.sampling.subscribe(on_point)

    async def alter_settings(self, changes: Mapping[str, Given]) -> None:
        """All of them or none; None takes one back. They survive a restart."""
        self._ask_cluster("alter-configs")
        from waystation.admin.views.view_settings import alter

        await self._changing("alter-configs", "cluster", "*", alter(self._broker, changes), spelled(changes))

    def end_connection(self, connection: str, reason: str = "") -> None:
        """Closes a connection, and tells its client why as far as the protocol can."""
        self._ask_cluster("alter")
        from waystation.admin.views.view_connections import end

        end(self._broker, connection, reason)
        self._changed("end", "connection", connection, reason)

    # -- health, for anybody ------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """How the broker is."""
        from waystation.health.health import health_of

        return self._told(health_of(self._broker))

    def readiness(self) -> Health:
        """`failing` if a log takes no more writes, else `ok`. All is recovered when the first listener opens."""
        from waystation.health.health import Health, failed_logs

        reasons = list(failed_logs(self._broker))
        return self._told(Health("failing" if reasons else "ok", reasons))

    def _told(self, health: Health) -> Health:
        if self._broker.permissions.allows(self._principal, "describe", "cluster", "*"):
            return health
        return msgspec.structs.replace(health, reasons=[])


async def _at_once(answer: Any) -> Any:
    return answer
