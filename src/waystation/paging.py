"""Long lists in pages: names in order, a part of a name to search for, and work that lets others have their turn.

`Pace` is for work whose steps take unequally long, `matching` and `sort_in_steps` for a hundred thousand names. None of
them keeps the loop for more than a few milliseconds. What they are given is a copy: it may be out of date when they are
through, never half-changed. For the views of the broker.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from waystation.world.clock import Clock

TURN_S = 0.004
"""Work for so long, then the loop has its turn."""
STEP = 4_000
"""Names that are looked at in one go: about a millisecond."""
MAX_LIMIT = 1_000

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="how many at most")]
Search = Annotated[str, Meta(description="a part of the name, in capitals or not; empty: all")]
After = Annotated[str, Meta(description="names behind this one: `next` of the page before")]
Next = Annotated[str, Meta(description="`after` for the next page; null: this is the last")] | None
Total = Annotated[int, Meta(description="how many match in all")]


class Pace:
    """How long something has worked itself. `breathe` gives the loop its turn when it is time."""

    __slots__ = ("_began", "_clock", "_turn")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = self._turn = clock.monotonic()

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic() - self._began

    @property
    def due(self) -> bool:
        return self._clock.monotonic() - self._turn > TURN_S

    async def breathe(self) -> None:
        if self.due:
            left = self._clock.monotonic()
            await asyncio.sleep(0)
            self._turn = self._clock.monotonic()
            self._began += self._turn - left  # what others did meanwhile is not our work


class NamesPage(NamedTuple):
    """Names of one page."""

    names: list[str]
    next: str | None
    total: int


async def page_of(known: Sequence[str], search: str, after: str | None, limit: int) -> NamesPage:
    """A page of names that are in order and each there once. `after` None: from the beginning."""
    found = await matching(known, search)
    at = 0 if after is None else bisect_right(found, after)
    names = list(found[at : at + limit])
    return NamesPage(names, names[-1] if at + limit < len(found) else None, len(found))


async def matching(known: Sequence[str], search: str, local: Callable[[str], str] | None = None) -> Sequence[str]:
    """Those that have `search` in them, whatever its capitals. `local`: what whoever searches calls them."""
    if not search:
        return known
    wanted = search.casefold()
    found: list[str] = []
    for at in range(0, len(known), STEP):
        some = known[at : at + STEP]
        if local is None:
            found += [name for name in some if wanted in name.casefold()]
        else:
            found += [name for name in some if wanted in local(name).casefold()]
        await asyncio.sleep(0)
    return found


def span(known: Sequence[str], prefix: str) -> tuple[int, int]:
    """Of names in order: where those with a prefix begin and end."""
    size = len(prefix)
    first = bisect_left(known, prefix)
    return first, bisect_right(known, prefix, lo=first, key=lambda name: name[:size])


async def sort_in_steps(names: list[str]) -> list[str]:
    """Sorted. A hundred thousand names in one go would take 60 ms; here they are shared out first, between fences that
    a sample of them gives, and each share is sorted by itself."""
    if len(names) <= STEP:
        return sorted(names)
    sample = sorted(names[:: max(1, len(names) // 2_000)])
    fences = sample[:: max(1, len(sample) * STEP // len(names))]
    shares: list[list[str]] = [[] for _ in range(len(fences) + 1)]
    for at in range(0, len(names), STEP):
        for name in names[at : at + STEP]:
            shares[bisect_right(fences, name)].append(name)
        await asyncio.sleep(0)
    ordered: list[str] = []
    for share in shares:
        share.sort()
        ordered += share
        await asyncio.sleep(0)
    return ordered
