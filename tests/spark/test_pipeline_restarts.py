"""Pipelines that are started again: after a failure that passes, and by their schedule."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark.pipeline_kit import Kit
from tests.spark.sink_kit import committed, connect, texts
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.cli.pipelines.pipeline_view import show
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.file.problems import PipelineFailed
from waystation.spark.pipelines.running import Ears, run_pipeline
from waystation.spark.pipelines.status.registry import connect_any, known_pipelines

if TYPE_CHECKING:
    pass

OWN = """
import pathlib
from pyspark.sql.functions import udf

@udf("string")
def check(value):
    if pathlib.Path({flag!r}).exists():
        raise {error}("the other system is down")
    return value

def work(frame):
    return frame.selectExpr("cast(value as string) as value").select(check("value").alias("value"))
"""


class Running:
    """A pipeline in a thread, which copies a topic through a function that fails while a file is there."""

    def __init__(self, kit: Kit, server: Server, head: str, error: str = "OSError") -> None:
        self.kit, self.server, self.name = kit, server, unique("again")
        self.stop = threading.Event()
        self.ended: list[str | Exception] = []
        self.flag = kit.folder / "down"
        (kit.folder / "own.py").write_text(OWN.format(flag=str(self.flag), error=error))
        with connect(server) as mq:
            for topic in (f"{self.name}-in", f"{self.name}-out"):
                mq.create_topic(topic)
            mq.publish_many(f"{self.name}-in", [str(n) for n in range(20)])
        text = f"""name = "{self.name}"
servers = "{server.bootstrap}"
trigger = "available-now"
{head}
[source.rows]
topics = "{self.name}-in"
[step.checked]
from = "rows"
python = "own.py:work"
[sink.out]
from = "checked"
topic = "{self.name}-out"
"""
        self.file = kit.read(text, progress=True)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.ended.append(run_pipeline(self.file, ears=Ears(self.kit.notes.append, self.stop.is_set)))
        except Exception as error:
            self.ended.append(error)

    def state(self, phase: str) -> PipelineState:
        def look() -> PipelineState | None:
            with connect_any(self.server.bootstrap) as mq:
                state = known_pipelines(mq).get(self.name)
            return state if state is not None and state.phase == phase else None

        return wait_for(look, f"it is {phase}", within_s=120, every_s=0.1)

    def written(self) -> list[str]:
        return sorted(texts(committed(self.server, f"{self.name}-out")), key=int)


ALL = [str(n) for n in range(20)]


def test_a_pipeline_that_fails_is_restarted_until_it_succeeds(kit: Kit, server: Server) -> None:
    one = Running(kit, server, 'restart = { initial_backoff = "3s" }')
    one.flag.touch()
    one.thread.start()
    state = one.state("restarting")
    assert state.error is not None
    assert "the other system is down" in state.error
    assert state.next_start_ms is not None
    assert "next start" in show(state)
    one.flag.unlink()
    one.thread.join(120)
    assert one.ended == ["finished"], kit.notes
    assert one.written() == ALL
    state = one.state("finished")
    assert (state.rows, state.error) == (20, None)
    assert state.restarts >= 1
    assert state.last_error is not None
    assert f"{state.restarts} restarts after failures" in show(state)


def test_a_mistake_in_a_function_is_not_restarted(kit: Kit, server: Server) -> None:
    one = Running(kit, server, 'restart = "on-failure"', error="NoSuchName")
    one.flag.touch()
    one.thread.start()
    one.thread.join(120)
    assert isinstance(one.ended[0], PipelineFailed)
    assert "NoSuchName" in str(one.ended[0])
    assert one.state("failed").restarts == 0


def test_a_schedule_runs_what_it_missed_and_waits_for_the_next_time(kit: Kit, server: Server) -> None:
    one = Running(kit, server, 'schedule = "0 3 1 * *"\ncatch_up = true')
    folder = kit.folder / ".waystation" / one.name
    folder.mkdir(parents=True)
    (folder / "schedule.json").write_text(json.dumps({"last_run": time.time() - 40 * 86_400}))
    one.thread.start()
    wait_for(lambda: one.written() == ALL, "it has run at once", within_s=120, every_s=0.5)
    state = wait_for(lambda: found if (found := one.state("waiting")).runs == 1 else None, "it waits")
    assert (state.rows, state.schedule) == (20, "0 3 1 * *")
    assert state.next_start_ms is not None
    assert state.next_start_ms > time.time() * 1000
    assert "schedule 0 3 1 * *, 1 runs, next start" in show(state)
    assert json.loads((folder / "schedule.json").read_text())["last_run"] > time.time() - 600
    one.stop.set()
    one.thread.join(60)
    assert one.ended == ["stopped"]
