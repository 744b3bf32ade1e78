"""A queue read by Spark into exactly-once sinks, while the driver is killed: each message is in the output once."""

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
from tests.spark.cluster_kit import QUICK_TO_START
from tests.spark.versions_kit import since_42
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
def driver(folder: Path, module: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its Java and its Python workers: a group of processes, which ends by SIGKILL."""
    with (folder / "driver.out").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
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


@since_42
@pytest.mark.quick
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chosen = random.Random(unique("kills"))
    with Server(tmp_path / "broker") as server, waystation.connect(server.bootstrap) as mq:
        name, topic = unique("jobs"), unique("done")
        queue = mq.queue(name, max_deliveries=2)
        mq.create_topic(topic, partitions=1)
        words = ("tests.spark.queue_driver", server.bootstrap, name, topic, str(tmp_path / "checkpoint"))
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


TWO_SINKS = """
name = "sorted"
servers = "{servers}"
checkpoint = "checkpoint"
master = "local[2]"
[spark]
spark.driver.memory = "1g"
spark.driver.extraJavaOptions = "{java}"
[source.jobs]
queue = "{queue}"
maxRowsPerTrigger = {rows}
[step.texts]
from = "jobs"
select = ["cast(value AS STRING) AS value"]
[step.good]
from = "texts"
filter = "value NOT LIKE '%7'"
[step.bad]
from = "texts"
filter = "value LIKE '%7'"
[sink.good]
from = "good"
topic = "{good}"
[sink.bad]
from = "bad"
queue = "{bad}"
"""


def _audit_two_sinks(folder: Path, messages: int, kills: int, rows: int) -> None:
    """Drivers are killed, and every other time the broker too, in the middle of a batch."""
    chosen = random.Random(unique("two"))
    with Server(folder / "broker") as server:
        source, good, bad = unique("jobs"), unique("good"), unique("bad")
        with waystation.connect(server.bootstrap) as mq:
            mq.create_topic(good, partitions=1)
            mq.queue(bad)
            queue = mq.queue(source)
            for first in range(0, messages, 10_000):
                queue.put_many([str(i) for i in range(first, min(first + 10_000, messages))])
        file = folder / "two.toml"
        file.write_text(
            TWO_SINKS.format(servers=server.bootstrap, java=QUICK_TO_START, queue=source, rows=rows, good=good, bad=bad)
        )
        words = ("waystation.cli.main", "pipeline", "run", str(file))
        for kill in range(kills):
            with driver(folder, *words) as process, waystation.connect(server.bootstrap) as mq:
                left = len(mq.queue(source))
                wait_for(
                    lambda process=process, mq=mq, left=left: (
                        _goes_on(process, folder)  # type: ignore[misc]
                        and (len(mq.queue(source)) <= left - rows or None)
                    ),
                    "a batch is acked",
                    within_s=PATIENCE_S,
                )
                time.sleep(chosen.uniform(0, MOMENT_S))
                if kill % 2:
                    server.kill()
                    time.sleep(chosen.uniform(0, MOMENT_S))
            if kill % 2:
                server.restart()
        with driver(folder, *words) as process, waystation.connect(server.bootstrap) as mq:
            wait_for(
                lambda: _goes_on(process, folder) and (len(mq.queue(source)) == 0 or None),
                "the queue is empty",
                within_s=PATIENCE_S + messages / 500,
            )
        numbers = [str(i).encode() for i in range(messages)]
        with waystation.connect(server.bootstrap) as mq:
            assert Counter(committed(server, good)) == Counter(n for n in numbers if not n.endswith(b"7"))
            found: Counter[bytes] = Counter()
            while some := mq.queue(bad).get_many(1000):
                found.update(message.payload for message in some)
                mq.queue(bad).ack_many(some)
            assert found == Counter(n for n in numbers if n.endswith(b"7"))


def _goes_on(process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "driver.out").read_text()[-3000:]
    return True


@pytest.mark.timeout(900)
def test_two_sinks_of_a_queue_lose_and_double_nothing_when_drivers_and_brokers_are_killed(tmp_path: Path) -> None:
    _audit_two_sinks(tmp_path, 2_000 * KILLS, KILLS, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_sinks_of_a_queue_with_a_hundred_thousand_messages(tmp_path: Path) -> None:
    _audit_two_sinks(tmp_path, 100_000, 10, 4_000)
