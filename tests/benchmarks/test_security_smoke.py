"""`python -m benchmarks --quick --parts security,tenants` against our own broker: every figure of both parts comes out.

No figure is compared with anything: how fast this machine is today is not what a test may depend on.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import figures, tenants
from benchmarks.security_scenarios import PLAIN

ROOT = Path(__file__).resolve().parents[2]
OURS = ["waystation", "waystation-tls-acls", "waystation-encrypted"]  # all that is turned on anywhere
WORKS = [
    *(f"{verb} {size}" for verb in ("produce", "consume") for size in ("100 B", "1 KiB")),
    *(f"{verb} 100 B {how}" for verb in ("put", "take and ack") for how in ("batched", "single")),
]
FLOOD = "AMQP consume"
Works = dict[str, dict[str, float]]


class Written(msgspec.Struct):
    medians: dict[str, dict[str, Works]]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Works]]:
    """part → peer → work → unit → median."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--scale", "0.1", "--only", ",".join(OURS)]
    parts = ["--parts", "security,tenants", "--attacks", FLOOD]
    outcome = subprocess.run(
        [*command, *parts, "--work", str(folder), "--out", str(folder / "out.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert [path.name for path in folder.iterdir()] == ["out.json"], "a run cleans up after itself"
    return msgspec.json.decode((folder / "out.json").read_bytes(), type=Written).medians


@pytest.mark.parametrize("peer", OURS)
def test_throughput_comes_out_for_each_kind_of_security(quick: dict[str, dict[str, Works]], peer: str) -> None:
    for work in WORKS:
        found = quick["security"][peer][work]
        assert found["messages/s"] > 0
        assert found["broker CPU s/M"] > 0
        assert (figures.CPU_RATIO in found) == (peer in PLAIN), "what is plain is not held beside itself"


def test_a_tenants_latency_comes_out_alone_and_beside_a_flood(quick: dict[str, dict[str, Works]]) -> None:
    works = quick["tenants"]["waystation"]
    for work in (f"{FLOOD}, without quotas", f"{FLOOD}, with quotas"):
        for when in ("alone", "beside"):
            assert 0 < works[f"{work}: {when}"]["p50 ms"] <= works[f"{work}: {when}"]["p99 ms"]
        assert works[f"{work}: beside"][figures.TIMES_ALONE] > 0
        assert works[f"{work}: the flood"]["MB/s"] > 0


def test_every_flood_has_an_aim() -> None:
    assert tuple(tenants.FLOODS) == figures.FLOODS
