"""One attacker against one ordinary client: what the client's latency is alone and beside the attack, and the most
memory that the broker has had.

The probe sends a message (by Kafka's protocol: fetches one) and waits for the answer, at a fixed rate, by the protocol
that the attack is on. An attack (`benchmarks.attackers`) sends what it has and then does nothing: what is measured is
what the broker does for it, not what it costs the machine.

Each attack is measured against a broker that is fresh in every round, and again in a series: all attacks one after
another on one broker, each as soon as the one before it has closed its connections. Right before each attack the probe
is alone, so that both are of the same moment. A round's p99 is that of some hundred answers; what is reported is the
median of the rounds', and of memory the most. Called by `benchmarks.cli`.
"""

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

import waystation
from benchmarks import attackers, figures, procfs
from benchmarks.amqp_wire import AmqpWire
from benchmarks.attackers import ATTACKS, Attack
from benchmarks.native_wire import NativeWire
from benchmarks.peers import Died, Waystation, log_end, spawn
from benchmarks.wires import Wire

RATE_PER_S = 200
ALONE_S, BESIDE_S = 2.0, 2.5
ROUNDS = 5
PROBED = "probe"
TIMEOUT_S = 30.0


class Probe:
    """One connection that sends one request after another and waits for each."""

    def __init__(
        self, address: str, hello: bytes, request: Callable[[int], bytes], answered: Callable[[bytes], bool]
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._answered, self._number = request, answered, 0
        self._socket.sendall(hello)

    def run(self, seconds: float) -> list[float]:
        """Milliseconds of each request that was due in this time; a late one does not make the others later."""
        taken: list[float] = []
        began = time.perf_counter()
        for tick in range(int(seconds * RATE_PER_S)):
            due = began + tick / RATE_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            self.once()
            taken.append((time.perf_counter() - due) * 1e3)
        return taken

    def once(self) -> None:
        self._number += 1
        self._socket.sendall(self._request(self._number))
        while not self._answered(data := self._socket.recv(65_536)):
            if not data:
                raise RuntimeError("the broker closed the probe's connection")

    def close(self) -> None:
        self._socket.close()


def _kafka_answered() -> Callable[[bytes], bool]:
    rest = bytearray()

    def answered(data: bytes) -> bool:
        rest.extend(data)
        whole = len(rest) >= 4 and len(rest) >= 4 + int.from_bytes(rest[:4], "big")
        if whole:
            rest.clear()
        return whole

    return answered


def _wire_probe(address: str, wire: Wire) -> Probe:
    left = [wire.hello_answers + 1]

    def answered(data: bytes) -> bool:
        left[0] -= wire.answers(data)
        if left[0] > 0:
            return False
        left[0] = 1
        return True

    return Probe(address, wire.hello(), lambda number: wire.put(number, PROBED, [b"x" * 100]), answered)


def _http_request(_number: int) -> bytes:
    path = f"/v1/queues/{PROBED}/messages?raw=true"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{'x' * 100}".encode()


def probe_of(protocol: str, addresses: Mapping[str, str]) -> Probe:
    if protocol == "native":
        return _wire_probe(addresses["kafka"], NativeWire())
    if protocol == "amqp":
        return _wire_probe(addresses["amqp"], AmqpWire())
    if protocol == "http":
        return Probe(addresses["http"], b"", _http_request, lambda data: data.rstrip().endswith(b"}"))
    fetch = attackers.kafka_fetch
    return Probe(addresses["kafka"], b"", lambda number: fetch(number, PROBED), _kafka_answered())


class Hostile:
    """The part of a run: each attack beside a probe of its protocol."""

    def __init__(self, work: Path, report: figures.Report, scale: float = 1.0, only: str = "") -> None:
        """`only`: part of the names of the attacks that are wanted; all of them without it."""
        self._work, self._report, self._scale = work, report, scale
        self._attacks = {name: known for name, known in ATTACKS.items() if only.lower() in name.lower()}
        self._peaks: dict[str, float] = {}

    def run(self, peer: Waystation) -> None:
        rounds = max(ROUNDS, self._report.rounds) if self._report.full else self._report.rounds
        for _ in range(rounds):
            for name in self._attacks:
                with self._fresh() as broker:
                    self._beside(peer, name, broker, "fresh")
            with self._fresh() as broker:
                for name in self._attacks:
                    self._beside(peer, name, broker, "in a series")
        for work, peak in self._peaks.items():
            self._report.add(peer.name, work, figures.MEMORY, peak, figures.HOSTILE)

    @contextmanager
    def _fresh(self) -> "Iterator[Broker]":
        with tempfile.TemporaryDirectory(prefix="hostile-", dir=self._work) as folder, _broker(Path(folder)) as broker:
            yield broker

    def _beside(self, peer: Waystation, name: str, broker: "Broker", how: str) -> None:
        known = self._attacks[name]
        probe = probe_of(known.protocol, broker.addresses)
        attack = Attack(broker.addresses)
        try:
            probe.once()
            self._add(peer, f"{name}, {how}: alone", probe.run(ALONE_S * self._scale))
            procfs.forget_peak(broker.pid)
            known.begin(attack)
            work = f"{name}, {how}: beside"
            self._add(peer, work, probe.run(BESIDE_S * self._scale))
            self._peaks[work] = max(self._peaks.get(work, 0.0), procfs.peak_mib(broker.pid))
        finally:
            attack.close()
            probe.close()

    def _add(self, peer: Waystation, work: str, taken: list[float]) -> None:
        cuts = statistics.quantiles(taken, n=100, method="inclusive")
        for unit, value in (("p50 ms", cuts[49]), ("p99 ms", cuts[98])):
            self._report.add(peer.name, work, unit, value, figures.HOSTILE)


class Broker(NamedTuple):
    pid: int
    addresses: dict[str, str]


@contextmanager
def _broker(folder: Path) -> Iterator[Broker]:
    """A fresh broker with every protocol, and what the attacks are after."""
    ready = folder / "ready.json"
    doors = [argument for door in ("kafka", "amqp", "http") for argument in (f"--{door}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "waystation.cli.main", "serve", "--data", str(folder / "data"), *doors]
    flush = ["--set", "waystation.flush=os"]  # it is the broker's turns that are measured, not the disk's
    running = spawn([*command, *flush, "--ready-file", str(ready)], folder, 0)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not ready.exists() or not ready.read_text():
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise Died(f"the broker did not start: {log_end(folder)}")
            time.sleep(0.01)
        addresses: dict[str, str] = msgspec.json.decode(ready.read_bytes())
        _fill(addresses["kafka"])
        yield Broker(running.pid, addresses)
    finally:
        running.kill()


def _fill(address: str) -> None:
    payload = bytes(attackers.MESSAGE_BYTES)
    with waystation.connect(address) as client:
        for topic in (attackers.TOPIC, attackers.EMPTY_TOPIC, PROBED):
            client.create_topic(topic)
        for queue in (attackers.QUEUE, attackers.EMPTY_QUEUE, PROBED):
            client.queue(queue)
        client.publish(PROBED, b"x" * 100)
        for _ in range(attackers.STORED):
            client.publish(attackers.TOPIC, payload)
            client.queue(attackers.QUEUE).put(payload)
