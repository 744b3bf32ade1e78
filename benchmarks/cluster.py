"""`make bench-cluster`: what replication costs, and how long nothing is acknowledged when a leader dies.

Three Waystation nodes with an etcd, one Waystation broker alone, and three Kafka brokers where Kafka can be had, one
after the other on the same machine, with the same client (confluent-kafka, acks=all, idempotent). For each:

- messages a second that are acknowledged, and CPU-seconds of all brokers together for a million of them;
- the latency of an acknowledgement at a thousand messages a second;
- seconds from the `kill -9` of a partition's leader until the next message to it is acknowledged.

Every process is started here and ended by its own pid.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import procfs
from benchmarks.kafka import CLUSTER_ID, LOGGING, Kafka
from benchmarks.peers import Running, Unavailable, free_port, spawn

CACHE = Path.home() / ".cache" / "waystation-bench"
READY_S = 120.0
SIZE = 1000
PARTITIONS = 6

KAFKA_SETTINGS = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
group.initial.rebalance.delay.ms=0
"""


@dataclass
class Brokers:
    """Those that run: addresses and pids by the id of the node."""

    name: str
    keeps: str
    bootstrap: str
    pids: dict[int, int]
    replicas: int


@contextmanager
def waystation(nodes: int) -> Iterator[Brokers]:
    """As `waystation cluster up` starts them; one: without a cluster."""
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        ready = Path(folder, "ready.json")
        program = [sys.executable, "-m", "waystation.cli.main"]
        data = str(Path(folder, "data"))
        if nodes == 1:
            port = free_port()
            command = [*program, "serve", "--data", data, "--kafka", f"127.0.0.1:{port}", "--amqp", "off"]
            command += ["--http", "off", "--ready-file", str(ready)]
        else:
            command = [*program, "cluster", "up", "--nodes", str(nodes), "--data", data, "--ready-file", str(ready)]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(ready.exists)
            if nodes == 1:
                yield Brokers("waystation, one", "fsynced on one disk", f"127.0.0.1:{port}", {1: process.pid}, 1)
            else:
                told = json.loads(ready.read_text())["nodes"]
                bootstrap = ",".join(node["kafka"] for node in told)
                pids = {node["id"]: node["pid"] for node in told}
                yield Brokers(f"waystation, {nodes} nodes", "fsynced on all in-sync replicas", bootstrap, pids, nodes)
        finally:
            process.terminate()
            process.wait(READY_S)


@contextmanager
def kafka(nodes: int) -> Iterator[Brokers]:
    peer = Kafka(CACHE)
    version = peer.version()
    running: dict[int, Running] = {}
    with tempfile.TemporaryDirectory(prefix="bench-cluster-kafka-") as folder:
        ports = {number: (free_port(), free_port()) for number in range(1, nodes + 1)}
        voters = ",".join(f"{number}@127.0.0.1:{controller}" for number, (_, controller) in ports.items())
        try:
            for number, (port, controller) in ports.items():
                own = Path(folder, str(number))
                own.mkdir()
                (own / "log4j2.properties").write_text(LOGGING)
                text = KAFKA_SETTINGS.format(
                    node=number, voters=voters, port=port, controller=controller, data=own / "logs"
                )
                settings = own / "server.properties"
                settings.write_text(text)
                format_it = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
                subprocess.run(peer.java(own, "256M", *format_it), check=True, capture_output=True)
                running[number] = spawn(peer.java(own, "512M", "kafka.Kafka", str(settings)), own, port)
            bootstrap = ",".join(one.bootstrap for one in running.values())
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            _wait(lambda: _count_brokers(admin) == nodes)
            pids = {number: one.pid for number, one in running.items()}
            yield Brokers(
                f"{version}, {nodes} brokers", "in the page cache of all in-sync replicas", bootstrap, pids, nodes
            )
        finally:
            for one in running.values():
                if one.process.poll() is None:
                    one.kill()


def _count_brokers(admin: AdminClient) -> int:
    try:
        return len(admin.list_topics(timeout=2).brokers)
    except Exception:  # not there yet
        return 0


def _wait(ready: Callable[[], bool]) -> None:
    give_up = time.monotonic() + READY_S
    while not ready():
        if time.monotonic() > give_up:
            raise TimeoutError("the brokers are not ready")
        time.sleep(0.05)


# -- what is measured -------------------------------------------------------------------------------------------------


