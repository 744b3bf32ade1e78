"""Whoever shortens retention, or makes a queue smaller than what is in it, is asked first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import waystation
from tests.cli.kit import Cli, QuickCli
from tests.cli.terminal import terminal
from tests.support.server import Server
from tests.support.waiting import wait_for

HOUR_MS = 3_600_000


@pytest.fixture
def old_messages(quick: QuickCli, topic: str) -> str:
    """A topic with two messages of yesterday and one of now."""
    quick("topics", "create", topic)
    now_ms = time.time_ns() // 1_000_000
    with waystation.connect(quick.server) as mq:
        for age_ms in (25 * HOUR_MS, 24 * HOUR_MS, 0):
            mq.publish(topic, b"x", timestamp=(now_ms - age_ms) / 1000)
    return topic


def retention(cli: Cli, topic: str) -> str:
    (described,) = cli("topics", "describe", topic, "--json").objects
    return str(described["settings"]["retention.ms"]["value"])


def test_without_a_terminal_shorter_retention_needs_yes(quick: QuickCli, old_messages: str) -> None:
    topic = old_messages
    said = quick("topics", "alter", topic, "--set", "retention.ms=1h", code=1).err
    assert f"topic {topic}: retention.ms goes from 604800000 (7d) to 3600000 (1h)" in said
    assert "3 messages" in said
    assert "2 are older" in said
    assert "--yes" in said
    assert retention(quick, topic) == "604800000"
    quick("topics", "alter", topic, "--set", "retention.ms=1h", "--yes")
    assert retention(quick, topic) == "3600000"
    quick("topics", "alter", topic, "--set", "retention.ms=2h")  # longer: nobody is asked


def test_at_a_terminal_the_person_is_asked(cli: Cli, old_messages: str) -> None:
    words = ("topics", "alter", old_messages, "--set", "retention.ms=1h")
    for answer, code, now in (("n\n", 1, "604800000"), ("\n", 1, "604800000"), ("y\n", 0, "3600000")):
        with terminal(*words, WAYSTATION_SERVER=cli.server) as person:
            person.read_until("[y/N]")
            assert "2 are older" in person.seen
            person.type(answer)
            assert person.ended() == code
        assert retention(cli, old_messages) == now


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("--set", "retention.bytes=1GiB"), ("--set", "retention.bytes=1KiB")),
        (("--set", "retention.ms=-1"), ("--set", "retention.ms=30d")),
        (("--set", "retention.ms=30d"), ("--unset", "retention.ms")),
        (("--set", "cleanup.policy=compact"), ("--set", "cleanup.policy=compact,delete")),
    ],
)
def test_every_way_to_shorten_it_is_noticed(
    quick: QuickCli, topic: str, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    quick("topics", "create", topic)
    quick("topics", "alter", topic, *first)
    quick("topics", "alter", topic, *then)  # nothing is stored, so nobody is asked
    quick("topics", "alter", topic, *first)
    quick("publish", topic, "message", "--key", "k")
    assert "1 message" in quick("topics", "alter", topic, *then, code=1).err
    quick("topics", "alter", topic, *then, "--yes")


def test_other_settings_are_changed_without_a_question(quick: QuickCli, old_messages: str) -> None:
    quick("topics", "alter", old_messages, "--set", "segment.bytes=1MiB", "--set", "retention.ms=8d")
    quick("topics", "alter", old_messages, "--partitions", "2")


def test_a_shorter_default_of_the_broker_is_asked_about(quick: QuickCli, old_messages: str) -> None:
    said = quick("config", "set", "log.retention.ms=1h", code=1).err
    assert "log.retention.ms goes from 604800000 (7d) to 3600000 (1h)" in said
    assert "without retention.ms of its own" in said
    assert "--yes" in said
    assert retention(quick, old_messages) == "604800000"
    try:
        quick("config", "set", "log.retention.ms=30d")
        assert "7d" in quick("config", "set", "--unset", "log.retention.ms", code=1).err
    finally:
        quick("config", "set", "--unset", "log.retention.ms", "--yes")
    with terminal("config", "set", "log.retention.bytes=1KiB", WAYSTATION_SERVER=quick.server) as person:
        person.read_until("[y/N]")
        person.type("no\n")
        assert person.ended() == 1


def test_a_default_of_the_broker_is_no_danger_to_topics_with_their_own(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"log.cleanup.policy": "compact"}) as server:
        own = QuickCli(server.bootstrap)
        own("topics", "create", "compacted")
        own("topics", "create", "own", "--set", "retention.ms=7d", "--set", "cleanup.policy=delete")
        own("publish", "compacted", "x", "--key", "k")
        own("publish", "own", "x")
        own("config", "set", "log.retention.ms=1h")
        own("config", "set", "--unset", "log.retention.ms")
        own("topics", "create", "deleting", "--set", "cleanup.policy=delete")
        own("publish", "deleting", "x")
        assert "1 topic without" in own("config", "set", "log.retention.ms=1h", code=1).err
        assert "1 topic without" in own("config", "set", "log.cleanup.policy=delete", code=1).err


def test_a_smaller_queue_that_drops_messages_is_asked_about(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--max-length", "10", "--overflow", "drop-oldest")
    with waystation.connect(quick.server) as mq:
        mq.queue(queue, passive=True).put_many([b"0123456789"] * 5)
        said = quick("queues", "alter", queue, "--max-length", "2", code=1).err
        assert "3 of its 5 messages" in said
        assert "--yes" in said
        assert "--yes" in quick("queues", "alter", queue, "--max-bytes", "10", code=1).err
        quick("queues", "alter", queue, "--max-length", "5")
        with terminal("queues", "alter", queue, "--max-length", "2", WAYSTATION_SERVER=quick.server) as person:
            person.read_until("[y/N]")
            person.type("yes\n")
            assert person.ended() == 0
        mq.queue(queue, passive=True).put(b"one more")
        assert quick("queues", "describe", queue, "--json").json["ready"] == 2


def test_a_smaller_queue_that_refuses_or_dead_letters_deletes_nothing(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, f"{queue}.dead")
    with waystation.connect(quick.server) as mq:
        mq.queue(queue, passive=True).put_many([b"x"] * 5)
    quick("queues", "alter", queue, "--max-length", "2")
    quick("queues", "alter", queue, "--dead-letter", f"{queue}.dead", "--overflow", "dead-letter")
    assert quick("queues", "describe", queue, "--json").json["ready"] == 5


def test_a_shorter_ttl_of_a_queue_deletes_nothing_that_is_stored(quick: QuickCli, queue: str) -> None:
    """So nobody is asked: it holds for what is put from then on."""
    quick("queues", "create", queue)
    with waystation.connect(quick.server) as mq:
        jobs = mq.queue(queue, passive=True)
        jobs.put(b"before", id="before")
        quick("queues", "alter", queue, "--ttl", "1ms")
        jobs.put(b"after", id="after")
        wait_for(lambda: [one.id for one in jobs.peek(10)] == ["before"], "the new message has expired")
