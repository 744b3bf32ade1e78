"""A pipeline whose driver is killed: its rows and their dead letters are seen together, each once."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark.cluster_kit import pipeline_run
from tests.spark.pipeline_kit import SMALL
from tests.spark.sink_kit import committed, connect
from tests.support.server import Server
from tests.support.waiting import wait_for

ROWS = 3_000
BATCH = 300
KILLS = 2

PIPELINE = f"""\
name = "orders"
trigger = "available-now"
servers = "SERVERS"

[source.orders]
topics = "orders"
schema = "id INT, amount DOUBLE"
maxRowsPerTrigger = {BATCH}
dead_letter = "dead"

[step.paid]
from = "orders"
select = ["value.id", "value.amount"]
dead_letter = {{ topic = "dead" }}
expect = {{ positive = {{ rule = "amount > 0", on_fail = "dead_letter" }} }}

[sink.out]
from = "paid"
topic = "out"
{SMALL}"""


def value(n: int) -> dict[str, object]:
    return {"id": n, "amount": "much" if n % 10 == 0 else -1 if n % 10 == 1 else 1}


def ids(server: Server, topic: str) -> Counter[int]:
    return Counter(int(json.loads(message.value)["id"]) for message in committed(server, topic))


def written(server: Server) -> int:
    with connect(server) as mq:
        return sum(end for _, end, _ in mq.describe_topic("out").partitions)


def check(server: Server) -> tuple[Counter[int], Counter[int]]:
    """At every moment: no row twice, none that does not belong there, and whole batches of both together."""
    out, dead = ids(server, "out"), ids(server, "dead")
    assert max((out + dead).values(), default=1) == 1
    assert all(n % 10 > 1 for n in out)
    assert all(n % 10 <= 1 for n in dead)
    assert (out.total() + dead.total()) % BATCH == 0, "half a batch is visible"
    assert dead.total() * 4 == out.total()
    return out, dead


@pytest.mark.timeout(900)
def test_rows_and_dead_letters_are_one_commit_whenever_the_driver_is_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    with Server(tmp_path / "broker") as server:
        with connect(server) as mq:
            for topic in ("orders", "out", "dead"):
                mq.create_topic(topic, partitions=1)
            mq.publish_many("orders", [value(n) for n in range(ROWS)])
        file = tmp_path / "orders.toml"
        file.write_text(PIPELINE.replace("SERVERS", server.bootstrap))
        for _ in range(KILLS):
            with pipeline_run(file, "--master", "local[2]") as process:
                further = written(server) + chance.randrange(1, ROWS // 4)

                def got_further(process: subprocess.Popen[bytes] = process, further: int = further) -> bool:
                    return process.poll() is not None or written(server) >= further

                wait_for(got_further, f"the pipeline writes; its log is {tmp_path / 'run.log'}", within_s=240)
                time.sleep(chance.random() * 0.5)  # the moment is left to chance on purpose
            check(server)
        with pipeline_run(file, "--master", "local[2]") as process:
            assert process.wait(timeout=600) == 0, (tmp_path / "run.log").read_text(errors="replace")[-3000:]
        out, dead = check(server)
        assert sorted(out + dead) == list(range(ROWS))
