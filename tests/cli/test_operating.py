"""`top`, `connections`, `delayed`, `bench` and `demo`, as an operator uses them, against a running broker."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from importlib.util import find_spec

import pytest

import waystation
from tests.cli.kit import Cli, QuickCli, command, environment
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.cli.monitoring.top import sparkline, spell_duration


def test_top_shows_what_the_broker_does(quick: QuickCli, topic: str) -> None:
    with waystation.connect(quick.server) as mq:
        mq.publish_many(topic, [b"x"] * 100)
        shown = quick("top", "--once").text
        assert "publish" in shown
        assert re.search(r"native [1-9]", shown), "this very client is counted"
        overview = quick("top", "--once", "--json").json
        assert overview["connections"]["native"] >= 1
        assert overview["totals"]["topics"] >= 1


def test_top_takes_the_terminal_and_gives_it_back(cli: Cli) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("top", "--every", "0.2"),
        stdin=theirs,
        stdout=theirs,
        env=environment({"WAYSTATION_SERVER": cli.server}),
    )
    os.close(theirs)
    seen = b""

    def read_until(part: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + DEADLINE_S
        while part not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # what Linux says when the other end is closed
                    break

    try:
        read_until(b"loop delay")
        os.write(ours, b"q")
        assert process.wait(DEADLINE_S) == 0
        read_until(b"\x1b[?1049l")
        assert b"\x1b[?1049h" in seen
        assert b"\x1b[?1049l" in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_sparkline_is_as_high_as_its_highest() -> None:
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([1.0] * 500)) == 48
    assert [spell_duration(ms) for ms in (900, 59_000, 150_000, 7_200_000)] == ["0 s", "59 s", "2.5 min", "2 h"]


def test_a_connection_is_listed_and_closed(quick: QuickCli, queue: str) -> None:
    name = f"victim-{queue}"
    with waystation.connect(quick.server, name=name) as mq:
        mq.ping()
        found = quick("connections", "list", "--protocol", "native", "--json").objects
        assert quick("connections", "list", "--door", "amqp", "--json").objects == []
        (victim,) = [one for one in found if name in str(one["client"])]
        assert name in quick("connections", "list", "--search", victim["name"]).text
        assert "pass --yes" in quick("connections", "close", victim["name"], code=1).err
        assert quick("connections", "close", victim["name"], "--yes").text == "closed 1 of 1\n"
        wait_for(lambda: victim["name"] not in quick("connections", "list", "--json").text, "it is gone")
    missing = quick("connections", "close", victim["name"], "--yes", "--json", code=1)
    assert missing.objects == [{"name": victim["name"], "closed": False}]
    assert victim["name"] in missing.err


def test_delayed_messages_are_listed_in_the_order_of_their_times_and_cancelled(quick: QuickCli, queue: str) -> None:
    with waystation.connect(quick.server) as mq:
        jobs = mq.queue(queue)
        jobs.put(b"late", delay=7200, id="late")
        jobs.put(b"soon", delay=3600, id="soon")
        jobs.put(b"now")
        listed = quick("delayed", "list", queue, "--json").objects
        assert [one["id"] for one in listed] == ["soon", "late"]
        assert quick("delayed", "list", queue).lines[1].split()[0] == "soon"
        assert queue in quick("delayed", "list", "--limit", "1000").text
        assert quick("delayed", "cancel", queue, "soon").text == "cancelled 1 of 1\n"
        wrong = quick("delayed", "cancel", queue, "soon", code=1)
        assert "could be cancelled" in wrong.err
        assert len(jobs) == 2
        mq.publish(f"{queue}-topic", b"x", delay=3600, id="much-later")
        (one,) = quick("delayed", "list", "--topic", f"{queue}-topic", "--json").objects
        assert one["id"] == "much-later"
        quick("delayed", "cancel", f"{queue}-topic", "much-later", "--to-topic")
        assert quick("delayed", "list", "--topic", f"{queue}-topic", "--json").objects == []


def test_more_delayed_messages_are_listed_than_the_broker_gives_at_once(quick: QuickCli, queue: str) -> None:
    with waystation.connect(quick.server) as mq:
        mq.queue(queue).put_many([{"n": n} for n in range(1_200)], delay=3600)
        found = quick("delayed", "list", queue, "--limit", "1100", "--json")
        assert len({one["tag"] for one in found.objects}) == 1_100
        assert "there are more" in found.err
        assert len(quick("delayed", "list", queue, "--limit", "5000").lines) == 1_201


def test_messages_of_a_topic_are_found_and_the_oldest_deleted(quick: QuickCli, topic: str) -> None:
    with waystation.connect(quick.server) as mq:
        for number in range(5):
            mq.publish(topic, f"parcel {number}", key=f"k{number % 2}", headers={"odd": str(number % 2)}, partition=0)
    assert [line.split()[0] for line in quick("topics", "search", topic, "--key", "k1").lines] == ["0@1", "0@3"]
    (newest,) = quick("topics", "search", topic, "--header", "odd=0", "--newest", "--count", "1", "--json").objects
    assert newest["payload"] == "parcel 4"
    assert quick("topics", "search", topic, "--text", "cel 2").lines == ["0@2  k0  parcel 2"]
    assert "no such message" in quick("topics", "search", topic, "--text", "nowhere", code=1).err
    assert "--key" in quick("topics", "search", topic, code=1).err
    said = quick("topics", "delete-records", topic, "--partition", "0", "--before", "3", "--yes").text
    assert said == f"partition 0 of topic {topic} begins at offset 3 now\n"
    assert len(quick("topics", "search", topic, "--text", "parcel", "--json").objects) == 2


def test_a_broker_without_pipelines_of_its_own_says_so(quick: QuickCli) -> None:
    assert "--pipelines" in quick("pipeline", "start", "nobody", code=1).err


def test_bench_measures_and_leaves_nothing(quick: QuickCli) -> None:
    figures = quick("bench", "--count", "2000", "--json").objects
    assert {figure["work"] for figure in figures} >= {
        "publish to a topic",
        "read it",
        "put into a queue",
        "take and ack",
    }
    assert all(figure["per_s"] > 0 for figure in figures)
    assert "p99" in quick("bench", "queue", "--count", "500", "--size", "10").text.lower()
    with waystation.connect(quick.server) as mq:
        assert not [info for info in mq.topics() if info.topic.startswith("waystation-bench")]
        assert not mq.queues("waystation-bench")


def test_the_demo_finishes_its_tour_by_itself() -> None:
    done = subprocess.run(
        command("demo", "--once", "--free-ports", "--no-browser", "--no-spark"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "everything that went in came out" in done.stdout
    for step in ("A broker", "A log", "RabbitMQ's protocol", "HTTP", "A work queue", "No pipeline", "The dashboard"):
        assert step in done.stdout


@pytest.mark.skipif(find_spec("pyspark") is not None, reason="pyspark is installed: tests/spark runs the pipeline")
def test_the_demo_says_how_to_get_its_pipeline() -> None:
    started = command("demo", "--free-ports", "--no-browser")
    with subprocess.Popen(started, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout or ())
            assert any("No pipeline" in line for line in lines)
            assert "make run-demo" in next(lines)
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "words", [("demo", "--once", "--free-ports", "--data", "/proc/nowhere"), ("top", "--server", "127.0.0.1:1")]
)
def test_what_cannot_be_done_is_a_sentence(quick: QuickCli, words: tuple[str, ...]) -> None:
    said = quick(*words, code=1).err
    assert said.startswith("waystation: ")
    assert len(said.splitlines()) == 1
