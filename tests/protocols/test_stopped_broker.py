"""A broker whose process was stopped for a while (SIGSTOP, a frozen container, a blocked loop): what clients sent in
time lies in its sockets, and is read before anything ends because its time is up."""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import commands, heartbeat

from tests.protocols.amqp.kit import Amqp
from tests.protocols.http.kit import Http, answer_of, name
from tests.protocols.native.kit import JsonLines
from tests.support.server import Server
from tests.support.waiting import wait_for

TIMEOUT_MS = 1_500
DEAD = {"hold_ms": TIMEOUT_MS, "max_deliveries": 1, "dead_letter": "dead"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("stopped"),
        settings={"group.min.session.timeout.ms": 100, "group.initial.rebalance.delay.ms": 0},
    ) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@contextmanager
def stopped(server: Server, for_s: float) -> Iterator[None]:
    """The process does nothing meanwhile, for so long at least; what is sent to it waits."""
    process = server.process
    assert process is not None
    began = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    try:
        status = Path(f"/proc/{process.pid}/stat")
        if status.exists():
            wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the broker has stopped")
        yield
        time.sleep(max(0.0, began + for_s - time.monotonic()))
    finally:
        process.send_signal(signal.SIGCONT)


def _with_one_message(http: Http, text: str) -> str:
    queue = name(text)
    http("PUT", f"/v1/queues/{queue}", DEAD)
    http.put(queue, "job")
    return queue


def _is_done(http: Http, queue: str) -> None:
    info = http.queue(queue)
    assert (info["ready"], info["held"], info["dead"]) == (0, 0, 0), "it was acknowledged, and is no dead letter"


def test_an_ack_by_http_that_was_sent_in_time_counts(server: Server, http: Http) -> None:
    queue = _with_one_message(http, "http")
    ack_id = http.one(queue)["ack_id"]
    connection = http.connect()
    connection.connect()
    with stopped(server, 2 * TIMEOUT_MS / 1000):
        body = b'{"ack_ids": ["%s"]}' % ack_id.encode()
        connection.request("POST", f"/v1/queues/{queue}/ack", body, {"content-type": "application/json"})
    answer = answer_of(connection.getresponse())
    connection.close()
    assert (answer.status, answer.json["settled"]) == (200, 1)
    _is_done(http, queue)


def test_an_ack_by_http_on_a_connection_that_nobody_had_accepted_yet_counts(server: Server, http: Http) -> None:
    queue = _with_one_message(http, "new")
    ack_id = http.one(queue)["ack_id"]
    with stopped(server, 2 * TIMEOUT_MS / 1000):
        connection = http.connect()
        body = b'{"ack_ids": ["%s"]}' % ack_id.encode()
        connection.request("POST", f"/v1/queues/{queue}/ack", body, {"content-type": "application/json"})
    answer = answer_of(connection.getresponse())
    connection.close()
    assert (answer.status, answer.json["settled"]) == (200, 1)
    _is_done(http, queue)


def test_an_ack_counts_though_another_consumer_asked_before_it_was_read(server: Server, http: Http) -> None:
    """Whatever makes the queue look at the time must not end what the ack is for."""
    queue = _with_one_message(http, "rival")
    with JsonLines(server.bootstrap) as rival, JsonLines(server.bootstrap) as consumer:
        [message] = consumer.get(queue)
        with stopped(server, 2 * TIMEOUT_MS / 1000):
            rival.send("get", queue=queue, count=1, wait_ms=0)
            consumer.send("settle", consumer=message["consumer"], tags=[message["tag"]], verdict="ack")
        assert rival.answer()["value"]["messages"] == []
        settled = consumer.answer()
        assert settled["status"] == "success", settled
        assert not settled["value"].get("unknown")
        _is_done(http, queue)


def test_a_native_ack_that_was_sent_in_time_counts(server: Server, http: Http) -> None:
    queue = _with_one_message(http, "native")
    with JsonLines(server.bootstrap) as lines:
        [message] = lines.get(queue)
        with stopped(server, 2 * TIMEOUT_MS / 1000):
            lines.send("settle", consumer=message["consumer"], tags=[message["tag"]], verdict="ack")
        assert not lines.answer()["value"].get("unknown")
        _is_done(http, queue)


def test_an_amqp_ack_that_was_sent_in_time_counts(server: Server, http: Http) -> None:
    queue = _with_one_message(http, "amqp")
    with Amqp(server.addresses["amqp"]).open() as amqp:
        amqp.channel()
        amqp.say(commands.Basic.Get(queue=queue))
        found, _, _ = amqp.content()
        assert isinstance(found, commands.Basic.GetOk)
        with stopped(server, 2 * TIMEOUT_MS / 1000):
            amqp.say(commands.Basic.Ack(found.delivery_tag or 0))
        amqp.ask(commands.Queue.Declare(queue=queue, passive=True))  # an answer: the ack before it was read
        _is_done(http, queue)


def test_an_amqp_client_whose_heartbeats_wait_is_not_cut_off(server: Server) -> None:
    with Amqp(server.addresses["amqp"]).open(heartbeat_s=1) as amqp:
        amqp.channel()
        with stopped(server, 4.5):
            for _ in range(4):
                amqp.send(heartbeat.Heartbeat().marshal())
        amqp.say(commands.Channel.Open(), 2)
        amqp.expect(commands.Channel.OpenOk)


def test_a_group_member_whose_heartbeat_was_sent_in_time_stays(server: Server) -> None:
    host, _, port = server.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as client:
        session_ms = 1_500
        protocols = struct.pack(">i", 1) + _text("range") + struct.pack(">i", 0)
        join = _text(name("group")) + struct.pack(">ii", session_ms, 60_000) + _text("") + _text("consumer") + protocols
        joined = _ask(client, 11, 2, join)
        _, error, generation = struct.unpack_from(">ihi", joined)
        assert error == 0
        protocol, at = _read_text(joined, 10)
        leader, at = _read_text(joined, at)
        member, at = _read_text(joined, at)
        assert (protocol, leader) == ("range", member)
        group = join[: 2 + struct.unpack_from(">h", join)[0]]
        who = group + struct.pack(">i", generation) + _text(member)
        synced = _ask(client, 14, 1, who + struct.pack(">i", 1) + _text(member) + struct.pack(">i", 0))
        assert struct.unpack_from(">ih", synced)[1] == 0
        with stopped(server, 2 * session_ms / 1000):
            client.sendall(_frame(12, 1, who))
        assert struct.unpack_from(">ih", _answer(client))[1] == 0, "it is a member still"
        assert struct.unpack_from(">ih", _ask(client, 12, 1, who))[1] == 0


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from(">h", data, at)[0]
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def _frame(api: int, version: int, body: bytes) -> bytes:
    data = struct.pack(">hhi", api, version, 1) + _text("test") + body
    return struct.pack(">i", len(data)) + data


def _ask(client: socket.socket, api: int, version: int, body: bytes) -> bytes:
    client.sendall(_frame(api, version, body))
    return _answer(client)


def _answer(client: socket.socket) -> bytes:
    """Without its size and correlation id."""
    with client.makefile("rb") as stream:
        size = struct.unpack(">i", stream.read(4))[0]
        return stream.read(size)[4:]
