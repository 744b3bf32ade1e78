"""What a broker does in the background: checkpoints, retention, compaction, forgetting idle producers.

Each job runs on its own beat, one log after another, giving the loop a turn between them. A job that fails on one log
says so and goes on with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from waystation.config import BrokerSettings
from waystation.log.cleaning import compaction, retention
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.points import RecoveryPoints
from waystation.observe.events import event_logger
from waystation.topics.partitions.partition import log_of
from waystation.topics.topics import Topics
from waystation.world import World

logger = event_logger("waystation.housekeeping")


class Housekeeping:
    """Started and stopped by the broker."""

    def __init__(
        self, world: World, topics: Topics, settings: BrokerSettings, points: RecoveryPoints, commit: GroupCommit
    ) -> None:
        self._world = world
        self._commit = commit
        self._topics = topics
        self._settings = settings
        self._points = points
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for name, job in (
            ("waystation.checkpoint.interval.ms", self.checkpoint),
            ("log.retention.check.interval.ms", self.retain),
            ("log.cleaner.backoff.ms", self.compact),
        ):
            self._tasks.append(asyncio.get_running_loop().create_task(self._beat(name, job), name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _beat(self, setting: str, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._settings.integer(setting) / 1000)
            try:
                await job()
            except OSError as error:
                logger.warning(
                    "housekeeping.put_off",
                    "background job failed, will be tried again: {error}",
                    job=setting,
                    error=error,
                )
            except Exception:
                logger.exception("housekeeping.failed", "background job failed", job=setting)

    async def checkpoint(self) -> None:
        """Notes how far every log is durable, and writes down the indexes of those that grew much."""
        if not self._commit.waits and any(log.sealed_unsynced for _, log in self._topics.logs()):
            await self._commit.join()
        if self._world.keys is not None:
            await self._world.offload(self._world.keys.refresh)
        changed = False
        points = {}
        async with self._points.changing:
            for name, log in self._topics.logs():
                points[name] = log.recovery_point
                changed = changed or self._points.of(name) != log.recovery_point
                log.checkpoint()
                await asyncio.sleep(0)
            if changed:
                await self._world.offload(lambda: self._points.save(points, clean=False))
            for name, log in self._topics.logs():
                if name in points:
                    log.point_saved(points[name])

    async def retain(self) -> None:
        now = self._world.clock.now_ms()
        for partition in self._topics.replicas():
            log = log_of(partition)
            enforce = partial(retention.enforce, now_ms=now, before=partition.visible_offset)
            if await self._attempt("retention", log, enforce):
                logger.info("retention.removed", "retention removed old segments: {log}", log=log.folder)
            log.producers.expire(now - self._settings.integer("producer.id.expiration.ms"))

    async def compact(self) -> None:
        for partition in self._topics.replicas():
            log = log_of(partition)
            plan = compaction.due(log, self._world.clock.now_ms(), before=partition.stable_offset)
            if plan is not None:
                freed = await self._attempt("compaction", log, lambda log, plan=plan: compaction.compact(log, plan))  # type: ignore[misc]
                logger.info("log.compacted", "compacted: {log} freed {bytes} bytes", log=log.folder, bytes=freed)
            await asyncio.sleep(0)

    async def _attempt(self, what: str, log: Log, job: Callable[[Log], Awaitable[int]]) -> int:
        try:
            return await job(log)
        except Exception:
            logger.exception("housekeeping.failed", "{job} failed: {log}", job=what, log=log.folder)
            return 0
