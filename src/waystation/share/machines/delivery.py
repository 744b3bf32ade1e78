"""One partition of a topic, as one share group consumes it: which records may be handed out, are in flight, are done.

    below `start`   everything is done: the group never comes back to it
    start … end     the window: admitted to the ledger, each record ready, in flight, done or dying
    from `end` on   not looked at yet

The ledger is what consumers see and lives in memory; the marks are what the log remembers (`share_marks`): done, dying,
or handed out so often. Whoever restores a partition from its marks admits the records from `start` on again: those that
are done are left out, the others are handed out again, counted. So a crash gives records back, and never one that was
acknowledged durably.

Invariants: `start` only rises (but for an administrator's `reset`); a record is admitted once; a record that was
acknowledged is never handed out again.

Pure: no I/O, no clock. The caller reads the topic's log, says what is there, and writes `saved()` when a call says
that it changed something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from waystation.message import Run
from waystation.queues.ledger.ledger import Grant, Ledger, Outcome
from waystation.share.machines.marks import DONE, DYING, Mark, Marks, handed_out

REJECTED = "rejected"
LIMIT = "delivery-limit"
EXPIRED = "expired"

_NO_LIMITS: Mapping[int, int] = MappingProxyType({})


class Saved(msgspec.Struct, array_like=True):
    """A partition in the log. `marks`: for each run its distance from the one before, its length and its mark.
    `log_epoch`: the newest leader epoch of the topic's log that they are about; -1: nobody has said."""

    epoch: int
    start: int
    marks: list[tuple[int, int, int]] = []
    log_epoch: int = -1


class Death(msgspec.Struct, frozen=True):
    """Records that will not be handed out again. With dead letters they are dying until `buried`."""

    first: int
    count: int
    deliveries: int
    reason: str


class Settled(msgspec.Struct):
    """What a verdict, or time, did."""

    changed: bool = False
    """There is something to write."""
    unknown: list[Run] = msgspec.field(default_factory=list)
    deaths: list[Death] = msgspec.field(default_factory=list)
    returned: list[Run] = msgspec.field(default_factory=list)
    """Time only: what is not in flight any longer, dead or not."""


