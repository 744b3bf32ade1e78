"""When a pipeline is started again: after failures, and by its schedule. Time is the test's; no Spark is needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from waystation.errors import Unavailable, WaystationError
from waystation.observe.pipeline_state import Phase, PipelineState, SinkState
from waystation.spark.pipelines.file.cron import parse
from waystation.spark.pipelines.file.declared import RestartPolicy
from waystation.spark.pipelines.file.problems import FileProblem, PipelineFailed, PipelineInvalid
from waystation.spark.pipelines.repeating import RunLoop, Watch
from waystation.spark.pipelines.transform.explaining import is_lasting

pytestmark = pytest.mark.quick

START = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
OOPS = PipelineFailed("oops")
MISTAKE = PipelineInvalid(Path("p.toml"), [FileProblem(1, "no such column")])

Outcome = Phase | WaystationError | tuple[float, Phase | WaystationError]
"""How an attempt ends; and after how many seconds."""


class Play:
    """A pipeline whose attempts end as the script says, on a clock of its own."""

    def __init__(self, *script: Outcome, policy: RestartPolicy | None = None, stop_at: float | None = None) -> None:
        self.now = START
        self.script = list(script)
        self.started: list[float] = []
        self.state = PipelineState("p", "1", sinks=[SinkState("out")])
        self.phases: list[str] = []
        self.notes: list[str] = []
        self.last: float | None = None
        self.stop_at = stop_at
        self.repeating = RunLoop(
            self.attempt, self.update, self.notes.append, self.stopping, policy, Watch(lambda: self.now, self.sleep)
        )

    def attempt(self) -> Phase:
        self.started.append(self.now - START)
        ends = self.script.pop(0)
        if isinstance(ends, tuple):
            self.now += ends[0]
            ends = ends[1]
        if isinstance(ends, WaystationError):
            raise ends
        return ends

    def update(self, change: Callable[[PipelineState], None]) -> None:
        change(self.state)
        self.phases.append(self.state.phase)

    def stopping(self) -> bool:
        return self.stop_at is not None and self.now - START >= self.stop_at

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)

    def last_run(self) -> float | None:
        return self.last

    def note_run(self, at: float) -> None:
        self.last = at

    def run_at(self, cron: str, *, catch_up: bool = False) -> Phase:
        def fresh(state: PipelineState) -> None:
            state.sinks = [SinkState("out")]

        return self.repeating.run_at(parse(cron), self, catch_up=catch_up, fresh=fresh)


def test_a_failed_pipeline_is_started_again_after_pauses_that_double() -> None:
    policy = RestartPolicy(max_backoff_ms=5_000)
    play = Play(OOPS, OOPS, Unavailable("no cluster"), OOPS, OOPS, "finished", policy=policy)
    assert play.repeating.run() == "finished"
    assert [round(at) for at in play.started] == [0, 1, 3, 7, 12, 17]
    assert "restarting" in play.phases
    assert (play.state.restarts, play.state.last_error, play.state.error) == (5, "oops", None)
    assert play.notes[0] == "oops; restart 1 in 1s"


def test_while_it_waits_its_state_says_why_and_until_when() -> None:
    play = Play(OOPS, policy=RestartPolicy(initial_backoff_ms=60_000), stop_at=30)
    assert play.repeating.run() == "stopped"
    assert (play.state.phase, play.state.error) == ("restarting", "oops")
    assert play.state.next_start_ms == int((START + 60) * 1000)


def test_it_gives_up_after_max_restarts_in_a_row() -> None:
    play = Play(OOPS, OOPS, OOPS, policy=RestartPolicy(max_restarts=2))
    with pytest.raises(PipelineFailed):
        play.repeating.run()
    assert len(play.started) == 3


def test_a_long_run_ends_the_row_of_failures() -> None:
    policy = RestartPolicy(max_restarts=2, reset_after_ms=100_000)
    play = Play(OOPS, OOPS, (200, OOPS), OOPS, "finished", policy=policy)
    assert play.repeating.run() == "finished"
    pauses = [round(b - a) for a, b in zip(play.started, play.started[1:], strict=False)]
    assert pauses == [1, 2, 201, 2]


@pytest.mark.parametrize("error", [MISTAKE, PipelineFailed("schema", lasting=True)])
def test_what_cannot_get_better_is_not_tried_again(error: WaystationError) -> None:
    play = Play(error, policy=RestartPolicy())
    with pytest.raises(type(error)):
        play.repeating.run()
    assert play.started == [0]


def test_without_a_policy_a_failure_is_the_end() -> None:
    play = Play(OOPS)
    with pytest.raises(PipelineFailed):
        play.repeating.run()
    assert play.state.restarts == 0


@pytest.mark.parametrize(
    ("text", "lasting"),
    [
        ("waystation.errors.Expired: offsets 0 to 59 were deleted", True),
        ("Traceback (most recent call last):\n  File\nwaystation.errors.Invalid: no such option", True),
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'shop'", True),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match", True),
        ("[STREAM_FAILED] Query terminated\nwaystation.errors.ConnectionLost: the broker cannot be reached", False),
        ("Traceback (most recent call last):\nOSError: the disk is full", False),
        ("ZeroDivisionError: division by zero", False),
    ],
)
def test_errors_that_last_are_told_apart(text: str, lasting: bool) -> None:
    assert is_lasting(RuntimeError(text)) is lasting


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_it_runs_at_each_time_and_says_when_the_next_is() -> None:
    play = Play("finished", "finished", "finished", stop_at=3 * 3600 + 60)
    assert play.run_at("30 * * * *") == "stopped"
    assert [at / 3600 for at in play.started] == pytest.approx([0.5, 1.5, 2.5], abs=1e-3)
    assert (play.state.phase, play.state.runs, play.state.skipped_runs) == ("waiting", 3, 0)
    assert play.state.next_start_ms == int((START + 3.5 * 3600) * 1000)
    assert play.state.schedule == "30 * * * *"


def test_times_that_pass_while_it_runs_are_left_out_and_counted() -> None:
    play = Play((2.25 * 3600, "finished"), "finished", stop_at=4 * 3600)
    play.run_at("30 * * * *")
    assert [at / 3600 for at in play.started] == pytest.approx([0.5, 3.5], abs=1e-3)
    assert play.state.skipped_runs == 2
    assert "2 left out" in play.notes[0]


def test_a_run_that_fails_does_not_end_the_schedule() -> None:
    play = Play(OOPS, "finished", stop_at=2 * 3600)
    play.run_at("30 * * * *")
    assert len(play.started) == 2
    assert (play.state.last_error, play.state.error, play.state.runs) == ("oops", None, 2)


def test_a_mistake_in_the_file_ends_it() -> None:
    with pytest.raises(PipelineInvalid):
        Play(MISTAKE).run_at("30 * * * *")


def test_failures_within_a_run_are_restarted_first() -> None:
    play = Play(OOPS, "finished", policy=RestartPolicy(), stop_at=3600)
    play.run_at("30 * * * *")
    assert [round(at) for at in play.started] == [1800, 1801]
    assert play.state.runs == 1


@pytest.mark.parametrize(
    ("ran_before_s", "catch_up", "started"),
    [(None, True, [0.5]), (7200, False, [0.5]), (7200, True, [0, 0.5]), (600, True, [0.5])],
)
def test_a_missed_time_is_made_up_for_once_where_wanted(
    ran_before_s: float | None, catch_up: bool, started: list[float]
) -> None:
    play = Play("finished", "finished", stop_at=3600)
    play.last = None if ran_before_s is None else START - ran_before_s
    play.run_at("30 * * * *", catch_up=catch_up)
    assert [at / 3600 for at in play.started] == pytest.approx(started, abs=1e-3)
    assert play.last == pytest.approx(START + 1800, abs=1)
