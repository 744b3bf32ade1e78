"""A streaming job on a real cluster, with somebody who kills its driver, its executors and its broker.

`Fire` has all the processes. A strike kills some of them at once, by SIGKILL, at a moment that was left to a seeded
chance, and brings back what nobody else would: the broker on its old data and ports, and the driver on its checkpoint,
as a supervisor does. The executors are brought back by the cluster. `Witness` is a consumer of committed messages who
reads on from strike to strike and remembers every row that it ever saw.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.spark.cluster_kit import Cluster, cluster_environment
from tests.spark.sink_kit import connect
from tests.support.names import unique
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for

Victim = Literal["driver", "executor", "broker"]
VICTIMS: tuple[Victim, ...] = ("driver", "executor", "broker")
TARGET = "out"
SOURCE = "in"
KEYS = 1000
PATIENCE_S = 900.0
MOMENT_S = 1.5
"""A kill comes so long at most after the rows that it waited for: anywhere in a batch, or between two."""
AWAY_S = 3.0
"""A broker that was killed is away for so long at most."""


@dataclass
class Witness:
    """Reads the output as a stranger does: committed messages only, from where it was."""

    server: Server
    rows: int
    seen: bytearray = field(init=False)
    last: dict[bytes, int] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    values: dict[int, array[int]] = field(default_factory=dict)
    count: int = 0
    in_order: bool = True

    def __post_init__(self) -> None:
        self.seen = bytearray(self.rows)

    def look(self) -> int:
        """Reads all that is new, and says how many rows there are. AssertionError for a row that is there twice."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap,
                "group.id": unique("witness"),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
        try:
            partitions = consumer.list_topics(TARGET, timeout=30).topics[TARGET].partitions
            consumer.assign([TopicPartition(TARGET, one, self.positions.get(one, 0)) for one in partitions])
            ended: set[int | None] = set()

            def read() -> bool:
                for message in consumer.consume(10_000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        ended.discard(message.partition())  # more was committed meanwhile
                        self._take(message.partition() or 0, message.offset() or 0, message.key(), message.value())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                return len(ended) == len(partitions)

            wait_for(read, "the end of the output", within_s=PATIENCE_S)
        finally:
            consumer.close()
        return self.count

    def _take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        row, rest = divmod(int(value or b"-1") - 1, 7)
        assert (rest, 0 <= row < self.rows) == (0, True), f"{value!r} at {partition}/{offset} was never sent"
        assert key == b"KEY-%d" % (row % KEYS), f"row {row} has the key {key!r}"
        assert not self.seen[row], f"row {row} is there twice, the second time at {partition}/{offset}"
        self.in_order &= self.last.get(key, -1) < row
        self.last[key] = row
        self.seen[row] = 1
        self.count += 1
        self.positions[partition] = offset + 1
        self.values.setdefault(partition, array("q")).append(row)


class Fire:
    """The processes of one run. Close it, whatever happened."""

    def __init__(self, folder: Path, kind: str, rows_per_trigger: int, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.server = Server(folder / "broker")
        self.cluster = Cluster(folder / "cluster")
        self.killed: Counter[Victim] = Counter()
        self.started = 0
        self.gave_up = 0
        """How often a driver ended by itself, with an error: the supervisor starts it again."""
        self._kind = kind
        self._rows_per_trigger = rows_per_trigger
        self._driver: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        self.server.start()
        self.cluster.start()

    def close(self) -> None:
        self._end_driver()
        self.cluster.close()
        self.server.close()

    # -- the driver ----------------------------------------------------------------------------------------------------

    def start_driver(self) -> None:
        words = (self.cluster.url, self.server.bootstrap, self._kind, SOURCE, TARGET)
        more = (str(self.folder / "checkpoint"), str(self._rows_per_trigger))
        with (self.folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.fire_driver", *words, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=cluster_environment(),
                cwd=ROOT,
                start_new_session=True,
            )
        self.started += 1

    def supervise(self) -> None:
        """Starts a driver that has given up again."""
        if self._driver is not None and self._driver.poll() is not None:
            self.gave_up += 1
            print(f"  the driver ended by itself: {self.tail()[-300:]!r}", flush=True)
            self.start_driver()

    def tail(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-3000:]

    def _kill_driver(self) -> None:
        """Java first. What it leaves behind, its Python processes, goes on for a moment, as if nothing had happened."""
        if self._driver is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._driver.pid).children(recursive=True):
                if "java" in child.name():
                    child.kill()
        time.sleep(self.chance.uniform(0, 0.3))
        self._end_driver()

    def _end_driver(self) -> None:
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait(30)
            self._driver = None

    # -- strikes -------------------------------------------------------------------------------------------------------

    def written(self) -> int:
        """How far the output has come, whoever may see it."""
        with connect(self.server) as mq:
            return sum(end for _, end, _ in mq.describe_topic(TARGET).partitions)

    def wait_until_written(self, end: int) -> None:
        def there() -> bool:
            self.supervise()
            return self.written() >= end

        what = f"the output gets to {end}; the driver's log is {self.folder / 'driver.log'}"
        wait_for(there, what, within_s=PATIENCE_S, every_s=0.1)
        time.sleep(self.chance.uniform(0, MOMENT_S))  # the moment is left to chance on purpose

    def strike(self, victims: set[Victim]) -> None:
        """Kills them, as near to each other as can be, and brings back what a supervisor would."""
        order = sorted(victims)
        self.chance.shuffle(order)
        for victim in order:
            self.killed[victim] += self._kill(victim)
        driver_first = self.chance.random() < 0.5
        if "driver" in victims and driver_first:
            self.start_driver()
        if "broker" in victims:
            time.sleep(self.chance.uniform(0, AWAY_S))
            self.server.restart()
        if "driver" in victims and not driver_first:
            self.start_driver()

    def _kill(self, victim: Victim) -> bool:
        """Whether there was anybody to kill."""
        if victim == "driver":
            self._kill_driver()
        elif victim == "broker":
            self.server.kill()
        else:
            found = self.cluster.executors()
            if not found and self._driver is not None:  # they end with their driver
                found = wait_for(self.cluster.executors, "there is an executor", within_s=PATIENCE_S)
            if not found:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                self.chance.choice(found).kill()
        return True


def strikes(count: int, chance: random.Random) -> list[set[Victim]]:
    """Each of the three in turn, then two or three of them together, and so on, in an order left to chance."""
    found: list[set[Victim]] = []
    while len(found) < count:
        some: list[set[Victim]] = [{victim} for victim in VICTIMS]
        some.append(set(chance.sample(VICTIMS, chance.choice((2, 3)))))
        chance.shuffle(some)
        found += some
    return found[:count]
