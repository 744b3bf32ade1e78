"""`waystation pipeline run` in a terminal: it is seen while it runs, and ends when it is told to."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

from tests.cli.kit import Cli, QuickCli
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.status.registry import connect_any, known_pipelines

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
def cli(server: Server) -> Cli:
    return Cli(server.bootstrap)


@pytest.fixture
def quick(server: Server) -> QuickCli:
    return QuickCli(server.bootstrap)


@pytest.fixture
def name() -> str:
    return unique("ticks")


@pytest.fixture
def file(tmp_path: Path, name: str) -> Path:
    file = tmp_path / f"{name}.toml"
    file.write_text(TEXT.format(name=name))
    return file


def known(cli: Cli) -> dict[str, PipelineState]:
    with connect_any(cli.server) as connection:
        return known_pipelines(connection)


def test_a_pipeline_runs_is_seen_and_stops_by_its_file(cli: Cli, quick: QuickCli, file: Path, name: str) -> None:
    file.write_text(file.read_text() + "[spark]\nspark.ui.enabled = true\nspark.ui.port = 0\n")
    with cli.start("pipeline", "run", str(file), "--master", "local[1]") as process:
        try:
            state = wait_for(lambda: known(cli).get(name), "the pipeline to be told", within_s=120)
            assert state.pid == process.pid
            wait_for(lambda: known(cli)[name].rows > 0, "rows to come", within_s=120)
            url = known(cli)[name].ui_url
            assert f"Spark's own pages: {url}\n" in quick("pipeline", "status", name).text
            with urllib.request.urlopen(url, timeout=60) as page:
                assert b"Spark Jobs" in page.read()
            done = quick("pipeline", "run", str(file), code=1)
            assert f"is running already, as process {process.pid}" in done.err
            assert "is running already" in quick("pipeline", "reset", str(file), "--yes", code=1).err
            assert quick("pipeline", "stop", str(file)).text == f"stopped pipeline {name}\n"
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    assert "stopped" in err.decode().splitlines()[-1]
    assert known(cli)[name].phase == "stopped"
    assert known(cli)[name].ui_url == ""
    log = file.parent / ".waystation" / name / "pipeline.log"
    assert b"WARN" not in err, "Spark's log is not for the terminal"
    assert log.exists()


def test_ctrl_c_ends_it_and_a_second_run_goes_on(cli: Cli, file: Path, name: str) -> None:
    with cli.start("pipeline", "run", str(file), "--master", "local[1]", "--json") as process:
        try:
            wait_for(lambda: name in known(cli) and known(cli)[name].rows > 0, "rows to come", within_s=120)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"pipeline": name, "phase": "stopped"}
