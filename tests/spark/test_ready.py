"""The ready-made pipelines do what they say, each by its one command's file, on real Spark and a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waystation
from tests.spark.source_kit import Stage
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.cli.main import main
from waystation.client.sync.client import Client
from waystation.errors import Conflict, Invalid
from waystation.spark.ready import READY, ready_text, write_ready
from waystation.spark.ready.parts import sql_text, texts

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

HOUR_MS = 3600 * 1000
DAY = 1_772_366_400_000  # 2026-03-01T12:00:00Z


class Desk:
    """Runs ready-made pipelines."""

    def __init__(self, spark: SparkSession, stage: Stage, folder: Path) -> None:
        self.spark = spark
        self.stage = stage
        self.folder = folder

    def run(self, ready: str, **values: str) -> None:
        """By its command, to the end of what is there."""
        words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
        words += ["--folder", str(self.folder), "--server", self.stage.servers, "--master", "local[2]", "--once"]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            assert main(["pipeline", "ready", ready, *words]) == 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def rows(self, topic: str) -> list[Row]:
        frame = self.spark.read.format("waystation").options(servers=self.stage.servers, topics=topic).load()
        return frame.orderBy("partition", "offset").collect()

    def values(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(row.value) for row in self.rows(topic)]


@pytest.fixture
def desk(spark: SparkSession, stage: Stage, tmp_path: Path) -> Desk:
    return Desk(spark, stage, tmp_path)


@pytest.fixture
def mq(server: Server) -> Iterator[Client]:
    with waystation.connect(server.bootstrap) as client:
        yield client


def produce(stage: Stage, topic: str, rows: list[tuple[str | None, str | None, int]], **more: Any) -> None:
    """(key, value, time) each."""
    client = stage.producer()
    for key, value, at_ms in rows:
        client.produce(
            topic,
            None if value is None else value.encode(),
            key=None if key is None else key.encode(),
            timestamp=at_ms,
            **more,
        )
    assert client.flush(30) == 0


# -- each of them ------------------------------------------------------------------------------------------------------


def test_an_archive_has_folders_and_is_replayed_as_it_was(desk: Desk) -> None:
    topic, other, back = desk.stage.topic(2), desk.stage.topic(), unique("replayed")
    rows: list[tuple[str | None, str | None, int]] = [
        (f"k{i % 5}", f"v{i}" if i % 7 else None, DAY + i * HOUR_MS // 4) for i in range(40)
    ]
    produce(desk.stage, topic, rows, headers=[("a", b"1"), ("x-message-id", b"m"), ("none", None)])
    produce(desk.stage, other, [("o", "other", DAY)])
    archive = desk.folder / "archive"
    desk.run("archive", topics=f"{topic},{other}", to=str(archive))
    folders = {str(path.parent.relative_to(archive)) for path in archive.rglob("*.parquet")}
    assert f"date=2026-03-01/hour=12/topic={topic}" in folders
    assert f"date=2026-03-01/hour=21/topic={topic}" in folders
    kept = desk.spark.read.parquet(str(archive))
    assert {*kept.columns} >= {*desk.rows(topic)[0].asDict()}
    # Again: nothing new, nothing twice.
    desk.run("archive", topics=f"{topic},{other}", to=str(archive))
    assert desk.spark.read.parquet(str(archive)).count() == 41

    desk.run("replay", archive=str(archive), to=back, topic=topic, since="2026-03-01T13:00:00Z")

    def told(row: Row) -> tuple[Any, ...]:
        pairs = [(header.key, header.value) for header in row.headers]
        return bytes(row.key), row.value and bytes(row.value), row.timestamp, pairs, row.id

    def by_key(name: str) -> dict[bytes, list[tuple[Any, ...]]]:
        found: dict[bytes, list[tuple[Any, ...]]] = {}
        for row in desk.rows(name):
            if row.timestamp.timestamp() * 1000 >= DAY + HOUR_MS:
                found.setdefault(bytes(row.key), []).append(told(row))
        return found

    assert by_key(back) == by_key(topic)
    assert len(desk.rows(back)) == 36


def test_traffic_is_measured_by_topic_and_minute(desk: Desk) -> None:
    topic, to = desk.stage.topic(2), unique("traffic")
    rows: list[tuple[str | None, str | None, int]] = [("hot", "x" * 98, DAY + i * 100) for i in range(60)]
    rows += [(f"k{i}", "x" * 10, DAY + 60_000) for i in range(20)]
    produce(desk.stage, topic, rows)
    desk.run("traffic", topics=topic, to=to)
    found = {value["start"]: value for value in desk.values(to)}
    first, second = (found[key] for key in sorted(found))
    assert (first["topic"], first["messages"], first["bytes"], first["keys"]) == (topic, 60, 60 * 101, 1)
    assert (first["messages_per_s"], first["largest_bytes"], first["mean_bytes"]) == (1.0, 101, 101.0)
    assert (first["top_key"], first["top_key_share"]) == ("hot", 1.0)
    assert second["messages"] == 20
    assert 17 <= second["keys"] <= 23  # they are counted approximately
    assert second["top_key_share"] == pytest.approx(0.05)
    assert first["latency_p50_ms"] <= first["latency_p99_ms"] <= first["latency_max_ms"]
    assert first["latency_p50_ms"] > 0


def test_dead_letters_are_counted_by_reason_source_and_exception(desk: Desk, mq: Client) -> None:
    name, to = unique("work"), unique("report")
    dead = mq.queue(f"{name}.dead")
    work = mq.queue(name, dead_letter=f"{name}.dead")
    work.put_many([str(i) for i in range(5)])
    for message in work.get_many(5, timeout=5):
        number = int(message.text())
        message.kill("ValueError: no number" if number < 3 else "the printer is out of paper")
    wait_for(lambda: len(dead) == 5 or None, "the dead have arrived")
    desk.run("dead-letters", queue=dead.name, to=to)
    report = sorted(desk.values(to), key=lambda row: row["letters"])
    assert [(row["letters"], row["exception"]) for row in report] == [
        (2, "the printer is out of paper"),
        (3, "ValueError"),
    ]
    assert {(row["letters_in"], row["source"], row["reason"]) for row in report} == {(dead.name, name, "rejected")}
    assert len(dead) == 5


def test_dead_letter_topics_are_followed(desk: Desk, mq: Client) -> None:
    name, failures, to = unique("work"), desk.stage.topic(), unique("report")
    work = mq.queue(name, dead_letter=f"topic:{failures}")
    work.put("x")
    work.get(timeout=5).kill("KeyError: 'y'")
    # A transaction moves it: its end has an offset, too.
    wait_for(lambda: mq.describe_topic(failures).partitions[0][1] == 2 or None, "the letter is in its topic")
    desk.run("dead-letters", topics=failures, to=to)
    (row,) = desk.values(to)
    assert (row["letters"], row["source"], row["exception"], row["letters_in"]) == (1, name, "KeyError", failures)


def test_the_latest_value_of_every_key_is_kept_as_a_topic_and_as_a_table(desk: Desk) -> None:
    topic, to, table = desk.stage.topic(2), unique("latest"), desk.folder / "table"
    rows: list[tuple[str | None, str | None, int]] = [(f"k{i % 3}", f"v{i}", DAY + i) for i in range(9)]
    produce(desk.stage, topic, [*rows, (None, "no key", DAY), ("k1", None, DAY + 99)])
    desk.run("latest", topics=topic, to=to)
    assert {bytes(row.key): row.value and bytes(row.value) for row in desk.rows(to)} == {
        b"k0": b"v6",
        b"k1": None,
        b"k2": b"v8",
    }
    produce(desk.stage, topic, [("k0", "newer", DAY + 200)])
    desk.run("latest", topics=topic, to=to)
    assert bytes(desk.rows(to)[-1].value) == b"newer"
    assert len(desk.rows(to)) == 4
    desk.run("latest", topics=topic, table=str(table), name="table")
    kept = desk.spark.read.parquet(str(table)).orderBy("key").collect()
    assert [(bytes(row.key), bytes(row.value)) for row in kept] == [(b"k0", b"newer"), (b"k2", b"v8")]


def test_events_become_sessions(desk: Desk) -> None:
    topic, to = desk.stage.topic(), unique("sessions")
    minute = 60_000
    rows: list[tuple[str | None, str | None, int]] = [
        ("ann", "{}", DAY),
        ("bob", "{}", DAY + 5 * minute),
        ("ann", "{}", DAY + 10 * minute),
        ("ann", "{}", DAY + 60 * minute),
        ("end", "{}", DAY + 600 * minute),  # only so that the time of the others is over
    ]
    produce(desk.stage, topic, rows)
    desk.run("sessions", topics=topic, to=to)
    found = [(row["who"], row["events"], row["seconds"]) for row in desk.values(to)]
    assert sorted(found) == [("ann", 1, 0), ("ann", 2, 600), ("bob", 1, 0)]


# -- their files -------------------------------------------------------------------------------------------------------


def test_a_file_is_written_once_and_never_over_another(tmp_path: Path) -> None:
    ready = READY["archive"]
    file = write_ready(ready, {"topics": ["orders"], "to": "/data"}, tmp_path)
    assert file.name == "archive-orders.toml"
    assert write_ready(ready, {"topics": "orders", "to": "/data"}, tmp_path) == file
    with pytest.raises(Conflict, match="another --name"):
        write_ready(ready, {"topics": ["orders"], "to": "/other"}, tmp_path)
    assert write_ready(ready, {"topics": ["orders"], "to": "/other"}, tmp_path, "mine").name == "mine.toml"


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("archive", {"topics": "a"}, "needs --to"),
        ("archive", {"to": "x"}, "either --topics or --pattern"),
        ("archive", {"to": "x", "topics": "a", "pattern": "#"}, "either --topics or --pattern"),
        ("replay", {"archive": "x", "to": "t", "since": "soon"}, "--since"),
        ("dead-letters", {"queue": "q", "topics": "t"}, "one of --queue"),
        ("latest", {"topics": "t"}, "one of --to"),
    ],
)
def test_what_is_missing_is_named(name: str, values: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        ready_text(READY[name], values)


def test_names_are_quoted() -> None:
    assert sql_text("o'r\\") == "'o\\'r\\\\'"
    assert texts(["a, b", "c"]) == ["a", "b", "c"]
    text = ready_text(READY["replay"], {"archive": 'a"b', "to": "t", "topic": "o'r"})[1]
    assert "topic = 'o\\\\'r'" in text


def test_the_command_shows_its_file() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "waystation.cli.main",
            "pipeline",
            "ready",
            "archive",
            "--topics",
            "orders",
            "--to",
            "a",
            "--show",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'topics = ["orders"]' in done.stdout
    assert "date_format(timestamp, 'HH') AS hour" in done.stdout
