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

import base64
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

import waystation
from benchmarks import attackers, figures, procfs
from benchmarks.amqp_wire import AmqpWire
from benchmarks.attackers import ATTACKS, Attack
from benchmarks.kafka_wire import LOGIN_ANSWERS, KafkaAnswers, kafka_fetch, kafka_login
from benchmarks.native_wire import NativeWire
from benchmarks.peers import Died, Waystation, log_end, spawn
from benchmarks.wires import Wire

RATE_PER_S = 200
ALONE_S, BESIDE_S = 2.0, 2.5
ROUNDS = 5
PROBED = "probe"
TIMEOUT_S = 30.0


class Probe:
    """One connection that sends one request after another and waits for each. `answers` says how many answers some
    bytes completed; the first so many are those to the hello."""

    def __init__(
        self,
        address: str,
        request: Callable[[int], bytes],
        answers: Callable[[bytes], int],
        hello: bytes = b"",
        hello_answers: int = 0,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._answers, self._number = request, answers, 0
        self._socket.sendall(hello)
        self._await(hello_answers)

    def run(self, seconds: float) -> list[float]:
        """Milliseconds of each request that was due in this time; a late one does not make the others later.

        One who gets hardly any answers does not ask on for minutes: what is not asked in twice the time counts as late
        as it is then.
        """
        taken: list[float] = []
        began = time.perf_counter()
        for tick in range(int(seconds * RATE_PER_S)):
            due = began + tick / RATE_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            if time.perf_counter() < began + 2 * seconds:
                self.once()
            taken.append((time.perf_counter() - due) * 1e3)
        return taken

    def once(self) -> None:
        self._number += 1
        self._socket.sendall(self._request(self._number))
        self._await(1)

    def _await(self, answers: int) -> None:
        while answers > 0:
            data = self._socket.recv(65_536)
            if not data:
                raise RuntimeError("the broker closed the probe's connection")
            answers -= self._answers(data)

    def close(self) -> None:
        self._socket.close()


class Tenant(NamedTuple):
    """Whom a probe logs in as, and the namespace that its things are in; nobody, and none, if that is not said."""

    user: str = ""
    password: str = ""
    namespace: str = ""

    def queue(self, name: str) -> str:
        """By its full name, as an administrator outside of the namespace says it."""
        return f"{self.namespace}/{name}" if self.namespace else name


NOBODY = Tenant()


def _wire_probe(address: str, wire: Wire, queue: str) -> Probe:
    put = partial(wire.put, queue=queue, payloads=[b"x" * 100])
    return Probe(address, put, wire.answers, wire.hello(), wire.hello_answers)


def _kafka_probe(address: str, tenant: Tenant) -> Probe:
    login = (kafka_login(tenant.user, tenant.password), LOGIN_ANSWERS) if tenant.user else (b"", 0)
    return Probe(address, partial(kafka_fetch, topic=PROBED), KafkaAnswers().count, *login)


def _http_probe(address: str, tenant: Tenant) -> Probe:
    path = f"/v1/queues/{quote(PROBED, safe='')}/messages?raw=true"
    login = base64.b64encode(f"{tenant.user}:{tenant.password}".encode()).decode()
    header = f"Authorization: Basic {login}\r\n" if tenant.user else ""
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: 100\r\n\r\n{'x' * 100}".encode()
    return Probe(address, lambda _number: request, lambda data: data.rstrip().endswith(b"}"))


def probe_of(protocol: str, addresses: Mapping[str, str], tenant: Tenant = NOBODY) -> Probe:
    if protocol == "native":
        wire = NativeWire(tenant.user, tenant.password)
        return _wire_probe(addresses["kafka"], wire, PROBED)
    if protocol == "amqp":
        login = {"user": tenant.user, "password": tenant.password, "vhost": tenant.namespace} if tenant.user else {}
        return _wire_probe(addresses["amqp"], AmqpWire(**login), PROBED)
    if protocol == "http":
        return _http_probe(addresses["http"], tenant)
    return _kafka_probe(addresses["kafka"], tenant)


def percentiles(taken: list[float]) -> dict[str, float]:
    """By unit."""
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}


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
        with (
            tempfile.TemporaryDirectory(prefix="hostile-", dir=self._work) as folder,
            every_protocol(Path(folder), _fill) as broker,
        ):
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
        for unit, value in percentiles(taken).items():
            self._report.add(peer.name, work, unit, value, figures.HOSTILE)


class Broker(NamedTuple):
    pid: int
    addresses: dict[str, str]


@contextmanager
def every_protocol(folder: Path, fill: Callable[[Mapping[str, str]], None]) -> Iterator[Broker]:
    """A fresh broker with every protocol; `fill` is given its addresses, and makes what clients are after."""
    ready = folder / "ready.json"
    listeners = [argument for name in ("kafka", "amqp", "http") for argument in (f"--{name}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "waystation.cli.main", "serve", "--data", str(folder / "data"), *listeners]
    flush = ["--set", "waystation.flush=os"]  # it is the broker's turns that are measured, not the disk's
    running = spawn([*command, *flush, "--ready-file", str(ready)], folder, 0)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not ready.exists() or not ready.read_text():
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise Died(f"the broker did not start: {log_end(folder)}")
            time.sleep(0.01)
        addresses: dict[str, str] = msgspec.json.decode(ready.read_bytes())
        fill(addresses)
        yield Broker(running.pid, addresses)
    finally:
        running.kill()


def _fill(addresses: Mapping[str, str]) -> None:
    payload = bytes(attackers.MESSAGE_BYTES)
    with waystation.connect(addresses["kafka"]) as client:
        for topic in (attackers.TOPIC, attackers.EMPTY_TOPIC, PROBED):
            client.create_topic(topic)
        for queue in (attackers.QUEUE, attackers.EMPTY_QUEUE, PROBED):
            client.queue(queue)
        client.publish(PROBED, b"x" * 100)
        for _ in range(attackers.STORED):
            client.publish(attackers.TOPIC, payload)
            client.queue(attackers.QUEUE).put(payload)
