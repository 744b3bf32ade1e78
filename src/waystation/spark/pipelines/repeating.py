"""Runs a pipeline again: after a failure (`restart`), and at the times of its `schedule`.

What cannot get better by itself is not tried again: a mistake in the file, columns that do not fit, messages that are
gone. Between attempts nothing of Spark runs. Times and pauses are handed in, so that tests need neither Spark nor
patience. Used by `running.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from waystation.durations import spell_ms
from waystation.errors import ConnectionLost, Unavailable, WaystationError
from waystation.observe.pipeline_state import Phase, PipelineState
from waystation.spark.pipelines.file.cron import CronSchedule
from waystation.spark.pipelines.file.declared import RestartPolicy
from waystation.spark.pipelines.file.problems import PipelineFailed

LOOK_S = 0.2


class LastRun(Protocol):
    """Remembers when a schedule was last followed."""

    def last_run(self) -> float | None:
        """Seconds since 1970."""

    def note_run(self, at: float) -> None: ...


@dataclass(slots=True)
class Watch:
    """The time, and how it passes."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class RunLoop:
    """One pipeline. `attempt` runs it once, from its checkpoint on."""

    attempt: Callable[[], Phase]
    update: Callable[[Callable[[PipelineState], None]], None]
    note: Callable[[str], None]
    stopping: Callable[[], bool]
    restart: RestartPolicy | None = None
    watch: Watch = field(default_factory=Watch)

    # -- after failures ------------------------------------------------------------------------------------------------

    def run(self) -> Phase:
        """Until it ends, is stopped, or has failed for good (that error is raised)."""
        failures = 0
        while True:
            began = self.watch.now()
            self.update(_begin)
            try:
                return self.attempt()
            except WaystationError as error:
                policy = self.restart
                if policy is None or not may_get_better(error):
                    raise
                ran_ms = (self.watch.now() - began) * 1000
                failures = 1 if ran_ms >= policy.reset_after_ms else failures + 1
                if policy.max_restarts is not None and failures > policy.max_restarts:
                    raise
                if not self._restart_later(error, failures, policy):
                    return "stopped"

    def _restart_later(self, error: WaystationError, failures: int, policy: RestartPolicy) -> bool:
        pause_ms = policy.backoff_ms(failures)
        most = "" if policy.max_restarts is None else f" of {policy.max_restarts}"
        self.note(f"{error}; restart {failures}{most} in {spell_ms(pause_ms)}")
        due = self.watch.now() + pause_ms / 1000

        def change(state: PipelineState) -> None:
            state.phase, state.error, state.next_start_ms = "restarting", str(error), int(due * 1000)
            state.restarts += 1

        self.update(change)
        return self._await(due)

    # -- at certain times ----------------------------------------------------------------------------------------------

    def run_at(
        self, schedule: CronSchedule, last: LastRun, *, catch_up: bool, fresh: Callable[[PipelineState], None]
    ) -> Phase:
        """At each time of the schedule, until it is stopped. A run that fails is noted, and the next one comes anyway.

        `catch_up`: runs at once if a time has passed since the last run. `fresh` clears what was counted before.
        """
        ran = last.last_run()
        now = self.watch.now()
        missed = ran is not None and catch_up and _next(schedule, ran) <= now
        due = now if missed else _next(schedule, now)
        while True:
            self.update(lambda state: _wait(state, schedule, due))  # noqa: B023  # called at once
            if not self._await(due):
                return "stopped"
            last.note_run(self.watch.now())
            self.update(fresh)
            if self._run_noted() == "stopped":
                return "stopped"
            now = self.watch.now()
            skipped = schedule.count(_at(due), _at(now))
            if skipped:
                self.note(f"the run took longer than the schedule allows: {skipped} left out")
            self.update(lambda state: _ran(state, skipped))  # noqa: B023
            due = _next(schedule, now)

    def _run_noted(self) -> Phase:
        try:
            return self.run()
        except WaystationError as error:
            if not isinstance(error, PipelineFailed) and not may_get_better(error):
                raise  # a mistake in the file is there at the next time, too
            sentence = str(error)
            self.note(f"{sentence}; the next run is as scheduled")

            def change(state: PipelineState) -> None:
                state.error = sentence

            self.update(change)
            return "failed"

    def _await(self, due: float) -> bool:
        """Until then; False if it is to stop."""
        while not self.stopping():
            left = due - self.watch.now()
            if left <= 0:
                return True
            self.watch.sleep(min(left, LOOK_S))
        return False


def may_get_better(error: WaystationError) -> bool:
    """Whether the same pipeline could succeed later."""
    if isinstance(error, PipelineFailed):
        return not error.lasting
    return isinstance(error, Unavailable | ConnectionLost)


def _begin(state: PipelineState) -> None:
    state.phase, state.next_start_ms = "starting", None
    state.last_error, state.error = state.error or state.last_error, None
    for sink in state.sinks:
        sink.phase, sink.error = "starting", None


def _wait(state: PipelineState, schedule: CronSchedule, due: float) -> None:
    state.phase, state.schedule, state.next_start_ms = "waiting", str(schedule), int(due * 1000)


def _ran(state: PipelineState, skipped: int) -> None:
    state.runs += 1
    state.skipped_runs += skipped


def _next(schedule: CronSchedule, after: float) -> float:
    return schedule.next_after(_at(after)).timestamp()


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
