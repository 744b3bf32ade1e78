"""The format in sessions that no Python program has made: SQL (`spark-sql`) and Scala (`spark-shell`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster_kit import QUICK_TO_START
from tests.spark.sink_kit import committed, texts
from tests.spark.source_kit import Stage, numbers
from tests.support.server import ROOT
from waystation.spark.java import use_java

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

RUN_S = 500.0


def run(folder: Path, tool: str, *arguments: str) -> str:
    """What a tool of Spark's prints, as pip's PySpark has it; all that it is told of Python is where it is."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
    }
    use_java(environment)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK_TO_START,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [str(home / "bin" / tool), "--master", "local[2]", "--driver-memory", "1g"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*command, *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_a_session_of_sql(stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic(1)
    stage.fill(topic, numbers(3))
    statements = (
        f"CREATE TABLE orders USING waystation OPTIONS (servers '{stage.servers}', topic '{topic}')",
        "INSERT INTO orders (value) VALUES (CAST('new' AS BINARY))",
        "SELECT count(*), max(CAST(value AS STRING)) FROM orders",
    )
    assert run(tmp_path, "spark-sql", "-S", "-e", "; ".join(statements)).split() == ["4", "new"]
    assert texts(committed(stage.server, topic)) == [*numbers(3), "new"]


SCALA = """
val here = Map("servers" -> "SERVERS", "topic" -> "TOPIC")
if (spark.read.format("waystation").options(here).load().count() != 3) System.exit(1)
spark.range(2).selectExpr("CAST(id + 10 AS STRING) AS value").write.format("waystation")
  .options(here).mode("append").save()
val query = spark.readStream.format("waystation").options(here).option("startingOffsets", "earliest").load()
  .select("value").writeStream.format("waystation").option("servers", "SERVERS").option("topic", "COPY")
  .option("checkpointLocation", "checkpoint").trigger(org.apache.spark.sql.streaming.Trigger.AvailableNow()).start()
query.awaitTermination()
System.exit(0)
"""


@pytest.mark.timeout(600)
def test_a_session_of_scala(stage: Stage, tmp_path: Path) -> None:
    topic, copy = stage.topic(1), stage.topic(1)
    stage.fill(topic, numbers(3))
    script = SCALA.replace("SERVERS", stage.servers).replace("TOPIC", topic).replace("COPY", copy)
    # Each statement on one line: the shell reads a file as if it were typed.
    lines = script.replace("\n  .", ".")
    (tmp_path / "job.scala").write_text(lines)
    run(tmp_path, "spark-shell", "-i", "job.scala")
    assert texts(committed(stage.server, copy)) == sorted([*numbers(3), "10", "11"])
