"""What happened to groups lately: their states and sizes, one after the other, in memory only.

Whoever changes a group notes what it is now; a note that says the same as the last one is dropped, so it may be called
after anything. Bounded: `MAX_ENTRIES` for a group, `MAX_GROUPS` groups (that which was quiet for longest is forgotten
first). The desks of the coordinator and the shared groups write; whoever shows groups reads.
"""

from __future__ import annotations

import msgspec

from waystation.world import Clock

MAX_ENTRIES = 100
MAX_GROUPS = 10_000


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

    def note(self, group_id: str, state: str, members: int, why: str = "") -> None:
        entries = self._groups.get(group_id)
        if entries is not None and entries[-1].state == state and entries[-1].members == members:
            return
        entry = HistoryEntry(self._clock.now_ms(), state, members, why)
        if entries is None:
            entries = []
            if len(self._groups) >= MAX_GROUPS:
                del self._groups[next(iter(self._groups))]
        else:
            del self._groups[group_id]
        self._groups[group_id] = entries
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            del entries[0]

    def of(self, group_id: str) -> list[HistoryEntry]:
        """The oldest first; empty if nothing happened since the broker was started."""
        return list(self._groups.get(group_id, ()))

    def forget(self, group_id: str) -> None:
        """The group is gone."""
        self._groups.pop(group_id, None)
