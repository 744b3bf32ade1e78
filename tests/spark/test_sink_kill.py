"""A driver that is killed again and again: what it wrote is what it read, each row once, and never half a batch."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.sink_kit import committed, connect, open_stages
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for
from waystation.log.batches import batch as batches

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

DRIVER = ROOT / "tests" / "spark" / "sink_driver.py"
ROWS = 100_000
ROWS_PER_TRIGGER = 4_000
KILLS = 3
SOAK_KILLS = 20
LAST_RUN_S = 400.0


@contextlib.contextmanager
def driver(server: Server, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs it with all its children (Java, Python workers) in a group of their own; ended by force at the end."""
    command = [sys.executable, str(DRIVER), server.bootstrap, "in", "out", str(folder / "check"), str(ROWS_PER_TRIGGER)]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def fill(server: Server) -> None:
    with connect(server) as mq:
        mq.create_topic("in", partitions=4)
        mq.create_topic("out", partitions=3)
        now_ms = time.time_ns() // 1_000_000
        for partition in range(4):
            rows = range(partition, ROWS, 4)
            for start in range(0, len(rows), 5_000):
                records = [(b"key-%d" % (n % 1000), b"%d" % n, ()) for n in rows[start : start + 5_000]]
                mq.publish_batches("in", [(partition, batches.build(records, now_ms))])


def written(server: Server) -> int:
    """How far the output has come, whoever may see it."""
    with connect(server) as mq:
        return sum(end for _, end, _ in mq.describe_topic("out").partitions)


def kill_again_and_again(server: Server, folder: Path, kills: int, seed: int) -> None:
    """Each time after it has got somewhat further, at a moment that has nothing to do with its batches."""
    chance = random.Random(seed)
    for _ in range(kills):
        with driver(server, folder) as process:
            further = written(server) + chance.randrange(1, ROWS // kills)

            def got_further(process: subprocess.Popen[bytes] = process, further: int = further) -> bool:
                return process.poll() is not None or written(server) >= further

            wait_for(got_further, f"the driver writes; its log is {folder / 'driver.log'}", within_s=120)
            time.sleep(chance.random() * 0.5)  # the moment is left to chance on purpose
        check(server, complete=False)
    with driver(server, folder) as process:
        process.wait(timeout=LAST_RUN_S)
        assert process.returncode == 0, (folder / "driver.log").read_text(errors="replace")[-3000:]


def check(server: Server, *, complete: bool) -> None:
    """At every moment: no row twice, none that was not sent, and those of one batch together."""
    found = committed(server, "out")
    times = Counter(message.value.decode() for message in found)
    assert max(times.values(), default=1) == 1, f"twice: {[v for v, n in times.items() if n > 1][:5]}"
    expected = {f"copy of {n}" for n in range(ROWS)}
    assert times.keys() <= expected
    if not complete:
        # Batches have a fixed size, so whatever is visible is a whole number of them.
        assert len(found) % ROWS_PER_TRIGGER == 0, f"{len(found)} rows are visible: half a batch"
        return
    assert times.keys() == expected
    for message in found:
        assert message.key == b"key-%d" % (int(message.value.removeprefix(b"copy of ")) % 1000)


@pytest.mark.timeout(900)
def test_a_killed_driver_writes_every_row_exactly_once(tmp_path: Path) -> None:
    _run(tmp_path, KILLS, 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_twenty_times_writes_every_row_exactly_once(tmp_path: Path) -> None:
    _run(tmp_path, SOAK_KILLS, 2)


def _run(folder: Path, kills: int, seed: int) -> None:
    with Server(folder / "broker") as server:
        fill(server)
        kill_again_and_again(server, folder, kills, seed)
        check(server, complete=True)
        with connect(server) as mq:
            assert open_stages(mq) == 0, "what killed drivers had staged is cleaned up"
