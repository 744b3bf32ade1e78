"""`waystation pipeline …`: what each verb prints. Running one is in tests/spark/test_pipeline_command.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.kit import Cli, QuickCli, environment
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.cli.pipelines.pipeline_view import bar, show
from waystation.errors import NotFound
from waystation.observe.pipeline_state import PipelineState, SinkState
from waystation.spark.pipelines.status.registry import connect_any, find_pipeline, known_pipelines
from waystation.spark.pipelines.status.reporter import Reporter

TEXT = """\
name = "{name}"
progress = true

[source.ticks]
rate = 5

[step.even]
from = "ticks"
filter = "value % 2 = 0"

[sink.out]
from = "even"
console = true
"""


@pytest.fixture
def name() -> str:
    return unique("ticks")


@pytest.fixture
def file(tmp_path: Path, name: str) -> Path:
    file = tmp_path / f"{name}.toml"
    file.write_text(TEXT.format(name=name))
    return file


@pytest.fixture
def told(cli: Cli, name: str) -> Iterator[Reporter]:
    """A pipeline that says it runs elsewhere."""
    state = PipelineState(
        pipeline=name,
        run=unique("run"),
        phase="running",
        host="elsewhere",
        pid=1,
        started_ms=time.time_ns() // 1_000_000,
        master="local[2]",
        trigger="available-now",
        bounded=True,
        sinks=[
            SinkState(
                "out", "topic", phase="running", rows=600, rows_read=600, rows_to_do=1000, rows_per_s=123.4, lag=400
            )
        ],
    )
    reporter = Reporter(cli.server, state, lambda text: None)
    reporter.start()
    try:
        wait_for(lambda: name in known(cli), "the pipeline to be told")
        yield reporter
    finally:
        reporter.close()


def known(cli: Cli) -> dict[str, PipelineState]:
    with connect_any(cli.server) as connection:
        return known_pipelines(connection)


# -- files -------------------------------------------------------------------------------------------------------------


def test_help_does_not_import_spark() -> None:
    program = (
        "import sys\nfrom waystation.cli.main import main\n"
        "try:\n    main(['pipeline', 'run', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name.startswith(('pyspark', 'pyarrow')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=False)
    assert done.returncode == 0


def test_graph_draws_the_pipeline(quick: QuickCli, file: Path) -> None:
    assert "out ▶ console" in quick("pipeline", "graph", str(file)).text
    assert quick("pipeline", "graph", str(file), "--format", "dot").text.startswith("digraph")
    assert {"from": "ticks", "to": "even"} in quick("pipeline", "graph", str(file), "--json").objects


def test_check_prints_each_mistake_with_its_line(quick: QuickCli, file: Path) -> None:
    assert "nothing to complain about" in quick("pipeline", "check", "--no-spark", str(file)).text
    file.write_text(file.read_text().replace("filter", "fliter").replace('"even"', '"evn"'))
    done = quick("pipeline", "check", "--no-spark", str(file), code=1)
    assert done.lines == [
        f"{file}:9: [step.even] has no key 'fliter'; did you mean 'filter'?",
        f"{file}:12: there is no source or step called 'evn'; did you mean 'even'?",
    ]
    found = quick("pipeline", "check", "--no-spark", "--json", str(file), code=1).objects
    assert found[0]["line"] == 9


def test_a_file_with_mistakes_is_not_run(quick: QuickCli, file: Path) -> None:
    file.write_text(file.read_text().replace("rate", "rte"))
    done = quick("pipeline", "run", str(file), code=1)
    assert f"{file}:5: " in done.err


def test_a_master_that_is_none_is_one_sentence(quick: QuickCli, file: Path) -> None:
    done = quick("pipeline", "run", str(file), "--master", "http://x", code=1)
    assert "spark://HOST:PORT" in done.err


def test_a_file_that_is_not_there(quick: QuickCli, tmp_path: Path) -> None:
    assert "there is no pipeline file" in quick("pipeline", "run", str(tmp_path / "no.toml"), code=1).err


# -- watching ----------------------------------------------------------------------------------------------------------


def test_list_and_status_show_what_a_pipeline_says(quick: QuickCli, told: Reporter, name: str) -> None:
    listed = next(line for line in quick("pipeline", "list").lines if line.startswith(name))
    assert "running" in listed
    assert "elsewhere" in listed
    shown = quick("pipeline", "status", name).text
    assert "60 %  600 of 1000 rows" in shown
    assert "400 behind" in shown
    (state,) = quick("pipeline", "status", name, "--json").objects
    assert (state["state"], state["sinks"][0]["rows"]) == ("running", 600)
    told.update(lambda state: setattr(state, "error", "the disk is full"))
    wait_for(lambda: "the disk is full" in quick("pipeline", "status", name).text, "the error to be told")


def test_status_of_a_pipeline_that_never_ran(quick: QuickCli) -> None:
    assert "no pipeline called 'nobody'" in quick("pipeline", "status", "nobody", code=1).err


def test_stop_asks_a_pipeline_that_runs_elsewhere(quick: QuickCli, told: Reporter, name: str) -> None:
    done = quick("pipeline", "stop", name, "--timeout", "0.1", code=1)
    assert "has not within 0.1 s" in done.err
    wait_for(told.stop_wished.is_set, "the wish to arrive")
    told.update(lambda state: setattr(state, "phase", "stopped"))
    wait_for(lambda: known_phase(quick, name) == "stopped", "the end to be told")
    assert "is not running" in quick("pipeline", "stop", name, code=1).err


def known_phase(cli: Cli, name: str) -> str:
    with connect_any(cli.server) as connection:
        return find_pipeline(connection, name).phase


def test_a_wish_for_an_earlier_run_is_not_heard(cli: Cli, told: Reporter, name: str) -> None:
    from waystation.spark.pipelines.status.registry import ask_to_stop

    with connect_any(cli.server) as connection:
        state = find_pipeline(connection, name)
        ask_to_stop(connection, msgspec.structs.replace(state, run="another"))
        ask_to_stop(connection, msgspec.structs.replace(state, pipeline="another"))
        assert not told.stop_wished.is_set()
        ask_to_stop(connection, state)
    wait_for(told.stop_wished.is_set, "the right wish to arrive")


def test_a_pipeline_that_went_without_a_word_is_seen() -> None:
    now = time.time_ns() // 1_000_000
    state = PipelineState("p", "r", phase="running", host="elsewhere", pid=1, updated_ms=now)
    assert state.seen() == "running"
    assert state.seen(now + 31_000) == "lost"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = msgspec.structs.replace(state, host=os.uname().nodename, pid=ended.pid)
    assert here.seen() == "died"
    assert "run it again" in show(here)


@pytest.mark.parametrize(
    ("done", "of", "percent"),
    [(0, 10, "  0 %"), (5, 10, " 50 %"), (10, 10, "100 %"), (0, 0, "100 %"), (12, 10, "100 %")],
)
def test_bars(done: int, of: int, percent: str) -> None:
    assert percent in bar(done, of)


# -- reset -------------------------------------------------------------------------------------------------------------


def test_reset_asks_first(quick: QuickCli, file: Path, name: str) -> None:
    assert "has no checkpoint" in quick("pipeline", "reset", str(file), code=1).err
    kept = file.parent / ".waystation" / name / "sinks" / "out"
    kept.mkdir(parents=True)
    assert "pass --yes" in quick("pipeline", "reset", str(file), code=1).err
    assert kept.exists()
    assert "reset pipeline" in quick("pipeline", "reset", str(file), "--yes").text
    assert not kept.exists()


def test_reset_takes_the_pipeline_out_of_the_list(quick: QuickCli, told: Reporter, file: Path, name: str) -> None:
    told.update(lambda state: setattr(state, "phase", "stopped"))
    told.close()
    (file.parent / ".waystation" / name / "sinks").mkdir(parents=True)
    quick("pipeline", "reset", str(file), "--yes")
    with pytest.raises(NotFound):
        known_phase(quick, name)
