"""What of a list its reader may see, told to a view before the view cuts the list into pages.

Invariant: the rows, `next` and the total of a page come from names that the reader may see, and in a namespace a search
looks at names as those inside say them. What is left out only when a page is made is told all the same: by the name
that the next page begins behind, and by how many there are.

Who may see everything has no name looked at: lists of a hundred thousand queues are paged all day. Else the names are
gone through in slices. For the views of the broker; `EVERYTHING` is for the broker itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from waystation.paging import Pace, matching, span
from waystation.queues.redriving import GROUP_TARGET
from waystation.routing.namespace_names import prefix_of, topic_prefix_of
from waystation.security.permissions import Permissions, Resource
from waystation.security.principals import Principal
from waystation.security.whereabouts import NAMED, dead_letter_target_of, target_of
from waystation.world.clock import Clock

T = TypeVar("T")

AT_ONCE = 64
"""Names, between two looks at the clock: one takes a few microseconds."""


class Sight:
    """All that there is: the broker's own."""

    within = ""
    """The namespace outside of which nothing is seen; empty: there is none."""

    def sees(self, resource: Resource, name: str) -> bool:
        return True

    def sees_all(self, *resources: Resource) -> bool:
        """Whether everything of these kinds is seen, wherever it is: then nothing needs to be asked about."""
        return True

    def sees_target(self, target: str) -> bool:
        """`queue:NAME`, `topic:NAME` or `exchange:NAME`."""
        return self.sees(*target_of(target))

    def sees_dead_letter_target(self, target: str) -> bool:
        """A queue's name, or `topic:NAME`."""
        return self.sees(*dead_letter_target_of(target))

    def may_redrive_to(self, target: str) -> bool:
        """Whether a message that says that it died there may go back: a queue's name, `topic:NAME`, `group:NAME`."""
        return True

    def local(self, resource: Resource, name: str) -> str:
        """What the reader calls it, which is what it searches for."""
        return name

    def local_target(self, target: str) -> str:
        return target

    def local_names(self, resource: Resource) -> Callable[[str], str] | None:
        """`local` of a kind, for `matching`; None: names are as they are."""
        return None

    async def names(self, resource: Resource, known: Sequence[str], search: str = "") -> Sequence[str]:
        """Of names in order: those that are seen and that have `search` in them."""
        return await matching(known, search)

    async def sifted(self, known: Sequence[T], seen: Callable[[T], bool]) -> Sequence[T]:
        """Those that are seen, for a list whose parts are no names of one kind. In slices."""
        return known


EVERYTHING = Sight()


class PrincipalSight(Sight):
    """What a principal may describe, where it is. Made for one page: rules change."""

    def __init__(self, permissions: Permissions, principal: Principal, clock: Clock) -> None:
        self._permissions = permissions
        self._principal = principal
        self._clock = clock
        self.within = principal.within

    def sees(self, resource: Resource, name: str) -> bool:
        return self._permissions.allows(self._principal, "describe", resource, name)

    def sees_all(self, *resources: Resource) -> bool:
        return not self.within and all(
            self._permissions.extent(self._principal, "describe", resource) for resource in resources
        )

    def may_redrive_to(self, target: str) -> bool:
        if target.startswith(GROUP_TARGET):
            return self._permissions.allows(self._principal, "read", "group", target.removeprefix(GROUP_TARGET))
        return self._permissions.allows(self._principal, "write", *dead_letter_target_of(target))

    def local(self, resource: Resource, name: str) -> str:
        return name.removeprefix(self._prefix(resource))

    def local_target(self, target: str) -> str:
        kind, colon, _ = target.partition(":")
        resource, name = target_of(target) if colon and kind in ("queue", "topic", "exchange") else ("queue", target)
        return target[: len(target) - len(name)] + self.local(resource, name)

    def local_names(self, resource: Resource) -> Callable[[str], str] | None:
        return (lambda name: self.local(resource, name)) if self.within else None

    def _prefix(self, resource: Resource) -> str:
        """How the names of the namespace begin; not all that begin so are in it (`Namespaces.of_topic`)."""
        if not self.within:
            return ""
        return (
            prefix_of(self.within) if resource in NAMED else topic_prefix_of(self.within) if resource == "topic" else ""
        )

    async def names(self, resource: Resource, known: Sequence[str], search: str = "") -> Sequence[str]:
        extent = self._permissions.extent(self._principal, "describe", resource)
        if extent is False:
            return []
        prefix = self._prefix(resource)
        if prefix:
            first, last = span(known, prefix)
            known = known[first:last]
        found = await matching(known, search, self.local_names(resource))
        return found if extent else await self.sifted(found, lambda name: self.sees(resource, name))

    async def sifted(self, known: Sequence[T], seen: Callable[[T], bool]) -> Sequence[T]:
        found: list[T] = []
        pace = Pace(self._clock)
        for at in range(0, len(known), AT_ONCE):
            found += [one for one in known[at : at + AT_ONCE] if seen(one)]
            await pace.breathe()
        return found
