"""What happened to groups lately: their states and sizes, one after the other, in memory only.

Whoever changes a group notes what it is now; a note that says the same as the last one is dropped, so it may be called
after anything. Bounded: `MAX_ENTRIES` for a group, `MAX_GROUPS` groups, `MAX_IN_ALL` entries (that which was quiet for
longest is forgotten first), and so is what an entry says, since it may have names that clients chose. The services of
the coordinator and the shared groups write; whoever shows groups reads.
"""

from __future__ import annotations

import msgspec

from waystation.world import Clock

MAX_ENTRIES = 100
MAX_GROUPS = 10_000
MAX_IN_ALL = 100_000
"""About 15 MiB."""
LONGEST_WHY = 200


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """From `time_ms` on the group was in this state, with so many members."""

    time_ms: int
    state: str
    members: int
    why: str = ""


class GroupHistory:
    """One per broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, list[HistoryEntry]] = {}  # the one that changed last comes last
        self._count = 0

    def note(self, group_id: str, state: str, members: int, why: str = "") -> None:
        entries = self._groups.get(group_id)
        if entries is not None and entries[-1].state == state and entries[-1].members == members:
            return
        if entries is None:
            entries = []
        else:
            del self._groups[group_id]
        self._groups[group_id] = entries
        entries.append(HistoryEntry(self._clock.now_ms(), state, members, why[:LONGEST_WHY]))
        self._count += 1
        if len(entries) > MAX_ENTRIES:
            del entries[0]
            self._count -= 1
        while len(self._groups) > MAX_GROUPS or (self._count > MAX_IN_ALL and len(self._groups) > 1):
            self.forget(next(iter(self._groups)))

    def of(self, group_id: str) -> list[HistoryEntry]:
        """The oldest first; empty if nothing happened since the broker was started."""
        return list(self._groups.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        """The group is deleted."""
        self._count -= len(self._groups.pop(group_id, ()))
