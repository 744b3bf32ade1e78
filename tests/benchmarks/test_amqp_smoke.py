"""`python -m benchmarks --quick --parts amqp` against our own broker: every figure of the part comes out.

No figure is compared with anything: how fast this machine is today is not what a test may depend on.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
RATES = {"messages/s", "MB/s", "broker CPU s/M"}
LATENCIES = {"p50 ms", "p99 ms", "p99.9 ms"}
SIZES = ("100 B", "1 KiB")
CLIENTS = {"pika": ("publish one by one", "consume and ack singly"),
           "aio_pika": ("publish 100 at a time", "consume and ack singly")}  # fmt: skip
Works = dict[str, dict[str, float]]


class Written(msgspec.Struct):
    medians: dict[str, dict[str, Works]]


class Quick(msgspec.Struct):
    table: str
    works: Works


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--scale", "0.2", "--parts", "amqp", "--only"]
    outcome = subprocess.run(
        [*command, "waystation", "--work", str(folder), "--out", str(folder / "out.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert [path.name for path in folder.iterdir()] == ["out.json"], "a run cleans up after itself"
    written = msgspec.json.decode((folder / "out.json").read_bytes(), type=Written)
    return Quick(outcome.stdout, written.medians["amqp"]["waystation"])


def test_publish_and_consume_figures_come_out_for_one_queue_and_eight(quick: Quick) -> None:
    kinds = ("publish {}", "consume {}, acks of 50", "consume {}, single acks")
    eight = ("publish {}, 8 queues", "consume {}, 8 queues, acks of 50")
    for work in [kind.format(size) for kind in (*kinds, *eight) for size in SIZES]:
        assert quick.works[work].keys() == RATES
        assert quick.works[work]["messages/s"] > 0


def test_latency_figures_come_out(quick: Quick) -> None:
    for work in [f"publish to {what} {size}" for what in ("confirm", "deliver") for size in SIZES]:
        assert quick.works[work].keys() == LATENCIES
        assert 0 < quick.works[work]["p50 ms"] <= quick.works[work]["p99 ms"] <= quick.works[work]["p99.9 ms"]


@pytest.mark.parametrize("module", CLIENTS)
def test_figures_of_a_python_client_come_out_where_it_is_installed(quick: Quick, module: str) -> None:
    name = module.replace("_", "-")
    if importlib.util.find_spec(module) is None:
        assert f"{name}: left out, it is not installed" in quick.table
    else:
        for what in CLIENTS[module]:
            assert quick.works[f"{name}, {what}"]["messages/s"] > 0


def test_start_and_idle_connection_figures_come_out(quick: Quick) -> None:
    assert quick.works["start to first ack"]["s"] > 0
    assert quick.works["memory with 100 idle connections"]["MiB"] > quick.works["idle memory"]["MiB"] / 2
    assert quick.works["open 100 idle connections"]["connections/s"] > 0


def test_the_table_has_a_row_for_every_figure(quick: Quick) -> None:
    rows = [line for line in quick.table.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + sum(len(units) for units in quick.works.values())
