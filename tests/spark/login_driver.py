"""A Spark driver in a process of its own that logs in, in every way, and shows all that Spark shows of it.

python login_driver.py SERVERS CA FOLDER: the password is in the variable LOGIN_TEST_PASSWORD and in FOLDER/password.
What it prints, and what it leaves in FOLDER, is searched for the password by `test_logins.py`.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.cluster_kit import QUICK_TO_START
from waystation.spark import register
from waystation.spark.pipelines.checking import check_outside
from waystation.spark.pipelines.file.reading import read_pipeline, read_with_problems
from waystation.spark.pipelines.running import run_pipeline
from waystation.spark.sessions import SessionSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER = "alice"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


class Show:
    """All that Spark shows of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def refusal(self, what: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:
            print(f"REFUSED {what}: {error}")
        else:
            print(f"ALLOWED {what}")

    def pages(self) -> None:
        """The Spark UI: its pages, and its REST API with every plan."""
        url = self.spark.sparkContext.uiWebUrl
        api = f"{url}/api/v1/applications/{self.spark.sparkContext.applicationId}"
        plans = json.loads(self._get(f"{api}/sql?details=true&planDescription=true&length=1000"))
        pages = [f"{url}/{page}/" for page in ("jobs", "stages", "environment", "SQL", "StreamingQuery")]
        pages += [f"{url}/SQL/execution/?id={plan['id']}" for plan in plans]
        for page in (*pages, f"{api}/environment", f"{api}/jobs"):
            print(self._get(page))
        print(f"PAGES {len(pages)} PLANS {len(plans)}")
        print(json.dumps(plans))

    def _get(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=60) as found:
            text: str = found.read().decode()
        return text


def main(servers: str, ca: str, folder: str) -> None:
    place = Path(folder)
    password = os.environ["LOGIN_TEST_PASSWORD"]
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_TO_START,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    (place / "events").mkdir()
    log = place / "spark.log"
    spark = open_session(
        SessionSettings(master="local[2]", name="logins", settings=settings, log=log, log_level="INFO")
    )
    register(spark)  # the query is reported, too
    show = Show(spark)
    ours = {"servers": servers, "user": USER, "ca": ca}
    kafkas = {
        "kafka.bootstrap.servers": servers,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{SCRAM} username="{USER}" password="{password}";',
        "kafka.ssl.truststore.location": ca,
        "kafka.ssl.truststore.type": "PEM",
    }
    read_and_write(show, {**ours, "password": password}, kafkas, place)
    queue_and_table(show, {**ours, "passwordEnv": "LOGIN_TEST_PASSWORD"}, place)
    pipeline(show, ours, place)
    refusals(show, ours, place)
    show.pages()
    spark.stop()


def read_and_write(show: Show, ours: dict[str, str], kafkas: dict[str, str], place: Path) -> None:
    """A batch with a password as text, and a stream from and to the broker with Kafka's options."""
    spark = show.spark
    frame = spark.read.format("waystation").options(**ours).option("topics", "orders").load()
    frame.explain(True)
    frame.explain("formatted")
    print("READ", frame.count())
    spark.sql("SELECT 1 AS value").selectExpr("CAST(value AS STRING) AS value").write.format("waystation").options(
        **ours
    ).option("topic", "copies").save()
    stream = spark.readStream.format("waystation").options(**kafkas).option("subscribe", "orders")
    writer = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("waystation")
    writer = writer.options(**kafkas).option("topic", "copies").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.queryName("copies").trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print("PROGRESS", query.lastProgress, query.recentProgress)
    updates = writer.option("checkpointLocation", str(place / "updates")).outputMode("update").queryName("updates")
    updates.option("txnId", "updates").trigger(availableNow=True).start().awaitTermination()


def queue_and_table(show: Show, ours: dict[str, str], place: Path) -> None:
    """A queue with the password in a variable, a table and a view with it in a file."""
    spark = show.spark
    tasks = spark.readStream.format("waystation").options(**ours).option("queue", "tasks").load()
    query = tasks.selectExpr("CAST(value AS STRING)").writeStream.format("memory").queryName("tasks")
    query.option("checkpointLocation", str(place / "tasks")).trigger(availableNow=True).start().awaitTermination()
    print("TASKS", spark.table("tasks").count())
    named = {name: value for name, value in ours.items() if name != "passwordEnv"}
    named |= {"passwordFile": str(place / "password"), "topic": "orders"}
    told = ", ".join(f"{name} '{value}'" for name, value in named.items())
    spark.sql(f"CREATE TABLE orders USING waystation OPTIONS ({told})")
    print("TABLE", spark.table("orders").count())
    spark.sql("INSERT INTO orders (key, value) SELECT key, value FROM orders")
    spark.sql("DESCRIBE EXTENDED orders").show(100, truncate=False)
    print("TABLE", spark.table("orders").count())


PIPELINE = """
name = "guarded"
servers = "{servers}"
trigger = "available-now"

[login]
user = "{user}"
password_file = "password"
ca = "{ca}"

[source.orders]
topics = "orders"

[step.routed]
from = "orders"
select = ["value", "CASE WHEN offset = 0 THEN 'not-there-at-all' ELSE 'routed' END AS topic"]

[sink.routed]
from = "routed"
destinations = "topic"
dead_letter = "dead"
"""


def pipeline(show: Show, ours: dict[str, str], place: Path) -> None:
    """A pipeline file: checked, run and reported, with the password in a file. Its rows say where they go, so tasks
    look topics up, too."""
    file = place / "guarded.toml"
    text = PIPELINE.format(servers=ours["servers"], ca=ours["ca"], user=USER)
    file.write_text(text)
    print("CHECKED", check_outside(read_with_problems(file)))
    print("PIPELINE", run_pipeline(read_pipeline(file, master="local[2]")))
    for what, wrong in (("user", text.replace(USER, "nobody")), ("file", text.replace('"password"', '"passwort"'))):
        file.write_text(wrong)
        print(f"CHECK {what}", [problem.text for problem in check_outside(read_with_problems(file))])
        show.refusal(f"pipeline_{what}", lambda: run_pipeline(read_pipeline(file, master="local[2]")))


def refusals(show: Show, ours: dict[str, str], place: Path) -> None:
    """What is wrong is said where it is started."""
    spark = show.spark
    password = os.environ["LOGIN_TEST_PASSWORD"]
    wrong = {**ours, "password": f"{password}-not"}
    bob = {**ours, "user": "bob", "passwordFile": str(place / "bob")}

    def read(**options: str) -> int:
        return spark.read.format("waystation").option("topics", "orders").options(**options).load().count()

    def write(**options: str) -> Any:
        columns = [] if {"topic", "queue"} & options.keys() else ["'copies' AS topic"]
        frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value", *columns)
        rows = frame.writeStream
        return rows.format("waystation").option("checkpointLocation", str(place / "wrong")).options(**options).start()

    show.refusal("password", lambda: read(**wrong))
    show.refusal("login", lambda: read(servers=ours["servers"], ca=ours["ca"]))
    show.refusal("tls", lambda: read(servers=ours["servers"]))
    show.refusal("ca", lambda: read(servers=ours["servers"], tls="true"))
    show.refusal("right", lambda: read(**bob))
    show.refusal("stream", lambda: write(**wrong, topic="copies"))
    show.refusal("rows", lambda: write(**wrong))
    show.refusal("write", lambda: write(**bob, topic="seen"))
    show.refusal("put", lambda: write(**bob, queue="tasks"))
    table = f"CREATE TABLE leaks USING waystation OPTIONS (servers '{ours['servers']}', user 'a', topic 'orders'"
    show.refusal("table", lambda: spark.sql(f"{table}, password '{password}')"))
    source = spark.readStream.format("waystation").options(**wrong).option("topics", "orders").load()
    query = source.writeStream.format("noop").option("checkpointLocation", str(place / "noop")).start()
    show.refusal("source", lambda: query.awaitTermination(120))
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
