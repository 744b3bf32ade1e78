"""A broker that goes away and comes back on the same port, with the same data: nobody has to notice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.client.conftest import open_client
from tests.client.kit import LoopOnThread
from tests.support.names import unique
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation import aio, errors
from waystation.client.links import connection


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


@pytest.fixture(params=["sync-remote", "aio-remote"])
def mq(request: pytest.FixtureRequest, server: Server, home: LoopOnThread) -> Iterator[Any]:
    client = open_client(request.param, f"waystation://{server.bootstrap}", home)
    yield client
    client.close()


def crash(server: Server) -> None:
    server.kill()
    server.restart()


def test_handlers_and_consumers_go_on_after_a_crash(mq: Any, server: Server) -> None:
    jobs, topic = mq.queue(unique("jobs")), unique("topic")
    mq.publish(topic, "0")
    seen: list[str] = []
    heard: list[str] = []

    def work(message: Any) -> None:
        seen.append(message.text())

    def hear(message: Any) -> None:
        heard.append(message.text())

    mq.on(queue=jobs)(work)
    mq.on(topic, group=unique("g"), start="earliest")(hear)
    jobs.put("before")
    wait_for(lambda: seen == ["before"] and heard == ["0"], "they work")
    mq.flush()
    crash(server)
    jobs.put("after")
    mq.publish(topic, "1")
    wait_for(lambda: seen == ["before", "after"] and heard == ["0", "1"], "they go on")


def test_live_subscriptions_and_responders_go_on(mq: Any, server: Server) -> None:
    topic, name = unique("live"), unique("echo")

    def echo(message: Any) -> Any:
        return message.value

    mq.respond(name)(echo)
    mq.publish(topic, "before")
    live = mq.subscribe(topic, history=10)
    assert live.get_message(30).text() == "before"
    crash(server)
    wait_for(lambda: mq.request(name, 1, timeout=30).json() == 1, "it answers", retry_on=(errors.NotFound,))
    mq.publish(topic, "after")
    assert live.get_message(30).text() == "after"


def test_what_was_held_is_delivered_again_and_old_verdicts_are_conflicts(mq: Any, server: Server) -> None:
    jobs = mq.queue(unique("jobs"))
    jobs.put("x")
    with jobs.consume() as consumer:
        old = consumer.get_message(30)
        crash(server)
        again = consumer.get_message(30)
        assert again.id == old.id
        with pytest.raises(errors.Conflict, match="connection that was lost"):
            old.ack()
        again.ack()
    assert jobs.describe().ready == jobs.describe().held == 0


def test_requests_wait_for_the_broker_to_come_back(mq: Any, server: Server) -> None:
    jobs = mq.queue(unique("jobs"), dedup_window=600)
    server.kill()
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append(jobs.put(f"{n}", id=f"{n}"))) for n in range(5)]
    for thread in threads:
        thread.start()
    server.restart()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["0", "1", "2", "3", "4"]
    assert len(jobs.get_many(10)) == 5


def test_a_subscription_may_begin_while_the_broker_is_away(mq: Any, server: Server) -> None:
    topic, name = unique("away"), unique("echo")
    jobs = mq.queue(unique("jobs"))
    mq.publish(topic, "before")
    server.kill()
    opened: list[Any] = []

    def echo(message: Any) -> Any:
        return message.value

    def begin() -> None:
        opened.append(jobs.consume())
        opened.append(mq.subscribe(topic, group=unique("g"), start="earliest"))
        mq.respond(name)(echo)

    thread = threading.Thread(target=begin)
    thread.start()
    server.restart()
    thread.join()
    jobs.put("x")
    assert opened[0].get_message(30).text() == "x"
    assert opened[1].get_message(30).text() == "before"
    assert mq.request(name, 1, timeout=30).json() == 1


def test_nothing_acknowledged_is_lost_while_the_broker_crashes_under_load(mq: Any, server: Server) -> None:
    """Ids make what is sent again after the crash stay single."""
    jobs = mq.queue(unique("load"), dedup_window=600, guarantee="exactly-once")
    kept: list[str] = []
    stop = threading.Event()

    def produce(worker: int) -> None:
        number = 0
        while not stop.is_set():
            id = f"{worker}-{number}"
            assert jobs.put("x", id=id) == id
            kept.append(id)
            number += 1

    threads = [threading.Thread(target=produce, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        wait_for(partial(_grown, kept, len(kept) + 50), "some are kept")
        crash(server)
    wait_for(lambda: len(kept) >= 200, "it goes on")
    stop.set()
    for thread in threads:
        thread.join()
    found: list[str] = []
    while messages := jobs.get_many(1000):
        found += [message.id for message in messages]
        jobs.ack_many(messages)
    assert sorted(found) == sorted(kept)


def _grown(kept: list[str], wanted: int) -> bool:
    return len(kept) >= wanted


def test_a_transaction_of_a_lost_connection_is_undone(mq: Any, server: Server) -> None:
    done = mq.queue(unique("done"))

    def lose_the_connection() -> None:
        with mq.transaction(unique("t")) as tx:
            tx.put(done, "half")
            crash(server)
            wait_for(lambda: mq.ping() >= 0, "connected again")
            tx.put(done, "other half")

    with pytest.raises(errors.ConnectionLost):
        lose_the_connection()
    assert done.get_message_nowait() is None


def test_a_queue_of_this_connection_is_there_again(mq: Any, server: Server) -> None:
    mine = mq.queue(unique("mine"), exclusive=True)
    consumer = mine.consume()
    crash(server)
    wait_for(lambda: mine.put("x"), "it is declared again", retry_on=(errors.NotFound,))
    assert consumer.get_message(30).text() == "x"


def test_a_clean_stop_is_survived_too(mq: Any, server: Server) -> None:
    jobs = mq.queue(unique("jobs"))
    jobs.put("x")
    assert server.stop() == 0
    server.restart()
    with jobs.get(timeout=30) as message:
        assert message.text() == "x"


def test_a_broker_that_is_not_there_is_named(home: LoopOnThread) -> None:
    port = free_port()
    for kind in ("sync-remote", "aio-remote"):
        with pytest.raises(errors.ConnectionLost, match=f"127.0.0.1:{port}.*waystation serve"):
            open_client(kind, f"waystation://127.0.0.1:{port}", home)
    with pytest.raises(errors.Invalid, match="waystation://HOST:PORT"):
        waystation.connect("redis://localhost:80/path")
    with pytest.raises(errors.Invalid, match=r"http://localhost:80 speaks HTTP.* which is localhost:9092 unless"):
        waystation.connect("http://localhost:80/path")


def test_connecting_can_wait_for_the_broker(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        url = f"waystation://{server.bootstrap}"
        server.stop()
        clients: list[Any] = []
        thread = threading.Thread(target=lambda: clients.append(waystation.connect(url, wait=30)))
        thread.start()
        server.restart()
        thread.join()
        clients[0].ping()
        clients[0].close()


def test_requests_fail_when_their_time_is_over(server: Server) -> None:
    with waystation.connect(f"waystation://{server.bootstrap}", timeout=0.5) as mq:
        jobs = mq.queue(unique("jobs"))
        server.kill()
        with pytest.raises(errors.ConnectionLost):
            jobs.put("x")


def test_a_loop_that_stood_still_is_not_the_brokers_silence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger, a handler that computes, SIGSTOP: nobody has asked the broker whether it is there."""
    monkeypatch.setattr(connection, "SILENCE_S", 1.0)

    async def main() -> None:
        async with aio.connect(f"waystation://{server.bootstrap}") as mq:
            jobs = await mq.queue(unique("jobs"))
            await jobs.put("x")
            message = await jobs.get(timeout=30)
            time.sleep(3)  # noqa: ASYNC251  # what nobody should do
            await asyncio.sleep(1.5)
            await message.ack()
            assert mq._core.main.epoch == 0

    asyncio.run(main())
