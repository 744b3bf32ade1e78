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

Phase = Literal["starting", "running", "stopping", "stopped", "finished", "failed"]
ENDED = ("stopped", "finished", "failed")


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

    def here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    def seen(self, now_ms: int | None = None) -> str:
        """Its phase, or what can be concluded: `died` (its process is gone), `lost` (no word from it)."""
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
