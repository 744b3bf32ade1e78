"""Each program in examples/ does what it shows, run as a user would run it: by its file, against a real broker.

Every program is run twice on one broker: what a run leaves behind must not confuse the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ROOT, Server

EXAMPLES = ROOT / "examples"
RUN_S = 90
MOST_LINES = 60
"""A program that somebody copies is read as a whole first."""

PRINTED = {
    "work_queue": (
        "delivery 1 of a.png",
        "resized a.png",
        "delivery 1 of b.png",
        "resized b.png",
        "delivery 1 of notes.txt",
        "delivery 2 of notes.txt",
        "delivery 3 of notes.txt",
        "dead: notes.txt (delivery-limit): ValueError: notes.txt is no picture",
    ),
    "kafka_client": (
        "stored kitchen in partition 0",
        "stored attic in partition 0",
        "stored cellar in partition 0",
        "kitchen: 21.5 degrees",
        "attic: 17.0 degrees",
        "cellar: 12.5 degrees",
    ),
    "amqp_client": ("a letter to sales.urgent", "a letter to support.urgent"),
    "publish_subscribe": (
        "alert: weather.oslo.storm: stay inside",
        "alert: weather.rome.storm: close the windows",
        "archived: weather.oslo.storm: stay inside",
        "archived: weather.oslo.sun: go out",
        "archived: weather.rome.storm: close the windows",
    ),
    "transaction": (
        "rolled back, 0 receipts: the power went out",
        "committed 40, on delivery 2",
        "receipt: thank you for 40",
        "0 payments and 0 receipts left",
        "ledger: anna 40",
    ),
}
CONCURRENT = {"work_queue", "publish_subscribe"}
"""Two threads, or several topics: which line comes first is not promised."""
TESTS = "test_orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("examples")) as server:
        yield server


def address(program: str, server: Server) -> str:
    """The one argument that a program takes."""
    if program == "kafka_client":
        return server.bootstrap
    if program == "amqp_client":
        return f"amqp://guest:guest@{server.addresses['amqp']}/"
    return f"waystation://{server.bootstrap}"


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.mark.parametrize("program", PRINTED)
def test_an_example_prints_what_it_promises_each_time_it_is_run(server: Server, tmp_path: Path, program: str) -> None:
    for _ in range(2):
        done = run([str(EXAMPLES / f"{program}.py"), address(program, server)], tmp_path)
        assert done.returncode == 0, f"{done.stderr}\n{server.tail()}"
        printed, wanted = done.stdout.splitlines(), list(PRINTED[program])
        if program in CONCURRENT:
            printed, wanted = sorted(printed), sorted(wanted)
        assert printed == wanted, done.stderr


def test_the_example_of_a_test_passes_where_somebody_copied_it(tmp_path: Path) -> None:
    """With our fixtures and no other plugin: the package need not be installed here."""
    shutil.copy(EXAMPLES / f"{TESTS}.py", tmp_path)
    command = ["-m", "pytest", "-q", "--rootdir", str(tmp_path), "-p", "waystation.pytest_plugin"]
    done = run([*command, "-p", "no:cacheprovider", f"{TESTS}.py"], tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_every_example_is_run_here_short_and_in_the_readme() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == {*PRINTED, TESTS}
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == programs
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {name for name, lines in lengths.items() if lines >= MOST_LINES} == set()
