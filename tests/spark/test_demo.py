"""`waystation demo --once` with its pipeline on Spark: every order is in the totals."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.kit import command, environment

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")


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
