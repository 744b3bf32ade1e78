"""Reading as a member of a group: assignment from `Member`, messages from `Reader`, offsets committed in between.

What is committed is never ahead of what was handed out, and `before_commit` runs first (the command line flushes its
output there): a crash repeats messages, it never skips one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from waystation.client.groups import commit_offsets, committed_offsets
from waystation.client.member import Member, Places
from waystation.client.positions import Start, resolve
from waystation.client.reader import Incoming, Reader
from waystation.client.refusals import Outdated
from waystation.client.topics import Place
from waystation.client.wire import Connection

COMMIT_EVERY_S = 1.0


class GroupReader:
    """A group member that reads. `start` holds where the group has committed nothing yet."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        topics: Sequence[str],
        start: Start,
        *,
        uncommitted: bool = False,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._start = start
        self._before_commit = before_commit
        self._reader = Reader(connection, uncommitted=uncommitted)
        self._member = Member(connection, group, topics, on_revoked=self._revoked)
        self._committed: dict[Place, int] = {}
        self._commit_due = time.monotonic() + COMMIT_EVERY_S

    @property
    def positions(self) -> dict[Place, int]:
        return self._reader.positions

    @property
    def joined(self) -> bool:
        """Whether the broker has given this member something to read."""
        return bool(self._member.assigned)

    def poll(self, wait_ms: int) -> Iterator[Incoming]:
        """Heartbeat, commit, fetch. Without an assignment it waits as long as a fetch would."""
        self._member.beat()
        if self._member.assigned != self.positions.keys():
            self._begin()
        if time.monotonic() >= self._commit_due:
            self.commit()
        if not self.positions:
            time.sleep(wait_ms / 1000)
            return
        yield from self._reader.poll(wait_ms)

    def commit(self) -> None:
        """Commits every position that moved."""
        self._commit_due = time.monotonic() + COMMIT_EVERY_S
        self._commit(frozenset(self.positions))

    def close(self) -> None:
        """Commits and leaves the group."""
        if not self._commit(frozenset(self.positions)):
            # The group moved on since the last heartbeat: the next one tells our new epoch, or that we are out.
            self._member.beat(now=True)
            self._commit(self._member.assigned)
        self._member.leave()

    def _begin(self) -> None:
        """Takes up new partitions where the group left them; keeps the position in those it had."""
        member = self._member
        new = sorted(member.assigned - self.positions.keys())
        kept = {place: offset for place, offset in self.positions.items() if place in member.assigned}
        self._committed = {place: offset for place, offset in self._committed.items() if place in kept}
        if new:
            try:
                known = committed_offsets(self._connection, member.group, member=member.id, epoch=member.epoch)
            except Outdated:
                self._reader.assign(kept)  # the next heartbeat tells what happened
                return
            found = {place: known[place].offset for place in new if place in known}
            self._committed |= found
            kept |= found | resolve(self._connection, self._start, [place for place in new if place not in known])
        self._reader.assign(kept)

    def _revoked(self, lost: Places) -> None:
        self._commit(lost)
        for place in lost:
            self.positions.pop(place, None)
            self._committed.pop(place, None)

    def _commit(self, places: Places) -> bool:
        """False if the group did not take it from this member in its present epoch."""
        moved = {p: o for p, o in self.positions.items() if p in places and self._committed.get(p) != o}
        if not moved:
            return True
        self._before_commit()
        try:
            commit_offsets(
                self._connection, self._member.group, moved, member=self._member.id, epoch=self._member.epoch
            )
        except Outdated:
            return False  # at worst they are somebody else's now, who reads them again from the last commit
        self._committed |= moved
        return True
