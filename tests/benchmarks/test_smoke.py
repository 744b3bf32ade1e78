"""`python -m benchmarks --quick` against our own broker: every figure the benchmark promises comes out.

No figure is compared with anything: how fast this machine is today is not what a test may depend on.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
RATES = {"messages/s", "MB/s", "broker CPU s/M"}
LATENCIES = {"p50 ms", "p99 ms", "p99.9 ms"}
SIZES = ("100 B", "1 KiB")


class Medians(msgspec.Struct):
    medians: dict[str, dict[str, dict[str, float]]]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[str, float]]]:
    """The table, and our figures from the JSON: work → unit → value."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--scale", "0.2", "--only", "waystation"]
    outcome = subprocess.run(
        [*command, "--work", str(folder), "--out", str(folder / "out.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    written = msgspec.json.decode((folder / "out.json").read_bytes(), type=Medians)
    assert [path.name for path in folder.iterdir()] == ["out.json"], "a run cleans up after itself"
    return outcome.stdout, written.medians["waystation"]


def test_throughput_figures_come_out(quick: tuple[str, dict[str, dict[str, float]]]) -> None:
    for work in [f"{verb} {size}" for verb in ("produce", "consume") for size in SIZES]:
        assert quick[1][work].keys() == RATES
        assert quick[1][work]["messages/s"] > 0


def test_latency_figures_come_out_for_both_kinds_of_acks(quick: tuple[str, dict[str, dict[str, float]]]) -> None:
    for work in [
        f"{kind} {size} acks={acks}" for kind in ("end to end", "ack") for size in SIZES for acks in ("all", "1")
    ]:
        assert quick[1][work].keys() == LATENCIES
        assert 0 < quick[1][work]["p50 ms"] <= quick[1][work]["p99 ms"] <= quick[1][work]["p99.9 ms"]


def test_start_memory_and_restart_figures_come_out(quick: tuple[str, dict[str, dict[str, float]]]) -> None:
    for work in ("idle memory", "memory after 4,000 messages"):
        assert quick[1][work]["MiB"] > 0
    restarts = [
        f"restart after {how}, {what}"
        for how in ("stop", "kill -9")
        for what in ("first ack", "first fetch", "every partition")
    ]
    for work in ("start to first ack", *restarts):
        assert quick[1][work]["s"] > 0


def test_the_table_has_a_row_for_every_figure(quick: tuple[str, dict[str, dict[str, float]]]) -> None:
    text, medians = quick
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + sum(len(units) for units in medians.values())
