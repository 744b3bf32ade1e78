"""What is known of pipelines that run or ran: one record each, under its name, in the compacted topic below.

The runner writes it every few seconds; `waystation pipeline list`, `status` and `stop`, the broker's own pages and
metrics, and whoever else reads the topic, see the same. A wish to stop is a record too, under `NAME/control`, meant for
one run. Here, below both, since neither the broker knows Spark's runner nor the runner the broker. Imports no Spark.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Literal

import msgspec

TOPIC = "waystation.pipelines"
TOPIC_SETTINGS = {"cleanup.policy": "compact"}
CONTROL = "/control"
HEARTBEAT_S = 5.0
SILENT_S = 30.0
"""After so long without a word, a pipeline that says it is running is said to be lost."""

Phase = Literal["starting", "running", "stopping", "stopped", "finished", "failed", "restarting", "waiting"]
"""`restarting`: it failed, and starts again at `next_start_ms`. `waiting`: for the next time of its schedule."""
ENDED = ("stopped", "finished", "failed")


class SourceState(msgspec.Struct):
    """What one source of a query has said. Counts are of this run; None means that it is not known."""

    source: str
    """What is read: `topic orders`, `queue jobs`; of another kind of source, what Spark calls it."""
    rows: int = 0
    rows_per_s: float = 0.0
    bytes: int | None = None
    """Read, reckoned from the average stored size of a row."""
    lag: int | None = None
    lag_ms: int | None = None
    """How old the oldest row is that has not been read."""
    lost: int = 0
    """Deleted before they were read, where the query goes on without them (failOnDataLoss=false)."""
    retries: int = 0
    """Requests of the driver that were sent again, since the broker was away."""


class SinkState(msgspec.Struct, omit_defaults=False):
    """How one sink's query is doing. Counts are of this run; None means that it is not known."""

    sink: str
    kind: str = ""
    phase: Phase = "starting"
    batch: int = -1
    rows: int = 0
    """Written to this sink."""
    rows_read: int = 0
    """By its query. What is filtered out is in it, and what several sinks have in common is counted for each."""
    rows_to_do: int | None = None
    """To read."""
    rows_per_s: float = 0.0
    arriving_per_s: float = 0.0
    lag: int | None = None
    batch_ms: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    malformed: int = 0
    """Values of its sources that do not fit their schema."""
    dead_letters: int = 0
    """Of `rows`: those that were not fit for their table, with the reason in their headers."""
    late_rows: int = 0
    """At least: Spark counts after it has aggregated what it can."""
    watermark: str | None = None
    query_id: str | None = None
    error: str | None = None
    place: str = ""
    """Where it writes: `topic totals`, `parquet /data/totals`."""
    sources: list[SourceState] = msgspec.field(default_factory=list)

    @property
    def lag_ms(self) -> int | None:
        return max((source.lag_ms for source in self.sources if source.lag_ms is not None), default=None)


class GraphNode(msgspec.Struct, frozen=True):
    """A part of a pipeline, for its picture. Names are one of their kind; a sink has `sink:` before its name."""

    name: str
    kind: Literal["source", "step", "sink"]
    text: str = ""
    inputs: tuple[str, ...] = ()


class ExpectationState(msgspec.Struct):
    """How many rows of a table met an expectation, of this run. `on_fail` is what happens to the others."""

    table: str
    expectation: str
    rule: str = ""
    on_fail: str = "warn"
    passed: int = 0
    failed: int = 0


class PipelineState(msgspec.Struct):
    """How a pipeline is doing."""

    pipeline: str
    run: str
    phase: Phase = "starting"
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
    sinks: list[SinkState] = msgspec.field(default_factory=list)
    by_hand: bool = False
    """A query that somebody started in a session of their own, not a pipeline file."""
    ui_url: str = ""
    """Of Spark, while it runs and has one."""
    graph: list[GraphNode] = msgspec.field(default_factory=list)
    next_start_ms: int | None = None
    restarts: int = 0
    """After failures, since its process was started."""
    last_error: str | None = None
    """Why the attempt before this one failed."""
    schedule: str = ""
    runs: int = 0
    skipped_runs: int = 0
    """Times of the schedule that passed while a run was under way."""
    expectations: list[ExpectationState] = msgspec.field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(sink.rows for sink in self.sinks)

    @property
    def rows_per_s(self) -> float:
        return sum(sink.rows_per_s for sink in self.sinks)

    @property
    def lag(self) -> int | None:
        """How far the slowest sink is behind."""
        return max((sink.lag for sink in self.sinks if sink.lag is not None), default=None)

    @property
    def lag_ms(self) -> int | None:
        """How old the oldest row is that a sink has yet to read."""
        return max((sink.lag_ms for sink in self.sinks if sink.lag_ms is not None), default=None)

    @property
    def lost(self) -> int:
        return self._sum("lost")

    @property
    def retries(self) -> int:
        return self._sum("retries")

    @property
    def bytes(self) -> int:
        return self._sum("bytes")

    def _sum(self, name: str) -> int:
        """Of all sources of all sinks; sinks of one query say the same."""
        queries = {sink.query_id or sink.sink: sink.sources for sink in self.sinks}
        return sum(getattr(source, name) or 0 for sources in queries.values() for source in sources)

    def here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    def seen(self, now_ms: int | None = None) -> str:
        """Its phase, or what can be concluded: `died` (its process has ended), `lost` (no word from it)."""
        if self.phase in ENDED:
            return self.phase
        if self.here() and self.pid and not alive(self.pid):
            return "died"
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return "lost" if now_ms - self.updated_ms > SILENT_S * 1000 else self.phase


class Control(msgspec.Struct):
    """A wish for one run of a pipeline."""

    wish: Literal["stop"]
    run: str


def alive(pid: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
