"""What a running pipeline tells the broker, and hears from it. No Spark is needed for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.status.registry import ask_to_stop, connect_any, find_pipeline, forget, known_pipelines
from waystation.spark.pipelines.status.reporter import Reporter

pytestmark = pytest.mark.quick


@contextmanager
def reporting(server: Server, notes: list[str], name: str = "p") -> Iterator[Reporter]:
    reporter = Reporter(server.bootstrap, PipelineState(name, run="1"), notes.append)
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.close()


def phase(server: Server, name: str = "p") -> str | None:
    with connect_any(server.bootstrap) as mq:
        known = known_pipelines(mq)
    return known[name].phase if name in known else None


def set_running(state: PipelineState) -> None:
    state.phase = "running"


def test_the_newest_state_is_in_the_topic_and_a_wish_to_stop_is_heard(tmp_path: Path) -> None:
    with Server(tmp_path) as server, reporting(server, []) as reporter:
        wait_for(lambda: phase(server) == "starting", "it has told that it is there", every_s=0.1)
        reporter.update(set_running)
        wait_for(lambda: phase(server) == "running", "it has told what is new", every_s=0.1)
        with connect_any(server.bootstrap) as mq:
            state = find_pipeline(mq, "p")
            ask_to_stop(mq, PipelineState("p", run="another"))
            ask_to_stop(mq, state)
        wait_for(reporter.stop_wished.is_set, "the wish is heard", every_s=0.1)
        reporter.close()
        with connect_any(server.bootstrap) as mq:
            forget(mq, "p")
            assert known_pipelines(mq) == {}


def test_a_broker_that_goes_away_is_noted_and_told_the_newest_when_it_is_back(tmp_path: Path) -> None:
    notes: list[str] = []
    with Server(tmp_path) as server, reporting(server, notes) as reporter:
        wait_for(lambda: phase(server) == "starting", "it has told that it is there", every_s=0.1)
        server.stop()
        wait_for(lambda: any("is away" in note for note in notes), "it is noted", every_s=0.1)
        reporter.update(set_running)
        server.start()
        wait_for(lambda: phase(server) == "running", "the broker knows the newest", every_s=0.1)
        wait_for(lambda: any("is back" in note for note in notes), "that is noted too", every_s=0.1)
    assert len(notes) == 2, notes
