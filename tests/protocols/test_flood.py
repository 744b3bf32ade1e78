"""A flood of connections: the files of the logs have handles all the same, and everything goes on without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.links.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.health.admission import TOLD_EVERY_S, Admission
from waystation.observe.events import LogEvent
from waystation.world.listener import Leave, Listener

OPEN_FILES = 256
TOPIC = "work"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    # Every kilobyte a new file, so that the logs open files and folders all the time.
    settings = {"log.segment.bytes": 1024, "log.index.interval.bytes": 0}
    with Server(tmp_path, settings=settings, open_files=OPEN_FILES) as server:
        yield server


class Clients:
    """A producer, a consumer and a transactional producer that were there before the flood."""

    def __init__(self, server: Server) -> None:
        self._acked: list[int] = []
        self._count = 0
        address: dict[str, str | int | float | bool] = {"bootstrap.servers": server.bootstrap}
        admin = AdminClient(address)
        admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result(30)
        self.producer = Producer({**address, "acks": "all", "linger.ms": 0})
        self.consumer = Consumer({**address, "group.id": "readers", "enable.auto.commit": False})
        # librdkafka leaves its first connection when it knows the cluster, and with it what it asked there (for the
        # coordinator): that is over before the flood, which leaves no room for another connection.
        self.consumer.list_topics(TOPIC, timeout=30)
        self.transactional = Producer({**address, "transactional.id": "tx"})
        self.transactional.init_transactions(30)

    def work(self) -> None:
        """One of each: acknowledged records, a committed offset, a transaction. Fails if one of them does."""
        for _ in range(5):
            self._count += 1
            self.producer.produce(TOPIC, b"x" * 500, partition=self._count % 2, on_delivery=self._delivered)
        assert self.producer.flush(60) == 0
        assert len(self._acked) == self._count
        self.consumer.commit(offsets=[TopicPartition(TOPIC, 0, self._count // 2)], asynchronous=False)
        self.transactional.begin_transaction()
        self.transactional.produce(TOPIC, b"y" * 500, partition=0)
        self.transactional.commit_transaction(60)

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        self._acked.append(offset)

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def clients(server: Server) -> Iterator[Clients]:
    clients = Clients(server)
    clients.work()
    try:
        yield clients
    finally:
        clients.close()


class Flood:
    """Connections that say nothing, as many as come in."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._sockets: list[socket.socket] = []

    def more(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                self._sockets.append(socket.create_connection(self._address, 10))

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _pid(server: Server) -> int:
    assert server.process is not None
    return server.process.pid


def _ask(server: Server, path: str) -> str:
    with urllib.request.urlopen(f"http://{server.addresses['http']}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def _metric(server: Server, name: str) -> float:
    return sum(float(line.split()[-1]) for line in _ask(server, "/metrics").splitlines() if line.startswith(name))


@pytest.mark.parametrize("port", ["kafka", "amqp", "http"])
def test_a_flood_at_one_port_costs_no_acknowledgement_and_leaves_the_other_ports_open(
    server: Server, clients: Clients, port: str
) -> None:
    flood = Flood(server.addresses[port])
    try:
        for _ in range(4):
            flood.more(100)
            clients.work()
            assert len(os.listdir(f"/proc/{_pid(server)}/fd")) < OPEN_FILES
        if port != "http":
            assert _metric(server, "waystation_connections_max") == OPEN_FILES // 2
            assert _metric(server, f'waystation_connections_refused_total{{port="{port}"}}') > 0
            assert "Connections were refused" in _ask(server, "/healthz")
            assert json.loads(_ask(server, "/readyz"))["status"] != "failing"
    finally:
        flood.close()
    wait_for(lambda: _served(server), "whoever is refused is let in when there is room")
    clients.work()
    log = server.log.read_text()
    assert log.count("connections refused") <= 3, "the log is flooded too"
    assert "log failed" not in log


def test_without_any_handle_left_commits_wait_and_go_on_when_there_are_some(server: Server, clients: Clients) -> None:
    pid = _pid(server)
    flood = Flood(server.addresses["kafka"])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, OPEN_FILES))  # nothing can be opened, not even by accept
    try:
        flood.more(5)
        wait_for(lambda: "no connections are accepted for a moment" in server.log.read_text(), "accepting pauses")
        for _ in range(20):
            clients.producer.produce(TOPIC, b"x" * 500, partition=0)  # the log must begin a new file
        clients.producer.poll(0)
        before = _cpu_seconds(pid)
        clients.producer.flush(3)
        assert _cpu_seconds(pid) - before < 2, "it spins while there is nothing to accept with"
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        flood.close()
    assert clients.producer.flush(60) == 0
    clients.work()
    assert "log failed" not in server.log.read_text()
    assert json.loads(_ask(server, "/healthz"))["status"] != "failing"


def _served(server: Server) -> bool:
    try:
        return bool(_ask(server, "/readyz"))
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- parts ----------------------------------------------------------------------------------------------------------


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


class SomeHandles:
    def __init__(self, most: int) -> None:
        self.limit = most

    def most(self) -> int:
        return self.limit


def _fill(admission: Admission, port: str) -> list[Leave]:
    gate = admission.gate(port)
    left: list[Leave] = []
    while (leave := gate.enter("1.2.3.4")) is not None:
        left.append(leave)
    return left


def test_connections_take_half_of_the_handles_at_most() -> None:
    handles = SomeHandles(100)
    admission = Admission(BrokerSettings({"max.connections": "80"}), handles, HandClock())
    assert len(_fill(admission, "kafka")) == 50
    handles.limit = 1_000
    assert len(_fill(admission, "kafka")) == 30
    assert admission.count == 80


def test_no_port_takes_the_places_of_all_others() -> None:
    admission = Admission(BrokerSettings({"max.connections": "100"}), SomeHandles(0), HandClock())
    admission.gate("http")
    inside = _fill(admission, "kafka")
    assert len(inside) == 75
    assert len(_fill(admission, "http")) == 25
    assert _fill(admission, "amqp") == []
    inside[0]()
    inside[0]()  # once over, always over
    assert len(_fill(admission, "amqp")) == 1
    assert admission.refused == {"kafka": 1, "http": 1, "amqp": 2}


def test_refusals_are_told_now_and_then_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    admission = Admission(BrokerSettings({"max.connections": "1"}), SomeHandles(0), clock)
    gate = admission.gate("kafka")
    gate.enter("1.2.3.4")
    assert not admission.refused_lately
    for _ in range(100):
        gate.enter("1.2.3.4")
    clock.now += TOLD_EVERY_S
    gate.enter("1.2.3.4")
    told = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert [event.fields["refused"] for event in told] == [1, 100]
    assert admission.refused_lately
    clock.now += 61
    assert not admission.refused_lately


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
def test_a_place_is_free_again_when_its_connection_could_not_be_served(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    admission = Admission(BrokerSettings({}), SomeHandles(0), HandClock())

    def fail(leave: Leave) -> asyncio.Protocol:
        raise ValueError("broken")

    async def story() -> None:
        listener = Listener("127.0.0.1", 0, admission.gate("kafka").enter, fail)
        port = await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert admission.count == 0
        listener.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story())
