"""Work in the background: it can be watched, and ended at any moment at which nothing is left half-way.

`jobs_view(broker) -> JobList`, `job_view(broker, JobQuery) -> JobInfo`, `cancel_job(broker, JobQuery) -> JobInfo`.

A job calls `report` between two transactions: it says how far it is, and raises `Cancelled` if it is to end. Waiting is
done by `pause`, which ends early then. So a job is never cut off in the middle of a transaction, but for a broker that
stops and has waited long enough; and then the transaction is undone.

How many run is bounded, and so is how many are remembered. Nothing survives a restart: what a job has done is in the
queues and topics, what it has not done can be asked for again. One per broker; on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import Conflict, Full, NotFound, Unavailable, WaystationError
from waystation.observe.events import event_logger
from waystation.world import World

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

logger = event_logger("waystation.jobs")

MAX_RUNNING = 16
MAX_REMEMBERED = 200
REMEMBERED_MS = 10 * 60 * 1000
CANCEL_S = 2.0
"""How long whoever cancels a job waits to see its end."""
STOP_S = 5.0
"""How long a broker that stops waits until its jobs have come to a moment at which they can end."""

State = Literal["running", "done", "failed", "cancelled"]


class Cancelled(Conflict):
    """Somebody has ended the job: what it was doing does not go on."""


class JobInfo(msgspec.Struct):
    """A job as it is now."""

    job: Annotated[str, Meta(description="its id")]
    kind: str
    what: Annotated[str, Meta(description="in a few words, for people")]
    target: Annotated[str, Meta(description="the queue that it works on")] | None
    state: State
    cancelling: Annotated[bool, Meta(description="it will end soon")]
    done: Annotated[int, Meta(description="how many it has looked at")]
    total: Annotated[int, Meta(description="of how many; null: not known")] | None
    matched: int
    moved: int
    skipped: Annotated[int, Meta(description="they have no queue to return to")]
    error: Annotated[str, Meta(description="why it failed")] | None
    started_ms: int
    ended_ms: int | None


class JobList(msgspec.Struct):
    """The latest first."""

    jobs: list[JobInfo]


class JobQuery(msgspec.Struct):
    job: str


class Job:
    """What the work is given."""

    def __init__(self, info: JobInfo) -> None:
        self.info = info
        self.task: asyncio.Task[None] | None = None
        self._cancel = asyncio.Event()

    def report(
        self,
        *,
        done: int | None = None,
        matched: int | None = None,
        moved: int | None = None,
        skipped: int | None = None,
    ) -> None:
        """How far it is; raises Cancelled if it is to end here. What is None stays as it was."""
        info = self.info
        info.done = info.done if done is None else done
        info.matched = info.matched if matched is None else matched
        info.moved = info.moved if moved is None else moved
        info.skipped = info.skipped if skipped is None else skipped
        if self._cancel.is_set():
            raise Cancelled(f"job {info.job!r} was cancelled")

    async def pause(self, seconds: float) -> None:
        """Sleeps; less if the job is to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cancel.wait()

    def cancel(self) -> None:
        self.info.cancelling = True
        self._cancel.set()


Work = Callable[[Job], Awaitable[None]]


class Jobs:
    """All jobs of a broker."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._jobs: dict[str, Job] = {}  # in the order of their beginnings
        self._serial = 0
        self._stopping = False

    def start(
        self, kind: str, what: str, work: Work, total: int | None = None, *, target: str | None = None
    ) -> JobInfo:
        """Begins a job; Full if too many are running, Unavailable if the broker stops."""
        self._forget()
        running = sum(job.info.state == "running" for job in self._jobs.values())
        if self._stopping:
            raise Unavailable("the broker is stopping; retry when it is back")
        if running >= MAX_RUNNING:
            raise Full(f"{running} jobs are running, which is as many as there can be; wait for one, or cancel it")
        now_ms = self._clock.now_ms()
        self._serial += 1
        name = f"{kind}-{now_ms:x}-{self._serial}"
        job = Job(JobInfo(name, kind, what, target, "running", False, 0, total, 0, 0, 0, None, now_ms, None))
        self._jobs[name] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, work), name=f"job-{name}")
        return job.info

    async def _run(self, job: Job, work: Work) -> None:
        info = job.info
        logger.info("job.started", "job {job} begins: {what}", job=info.job, what=info.what)
        try:
            await work(job)
            info.state = "done"
        except (Cancelled, asyncio.CancelledError):
            info.state = "cancelled"
        except WaystationError as error:
            info.state, info.error = "failed", str(error)
        except Exception:
            logger.exception("job.failed", "job {job} failed", job=info.job)
            info.state, info.error = "failed", "the broker failed at this; its log says more"
        info.cancelling = False
        info.ended_ms = self._clock.now_ms()
        logger.info(
            "job.ended", "job {job} ends: {state}", job=info.job, state=info.state, moved=info.moved, error=info.error
        )

    def latest(self) -> list[JobInfo]:
        """The latest first."""
        self._forget()
        return [job.info for job in reversed(self._jobs.values())]

    def get(self, name: str) -> JobInfo:
        return self._find(name).info

    async def cancel(self, name: str) -> JobInfo:
        """Ends a job when it comes to a moment at which it can end, and waits a little for that."""
        job = self._find(name)
        if job.info.state != "running":
            raise Conflict(f"job {name!r} is {job.info.state} already; there is nothing to cancel")
        job.cancel()
        if job.task is not None:
            await asyncio.wait([job.task], timeout=CANCEL_S)
        return job.info

    async def stop(self) -> None:
        """Ends all of them, before the broker does."""
        self._stopping = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None and job.info.state == "running"]
        for job in self._jobs.values():
            job.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, name: str) -> Job:
        self._forget()
        job = self._jobs.get(name)
        if job is None:
            raise NotFound(f"there is no job {name[:100]!r}; those that have ended are forgotten after ten minutes")
        return job

    def _forget(self) -> None:
        """Those that ended long ago, and the oldest of too many."""
        ended = [name for name, job in self._jobs.items() if job.info.ended_ms is not None]
        surplus = len(ended) - MAX_REMEMBERED
        before_ms = self._clock.now_ms() - REMEMBERED_MS
        for i, name in enumerate(ended):
            if i < surplus or (self._jobs[name].info.ended_ms or 0) < before_ms:
                del self._jobs[name]


def jobs_view(broker: ManagedBroker) -> JobList:
    return JobList(broker.jobs.latest())


def job_view(broker: ManagedBroker, query: JobQuery) -> JobInfo:
    return broker.jobs.get(query.job)


async def cancel_job(broker: ManagedBroker, query: JobQuery) -> JobInfo:
    return await broker.jobs.cancel(query.job)