class SharePartition:
    """See the module. `keeps_dead`: the dead are dying until the caller has written their dead letters (`buried`).
    `keeps_expired`: so are those that died of their age."""

    def __init__(
        self, saved: Saved, *, max_deliveries: int = 0, keeps_dead: bool = False, keeps_expired: bool | None = None
    ) -> None:
        self.start = saved.start
        self.end = saved.start
        self.epoch = saved.epoch
        self.log_epoch = saved.log_epoch
        self.keeps_dead = keeps_dead
        self.keeps_expired = keeps_dead if keeps_expired is None else keeps_expired
        self.ledger = Ledger(max_deliveries=max_deliveries)
        self.marks = Marks()
        self.dead_again: list[Death] = []
        """Found when they were admitted: they died before a crash, or were requeued by it once too often."""
        at = saved.start
        for gap, count, mark in saved.marks:
            at += gap
            self.marks.set(at, at + count, mark)
            at += count
        self._marked_end = at

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return self.ledger.ready

    @property
    def known_end(self) -> int:
        """The log had records up to here: they were admitted, or are marked from before a crash."""
        return max(self.end, self._marked_end)

    @property
    def in_flight(self) -> int:
        """What the window is bounded by: records that are not done, and pieces that the state is in.

        Marks from before a crash count when their records are admitted again: before that they must not keep them out.
        """
        if self.end >= self._marked_end:
            return max(len(self.ledger) + self.marks.dying, len(self.marks))
        marks = self.marks.between(self.start, self.end)
        dying = sum(run.end - run.first for run in marks if run.mark == DYING)
        return max(len(self.ledger) + dying, len(marks))

    def saved(self) -> Saved:
        """The partition as it is, to be written."""
        at = self.start
        marks: list[tuple[int, int, int]] = []
        for run in self.marks:
            marks.append((run.first - at, run.end - run.first, run.mark))
            at = run.end
        return Saved(self.epoch, self.start, marks, self.log_epoch)

    # -- the window --------------------------------------------------------------------------------------------------

    def spent(self, end: int) -> list[Run]:
        """Of what `admit` would take in: records that were delivered as often as the group's limit says. The caller
        finds out whether they have limits of their own."""
        limit = self.ledger.max_deliveries
        if not limit or self.end >= self._marked_end:
            return []
        return runs_of(run for run in self.marks.between(self.end, end) if run.deliveries >= limit)

    def admit(self, end: int, own_limits: Mapping[int, int] = _NO_LIMITS) -> bool:
        """Takes the records from `self.end` up to `end` into the window. Says whether there is something to write.

        `own_limits`: those that `spent` records have of their own.
        """
        at = self.end
        self.end = end
        for run in self.marks.between(at, end):
            self._admit_fresh(at, run.first)
            at = run.end
            if run.mark == DYING:
                self._dead_again(run, REJECTED)
            elif run.mark != DONE:
                self._admit_again(run, own_limits)
        self._admit_fresh(at, end)
        return self._advance() or bool(self.dead_again)

    def _admit_again(self, run: Mark, own_limits: Mapping[int, int]) -> None:
        limit = self.ledger.max_deliveries
        if not own_limits and limit and run.deliveries >= limit:
            self._dead_again(run, LIMIT)
            return
        for offset in range(run.first, run.end):
            own = own_limits.get(offset, 0)
            if 0 < (own or limit) <= run.deliveries:
                self._dead_again(Mark(offset, offset + 1, run.mark), LIMIT)
            else:
                self.ledger.admit(offset, deliveries=run.deliveries, max_deliveries=own)

    def _dead_again(self, run: Mark, reason: str) -> None:
        self.dead_again.append(Death(run.first, run.end - run.first, run.deliveries, reason))
        self.marks.set(run.first, run.end, DYING if self.keeps_dead else DONE)

    def skip(self, end: int) -> bool:
        """There is nothing to deliver from `self.end` up to `end`. Says whether there is something to write."""
        first, self.end = self.end, end
        for run in self.marks.between(first, end):
            if run.mark == DYING:
                self.dead_again.append(Death(run.first, run.end - run.first, 0, REJECTED))
        self.marks.set(first, end, DONE)
        self._advance()
        return False  # found again in the same way after a crash

    def log_begins_at(self, offset: int) -> bool:
        """What was below is deleted from the topic's log, in flight or not. Says whether there is something to
        write."""
        if offset <= self.start:
            return False
        if offset < self.end:
            self.ledger.finish([(self.start, offset - self.start)])
        else:
            self.ledger.finish([(self.start, self.end - self.start)] if self.end > self.start else [])
            self.end = offset
        self.start = offset
        self.marks.cut(offset)
        self._advance()
        return True

    def reset(self, start: int, epoch: int) -> None:
        """An administrator's wish: from here on, as if nothing had been handed out. Nothing is in flight."""
        self.start = self.end = self._marked_end = start
        self.epoch = epoch
        self.marks = Marks()
        self.ledger = Ledger(max_deliveries=self.ledger.max_deliveries)
        self.dead_again.clear()

    # -- handing out -------------------------------------------------------------------------------------------------

    def acquire(self, consumer: str, count: int, now_ms: int, visibility_timeout_ms: int) -> list[Grant]:
        """The marks change; writing them may wait a little, see the caller."""
        grants = self.ledger.acquire(consumer, count, now_ms, visibility_timeout_ms)
        for grant in grants:
            self.marks.set(grant.first, grant.first + grant.count, handed_out(grant.deliveries))
        return grants

    def touch(self, consumer: str, runs: Sequence[Run], now_ms: int, visibility_timeout_ms: int) -> list[Run]:
        """More time; returns what is not in flight."""
        return self.ledger.touch(consumer, runs, now_ms, visibility_timeout_ms)

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def ack(self, consumer: str, runs: Sequence[Run]) -> Settled:
        return self._settled(self.ledger.ack(consumer, runs))

    def release(self, consumer: str, runs: Sequence[Run], until_ms: int | None = None) -> Settled:
        return self._settled(self.ledger.release(consumer, runs, until_ms=until_ms))

    def reject(self, consumer: str, runs: Sequence[Run], reason: str = REJECTED) -> Settled:
        """Dead now."""
        outcome = self.ledger.reject(consumer, runs)
        dead, outcome.done = outcome.done, []
        settled = self._settled(outcome)
        self._die(dead, reason, settled)
        return settled

    def give_up(self, consumer: str, runs: Sequence[Run], reason: str) -> Settled:
        """Acquired, but not to be delivered (EXPIRED: too late, LIMIT: too often before): dead, and this time does not
        count."""
        settled = self.reject(consumer, runs, reason)
        settled.deaths = [msgspec.structs.replace(one, deliveries=one.deliveries - 1) for one in settled.deaths]
        return settled

    def postpone(self, consumer: str, runs: Sequence[Run], until_ms: int) -> None:
        """Acquired, but too early to be delivered: delayed until then, and this time does not count."""
        for first, count in self.ledger.postpone(consumer, runs, until_ms):
            for run in self.marks.between(first, first + count):
                if run.deliveries > 1:
                    self.marks.set(run.first, run.end, handed_out(run.deliveries - 1))
                else:
                    self.marks.clear(run.first, run.end)

    def detach(self, consumer: str) -> Settled:
        """The consumer goes; what was in flight to it is requeued."""
        settled = Settled()
        self._die(self.ledger.detach(consumer).exhausted, LIMIT, settled)
        return settled

    def lapse(self, now_ms: int) -> None:
        """Time passes: what was to wait is ready. Wall clock."""
        self.ledger.lapse(now_ms)

    def end_locks(self, now_ms: int) -> Settled:
        """Acquisition locks run out. Monotonic clock."""
        lapsed = self.ledger.lapse_visibility(now_ms)
        settled = Settled(returned=[*lapsed.returned, *lapsed.exhausted])
        self._die(lapsed.exhausted, LIMIT, settled)
        return settled

    def buried(self, first: int, count: int) -> bool:
        """The dead letters of dying records are written (or will never be). Says whether there is something to
        write."""
        for run in self.marks.between(max(first, self.start), first + count):
            if run.mark == DYING:
                self.marks.set(run.first, run.end, DONE)
        self._advance()
        return True

    # -- parts -------------------------------------------------------------------------------------------------------

    def _admit_fresh(self, first: int, end: int) -> None:
        if first < end:
            self.ledger.admit_run(first, end - first)

    def _settled(self, outcome: Outcome) -> Settled:
        settled = Settled(unknown=outcome.unknown)
        for first, count in outcome.done:
            self.marks.set(first, first + count, DONE)
            settled.changed = True
        if outcome.exhausted:
            self._die(outcome.exhausted, LIMIT, settled)
        if settled.changed:
            self._advance()
        return settled

    def _die(self, runs: Iterable[Run], reason: str, settled: Settled) -> None:
        for first, count in runs:
            for run in self.marks.between(first, first + count):
                settled.deaths.append(Death(run.first, run.end - run.first, run.deliveries, reason))
            keeps = self.keeps_expired if reason == EXPIRED else self.keeps_dead
            self.marks.set(first, first + count, DYING if keeps else DONE)
            settled.changed = True
        if settled.changed:
            self._advance()

    def _advance(self) -> bool:
        """Moves `start` over what is done."""
        front = self.marks.front()
        if front is None or front.mark != DONE or front.first > self.start or self.start >= self.end:
            return False
        self.start = min(front.end, self.end)
        self.marks.cut(self.start)
        return True


def saved_at(start: int, epoch: int = 0, log_epoch: int = -1) -> Saved:
    """A partition that nothing was taken from yet."""
    return Saved(epoch, start, [], log_epoch)


def runs_of(marks: Iterable[Mark]) -> list[Run]:
    return [(mark.first, mark.end - mark.first) for mark in marks]


def fitted(saved: Saved, end: int) -> Saved:
    """A log that lost its tail (it was damaged, and cut) uses those offsets again: what is said of them is of other
    records."""
    if saved.start > end:
        return saved_at(end, saved.epoch, saved.log_epoch)
    at, marks = saved.start, []
    for gap, count, mark in saved.marks:
        at += gap
        if at >= end:
            break
        marks.append((gap, min(count, end - at), mark))
        at += count
    return Saved(saved.epoch, saved.start, marks, saved.log_epoch)
