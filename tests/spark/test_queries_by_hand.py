"""Streaming queries that somebody started by hand are shown with the pipelines, after `register(spark)`."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source_kit import Stage, numbers
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.status.registry import connect_any, known_pipelines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own that reports its queries."""
    from waystation.spark import register

    session = spark.newSession()
    register(session)
    register(session)  # does no harm
    yield session
    register(session, report=False)


def stream(spark: SparkSession, stage: Stage, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("waystation").options(servers=stage.servers, topics=topic, **options)
    return reader.option("startingOffsets", "earliest").load()


def copy(frame: DataFrame, stage: Stage, folder: Path, topic: str, name: str | None = None) -> StreamingQuery:
    writer: Any = frame.select("value").writeStream.format("waystation").options(servers=stage.servers, topic=topic)
    writer = writer.option("checkpointLocation", str(folder))
    return (writer.queryName(name) if name else writer).start()  # type: ignore[no-any-return]


def state_of(server: Server, name: str) -> PipelineState | None:
    with connect_any(server.bootstrap) as mq:
        return known_pipelines(mq).get(name)


def await_state(server: Server, name: str, **wanted: Any) -> PipelineState:
    def look() -> PipelineState | None:
        state = state_of(server, name)
        return state if state and all(getattr(state, key) == value for key, value in wanted.items()) else None

    return wait_for(look, f"{name} has {wanted}", within_s=90, every_s=0.2)


def cli(server: Server, *words: str) -> str:
    command = [sys.executable, "-m", "waystation", "pipeline", *words, "--server", server.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def scraped(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.quick
def test_a_query_is_on_the_list_with_its_numbers_and_can_be_stopped(
    session: SparkSession, server: Server, stage: Stage, tmp_path: Path
) -> None:
    source, target, name = stage.topic(), stage.topic(), unique("by-hand")
    stage.fill(source, numbers(30))
    frame = stream(session, stage, source, maxRowsPerTrigger=10)
    query = copy(frame, stage, tmp_path / "one", target, name)
    plain = session.readStream.format("rate").load().writeStream.format("noop").queryName(unique("plain")).start()
    state = await_state(server, name, rows=30, phase="running", lag=0)
    assert state.by_hand
    assert (state.sinks[0].place, state.sinks[0].query_id) == (f"topic {target}", str(query.id))
    (told,) = state.sinks[0].sources
    assert (told.source, told.rows, told.lag_ms, told.lost) == (f"topic {source}", 30, 0, 0)
    assert told.bytes is not None
    assert told.bytes > 0
    first = json.loads(query.recentProgress[0].json)["sources"][0]["latestOffset"]
    assert first["source"] == f"topic {source}"
    assert first["metrics"]["lagRows"] == 20
    assert first["metrics"]["lagMs"] > 0

    assert f"{name} " in cli(server, "list")
    shown = cli(server, "status", name)
    assert "a query started by hand" in shown
    assert f"from topic {source}: 30 rows read" in shown
    wait_for(lambda: f'waystation_pipeline_rows_total{{pipeline="{name}"}} 30' in scraped(server), "metrics have it")
    assert plain.name is not None
    assert state_of(server, plain.name) is None
    plain.stop()

    cli(server, "stop", name)  # asks it: its process is ours
    query.awaitTermination(60)
    assert await_state(server, name, phase="stopped").run == str(query.runId)
    stage.fill(source, numbers(30, 35))
    again = copy(frame, stage, tmp_path / "one", target, name)
    await_state(server, name, phase="running", run=str(again.runId), rows=5)
    again.stop()


def test_a_query_without_a_name_that_fails_is_on_the_list_with_its_error(
    session: SparkSession, server: Server, stage: Stage, tmp_path: Path
) -> None:
    source, target = stage.topic(), stage.topic()
    stage.fill(source, numbers(3))
    frame = stream(session, stage, source)
    broken = frame.selectExpr("if(value is null, value, raise_error('broken by hand')) as value")
    query = copy(broken, stage, tmp_path / "one", target)
    state = await_state(server, str(query.id), phase="failed")
    assert state.error is not None
    assert "broken by hand" in state.error
    assert "\n" not in state.error


def test_a_query_in_update_mode_is_shown_with_its_topic(
    session: SparkSession, server: Server, stage: Stage, tmp_path: Path
) -> None:
    source, target, name = stage.topic(), stage.topic(), unique("updates")
    stage.fill(source, numbers(3))
    counts = stream(session, stage, source).groupBy("value").count()
    rows = counts.selectExpr("value AS key", "CAST(count AS STRING) AS value")
    writer = rows.writeStream.format("waystation").outputMode("update").queryName(name)
    query = writer.options(servers=stage.servers, topic=target, checkpointLocation=str(tmp_path)).start()
    state = await_state(server, name, phase="running")
    assert state.sinks[0].place == f"topic {target}"
    query.stop()


def test_a_broker_that_is_away_breaks_nothing_and_is_told_when_it_is_back(
    session: SparkSession, tmp_path: Path
) -> None:
    with Server(tmp_path / "broker") as server:
        stage = Stage(server)
        source, target, name = stage.topic(), stage.topic(), unique("by-hand")
        stage.fill(source, numbers(3))
        query = copy(stream(session, stage, source), stage, tmp_path / "one", target, name)
        await_state(server, name, rows=3)
        server.stop()
        server.start()
        Stage(server).fill(source, numbers(3, 8))
        state = await_state(server, name, rows=8)
        assert query.isActive
        assert state.retries > 0
        query.stop()
        await_state(server, name, phase="stopped")


def test_a_session_that_is_told_not_to_reports_nothing(
    spark: SparkSession, server: Server, stage: Stage, tmp_path: Path
) -> None:
    from waystation.spark import register

    quiet = spark.newSession()
    register(quiet)
    register(quiet, report=False)
    source, target, name = stage.topic(), stage.topic(), unique("quiet")
    stage.fill(source, numbers(3))
    query = copy(stream(quiet, stage, source), stage, tmp_path / "one", target, name)
    wait_for(lambda: any(one.numInputRows for one in query.recentProgress), "it has read", within_s=60)
    query.stop()
    assert state_of(server, name) is None