def _topic(brokers: Brokers, name: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    config = {"min.insync.replicas": "2"} if brokers.replicas > 1 else {}
    admin.create_topics([NewTopic(name, partitions, brokers.replicas, config=config)])[name].result(60)

    def whole() -> bool:
        found = admin.list_topics(name, timeout=10).topics[name].partitions.values()
        return len(found) == partitions and all(one.leader >= 0 and len(one.isrs) == brokers.replicas for one in found)

    _wait(whole)
    return admin


def _producer(brokers: Brokers, linger_ms: int) -> Producer:
    return Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "message.timeout.ms": 120_000,
            "log_level": 0,
        }
    )


def _raise(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise RuntimeError(f"a message was not acknowledged: {error}")


def throughput(brokers: Brokers, messages: int) -> tuple[float, float]:
    """(messages a second, CPU-seconds of the brokers for a million messages)"""
    _topic(brokers, "throughput", PARTITIONS)
    producer = _producer(brokers, 5)
    payload = os.urandom(SIZE)

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce("throughput", payload, partition=number % PARTITIONS, on_delivery=_raise)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("not everything was acknowledged")

    send(messages // 10)
    cpu, began = _cpu(brokers), time.monotonic()
    send(messages)
    took = time.monotonic() - began
    return messages / took, (_cpu(brokers) - cpu) / messages * 1e6


def _cpu(brokers: Brokers) -> float:
    return sum(procfs.cpu_seconds(pid) for pid in brokers.pids.values())


def latency(brokers: Brokers, seconds: float) -> tuple[float, float]:
    """(median, 99th of a hundred) in milliseconds, at a thousand messages a second."""
    _topic(brokers, "latency", PARTITIONS)
    producer = _producer(brokers, 0)
    payload = os.urandom(100)
    times: list[float] = []
    began = time.monotonic()
    for number in range(int(seconds * 1000)):
        due = began + number / 1000
        while (now := time.monotonic()) < due:
            producer.poll(min(0.001, due - now))

        def told(error: KafkaError | None, message: Message, sent: float = now) -> None:
            _raise(error, message)
            times.append((time.monotonic() - sent) * 1000)

        producer.produce("latency", payload, partition=number % PARTITIONS, on_delivery=told)
    producer.flush(60)
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]


def failover(brokers: Brokers) -> float:
    """Seconds from `kill -9` of the leader until the next message to the partition is acknowledged. A broker dies."""
    admin = _topic(brokers, "failover", 1)
    producer = _producer(brokers, 0)
    producer.produce("failover", b"before", on_delivery=_raise)
    if producer.flush(60):
        raise RuntimeError("nothing is acknowledged")
    leader = admin.list_topics("failover", timeout=10).topics["failover"].partitions[0].leader
    os.kill(brokers.pids[leader], signal.SIGKILL)
    killed = time.monotonic()
    producer.produce("failover", b"after", on_delivery=_raise)
    if producer.flush(120):
        raise RuntimeError("nothing is acknowledged any more")
    return time.monotonic() - killed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--messages", type=int, default=200_000, help="for the throughput (default: 200,000)")
    parser.add_argument("--seconds", type=float, default=10, help="for the latency (default: 10)")
    parser.add_argument("--only", choices=("one", "three", "kafka"), help="default: all of them")
    arguments = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; messages of {SIZE} bytes, acks=all", flush=True)
    kinds: dict[str, Callable[[], AbstractContextManager[Brokers]]] = {
        "one": lambda: waystation(1),
        "three": lambda: waystation(3),
        "kafka": lambda: kafka(3),
    }
    for kind, start in kinds.items():
        if arguments.only not in (None, kind):
            continue
        try:
            with start() as brokers:
                _report(brokers, arguments)
        except Unavailable as why:
            print(f"{kind}: left out: {why}")
    return 0


def _report(brokers: Brokers, arguments: argparse.Namespace) -> None:
    rate, cpu = throughput(brokers, arguments.messages)
    middle, high = latency(brokers, arguments.seconds)
    print(f"\n{brokers.name} ({brokers.keeps})")
    print(f"  throughput            {rate:>10,.0f} messages/s")
    print(f"  broker CPU            {cpu:>10.1f} s for a million messages, all brokers together")
    print(f"  latency at 1,000/s    {middle:>10.1f} ms in the middle, {high:.1f} ms for 99 of 100")
    if brokers.replicas > 1:
        print(f"  after kill -9         {failover(brokers):>10.2f} s until the next acknowledgement", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
