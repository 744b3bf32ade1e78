"""Exactly once under fire: driver, executors and broker are killed at random moments, and every row is there once.

A streaming job on a standalone cluster reads a topic, or a queue whose messages it acks, and writes a topic. What a
consumer of committed messages saw all along, and what one finds at the end, is the input transformed: no row missing,
none there twice, none that was never sent, and the rows of a key in the order that they had in the topic.

The short runs are part of `make spark`; the long ones, with a million rows and two dozen strikes, are soak tests.
`WAYSTATION_SEED` repeats a run, as far as a run of many processes can be repeated.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.fire_kit import KEYS, SOURCE, TARGET, Fire, Witness, strikes
from tests.spark.sink_kit import connect, open_stages
from tests.support.waiting import wait_for
from waystation.log.batches import batch as batches

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

PARTITIONS = 4
MANY = 1_000_000
FEW = 16_000
STRIKES = 24
FEW_STRIKES = 4
END_S = 1800.0

Feed = Callable[[Fire, int, int], None]
"""Adds the rows from one number to another to the source."""


def seed() -> int:
    given = os.environ.get("WAYSTATION_SEED")
    return int(given) if given else random.SystemRandom().randrange(1_000_000)


def feed_topic(fire: Fire, first: int, last: int) -> None:
    """All rows of a key are in one partition, in the order of their numbers."""
    with connect(fire.server) as mq:
        now_ms = time.time_ns() // 1_000_000
        for partition in range(PARTITIONS):
            rows = [n for n in range(first, last) if n % PARTITIONS == partition]
            for start in range(0, len(rows), 5_000):
                records = [(b"key-%d" % (n % KEYS), b"%d" % n, ()) for n in rows[start : start + 5_000]]
                mq.publish_batches(SOURCE, [(partition, batches.build(records, now_ms))])


def feed_queue(fire: Fire, first: int, last: int) -> None:
    with connect(fire.server) as mq:
        queue = mq.queue(SOURCE, passive=True)
        for start in range(first, last, 5_000):
            queue.put_many([b"%d" % n for n in range(start, min(start + 5_000, last))])


def run(fire: Fire, feed: Feed, rows: int, count: int) -> Witness:
    """While the job works, more comes in. The strikes are spread over all of it: one somewhere in every share."""
    witness = Witness(fire.server, rows)
    edges = [rows * n // count for n in range(count + 1)]
    feed(fire, 0, edges[1])
    fire.start_driver()
    for number, victims in enumerate(strikes(count, fire.chance), start=1):
        feed(fire, edges[number], edges[min(number + 1, count)])
        fire.wait_until_written(fire.chance.randrange(edges[number - 1] + 1, edges[number] + 1))
        fire.strike(victims)
        print(f"  strike {number}: {' and '.join(sorted(victims))}; {witness.look()} rows are committed", flush=True)

    def is_complete() -> bool:
        fire.supervise()
        return witness.look() >= rows

    wait_for(is_complete, f"all rows; the driver's log is {fire.folder / 'driver.log'}", within_s=END_S, every_s=1.0)
    return witness


def check(fire: Fire, watched: Witness, rows: int) -> None:
    """What was seen on the way is what is there: each row once."""
    assert watched.count == rows
    assert all(watched.seen)
    found = Witness(fire.server, rows)
    found.look()
    assert found.values == watched.values, "what was read once is still there, in its place, and nothing else"
    with connect(fire.server) as mq:
        wait_for(lambda: open_stages(mq) == 0, "nothing is left staged")


def play(folder: Path, kind: str, rows: int, count: int, per_trigger: int) -> Witness:
    chosen = seed()
    print(f"\nWAYSTATION_SEED={chosen}: {rows} rows from {kind}, {count} strikes", flush=True)
    began = time.monotonic()
    fire = Fire(folder, kind, per_trigger, chosen)
    try:
        fire.open()
        with connect(fire.server) as mq:
            mq.create_topic(TARGET, partitions=3)
            if kind == "topics":
                mq.create_topic(SOURCE, partitions=PARTITIONS)
            else:
                mq.queue(SOURCE, max_deliveries=2)
        witness = run(fire, feed_topic if kind == "topics" else feed_queue, rows, count)
        check(fire, witness, rows)
        if kind == "queue":
            with connect(fire.server) as mq:
                queue = mq.queue(SOURCE, passive=True)
                wait_for(lambda: len(queue) == 0, "all messages are acked", within_s=60)
        killed = ", ".join(f"{victim} {times}" for victim, times in sorted(fire.killed.items()))
        print(
            f"  {rows} rows, each once, in {time.monotonic() - began:.0f} s; {count} strikes killed: {killed};",
            flush=True,
        )
        print(f"  drivers started: {fire.started}; ended by themselves: {fire.gave_up}", flush=True)
        return witness
    finally:
        fire.close()


@pytest.mark.timeout(1200)
def test_topic_to_topic_is_exact_when_each_is_killed(tmp_path: Path) -> None:
    assert play(tmp_path, "topics", FEW, FEW_STRIKES, 1_000).in_order


@pytest.mark.timeout(1200)
def test_queue_to_topic_is_exact_when_each_is_killed(tmp_path: Path) -> None:
    play(tmp_path, "queue", FEW, FEW_STRIKES, 1_000)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_rows_from_a_topic_are_exact_under_fire(tmp_path: Path) -> None:
    assert play(tmp_path, "topics", MANY, STRIKES, 20_000).in_order, "the rows of a key keep their order"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_messages_of_a_queue_are_exact_under_fire(tmp_path: Path) -> None:
    play(tmp_path, "queue", MANY, STRIKES, 20_000)
