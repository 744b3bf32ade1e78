"""Group commit: one flush serves everybody who waits.

The flusher works in rounds. Whoever needs durability joins the *next* round; when the present one is over, the next
takes every log that was written to, syncs them, and releases all its waiters at once. So a lone writer waits for one
fsync, and a thousand writers share one.

Logs have tiers, and a round syncs them in order: data (0), committed offsets (1), transaction state (2). Logs of the
upper tiers keep their appends in memory until then and write them between the syncs of the tiers. Therefore, whatever
the moment of a power cut: a committed offset on the disk covers only data that is on the disk, and a finished
transaction on the disk has all its markers there.

A sync that fails condemns its log and the tiers above it, which may speak of what it lost; other logs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Literal

from waystation.errors import StorageFailed
from waystation.log.log import Log
from waystation.log.sync import SyncJob
from waystation.observe.meters import CommitMeter
from waystation.world import World

logger = logging.getLogger("waystation.commit")

FlushMode = Literal["commit", "interval", "os"]

TIERS = (0, 1, 2)


class GroupCommit:
    """Constructed once per broker. All methods are for the loop's thread."""

    def __init__(self, world: World, meter: CommitMeter | None = None) -> None:
        self._world = world
        self.meter = meter or CommitMeter()
        self._appends = 0  # since the last round began
        self._dirty: tuple[dict[Log, None], ...] = tuple({} for _ in TIERS)  # as sets, but in the order of writing
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failed_tier = TIERS[-1]  # a tier above this one is never written again: what it says might not be true
        self.mode: FlushMode = "commit"
        self.interval_ms = 1_000
        self.rounds = 0
        self.on_round: Callable[[], None] | None = None  # told of the end of every round

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="group-commit")

    async def stop(self) -> None:
        """Ends after a last round: everything written is durable."""
        if self._task is None:
            return
        with contextlib.suppress(Exception):
            await self.join()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    def configure(self, mode: FlushMode, interval_ms: int) -> None:
        """When to flush; may change at run time."""
        self.mode = mode
        self.interval_ms = interval_ms
        self._wake.set()  # the flusher may be waiting in the old way

    def written(self, log: Log) -> None:
        """The log has something to sync. Called by the log on every append."""
        self._dirty[log.tier][log] = None
        self._appends += 1
        if log.stalled is not None:
            self.join()  # there may be room now
        if self.mode != "commit" and log.tier:
            # Nobody will wait for a round: hand it to the page cache now, so that a crash of the process loses nothing.
            asyncio.get_running_loop().call_soon(lambda: log.write_pending(log.pending_count))

    def join(self) -> asyncio.Future[None]:
        """The end of the next round: everything appended before this call has then been synced, or has failed."""
        future = self._next
        if future is None:
            future = self._next = asyncio.get_running_loop().create_future()
            self._wake.set()
        return future

    async def durable(self, log: Log, offset: int) -> None:
        """Returns when everything before `offset` is durable; raises StorageFailed if it never will be."""
        while log.durable_offset < offset:
            log.check_usable()
            await asyncio.shield(self.join())
            if log.stalled is not None and log.durable_offset < offset:
                raise log.stalled

    @property
    def waits(self) -> bool:
        """Whether an acknowledgement at acks=all waits for the disk."""
        return self.mode == "commit"

    async def quiesce(self, logs: Iterable[Log]) -> None:
        """Returns when no round is using the logs; they are forgotten. Before closing or deleting them."""
        for log in logs:
            self._dirty[log.tier].pop(log, None)
        if self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.mode == "interval":
                # Not `wait_for`: in Python 3.11 it forgets that it was cancelled if it is woken in the same turn.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.interval_ms / 1000):
                        await self._wake.wait()
            else:
                await self._wake.wait()
            self._wake.clear()
            waiters, self._next = self._next, None
            self._running = loop.create_future()
            taken = [tuple(tier) for tier in self._dirty]
            for tier in self._dirty:
                tier.clear()
            try:
                await self._round(taken)
            except Exception as error:
                # A mistake of ours: without this, whoever waits for these logs would wait for ever.
                logger.exception("a commit round failed")
                for log in (log for tier in taken for log in tier):
                    log.fail(StorageFailed(f"{log.folder}: the commit failed: {error}"))
            finally:
                self._running.set_result(None)
                self._running = None
                if self.on_round is not None:
                    self.on_round()
                if waiters is not None and not waiters.done():
                    waiters.set_result(None)

    async def _round(self, taken: list[tuple[Log, ...]]) -> None:
        self.rounds += 1
        appends, self._appends = self._appends, 0
        size, failed = 0, 0
        began = self._world.clock.monotonic()
        # The upper tiers' appends are counted before the first sync starts: what comes later may depend on data that
        # this round does not sync, and waits for the next.
        marks = {log: log.pending_count for tier in taken[1:] for log in tier}
        for tier, logs in enumerate(taken):
            if tier > self._failed_tier:
                for log in logs:
                    log.fail(StorageFailed(f"{log.folder}: a log that it depends on has failed; restart the broker"))
                continue
            jobs: list[SyncJob] = []
            for log in logs:
                if log in marks:
                    log.write_pending(marks[log])
                    if log.pending_count:
                        self._dirty[log.tier][log] = None
                        if self._next is not None:
                            self._wake.set()
                job = log.take_sync()
                if job is not None:
                    jobs.append(job)
            if jobs:
                await self._world.offload(_sync_all, jobs)
                for job in jobs:
                    size += job.size
                    job.log.synced(job)
                    if job.error is not None:
                        failed += 1
                        self._failed_tier = min(self._failed_tier, tier)
        if appends:  # else there was nothing that anybody waited for
            self.meter.seconds.add(self._world.clock.monotonic() - began)
            self.meter.appends.add(appends)
            self.meter.bytes.add(size)
        self.meter.failures += failed


def _sync_all(jobs: list[SyncJob]) -> None:
    """Runs on a thread. A failure is kept in its job, so that it harms no other log."""
    for job in jobs:
        try:
            job.run()
        except OSError as error:
            job.error = error
