"""The outbox: rows that a database commits are published once, whatever dies in between."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import waystation
from tests.support.postgres import Postgres, need
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import Invalid
from waystation.outbox import DatabaseConnection, Outbox, Relay

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres(need()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "app.db")
    server: Postgres = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn) as connection:
        connection.execute("DROP TABLE IF EXISTS waystation_outbox")
    return lambda: psycopg.connect(server.dsn)


@pytest.fixture
def mq() -> Iterator[waystation.Client]:
    with waystation.open(":memory:") as client:
        yield client


@pytest.fixture
def outbox(connect: Connect) -> Outbox:
    outbox = Outbox("shop")
    connection = connect()
    outbox.create_table(connection)
    outbox.create_table(connection)
    connection.commit()
    connection.close()
    return outbox


def fill(outbox: Outbox, connect: Connect, numbers: range) -> None:
    connection = connect()
    for number in numbers:
        outbox.publish(connection, "orders", {"n": number}, key=f"u{number % 3}", headers={"src": "web"})
        outbox.put(connection, "jobs", {"n": number})
    connection.commit()
    connection.close()


def published(mq: waystation.Client, count: int) -> tuple[list[int], list[int]]:
    """The numbers that are in the topic (as committed readers see it) and in the queue."""
    topic = [message.json()["n"] for message in drain(mq, count)]
    queue = [message.json()["n"] for message in mq.queue("jobs").peek(1_000)]
    return topic, queue


def drain(mq: waystation.Client, count: int) -> list[waystation.Message]:
    """So many messages, however long they take, and what follows them within a moment."""
    found: list[waystation.Message] = []
    with mq.subscribe("orders", history=10_000) as subscription:
        while (message := subscription.get_message(timeout=20 if len(found) < count else 0.1)) is not None:
            found.append(message)
    return found


def test_what_is_committed_is_published_in_order_and_what_is_rolled_back_is_not(
    outbox: Outbox, connect: Connect, mq: waystation.Client
) -> None:
    fill(outbox, connect, range(120))
    connection = connect()
    outbox.publish(connection, "orders", {"n": 999})
    connection.rollback()
    relay = Relay(outbox, connect, mq, batch=50)
    assert relay.run_once() == 240
    assert relay.run_once() == 0
    assert published(mq, 120) == (list(range(120)), list(range(120)))
    assert outbox.waiting(connection) == 0
    connection.close()
    first = drain(mq, 120)[0]
    assert (first.key, first.headers["src"], first.topic) == ("u0", "web", "orders")


def test_a_relay_works_in_the_background_and_is_woken(outbox: Outbox, connect: Connect, mq: waystation.Client) -> None:
    with Relay(outbox, connect, mq, every=3600) as relay:
        fill(outbox, connect, range(5))
        relay.wake()
        wait_for(lambda: "jobs" in [info.queue for info in mq.queues()] and len(mq.queue("jobs")) == 5, "five jobs")


class Died(Exception):
    """The relay's process is gone."""


class Dying:
    """A connection whose process dies at the n-th of its calls that matter."""

    def __init__(self, connection: Any, left: list[int]) -> None:
        self._connection = connection
        self._left = left

    def __getattr__(self, name: str) -> Any:
        if name in ("cursor", "commit", "rollback"):
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Died
        return getattr(self._connection, name)


@pytest.mark.parametrize("calls", range(0, 12, 2))
def test_a_relay_that_dies_at_any_moment_publishes_nothing_twice(
    outbox: Outbox, connect: Connect, mq: waystation.Client, calls: int
) -> None:
    fill(outbox, connect, range(6))
    left = [calls]

    def dying() -> DatabaseConnection:
        connection: Any = Dying(connect(), left)
        return connection  # type: ignore[no-any-return]

    relay = Relay(outbox, dying, mq, batch=5)
    with contextlib.suppress(Died):
        relay.run_once()
    Relay(outbox, connect, mq, batch=5).run_once()
    assert published(mq, 6) == (list(range(6)), list(range(6)))


def test_two_relays_at_once_publish_nothing_twice(outbox: Outbox, connect: Connect, mq: waystation.Client) -> None:
    """They fence each other off again and again; every row is published once all the same, and a group of subscribers
    sees nothing of the transactions that were aborted."""
    mq.create_topic("orders", partitions=1)
    group = mq.subscribe("orders", group="billing", start="earliest")
    errors: list[Exception] = []
    first = Relay(outbox, connect, mq, every=0.001, batch=3, on_error=errors.append)
    second = Relay(outbox, connect, mq, every=0.001, batch=4, on_error=errors.append)
    with first, second:
        for start in range(0, 60, 20):
            fill(outbox, connect, range(start, start + 20))
        connection = connect()

        def empty() -> bool:
            count = outbox.waiting(connection)
            connection.rollback()
            return count == 0

        wait_for(empty, "all rows to be carried")
    connection.close()
    topic, queue = published(mq, 60)
    assert (sorted(topic), sorted(queue)) == (list(range(60)), list(range(60)))
    seen = [group.get_message(timeout=20).json()["n"] for _ in range(60)]  # type: ignore[union-attr]
    assert sorted(seen) == list(range(60))


def test_a_broker_that_is_killed_in_between_gets_every_row_once(
    outbox: Outbox, connect: Connect, tmp_path: Path
) -> None:
    with Server(tmp_path / "server") as server, waystation.connect(f"waystation://{server.bootstrap}") as mq:
        errors: list[Exception] = []
        with Relay(outbox, connect, mq, every=0.01, batch=7, on_error=errors.append):
            for start in range(0, 200, 50):
                fill(outbox, connect, range(start, start + 50))
                server.kill()
                server.start()
            connection = connect()

            def empty() -> bool:
                count = outbox.waiting(connection)
                connection.rollback()
                return count == 0

            wait_for(empty, "all rows to be carried", within_s=60)
        connection.close()
        topic, queue = published(mq, 200)
        assert (sorted(topic), sorted(queue)) == (list(range(200)), list(range(200)))


def test_bad_rows_are_refused_where_they_are_written(outbox: Outbox, connect: Connect) -> None:
    connection = connect()
    with pytest.raises(Invalid, match="priority"):
        outbox.put(connection, "jobs", "x", priority=256)
    with pytest.raises(Invalid, match="payload"):
        outbox.publish(connection, "orders", object())
    assert outbox.waiting(connection) == 0
    connection.close()
    with pytest.raises(Invalid, match="table"):
        Outbox("x", table="a; drop table b")


def test_large_rows_are_carried_in_several_batches(tmp_path: Path, mq: waystation.Client) -> None:
    """All of them would not fit in a frame."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "large.db")

    outbox, connection = Outbox("large"), connect()
    outbox.create_table(connection)
    payload = b"x" * 900_000
    for _ in range(80):
        outbox.put(connection, "large", payload)
    connection.commit()
    assert Relay(outbox, connect, mq).run_once() == 80
    assert outbox.waiting(connection) == 0
    connection.close()
    assert mq.queue("large").describe().ready == 80
