"""`waystation demo` with its pipeline on Spark: every order is in the totals, and Ctrl-C ends all of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cli.kit import command, environment
from tests.spark.cluster_kit import kill_tree
from tests.support.server import ROOT
from tests.support.waiting import wait_for

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

HEARS_CTRL_C = ("env", "--default-signal=INT")
"""Also where the tests themselves are in the background of a script, whose shell has them ignore it."""


def test_the_demo_runs_its_pipeline() -> None:
    done = subprocess.run(
        command("demo", "--once", "--free-ports", "--no-browser"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "orders in the pipeline's totals" in done.stdout


@pytest.mark.timeout(400)
def test_make_run_demo_shows_the_pipeline_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    """With this environment in place of `.venv-spark`, which the target makes first."""
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            ["make", "run-demo", "SPARK=", f"SPARK_VENV={sys.prefix}", "ARGS=--free-ports --no-browser"],
            cwd=ROOT,
            env=environment({"TMPDIR": str(tmp_path)}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:

        def dashboard() -> str:
            assert process.poll() is None, said.read_text()
            found = re.search(r"dashboard: (http://\S+)", said.read_text())
            return found[1] if found else ""

        at = wait_for(dashboard, "the demo says where its dashboard is", within_s=60)

        def totals() -> int:
            with urllib.request.urlopen(f"{at}v1/topics/shop.totals", timeout=10) as answer:
                return sum(partition["stable_offset"] for partition in json.load(answer)["partitions"])

        wait_for(totals, "the pipeline writes totals", within_s=240, every_s=0.5, retry_on=(urllib.error.URLError,))
        started = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in one.name() for one in started)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait(timeout=60)
        assert psutil.wait_procs(started, timeout=30)[1] == [], "they have ended"
    finally:
        kill_tree(process)
    assert "closing the shop" in said.read_text()
    assert not list(tmp_path.glob("waystation-demo-*")), "the demo deletes its folder"
