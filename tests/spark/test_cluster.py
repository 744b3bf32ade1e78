"""A pipeline on a standalone cluster of several processes, and what is left of its result when a worker dies."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster_kit import Cluster, pipeline_run, spark_settings
from tests.spark.sink_kit import committed, connect
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.log.batches import batch as batches

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

PARTITIONS = 4
FEW = 2_000
MANY = 60_000
ROWS_PER_TRIGGER = 12_000
RUN_S = 600.0

PIPELINE = """\
name = "{name}"
servers = "{servers}"
trigger = "available-now"
progress = false

[source.events]
topics = "{name}-in"
startingOffsets = "earliest"
maxRowsPerTrigger = {rows}

[step.words]
from = "events"
select = ["key", "CAST(value AS STRING) AS word"]

[step.once]
from = "words"
dedup = ["word"]
select = ["key", "concat('copy of ', word) AS value"]

[step.marked]
from = "once"
python = "marked.py:marked"

[sink.copies]
from = "marked"
topic = "{name}-out"

[spark]
"""

MARKED = """\
import os
import time
from pathlib import Path


def marked(frame):
    def hand_on(batches):
        mark = Path({marks!r}) / str(os.getpid())
        for batch in batches:
            mark.touch()
            yield batch
            time.sleep({pause_s})
            mark.unlink()

    return frame.mapInArrow(hand_on, frame.schema)
"""
"""Tells which processes are in the middle of a task, between the shuffle and the sink, and makes that a long time."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def make_pipeline(server: Server, folder: Path, distinct: int, pause_s: float = 0.0) -> Path:
    """A topic in which every word is twice, far apart, and a pipeline that copies each word once, after a shuffle."""
    (folder / "marks").mkdir()
    (folder / "marked.py").write_text(MARKED.format(marks=str(folder / "marks"), pause_s=pause_s))
    name = unique("cluster")
    words = [word for n in range(0, distinct, 1_000) for word in (*range(n, n + 1_000), *range(max(0, n - 1_000), n))]
    words += range(distinct - 1_000, distinct)
    with connect(server) as mq:
        mq.create_topic(f"{name}-in", partitions=PARTITIONS)
        mq.create_topic(f"{name}-out", partitions=3)
        now_ms = time.time_ns() // 1_000_000
        for number, start in enumerate(range(0, len(words), 500)):
            records = [(b"key-%d" % (n % 100), b"%d" % n, ()) for n in words[start : start + 500]]
            mq.publish_batches(f"{name}-in", [(number % PARTITIONS, batches.build(records, now_ms))])
    settings = "".join(f'{key} = "{value}"\n' for key, value in spark_settings().items())
    file = folder / f"{name}.toml"
    file.write_text(PIPELINE.format(name=name, servers=server.bootstrap, rows=ROWS_PER_TRIGGER) + settings)
    return file


def said(file: Path) -> str:
    return (file.parent / "run.log").read_text(errors="replace")[-3000:]


def finish(file: Path, process: subprocess.Popen[bytes]) -> None:
    assert process.wait(timeout=RUN_S) == 0, said(file)


def check(server: Server, file: Path, distinct: int) -> None:
    """Every word once, with its key."""
    found = committed(server, f"{file.stem}-out")
    times = Counter(message.value.decode() for message in found)
    assert max(times.values(), default=1) == 1, f"twice: {[v for v, n in times.items() if n > 1][:5]}"
    assert times.keys() == {f"copy of {n}" for n in range(distinct)}
    for message in found:
        assert message.key == b"key-%d" % (int(message.value.removeprefix(b"copy of ")) % 100)


@pytest.mark.timeout(900)
def test_the_same_file_runs_on_a_cluster(server: Server, cluster: Cluster, tmp_path: Path) -> None:
    file = make_pipeline(server, tmp_path, FEW)
    with pipeline_run(file, "--master", cluster.url) as process:
        finish(file, process)
    assert cluster.finished() == [f"waystation {file.stem}"]
    check(server, file, FEW)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_result_is_exact_when_a_worker_is_killed(server: Server, cluster: Cluster, tmp_path: Path) -> None:
    file = make_pipeline(server, tmp_path, MANY, pause_s=1.0)

    def written() -> int:
        with connect(server) as mq:
            return sum(end for _, end, _ in mq.describe_topic(f"{file.stem}-out").partitions)

    with pipeline_run(file, "--master", cluster.url) as process:

        def is_mid_way() -> bool:
            assert process.poll() is None, said(file)
            return written() > MANY // 5

        def is_in_a_task() -> bool:
            assert process.poll() is None, said(file)
            return bool({int(mark.name) for mark in (tmp_path / "marks").iterdir()} & cluster.descendants(0))

        wait_for(is_mid_way, "the job is mid-way", within_s=RUN_S, every_s=0.1)
        wait_for(is_in_a_task, "the worker has a task", within_s=RUN_S)
        cluster.kill_worker(0)
        assert written() < MANY, "the job was done before the worker was killed"
        wait_for(lambda: cluster.alive() == 1, "the master has noticed", within_s=120, every_s=0.2)
        finish(file, process)
    check(server, file, MANY)
