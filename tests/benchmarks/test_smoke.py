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
Works = dict[str, dict[str, float]]


class Written(msgspec.Struct):
    medians: dict[str, dict[str, Works]]


class Quick(msgspec.Struct):
    """The table, and our figures from the JSON: work → unit → value."""

    table: str
    topics: Works
    queues: Works
    large: Works


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--scale", "0.2", "--only", "waystation"]
    parts = ["--parts", "topics,restart,queues,large"]  # AMQP has a run of its own, in test_amqp_smoke.py
    outcome = subprocess.run(
        [*command, *parts, "--work", str(folder), "--out", str(folder / "out.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    written = msgspec.json.decode((folder / "out.json").read_bytes(), type=Written)
    assert [path.name for path in folder.iterdir()] == ["out.json"], "a run cleans up after itself"
    return Quick(outcome.stdout, **{part: peers["waystation"] for part, peers in written.medians.items()})


def test_throughput_figures_come_out(quick: Quick) -> None:
    for work in [f"{verb} {size}" for verb in ("produce", "consume") for size in SIZES]:
        assert quick.topics[work].keys() == RATES
        assert quick.topics[work]["messages/s"] > 0


def test_latency_figures_come_out_for_both_kinds_of_acks(quick: Quick) -> None:
    for work in [
        f"{kind} {size} acks={acks}" for kind in ("end to end", "ack") for size in SIZES for acks in ("all", "1")
    ]:
        assert quick.topics[work].keys() == LATENCIES
        assert 0 < quick.topics[work]["p50 ms"] <= quick.topics[work]["p99 ms"] <= quick.topics[work]["p99.9 ms"]


def test_start_memory_and_restart_figures_come_out(quick: Quick) -> None:
    for work in ("idle memory", "memory after 4,000 messages"):
        assert quick.topics[work]["MiB"] > 0
    restarts = [
        f"restart after {how}, {what}"
        for how in ("stop", "kill -9")
        for what in ("first ack", "first fetch", "every partition")
    ]
    for work in ("start to first ack", *restarts):
        assert quick.topics[work]["s"] > 0


def test_queue_throughput_figures_come_out_single_and_batched(quick: Quick) -> None:
    for work in [
        f"{verb} {size} {how}"
        for verb in ("put", "take and ack")
        for size in SIZES
        for how in ("batched", "single")
    ]:  # fmt: skip
        assert quick.queues[work].keys() == RATES
        assert quick.queues[work]["messages/s"] > 0


def test_queue_figures_of_the_python_client_come_out(quick: Quick) -> None:
    for work in [
        f"Python client, {verb} {how}" for verb in ("put", "take and ack") for how in ("many at once", "one by one")
    ]:
        assert quick.queues[work]["messages/s"] > 0


def test_queue_latency_figures_come_out(quick: Quick) -> None:
    for work in [f"put to {what} {size}" for what in ("receipt", "ack") for size in SIZES]:
        assert quick.queues[work].keys() == LATENCIES
        assert 0 < quick.queues[work]["p50 ms"] <= quick.queues[work]["p99 ms"] <= quick.queues[work]["p99.9 ms"]


def test_large_queue_figures_come_out(quick: Quick) -> None:
    assert "bytes" in quick.large["memory per idle queue"]
    assert "bytes" in quick.large["memory per ready message"]
    assert "bytes" in quick.large["memory per ready message, put singly"]
    assert "bytes" in quick.large["memory per parked message"]
    for what in ("400 queues, one message each", "10,000 ready messages", "10,000 parked messages"):
        assert quick.large[f"memory with {what}"]["MiB"] > 0
        assert quick.large[f"restart after kill -9, {what}"]["s"] > 0
        assert quick.large[f"restart after stop, {what}"]["s"] > 0


def test_the_table_has_a_row_for_every_figure(quick: Quick) -> None:
    rows = [line for line in quick.table.splitlines() if line.startswith("| ")]
    parts = (quick.topics, quick.queues, quick.large)
    assert len(rows) == sum(1 + sum(len(units) for units in works.values()) for works in parts)
