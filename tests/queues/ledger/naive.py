"""The ledger's promises in the plainest way, to test it against: every entry an object, every verb a loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from waystation.queues.ledger.ledger import Run, State


@dataclass
class Entry:
    id: int
    priority: int
    state: State
    due_at: int | None
    expires_at: int | None  # None, too, when it has passed
    deliveries: int
    limit: int
    consumer: str | None = None
    deadline: int = 0
    overdue: bool = False


@dataclass
class Came:
    """What came back, by what became of it."""

    returned: set[int]
    expired: set[int]
    exhausted: set[int]


def ids_of(runs: Iterable[Run]) -> set[int]:
    return {entry for first, count in runs for entry in range(first, first + count)}


class Naive:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.prefetch: dict[str, int] = {}
        self.aside: set[str] = set()
        self.max_deliveries = 0
        self.single_active = False
        self.keeps_dead = False

    # -- looking ----------------------------------------------------------------------------------------------------

    def in_line(self) -> list[Entry]:
        ready = [entry for entry in self.entries.values() if entry.state is State.READY]
        return sorted(ready, key=lambda entry: (-entry.priority, entry.id))

    def in_flight_to(self, consumer: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.consumer == consumer]

    def some(self, runs: Iterable[Run]) -> list[Entry]:
        """The entries of some runs, which may reach over everything there is."""
        return [
            entry for entry in self.entries.values() if any(first <= entry.id < first + count for first, count in runs)
        ]

    def next_event(self) -> int | None:
        times = [entry.expires_at for entry in self.entries.values() if entry.expires_at is not None]
        times += [entry.due_at or 0 for entry in self.entries.values() if entry.state is State.DELAYED]
        return min(times, default=None)

    def next_late(self) -> int | None:
        return min((entry.deadline for entry in self.entries.values() if entry.state is State.IN_FLIGHT), default=None)

    @property
    def active(self) -> str | None:
        return next((consumer for consumer in self.prefetch if consumer not in self.aside), None)

    # -- doing ------------------------------------------------------------------------------------------------------

    def acquire(self, consumer: str, count: int, deadline: int) -> list[Entry]:
        if self.single_active and consumer not in self.aside and consumer != self.active:
            return []
        if self.prefetch[consumer]:
            count = min(count, self.prefetch[consumer] - len(self.in_flight_to(consumer)))
        taken = self.in_line()[: max(0, count)]
        for entry in taken:
            entry.state, entry.consumer, entry.deadline = State.IN_FLIGHT, consumer, deadline
            entry.deliveries += 1
        return taken

    def end(self, entry: Entry) -> None:
        del self.entries[entry.id]

    def die(self, entry: Entry) -> None:
        if self.keeps_dead:
            entry.state, entry.consumer = State.LEAVING, None
        else:
            self.end(entry)

    def come_back(self, entries: Iterable[Entry], until: int | None = None) -> Came:
        came = Came(set(), set(), set())
        for entry in list(entries):
            entry.consumer = None
            limit = entry.limit or self.max_deliveries
            if entry.overdue:
                self.die(entry)
                came.expired.add(entry.id)
                continue
            if limit and entry.deliveries >= limit:
                self.die(entry)
                came.exhausted.add(entry.id)
                continue
            entry.state, entry.due_at = (State.READY, None) if until is None else (State.DELAYED, until)
            came.returned.add(entry.id)
        return came

    def lapse(self, now: int) -> tuple[set[int], set[int]]:
        """Expired, and due."""
        expired = set()
        for entry in list(self.entries.values()):
            if entry.expires_at is not None and entry.expires_at <= now:
                entry.expires_at = None
                if entry.state in (State.READY, State.DELAYED):
                    self.die(entry)
                    expired.add(entry.id)
                else:
                    entry.overdue = True
        due = [e for e in self.entries.values() if e.state is State.DELAYED and (e.due_at or 0) <= now]
        for entry in due:
            entry.state = State.READY
        return expired, {entry.id for entry in due}

    def lapse_visibility(self, since: int) -> Came:
        return self.come_back([e for e in self.entries.values() if e.state is State.IN_FLIGHT and e.deadline <= since])

    def back_by_other_ways(self, entry: Entry) -> None:
        """An expiry that has passed meanwhile comes at the next moment."""
        if entry.overdue:
            entry.overdue, entry.expires_at = False, 0

    def restart(self) -> None:
        self.prefetch.clear()
        self.aside.clear()
        for entry in self.entries.values():
            if entry.state is State.IN_FLIGHT:
                entry.state, entry.consumer = State.READY, None
                self.back_by_other_ways(entry)
