"""Group commit: one flush serves everybody who waits.

The flusher works in rounds. Whoever needs durability joins the *next* round; when the present one is over, the next
takes every log that was written to, syncs them, and releases all its waiters at once. So a lone writer waits for one
fsync, and a thousand writers share one.

Logs have tiers, and a round syncs them in order: data (0), committed offsets (1), transaction state (2). Logs of the
upper tiers keep their appends in memory until then and write them between the syncs of the tiers. Therefore, whatever
the moment of a power cut: a committed offset on the disk covers only data that is on the disk, and a finished
transaction on the disk has all its markers there.

This holds in every flush mode, since the mode is about tier 0 alone: whether an acknowledged record waits for its sync.
What upper tiers acknowledge always does. From memory it would be lost with the process, from the page cache the kernel
might write it before the data that it speaks of.

A sync that fails condemns its log and the tiers above it, which may speak of what it lost; other logs go on. What could
not even be tried is put off: no handle to open a file with, no room to write what waits in memory. Nothing is lost by
that. The log and the tiers above it are left out of the rounds until the next attempt, and who waits for them is told
(`Log.stalled`) when that takes too long.

A truncation works on a log while no round does (`apart`). Who has waited for records since before it is told that
another leader's may stand in their place: an offset that becomes durable later is not their record's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from copy import copy
from typing import Literal

from waystation.errors import NotLeader, StorageFailed
from waystation.log.log import Log
from waystation.log.sync import SyncJob
from waystation.observe.events import event_logger
from waystation.observe.meters import CommitMeter
from waystation.world import World

logger = event_logger("waystation.commit")

FlushMode = Literal["commit", "interval", "os"]

TIERS = (0, 1, 2)
RETRY_S = 0.1
"""How long what was put off stays out of the rounds."""
PATIENCE_S = 5.0
"""A log that could not be opened for so long refuses, so that clients hear of it before their own patience ends."""


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
        self._aside: dict[Log, None] = {}  # what was put off: not in the rounds until the next attempt
        self._since: dict[Log, float] = {}  # when it was put off first; forgotten when it was synced
        self._apart: dict[Log, asyncio.Future[None]] = {}  # until the end of the first round that takes it again
        self._retried: asyncio.Future[None] | None = None  # the end of the round with the next attempt
        self._timer: asyncio.TimerHandle | None = None
        self._unasked: asyncio.TimerHandle | None = None
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
            self._try_again()
            await self.join()
        for timer in (self._timer, self._unasked):
            if timer is not None:
                timer.cancel()
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
        self._appends += 1
        if log.settings.retention_messages >= 0 and not self.waits_for(log):
            log.trim(log.written_offset)  # it is acknowledged as it is
        if log in self._apart:
            return
        if log not in self._aside:
            self._dirty[log.tier][log] = None
        elif log.stalled is not None:
            self._try_again()  # there may be room now
        if log.tier and self.mode == "os" and self._unasked is None:
            # No round comes by itself, and what nobody waits for is not to stay in memory for ever.
            self._unasked = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._sync_unasked)

    def _sync_unasked(self) -> None:
        self._unasked = None
        if any(self._dirty[1:]):
            self.join()

    def join(self, log: Log | None = None) -> asyncio.Future[None]:
        """The end of the next round: everything appended before this call has then been synced, has failed, or was put
        off. Of the next round that tries `log`, where one is named: rounds without it are of no use to who waits."""
        if log in self._apart:
            return self._apart[log]
        if log in self._aside and self._retried is not None:
            return self._retried
        future = self._next
        if future is None:
            future = self._next = asyncio.get_running_loop().create_future()
            self._wake.set()
        return future

    async def durable(self, log: Log, offset: int) -> None:
        """Returns when everything before `offset` is durable; raises StorageFailed if it is not to be, or not soon, and
        NotLeader if the log was truncated meanwhile."""
        truncations = log.truncations
        while log.durable_offset < offset:
            log.check_usable()
            await asyncio.shield(self.join(log))
            if log.truncations != truncations:
                raise NotLeader(f"{log.folder} was truncated: what was written may not be there; ask its leader")
            if log.stalled is not None and log.durable_offset < offset:
                raise copy(log.stalled)

    @property
    def waits(self) -> bool:
        """Whether a record that is acknowledged at acks=all waits for the disk."""
        return self.mode == "commit"

    def waits_for(self, log: Log) -> bool:
        """Whether what this log was given is acknowledged only when it is durable: in every mode, upper tiers, and what
        other brokers have, too."""
        return log.tier > 0 or log.replicated or self.mode == "commit"

    async def quiesce(self, logs: Collection[Log]) -> None:
        """Returns when no round is using the logs; they are forgotten. Before closing or deleting them."""
        for log in logs:
            self._dirty[log.tier].pop(log, None)
            self._aside.pop(log, None)
        if self._running is not None:
            await asyncio.shield(self._running)
        for log in logs:
            self._aside.pop(log, None)  # the round may have put it off
            self._since.pop(log, None)

    @contextlib.asynccontextmanager
    async def apart(self, log: Log) -> AsyncIterator[None]:
        """No round uses the log meanwhile; who waits for it waits until a round has taken it again."""
        over = self._apart[log] = asyncio.get_running_loop().create_future()
        try:
            self._leave_out(log)
            if self._running is not None:
                await asyncio.shield(self._running)
                self._leave_out(log)  # the round may have put it off
            yield
        finally:
            del self._apart[log]
            self._dirty[log.tier][log] = None
            self.join().add_done_callback(lambda _: over.set_result(None))

    def _leave_out(self, log: Log) -> None:
        self._dirty[log.tier].pop(log, None)
        self._aside.pop(log, None)
        self._since.pop(log, None)

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
                logger.exception("commit.failed", "a commit round failed")
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
        highest = min((log.tier for log in self._aside), default=TIERS[-1])  # above what is put off, all is
        for tier, logs in enumerate(taken):
            if tier > self._failed_tier:
                for log in logs:
                    log.fail(StorageFailed(f"{log.folder}: a log that it depends on has failed; restart the broker"))
                continue
            if tier > highest:
                for log in logs:
                    self._put_off(log, "waits for logs that cannot be synced now")
                continue
            jobs: list[SyncJob] = []
            for log in logs:
                if log in marks:
                    log.write_pending(marks[log])
                    if log.stalled is not None:
                        highest = tier
                        self._put_off(log, str(log.stalled))
                    elif log.pending_count:
                        self._dirty[log.tier][log] = None
                        if self._next is not None:
                            self._wake.set()
                job = log.take_sync()
                if job is not None:
                    jobs.append(job)
                elif log not in self._aside:
                    self._since.pop(log, None)
            if jobs:
                await self._world.offload(_sync_all, jobs)
                for job in jobs:
                    size += job.size
                    job.log.synced(job)
                    if job.error is not None:
                        failed += 1
                        self._failed_tier = min(self._failed_tier, tier)
                    elif job.unopened is not None:
                        highest = tier
                        self._put_off(job.log, f"cannot be synced now: {job.unopened.strerror or job.unopened}")
                    elif job.log not in self._aside and self._since.pop(job.log, None) is not None:
                        logger.info("log.synced_again", "synced again: {log}", log=job.log.folder)
        if appends:  # else there was nothing that anybody waited for
            self.meter.seconds.add(self._world.clock.monotonic() - began)
            self.meter.appends.add(appends)
            self.meter.bytes.add(size)
        self.meter.failures += failed

    def _put_off(self, log: Log, why: str) -> None:
        """Leaves the log out of the rounds until the next attempt. It has all that it had."""
        now = self._world.clock.monotonic()
        since = self._since.get(log)
        if since is None:
            since = self._since[log] = now
            logger.warning("log.put_off", "put off, will be tried again: {log} {reason}", log=log.folder, reason=why)
        self._dirty[log.tier].pop(log, None)
        self._aside[log] = None
        if log.stalled is None and now - since >= PATIENCE_S:
            log.stalled = StorageFailed(f"{log.folder}: {why}")
        if self._retried is None:
            loop = asyncio.get_running_loop()
            self._retried = loop.create_future()
            self._timer = loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        """The next round takes what was put off."""
        retried, self._retried = self._retried, None
        if retried is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        for log in self._aside:
            self._dirty[log.tier][log] = None
        self._aside.clear()
        self.join().add_done_callback(lambda _: retried.set_result(None))


def _sync_all(jobs: list[SyncJob]) -> None:
    """Runs on a thread. A failure is kept in its job, so that it harms no other log."""
    for job in jobs:
        try:
            job.run()
        except OSError as error:
            job.error = error
