"""The Java client through failovers, idempotent and transactional. Where there is a JDK, and Kafka's jars can be had:
`KAFKA_HOME`, or Maven, as the benchmarks fetch them."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.kafka import fetch_jars
from benchmarks.peers import Unavailable
from tests.clients import kit
from tests.clients.crash_load import PARTITIONS
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

SOURCE = Path(__file__).parent / "java" / "FailoverLoad.java"
CACHE = Path.home() / ".cache" / "waystation-bench"
END_S = 120


@pytest.fixture(scope="module")
def java() -> list[str]:
    """The command of a Java program that has Kafka's client."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("there is no JDK (Debian: default-jdk-headless)")
    try:
        jars = fetch_jars(CACHE)
    except Unavailable as error:
        pytest.skip(f"no jars of Kafka: {error}")
    return ["java", "-Xmx128M", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]


class JavaLoad:
    """The process, and what it says."""

    def __init__(self, command: list[str]) -> None:
        self.sent: dict[tuple[int, int], int] = {}
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.errors: list[str] = []
        self.total = 0
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.split():
                case ["sent", partition, offset, number]:
                    self.sent[int(partition), int(offset)] = int(number)
                case ["committed", number]:
                    self.committed.append(int(number))
                case ["aborted", number]:
                    self.aborted.append(int(number))
                case ["end", number]:
                    self.total = int(number)
                case _:
                    self.errors.append(line)

    def goes_on(self) -> None:
        """Both producers do, on all partitions."""
        sent, committed = len(self.sent), len(self.committed)
        parts = {partition: self._on(partition) for partition in range(PARTITIONS)}

        def so() -> bool:
            assert not self.errors
            return (
                len(self.sent) >= sent + 500
                and len(self.committed) >= committed + 5
                and all(self._on(partition) > count + 100 for partition, count in parts.items())
            )

        wait_for(so, "both producers go on", within_s=END_S, every_s=0.05)

    def _on(self, partition: int) -> int:
        return sum(one == partition for one, _ in list(self.sent))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()
        assert self._process.wait(END_S) == 0
        self._thread.join(END_S)
        assert not self.errors

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def test_the_java_client_loses_and_doubles_nothing_when_a_leader_is_killed(
    cluster: ClusterOfThree, java: list[str]
) -> None:
    _kill(cluster, java, ["plain"])


@pytest.mark.soak
def test_the_java_client_loses_and_doubles_nothing_when_leaders_and_coordinators_are_killed(
    cluster: ClusterOfThree, java: list[str]
) -> None:
    _kill(cluster, java, ["plain", "paired", "coordinator"] * 3)


def _kill(cluster: ClusterOfThree, java: list[str], victims: list[str]) -> None:
    plain, paired = cluster.create(unique("java")), cluster.create(unique("java-tx"), 2)
    load = JavaLoad([*java, str(SOURCE), cluster.bootstrap, plain, paired, unique("java-mover")])
    try:
        for victim in victims:
            load.goes_on()
            killed = cluster.leader({"plain": plain, "paired": paired}.get(victim, "__transaction_state"))
            cluster.kill(killed)
            load.goes_on()
            cluster.start_node(killed)
            cluster.wait_in_sync(plain)
        load.stop()
    finally:
        load.kill()
    found = {
        (one.partition(), one.offset()): int(one.value() or b"-1") for one in kit.read_all(cluster.bootstrap, plain)
    }
    assert found == load.sent
    for partition in range(PARTITIONS):
        numbers = [number for (one, _), number in sorted(found.items()) if one == partition]
        assert numbers == list(range(partition, load.total, PARTITIONS))
    halves: list[list[int]] = [[], []]
    for one in kit.read_all(cluster.bootstrap, paired, {"isolation.level": "read_committed"}):
        halves[one.partition() or 0].append(int(one.value() or b"-1"))
    assert halves[0] == halves[1] == load.committed
    assert not set(load.aborted) & set(halves[0])
