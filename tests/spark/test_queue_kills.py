"""A queue read by Spark into an exactly-once sink, while the driver is killed: each message is in the output once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import waystation
from tests.support.names import unique
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

KILLS = int(os.environ.get("WAYSTATION_KILLS", "2"))
MESSAGES = 4_000 * KILLS
MOMENT_S = 1.0
"""A kill comes at any moment of a batch: an ack is always near the beginning of one."""
PATIENCE_S = 180.0


@contextmanager
def driver(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its Java and its Python workers: a group of processes, which ends by SIGKILL."""
    with (folder / "driver.out").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.queue_driver", *words],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def committed(server: Server, topic: str) -> list[bytes]:
    """All values of a topic that readers of committed records see."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": unique("check"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 3,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while True:
            message = consumer.poll(30)
            if message is None:
                raise AssertionError("the broker says nothing")
            if message.error() is not None:
                return found
            found.append(message.value() or b"")
    finally:
        consumer.close()


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chosen = random.Random(unique("kills"))
    with Server(tmp_path / "broker") as server, waystation.connect(server.bootstrap) as mq:
        name, topic = unique("jobs"), unique("done")
        queue = mq.queue(name, max_deliveries=2)
        mq.create_topic(topic, partitions=1)
        words = (server.bootstrap, name, topic, str(tmp_path / "checkpoint"))
        for kill in range(KILLS):
            first, last = kill * MESSAGES // KILLS, (kill + 1) * MESSAGES // KILLS
            before = queue.describe().acked
            with driver(tmp_path, *words) as process:
                queue.put_many([str(i) for i in range(first, last)])
                some = before + chosen.randrange(1, (last - first) // 2)

                def moved(some: int = some, process: subprocess.Popen[bytes] = process) -> bool | None:
                    assert process.poll() is None, (tmp_path / "driver.out").read_text()[-3000:]
                    return queue.describe().acked >= some or None

                wait_for(moved, f"{some} messages are acked", within_s=PATIENCE_S)
                time.sleep(chosen.uniform(0, MOMENT_S))
        with driver(tmp_path, *words):
            wait_for(lambda: len(queue) == 0 or None, "the queue is empty", within_s=PATIENCE_S)
        values = Counter(committed(server, topic))
        assert values == Counter(b"done %d" % i for i in range(MESSAGES))
        info = queue.describe()
        assert (info.acked, info.dead) == (MESSAGES, 0)
