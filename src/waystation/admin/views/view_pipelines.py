"""Pipelines as the broker has seen them, and starting and stopping them.

A pipeline is a process of its own, wherever it runs; it says how it is doing on the topic `waystation.pipelines`
(`pipelines_seen.py`), and hears there that it should stop. Those whose files are in the folder of `serve --pipelines`
can be started too: by the `Runner` that the broker was given, since nothing in here starts processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from waystation.admin.pipelines_seen import TimelinePoint
from waystation.errors import Conflict, Invalid, NotFound, near_matches
from waystation.message import Message
from waystation.observe.pipeline_state import (
    CONTROL,
    ENDED,
    TOPIC,
    Control,
    ExpectationState,
    GraphNode,
    PipelineState,
    SinkState,
)
from waystation.paging import Search

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

OVER = (*ENDED, "died", "lost")
NEVER_RAN = "never ran"
SUMS = ("rows", "rows_per_s", "lag", "lag_ms", "bytes", "lost", "retries")
"""What a state says of all its sinks together."""


class RunnablePipeline(msgspec.Struct, frozen=True):
    """A file that the broker can run, and whether it does."""

    name: str
    file: str
    pid: int = 0  # of its last run here; 0: there was none since the broker was started
    started_ms: int = 0
    exit_code: int | None = None  # how that ended; None: it has not
    log: str = ""
    problem: str = ""  # why its file cannot be run

    @property
    def alive(self) -> bool:
        return self.pid != 0 and self.exit_code is None


class Runner(Protocol):
    """Runs the pipelines of a folder as processes of their own."""

    async def pipelines(self) -> dict[str, RunnablePipeline]:
        """What can be run, by name."""

    async def start(self, name: str, *, ending: bool = False) -> RunnablePipeline:
        """`ending`: what runs has said its last word, and will have ended in a moment."""

    async def stop(self, name: str) -> bool:
        """Whether it ran, and has been told."""


class PipelinesQuery(msgspec.Struct):
    search: Search = ""


class PipelineQuery(msgspec.Struct):
    pipeline: str


class PipelineOut(msgspec.Struct, kw_only=True):
    """What it said last of itself, and what can be concluded (`seen`)."""

    pipeline: str
    seen: Annotated[str, Meta(description="its phase; or died, lost, never ran")]
    runnable: Annotated[bool, Meta(description="the broker can start it")]
    run: str = ""
    phase: str = ""
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    updated_ms: int = 0
    file: str = ""
    checkpoint: str = ""
    log: str = ""
    master: str = ""
    trigger: str = ""
    bounded: bool = False
    error: str | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    lag_ms: Annotated[int | None, Meta(description="how old the oldest row is that has not been read")] = None
    bytes: Annotated[int, Meta(description="read from topics, reckoned from the average size of a row")] = 0
    lost: Annotated[int, Meta(description="rows that were deleted before they were read")] = 0
    retries: Annotated[int, Meta(description="requests that were sent again, since the broker was away")] = 0
    sinks: list[SinkState] = []
    by_hand: Annotated[bool, Meta(description="a query that was started in a session, not a pipeline file")] = False
    ui_url: Annotated[str, Meta(description="Spark's own pages, while it runs")] = ""
    graph: list[GraphNode] = []
    next_start_ms: Annotated[int | None, Meta(description="when it is started again: restarting, waiting")] = None
    restarts: Annotated[int, Meta(description="after failures, since its process was started")] = 0
    last_error: Annotated[str | None, Meta(description="why the attempt before this one failed")] = None
    schedule: Annotated[str, Meta(description="when it runs, as cron writes it")] = ""
    runs: Annotated[int, Meta(description="of its schedule, since its process was started")] = 0
    skipped_runs: Annotated[int, Meta(description="times of its schedule that passed while it ran")] = 0
    expectations: Annotated[list[ExpectationState], Meta(description="rules that rows should meet, counted")] = []


class PipelineDetail(PipelineOut, kw_only=True):
    timeline: list[TimelinePoint] = []


class PipelinesOut(msgspec.Struct):
    pipelines: list[PipelineOut]
    folder: Annotated[bool, Meta(description="the broker was given a folder of pipelines that it runs")]


async def pipelines_view(broker: ManagedBroker, query: PipelinesQuery) -> PipelinesOut:
    """Those that ran on this broker, and those that it could run; in the order of names."""
    states = {state.pipeline: state for state in await broker.pipelines_seen.states()}
    runnable = await _runnable(broker)
    wanted = query.search.lower()
    names = sorted(name for name in states.keys() | runnable.keys() if wanted in name.lower())
    shown = [PipelineOut(**_fields(broker, name, states.get(name), runnable.get(name))) for name in names]
    return PipelinesOut(shown, broker.pipeline_runner is not None)


async def pipeline_view(broker: ManagedBroker, query: PipelineQuery) -> PipelineDetail:
    name = query.pipeline
    state = await broker.pipelines_seen.state(name)
    runnable = (await _runnable(broker)).get(name)
    if state is None and runnable is None:
        raise await _unknown(broker, name)
    timeline = await broker.pipelines_seen.timeline(name)
    return PipelineDetail(**_fields(broker, name, state, runnable), timeline=timeline)


def _fields(
    broker: ManagedBroker, name: str, state: PipelineState | None, runnable: RunnablePipeline | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"pipeline": name, "runnable": runnable is not None and not runnable.problem}
    if state is not None:
        fields |= msgspec.structs.asdict(state)
        fields |= {name: getattr(state, name) for name in SUMS}
        fields["seen"] = state.seen(broker.world.clock.now_ms())
    else:
        fields["seen"] = NEVER_RAN
    if runnable is not None:
        fields |= _as_run_here(state, runnable)
    return fields


def _as_run_here(state: PipelineState | None, runnable: RunnablePipeline) -> dict[str, Any]:
    """What we know and it has not said: a process that we have started says nothing for a while, and may end before it
    could. What another run said before is out of date then."""
    found: dict[str, Any] = {"file": runnable.file}
    ours = state is not None and state.pid == runnable.pid
    newer = state is not None and state.started_ms >= runnable.started_ms  # of our run, or of a later one elsewhere
    if runnable.pid and not newer:
        found |= {"pid": runnable.pid, "log": runnable.log, "error": None, "seen": "starting"}
    ended = state is not None and state.phase in ENDED
    if runnable.exit_code is not None and (not newer or (ours and not ended)):
        found["seen"] = "failed" if runnable.exit_code else "stopped"
        if runnable.exit_code:
            found["error"] = f"its process ended with {runnable.exit_code}; {runnable.log} says why"
    if runnable.problem and not runnable.alive:
        found["error"] = runnable.problem
    return found


async def _runnable(broker: ManagedBroker) -> dict[str, RunnablePipeline]:
    return {} if broker.pipeline_runner is None else await broker.pipeline_runner.pipelines()


async def _unknown(broker: ManagedBroker, name: str) -> NotFound:
    known = {state.pipeline for state in await broker.pipelines_seen.states()} | (await _runnable(broker)).keys()
    return NotFound(f"no pipeline called {name[:200]!r} has run on this broker{near_matches(name, known)}")


# -- starting and stopping ---------------------------------------------------------------------------------------------


async def start_pipeline(broker: ManagedBroker, query: PipelineQuery) -> PipelineDetail:
    name = query.pipeline
    runner = broker.pipeline_runner
    if runner is None:
        raise Invalid(
            "this broker runs no pipelines: start it with `waystation serve --pipelines DIR`, or run the pipeline by"
            " itself with `waystation pipeline run FILE`"
        )
    runnable = (await runner.pipelines()).get(name)
    if runnable is None:
        if await broker.pipelines_seen.state(name) is None:
            raise await _unknown(broker, name)
        raise Invalid(
            f"pipeline {name!r} is not in the folder of pipelines that this broker runs; put its file there, or run it"
            " with `waystation pipeline run FILE`"
        )
    state = await broker.pipelines_seen.state(name)
    if state is not None and state.seen(broker.world.clock.now_ms()) not in OVER and not runnable.alive:
        raise Conflict(f"pipeline {name!r} is running already, as process {state.pid} on {state.host}")
    over = state is not None and state.pid == runnable.pid and state.phase in ENDED
    await runner.start(name, ending=over)
    return await pipeline_view(broker, query)


async def stop_pipeline(broker: ManagedBroker, query: PipelineQuery) -> PipelineDetail:
    """Tells it to stop; it finishes its batch first, so it says a little later that it has stopped."""
    name = query.pipeline
    runner = broker.pipeline_runner
    if runner is not None and await runner.stop(name):
        return await pipeline_view(broker, query)
    state = await broker.pipelines_seen.state(name)
    if state is None:
        raise await _unknown(broker, name)
    seen = state.seen(broker.world.clock.now_ms())
    if seen in (*ENDED, "died"):
        raise Conflict(f"pipeline {name!r} is not running: it has {seen}")
    wish = Message(msgspec.json.encode(Control("stop", state.run)), key=f"{name}{CONTROL}".encode())
    await broker.messages.ensure(TOPIC)
    await broker.durability.wait(*broker.messages.publish(TOPIC, [wish]).receipts)
    return await pipeline_view(broker, query)
