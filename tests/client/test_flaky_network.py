"""Connections that are cut at any byte: while greeting, resuming, within a frame. Nothing is lost, nothing doubled."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import waystation
from tests.client.conftest import open_client
from tests.client.flaky import FlakyNetwork
from tests.client.kit import LoopOnThread
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for

PRODUCERS = 3
EACH = 60


@pytest.mark.parametrize("kind", ["sync-remote", "aio-remote"])
@pytest.mark.parametrize(("seed", "longest"), [(1, 30_000), (2, 30_000), (3, 4_000)])
def test_everything_arrives_once_over_a_network_that_cuts(
    server: Server, home: LoopOnThread, kind: str, seed: int, longest: int
) -> None:
    with FlakyNetwork(split_address(server.bootstrap), seed, longest=longest) as network:
        mq = open_client(kind, f"waystation://{network.address}", home, wait=30)
        jobs = mq.queue(unique("flaky"), guarantee="exactly-once", hold=600)
        done: set[str] = set()
        failures: list[BaseException] = []

        def produce(worker: int) -> None:
            try:
                for number in range(EACH):
                    jobs.put("x" * 20, id=f"{worker}-{number}")
            except BaseException as error:
                failures.append(error)

        def work(message: Any) -> None:
            done.add(message.id)

        mq.on(queue=jobs.name, concurrency=2, prefetch=5, guarantee="at-least-once")(work)
        threads = [threading.Thread(target=produce, args=(worker,)) for worker in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = {f"{worker}-{number}" for worker in range(PRODUCERS) for number in range(EACH)}
        wait_for(lambda: done == wanted, "all are done")
        assert failures == []
        assert network.cuts > 0
        network.calm()
        info = wait_for(lambda: _settled(jobs), "every ack is kept, or its message came again and was acked")
        assert info.put == len(wanted), "what was sent again was stored once"
        mq.close()


@pytest.mark.parametrize("kind", ["sync-remote", "aio-remote"])
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_sent_in_order_is_stored_in_order_over_a_network_that_cuts(
    server: Server, home: LoopOnThread, kind: str, guarantee: str, seed: int
) -> None:
    """Several frames of a call are on their way when the connection is cut. What is stored twice comes again later."""
    topic, count = unique("flaky"), 3_000
    with FlakyNetwork(split_address(server.bootstrap), seed, shortest=20_000, longest=400_000) as network:
        mq = open_client(kind, f"waystation://{network.address}", home, wait=30, timeout=60)
        mq.create_topic(topic, 4, {"waystation.dedup.window.ms": 600_000})
        rounds = 0
        while network.cuts < 2 or rounds < 2:
            numbers = range(rounds * count, (rounds + 1) * count)
            sent = mq.send_ordered(topic, "k", [{"n": n} for n in numbers], guarantee=guarantee)
            assert len(sent) == count
            rounds += 1
        mq.close()
    seen: list[int] = []
    with (
        waystation.connect(f"waystation://{server.bootstrap}") as reader,
        reader.subscribe(topic, group=unique("g"), mode="stream", start="earliest") as all_of_it,
    ):
        while rounds * count - 1 not in seen[-1000:]:
            seen += [message.value["n"] for message in all_of_it.poll(30, 1000)]
    if guarantee == "exactly-once":
        assert seen == [*range(rounds * count)]
    assert list(dict.fromkeys(seen)) == [*range(rounds * count)]


@pytest.mark.parametrize("kind", ["sync-remote", "aio-remote"])
@pytest.mark.parametrize("seed", [1, 2])
def test_messages_are_received_in_order_over_a_network_that_cuts(
    server: Server, home: LoopOnThread, kind: str, seed: int
) -> None:
    """What waited for a missing one when the connection was cut is redelivered, and takes its place again."""
    with (
        waystation.connect(f"waystation://{server.bootstrap}") as sender,
        FlakyNetwork(split_address(server.bootstrap), seed, shortest=10_000, longest=40_000) as network,
    ):
        jobs = sender.queue(unique("flaky"))
        mq = open_client(kind, f"waystation://{network.address}", home, wait=30)
        seen: list[int] = []
        with mq.queue(jobs.name).consume() as consumer:
            loop = iter(consumer.in_order(waystation.Resequencer(first=0, timeout=60)))
            while network.cuts < 3 or len(set(seen)) < 200:
                begin = len(set(seen))
                for number in range(begin, begin + 50):
                    jobs.put("x" * 100, headers={"x-sequence": begin + (number - begin) * 7 % 50})
                while len(set(seen)) < begin + 50:
                    seen.append(next(loop).headers["x-sequence"])
        mq.close()
        assert list(dict.fromkeys(seen)) == [*range(len(set(seen)))]


def _settled(jobs: Any) -> Any:
    info = jobs.describe()
    return info if info.ready == info.held == info.parked == 0 else None
