"""One Spark session and one broker for all tests of Spark: both take longer to start than a test takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import waystation
from benchmarks.cli import CACHE
from benchmarks.peers import Unavailable
from benchmarks.spark_jars import KafkaConnector, kafka_connector
from tests.spark.cluster_kit import QUICK_TO_START
from tests.spark.pipeline_kit import Kit
from tests.spark.source_kit import Stage
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT = "pyspark is not installed; `pip install 'waystation[spark]'` brings it"

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_TO_START,
    "spark.sql.shuffle.partitions": "2",
    # Each micro-batch writes several small files; whether their checksums are kept is not what is tested here.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


@pytest.fixture(scope="session")
def found_connector() -> KafkaConnector | Unavailable:
    """Spark's own Kafka connector, or why it cannot be had here."""
    try:
        return kafka_connector(CACHE)
    except Unavailable as problem:
        return problem


@pytest.fixture(scope="session")
def connector(found_connector: KafkaConnector | Unavailable) -> KafkaConnector:
    """For tests of `format("kafka")`: the session `spark` then has Spark's own Kafka connector."""
    if isinstance(found_connector, Unavailable):
        pytest.skip(f"Spark's Kafka connector cannot be had here: {found_connector}")
    return found_connector


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as `waystation.spark` makes it, on two threads."""
    pytest.importorskip("pyspark", reason=WITHOUT)
    from waystation.spark.sessions import SessionSettings, open_session

    folder = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if any("connector" in getattr(item, "fixturenames", ()) for item in request.session.items):
        found = request.getfixturevalue("found_connector")
        settings |= {} if isinstance(found, Unavailable) else found.settings
    session = open_session(
        SessionSettings(master="local[2]", name="tests", settings=settings, log=folder / "spark.log")
    )
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker that all tests share; one that is killed or restarted is a test's own."""
    with Server(tmp_path_factory.mktemp("broker"), settings={"log.cleaner.backoff.ms": 100}) as server:
        yield server


@pytest.fixture(scope="session")
def stage(server: Server) -> Stage:
    """The shared broker, with short words for what tests do to it."""
    return Stage(server)


@pytest.fixture(scope="module")
def mq(server: Server) -> Iterator[waystation.Client]:
    """A client of the shared broker."""
    with waystation.connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def kit(tmp_path: Path, spark: SparkSession) -> Kit:
    """Pipelines run as sessions of the Spark that all tests share."""
    return Kit(tmp_path)
