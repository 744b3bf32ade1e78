"""However `waystation demo` is told to end, its broker ends with it and its folder is deleted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import Done, command, environment
from tests.support.waiting import DEADLINE_S, wait_for


def brokers(folder: Path) -> list[int]:
    """Processes whose data is in this folder; the demo itself names it nowhere."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if str(folder).encode() in words:
            found.append(int(place.parent.name))
    return found


@pytest.fixture(autouse=True)
def a_terminal_that_hangs_up_is_heard() -> Iterator[None]:
    """Whoever runs the tests by `nohup` has SIGHUP ignored, and every process that they start inherits that."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, inherited)


@pytest.mark.parametrize(
    ("until", "number", "once"),
    [
        ("the broker starts", signal.SIGTERM, False),
        ("the broker starts", signal.SIGINT, True),
        ("the broker starts", signal.SIGHUP, True),
        ("the shop is open", signal.SIGTERM, False),
        ("the shop is open", signal.SIGTERM, True),
        ("the shop is open", signal.SIGHUP, False),
    ],
)
def test_the_demo_leaves_nothing_behind(tmp_path: Path, until: str, number: signal.Signals, once: bool) -> None:
    words = ("demo", "--free-ports", "--no-browser", "--no-spark", *(("--once",) if once else ()))
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command(*words),
            env=environment({"TMPDIR": str(tmp_path)}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
        )
    try:
        if until == "the broker starts":
            wait_for(lambda: brokers(tmp_path), "the broker's process is there")
        else:
            wait_for(lambda: b"\n2. " in said.read_bytes(), "the second step of the tour is told")
            assert brokers(tmp_path)
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    Done(process.returncode, said.read_bytes(), err.decode()).checked(words, process.returncode)
    assert process.returncode in (0, 130)
    assert brokers(tmp_path) == []
    assert not list(tmp_path.glob("waystation-demo-*"))
