"""Carrying out the end of a transaction: Prepare durable, then the markers, then Complete.

An end that was prepared is finished, whatever happens: if the disk refuses, it is tried again with growing pauses, from
the top, since nobody knows how much of the first attempt was kept. Each attempt is a task of its own: a client that
goes away does not stop it. Used by the coordinator.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from functools import partial

from waystation.errors import NotLeader, StorageFailed
from waystation.observe.events import event_logger
from waystation.transactions.entry import TransactionEntry
from waystation.transactions.errors import ConcurrentTransactions
from waystation.transactions.machine import PREPARED, Producer, Transaction
from waystation.transactions.markers import MarkerWriter, write_markers
from waystation.transactions.settings import RETRY_FIRST_MS, RETRY_MAX_MS
from waystation.transactions.table import Table
from waystation.world.clock import Clock
from waystation.world.random import Random

_log = event_logger(__name__)


class Ends:
    """The ends that are under way."""

    def __init__(
        self, clock: Clock, random: Random, table: Table, markers: MarkerWriter, *, spreads: bool = False
    ) -> None:
        """`spreads`: other nodes may lead the partitions, and markers take their time."""
        self._spreads = spreads
        self._clock = clock
        self._random = random
        self._table = table
        self._markers = markers
        self._tasks: set[asyncio.Task[Producer]] = set()
        self._attempts = itertools.count()
        self._pauses: dict[TransactionEntry, asyncio.TimerHandle] = {}
        self._closed = False

    async def carry_out(self, entry: TransactionEntry, prepared: Transaction) -> Producer:
        """Appends Prepare and carries it out; returns who the producer is afterwards.

        Raises StorageFailed if the disk refused: before Prepare was appended, nothing has happened; after, the end
        will still come.
        """
        self._table.apply(entry, prepared)
        return await asyncio.shield(self._attempt(entry))

    async def join(self, entry: TransactionEntry) -> None:
        """Waits for the attempt under way. Between attempts there is nothing to wait for: the client comes back."""
        if entry.finishing is None:
            raise ConcurrentTransactions(
                f"transactional id {entry.txn.transactional_id!r} cannot end its transaction yet; ask again"
            )
        await asyncio.shield(entry.finishing)

    async def resume(self, entry: TransactionEntry) -> None:
        """Carries out an end that was found in the log at start. If the disk refuses, it goes on in the background."""
        try:
            await self.carry_out(entry, entry.txn)
        except Exception:  # logged where it was met; a broker starts whatever its disk does
            if entry not in self._pauses:
                self._pause(entry)

    def finish_decided(self, entry: TransactionEntry) -> None:
        """Carries out the end of a transaction whose commit stands durably in a decision: at once, since there is
        nothing to wait for. If the disk refuses, it goes on in the background."""
        if self._spreads:
            self._attempt(entry)
            return
        try:
            self._complete(entry, marked=False)
        except Exception as error:
            self._failed(entry, error)

    async def close(self) -> None:
        """Waits for the attempts under way, and starts no more."""
        self._closed = True
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self, entries: Iterable[TransactionEntry]) -> None:
        """Another broker carries out the ends of these. An attempt under way is refused when it goes on."""
        for entry in entries:
            pause = self._pauses.pop(entry, None)
            if pause is not None:
                pause.cancel()

    def _attempt(self, entry: TransactionEntry) -> asyncio.Task[Producer]:
        task = asyncio.get_running_loop().create_task(self._finish(entry))
        entry.finishing = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._attempted, entry))
        return task

    async def _finish(self, entry: TransactionEntry) -> Producer:
        await entry.committed()
        marked = await self._markers.spread(entry.txn, entry.log.epoch, next(self._attempts))
        return self._complete(entry, marked=marked)

    def _complete(self, entry: TransactionEntry, *, marked: bool) -> Producer:
        prepared = entry.txn
        if not marked:
            write_markers(self._markers, prepared, entry.log.epoch)
        completed = prepared.completed(self._clock.now_ms())
        self._table.apply(entry, completed)
        return completed.producer

    def _attempted(self, entry: TransactionEntry, task: asyncio.Task[Producer]) -> None:
        self._tasks.discard(task)
        entry.finishing = None
        if task.cancelled() or task.exception() is None or entry.dropped:
            entry.retries = 0
            return
        self._failed(entry, task.exception())

    def _failed(self, entry: TransactionEntry, error: BaseException | None) -> None:
        level = logging.WARNING if isinstance(error, StorageFailed | NotLeader) else logging.ERROR
        _log.log(
            level,
            "transaction.not_ended",
            "transaction {id} cannot be ended yet, will try again: {error}",
            cause=error if level == logging.ERROR else None,
            id=entry.txn.transactional_id,
            state=entry.txn.state.label,
            attempt=entry.retries + 1,
            error=error,
        )
        self._pause(entry)

    def _pause(self, entry: TransactionEntry) -> None:
        if self._closed or entry.dropped:
            return
        pause_ms = min(RETRY_MAX_MS, RETRY_FIRST_MS << min(entry.retries, 16))
        entry.retries += 1
        # Jitter, since a full disk stops many transactions at the same moment.
        delay_s = pause_ms * (1 + self._random.uniform()) / 2000
        self._pauses[entry] = asyncio.get_running_loop().call_later(delay_s, self._again, entry)

    def _again(self, entry: TransactionEntry) -> None:
        self._pauses.pop(entry, None)
        if entry.txn.state not in PREPARED:
            return
        try:
            self._table.apply(entry, entry.txn)
        except StorageFailed:
            self._pause(entry)
        else:
            self._attempt(entry)
