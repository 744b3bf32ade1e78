"""A pipeline file over Spark Connect: the server is a process of its own, from the PySpark package, on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster_kit import LOOPBACK, PATH, QUICK_TO_START, cluster_environment, kill_tree, pipeline_run
from tests.spark.sink_kit import committed, connect, texts
from tests.support.names import unique
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.waiting import wait_for

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")
pytest.importorskip("grpc", reason="grpcio is not installed; `pip install 'waystation[spark-connect]'` brings it")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed; the extra `spark-connect` brings it")

START_S = 120.0
RUN_S = 300.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

PIPELINE = """\
name = "{name}"
servers = "{servers}"
trigger = "{trigger}"

[source.words]
topics = "{name}-in"
startingOffsets = "earliest"
maxRowsPerTrigger = 40

[step.loud]
from = "words"
select = ["key", "upper(CAST(value AS STRING)) AS value"]

[step.called]
from = "loud"
python = "own.py:called"

[sink.out]
from = "called"
topic = "{name}-out"

[spark]
spark.sql.shuffle.partitions = 2
"""

OWN = """\
from pyspark.sql.functions import udf


@udf("string")
def call(value):
    return value + "!"


def called(frame):
    return frame.withColumn("value", call("value"))
"""


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`sc://HOST:PORT` of a Spark Connect server."""
    import pyspark

    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_TO_START,
        "spark.ui.enabled": "false",
        "spark.executorEnv.PYTHONPATH": PATH,
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", *words, "--class", SERVER, "spark-internal"]
    environment = {**cluster_environment(), "SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(folder / "local")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder
        )

    def listens() -> bool:
        assert process.poll() is None, (folder / "log").read_text(errors="replace")[-3000:]
        return "Spark Connect server started" in (folder / "log").read_text(errors="replace")

    try:
        wait_for(listens, "the Spark Connect server listens", within_s=START_S, every_s=0.2)
        yield f"sc://{LOOPBACK}:{port}"
    finally:
        kill_tree(process)


def write(folder: Path, server: Server, trigger: str) -> Path:
    name = unique("connect")
    with connect(server) as mq:
        mq.create_topic(f"{name}-in", partitions=2)
        mq.create_topic(f"{name}-out", partitions=2)
        mq.publish_many(f"{name}-in", [f"row {n}" for n in range(100)])
    (folder / "own.py").write_text(OWN)
    file = folder / f"{name}.toml"
    file.write_text(PIPELINE.format(name=name, servers=server.bootstrap, trigger=trigger))
    return file


def run(file: Path, master: str) -> str:
    with pipeline_run(file, "--master", master) as process:
        code = process.wait(RUN_S)
    said = (file.parent / "run.log").read_text(errors="replace")
    assert code == 0, said
    return said


@pytest.mark.timeout(900)
def test_the_same_file_runs_over_spark_connect(server: Server, spark_server: str, tmp_path: Path) -> None:
    file = write(tmp_path, server, "available-now")
    said = run(file, spark_server)
    assert f"starting Spark on {spark_server}" in said
    assert "has finished" in said
    assert "Traceback" not in said
    assert texts(committed(server, f"{file.stem}-out")) == sorted(f"ROW {n}!" for n in range(100))
    with connect(server) as mq:
        mq.publish_many(f"{file.stem}-in", [f"row {n}" for n in range(100, 120)])
    run(file, spark_server)  # goes on where it was, and writes nothing twice
    assert texts(committed(server, f"{file.stem}-out")) == sorted(f"ROW {n}!" for n in range(120))


DEAD_LETTERS = """\
name = "{name}"
servers = "{servers}"
trigger = "available-now"

[source.jobs]
{source} = "{name}-in"
schema = "id INT"
maxRowsPerTrigger = 40
dead_letter = "{name}-dead"

[step.small]
from = "jobs"
select = ["value.id AS number"]
dead_letter = "{name}-dead"
expect = {{ small = {{ rule = "number < 50", on_fail = "dead_letter" }} }}

[sink.out]
from = "small"
topic = "{name}-out"
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["topics", "queue"])
def test_dead_letters_and_other_rows_are_all_that_was_read(
    server: Server, spark_server: str, tmp_path: Path, source: str
) -> None:
    name = unique("connect")
    values = [{"id": n} if n % 10 else {"id": f"number {n}"} for n in range(100)]
    with connect(server) as mq:
        mq.create_topic(f"{name}-out", partitions=1)
        mq.create_topic(f"{name}-dead", partitions=1)
        if source == "queue":
            mq.queue(f"{name}-in").put_many(values)
        else:
            mq.create_topic(f"{name}-in", partitions=2)
            mq.publish_many(f"{name}-in", values)
    file = tmp_path / f"{name}.toml"
    file.write_text(DEAD_LETTERS.format(name=name, servers=server.bootstrap, source=source))
    run(file, spark_server)
    run(file, spark_server)
    kept = sorted(json.loads(text)["number"] for text in texts(committed(server, f"{name}-out")))
    assert kept == [n for n in range(50) if n % 10]
    dead = [json.loads(text) for text in texts(committed(server, f"{name}-dead"))]
    assert sorted(one["number"] for one in dead if "number" in one) == [n for n in range(50, 100) if n % 10]
    assert sorted(one["id"] for one in dead if "id" in one) == sorted(f"number {n}" for n in range(0, 100, 10))


BY_HAND = """\
import sys
from waystation.errors import Invalid
from waystation.spark.sessions import SessionSettings, open_session

master, servers, name, checkpoint = sys.argv[1:]
spark = open_session(SessionSettings(master=master))
rows = spark.readStream.format("waystation").options(servers=servers, topics=f"{name}-in", startingOffsets="earliest")
counts = rows.load().groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")

def start(**options):
    writer = counts.writeStream.format("waystation").outputMode("update").trigger(availableNow=True)
    return writer.options(servers=servers, checkpointLocation=checkpoint, **options).start()

for options in ({"topik": f"{name}-out"}, {"topic": f"{name}-out"}):
    try:
        start(**options)
    except Invalid as error:
        print(error)
assert start(topic=f"{name}-out", txnId=name).awaitTermination(200)
spark.stop()
"""


@pytest.mark.timeout(900)
def test_a_stream_by_hand_is_checked_at_its_start_and_may_be_in_update_mode(
    server: Server, spark_server: str, tmp_path: Path
) -> None:
    name = unique("connect")
    with connect(server) as mq:
        mq.create_topic(f"{name}-in", partitions=1)
        mq.publish_many(f"{name}-in", ["a", "b", "a"])
    words = [spark_server, server.bootstrap, name, str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-c", BY_HAND, *words],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env=cluster_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no option 'topik'; did you mean 'topic'" in done.stdout
    assert "over Spark Connect: give the option txnId" in done.stdout
    found = [(message.key, message.value) for message in committed(server, f"{name}-out")]
    assert sorted(found) == [(b"a", b"2"), (b"b", b"1")]
