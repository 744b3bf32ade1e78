"""Reading as a member of a consumer group: the broker assigns, this member reads, offsets are committed in between.

What is committed is never ahead of what was handed out, and `before_commit` runs first (the command line flushes its
output there): a crash repeats records, it never skips one. A partition that the group revokes is let go of after what
was read of it is committed.

A lost connection ends the membership: `poll` raises ConnectionLost, and `resume` joins again as a new member.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from waystation.client import admin
from waystation.client.records.calls import Calls
from waystation.client.records.offsets import TopicPartition, resolve
from waystation.client.records.reading import IncomingRecord, RecordReader
from waystation.client.sync.client import Client
from waystation.errors import Conflict, ConnectionLost, NotFound, WaystationError
from waystation.message import Delivered

COMMIT_EVERY_S = 1.0

Places = frozenset[TopicPartition]


class GroupReader:
    """A group member that reads. `start` holds where the group has committed nothing yet."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        start: str,
        *,
        uncommitted: bool = False,
        expired: bool = True,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._calls = Calls(client)
        self._group = group
        self._start = start
        self._before_commit = before_commit
        self._topics = topics
        self._reader = RecordReader(client, uncommitted=uncommitted, expired=expired, resend=False)
        self._committed: dict[TopicPartition, int] = {}
        self._had: dict[TopicPartition, int] = {}
        """How far it was in partitions that it had when the connection was lost, until they come back."""
        self._commit_due = time.monotonic() + COMMIT_EVERY_S
        self._join()

    def _join(self) -> None:
        self._membership = _Membership()
        joining = admin.join_group(self._calls.core, self._membership, self._group, self._topics)
        self._number = self._calls.run(joining)

    @property
    def connected(self) -> bool:
        return self._calls.up

    def resume(self) -> None:
        """Joins again. Partitions that come back are read on from where it was."""
        self._had |= self.positions
        self._reader.assign({})
        self._join()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return self._reader.positions

    @property
    def joined(self) -> bool:
        """Whether the broker has given this member something to read."""
        return bool(self.positions)

    def poll(self, wait_ms: int) -> Iterator[IncomingRecord]:
        """Asks for its partitions, commits, reads. Without partitions it waits for some as long as a read would."""
        while self._reassign(0):
            pass
        if time.monotonic() >= self._commit_due:
            self.commit()
        if not self.positions:
            self._reassign(wait_ms)
        yield from self._reader.poll(wait_ms)

    def commit(self) -> None:
        """Commits every position that moved."""
        self._commit_due = time.monotonic() + COMMIT_EVERY_S
        self._commit(frozenset(self.positions))

    def close(self) -> None:
        """Commits and leaves the group."""
        self._commit(frozenset(self.positions))
        self._calls.run(admin.cease(self._calls.core, self._number))

    def _reassign(self, wait_ms: int) -> bool:
        """Whether there was a change."""
        if self._membership.error is not None:
            raise self._membership.error
        owned = frozenset(self.positions)
        asking = admin.group_assignment(self._calls.core, self._number, sorted(owned), wait_ms)
        try:
            known = {(topic, index): offset for topic, index, offset in self._calls.run(asking)}
        except NotFound as error:
            raise self._membership.error or error from None  # asked over the next connection, which has no such member
        if known.keys() == owned:
            return False
        self._revoked(owned - known.keys())
        new = {place: offset for place, offset in known.items() if place not in owned}
        found = {place: self._resumed(place, offset) for place, offset in new.items()}
        self._committed |= {place: offset for place, offset in new.items() if offset >= 0}
        begin = resolve(self._client, self._start, [place for place, offset in found.items() if offset < 0])
        self._reader.assign(self.positions | found | begin)
        return True

    def _resumed(self, place: TopicPartition, committed: int) -> int:
        """Where to read a partition that came; -1: as `start` says. What was handed out before the connection was lost
        is not handed out again, unless somebody has moved the group back since."""
        had = self._had.pop(place, None)
        return had if had is not None and self._committed.get(place, -1) <= committed <= had else committed

    def _revoked(self, lost: Places) -> None:
        self._commit(lost)
        for place in lost:
            del self.positions[place]
            self._committed.pop(place, None)

    def _commit(self, places: Places) -> None:
        moved = {p: o for p, o in self.positions.items() if p in places and self._committed.get(p) != o}
        if not moved:
            return
        self._before_commit()
        offsets = [(*place, offset) for place, offset in moved.items()]
        try:
            self._calls.run(admin.commit_offsets(self._calls.core, self._group, offsets, consumer=self._number))
        except (Conflict, NotFound):
            return  # the group went on without this member: somebody else reads them again from the last commit
        self._committed |= moved


class _Membership:
    """What the connection tells of the member: nothing is delivered to it, but it may end."""

    def __init__(self) -> None:
        self.error: WaystationError | None = None

    def delivered(self, messages: list[Delivered]) -> None:
        pass

    def ended(self, error: WaystationError) -> None:
        self.error = self.error or error

    def cut(self) -> None:
        self.error = ConnectionLost("the connection was lost, and with it the membership in the group")

    def resume(self) -> None:
        pass

    def forked(self, error: WaystationError) -> None:
        self.error = error
