"""Many staged transactions, committed by one record: all of them or none, and each sequence once.

A *staged* transaction is an ordinary one that is complete and still open: its data is durable, its producer has handed
it over. Somebody else (the driver of a Spark job, say) collects what was staged and asks to commit it all, under a
name and a sequence that grows. How that is made atomic:

1. The decision, ONE record that lists them all, is appended to the state log and is durable before anything else
   happens. It is the Prepare of every one of them.
2. A marker is appended to every partition of every transaction, and Complete to its own state, without a pause in
   between: readers see all of it at once.

While the decision is on its way to the disk its transactions are *prepared* in memory, so nothing can end them another
way: no timeout, no newer producer, no abort. After a crash, a decision that is in the log is carried out for those of
its transactions that are still open, told by producer id and epoch; the epoch grows with the decision, so that a later
transaction of the same id is never mistaken for it.

Fencing: under a name, a sequence that is not above the last one decided is not decided again. The same request repeated
(the same transactions) is answered like the first time; others come too late.

Invariants: a transaction of a decision is never aborted; the next decision of a name is written only when everything of
the last one stands durably on its own, since it replaces that record; what was decided is carried out however often the
disk refuses. Used by the coordinator, on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from waystation.errors import Conflict, Full, StorageFailed
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.state import StateLog
from waystation.observe.events import event_logger
from waystation.transactions.decision_records import Decision, Staged, encode_decision, encode_decision_key
from waystation.transactions.ends import Ends
from waystation.transactions.entry import TransactionEntry
from waystation.transactions.errors import ConcurrentTransactions
from waystation.transactions.machine import PREPARED, TransactionState
from waystation.transactions.settings import DECISIONS_KEPT_MS, MAX_DECISIONS, RETRY_FIRST_MS, RETRY_MAX_MS
from waystation.transactions.table import Table
from waystation.world.clock import Clock

_log = event_logger(__name__)


class Made(msgspec.Struct, eq=False):
    """The last decision of a name, and how far it has come."""

    decision: Decision
    log: StateLog
    entries: list[TransactionEntry] = msgspec.field(default_factory=list)
    """Prepared in memory by this decision alone: carried out as soon as it is durable."""
    settled: bool = False
    """All of its transactions are durably complete: the next decision may replace it."""
    attempt: asyncio.Task[None] | None = None
    pause: asyncio.TimerHandle | None = None
    retries: int = 0
    dropped: bool = False
    """Another broker carries it out."""


class Decisions:
    """The last decision of every name."""

    def __init__(self, clock: Clock, table: Table, ends: Ends, log_for: Callable[[str], StateLog]) -> None:
        self._clock = clock
        self._table = table
        self._ends = ends
        self._log_for = log_for
        self._made: dict[str, Made] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._made)

    @property
    def names(self) -> list[str]:
        return [*self._made]

    # -- life ------------------------------------------------------------------------------------------------------

    def recover(self, decisions: Mapping[str, Decision]) -> None:
        """After the table's replay: what was decided and not carried out is prepared again, in memory."""
        for name, decision in decisions.items():
            made = self._made[name] = Made(decision, self._log_for(name))
            for staged in decision.staged:
                entry = self._open(staged)
                if entry is not None:
                    self._table.assume(entry, entry.txn.decided(self._clock.now_ms()))
                    made.entries.append(entry)

    def holds(self) -> set[TransactionEntry]:
        """The transactions whose end stands in a decision and nowhere else yet."""
        return {entry for made in self._made.values() for entry in made.entries}

    async def start(self, names: Iterable[str]) -> None:
        """Carries out what a crash interrupted, or what another coordinator has left. The record is written once more,
        since after a crash of the process alone it may never have been flushed, and no marker may be durable before
        it."""
        made_now = [self._made[name] for name in names if name in self._made]
        resuming = [made for made in made_now if made.entries or not made.decision.staged]
        await asyncio.gather(*(self._resume(made) for made in resuming))

    async def _resume(self, made: Made) -> None:
        self._again(made)
        if made.attempt is not None:
            await asyncio.gather(made.attempt, return_exceptions=True)

    def drop(self, partition: int) -> None:
        """Another broker coordinates the transactions of a state log."""
        for name, made in [*self._made.items()]:
            if made.log.partition == partition:
                made.dropped = True
                if made.pause is not None:
                    made.pause.cancel()
                del self._made[name]

    async def close(self) -> None:
        """Waits for what is under way. What cannot be finished is, at the next start."""
        self._closed = True
        for made in self._made.values():
            if made.pause is not None:
                made.pause.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- deciding --------------------------------------------------------------------------------------------------

    def last(self, name: str) -> Decision | None:
        """The last decision of a name. It may not be durable yet."""
        made = self._made.get(name)
        return None if made is None else made.decision

    async def commit(self, name: str, sequence: int, staged: Sequence[Staged]) -> bool:
        """Commits all of them, or none. False: this sequence was decided before, for others.

        Raises Conflict if one of them is not open any more, and then nothing has happened; StorageFailed as
        `Ends.carry_out` does.
        """
        while (made := self._made.get(name)) is not None:
            if sequence <= made.decision.sequence:
                await self._join(made)
                return sequence == made.decision.sequence and set(staged) == set(made.decision.staged)
            if made.settled:
                break
            await self._settle(made)
        else:
            if len(self._made) >= MAX_DECISIONS:
                raise Full(f"{MAX_DECISIONS} names of decisions are in use; use the same name with a higher sequence")
        log = self._log_for(name)
        entries = [self._complete(one) for one in staged]
        now_ms = self._clock.now_ms()
        made = Made(Decision(name, sequence, now_ms, tuple(staged)), log, entries)
        made.log.append([encode_decision(made.decision)])
        for entry in entries:
            self._table.assume(entry, entry.txn.decided(now_ms))
        self._made[name] = made
        await asyncio.shield(self._attempt(made))
        return True

    async def abort(self, staged: Iterable[Staged]) -> int:
        """Aborts those that are open and not decided; returns how many. Who wrote them is fenced."""
        return await self._abort(list(staged))

    async def abort_prefix(self, prefix: str) -> int:
        """The same for all whose transactional id begins so."""
        open_now = [entry.txn for entry in self._table.ongoing if entry.txn.transactional_id.startswith(prefix)]
        return await self._abort([Staged(txn.transactional_id, *txn.producer) for txn in open_now])

    async def _abort(self, staged: list[Staged]) -> int:
        results = await asyncio.gather(*map(self._abort_one, staged), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(result is True for result in results)

    async def _abort_one(self, staged: Staged) -> bool:
        entry = self._open(staged)
        if entry is None:
            return False
        await self._ends.carry_out(entry, entry.txn.fenced_by_init(None, self._clock.now_ms()))
        return True

    def expire(self) -> list[str]:
        """Forgets the decisions that are so old that nobody repeats them, and returns their names."""
        oldest_ms = self._clock.now_ms() - DECISIONS_KEPT_MS
        names = [n for n, made in self._made.items() if made.decision.decided_ms <= oldest_ms and not made.entries]
        for name in names:
            self._made[name].log.append([(encode_decision_key(name), None)])
            del self._made[name]
        return names

    # -- parts -----------------------------------------------------------------------------------------------------

    def _open(self, staged: Staged) -> TransactionEntry | None:
        """Its transaction, if it is still the open one."""
        entry = self._table.find(staged.transactional_id)
        if entry is None or entry.txn.state is not TransactionState.ONGOING or entry.txn.producer != staged.producer:
            return None
        return entry

    def _complete(self, staged: Staged) -> TransactionEntry:
        entry = self._open(staged)
        if entry is None:
            raise Conflict(
                f"staged transaction {staged.transactional_id!r} is not open any more: it was aborted, its time ran "
                "out, or a newer producer took its id; nothing was committed, stage it all again"
            )
        if not entry.txn.partitions <= entry.ready:
            raise ConcurrentTransactions(
                f"staged transaction {staged.transactional_id!r} is not durable yet; ask again"
            )
        return entry

    async def _join(self, made: Made) -> None:
        """Waits until the decision is durable and carried out. Between attempts the client comes back."""
        if made.attempt is not None:
            await asyncio.shield(made.attempt)
        elif made.entries or made.pause is not None:
            raise ConcurrentTransactions(f"the decision of {made.decision.name!r} is not carried out yet; ask again")

    async def _settle(self, made: Made) -> None:
        """Waits until every transaction of the decision is durably complete."""
        await self._join(made)
        logs: dict[int, TransactionEntry] = {}
        for staged in made.decision.staged:
            entry = self._table.find(staged.transactional_id)
            if entry is None or entry.txn.producer.producer_id != staged.producer_id:
                continue
            if entry.txn.state in PREPARED and entry.txn.producer.epoch == staged.epoch + 1:
                await self._ends.join(entry)
            logs[entry.log.partition] = entry
        for entry in logs.values():
            await entry.committed()
        made.settled = True

    def _attempt(self, made: Made) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._carry_out(made))
        made.attempt = task
        self._tasks.add(task)

        def attempted(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            made.attempt = None
            if not task.cancelled() and (error := task.exception()) is not None and not made.dropped:
                self._refused(made, error)

        task.add_done_callback(attempted)
        return task

    async def _carry_out(self, made: Made) -> None:
        await made.log.committed()
        if made.dropped:
            raise NotCoordinator(f"this broker does not coordinate {made.decision.name!r} any more; ask which one does")
        # No await from here on, so that readers see all of it at once.
        entries, made.entries = made.entries, []
        for entry in entries:
            self._ends.finish_decided(entry)

    def _refused(self, made: Made, error: BaseException) -> None:
        _log.log(
            logging.WARNING if isinstance(error, StorageFailed) else logging.ERROR,
            "decision.not_durable",
            "decision {name} is not durable yet, will try again: {error}",
            name=made.decision.name,
            sequence=made.decision.sequence,
            attempt=made.retries + 1,
            error=error,
        )
        if self._closed:
            return
        pause_ms = min(RETRY_MAX_MS, RETRY_FIRST_MS << min(made.retries, 16))
        made.retries += 1
        made.pause = asyncio.get_running_loop().call_later(pause_ms / 1000, self._again, made)

    def _again(self, made: Made) -> None:
        """From the top: nobody knows how much of the record was kept."""
        made.pause = None
        try:
            made.log.append([encode_decision(made.decision)])
        except StorageFailed as error:
            self._refused(made, error)
        else:
            self._attempt(made)
