"""Batches are bounded by bytes: large messages do not fill the memory for who does not read, or wants many."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import psutil
import pytest
from websockets.sync.client import connect

from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

MiB = 1024 * 1024
LARGE = 4 * MiB
COUNT = 60
HANDSHAKE = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {}\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("large")) as server:
        yield server


@pytest.fixture(scope="module")
def queue(server: Server) -> str:
    http = Http(server.addresses["http"])
    queue = unique("large")
    http("PUT", f"/v1/queues/{queue}")
    plain = {"content-type": "application/octet-stream"}
    for number in range(COUNT):
        http("POST", f"/v1/queues/{queue}/messages", bytes([65 + number % 26]) * LARGE, headers=plain)
    return queue


def rss(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


@pytest.mark.parametrize("kind", ["websocket", "events"])
def test_a_client_that_does_not_read_is_given_a_portion_of_bytes(server: Server, queue: str, kind: str) -> None:
    http = Http(server.addresses["http"])
    before = rss(server)
    upgrade = HANDSHAKE.format("dGhlIHNhbXBsZSBub25jZQ==") if kind == "websocket" else "x-requested-with: a test\r\n"
    with socket.create_connection(split_address(server.addresses["http"])) as sleeper:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = f"GET /v1/queues/{queue}/stream?prefetch=0 HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n"
        sleeper.sendall(asked.encode())
        wait_for(lambda: http.queue(queue)["held"], "something is on its way")
        for _ in range(20):
            http("GET", "/v1/overview")  # the broker has had its turns
        assert http.queue(queue)["held"] <= 4
        assert rss(server) - before < 80 * MiB
    wait_for(lambda: http.queue(queue)["ready"] == COUNT, "what the sleeper had is back")


def test_an_answer_ends_with_the_message_that_fills_it(server: Server, queue: str) -> None:
    http = Http(server.addresses["http"])
    before = rss(server)
    taken = http.take(queue, count=COUNT)
    assert len(taken) == 2, "8 MiB"
    http("POST", "/v1/release", {"ack_ids": [each["ack_id"] for each in taken]})
    assert rss(server) - before < 120 * MiB


def test_many_large_ones_come_to_a_client_that_reads(server: Server, queue: str) -> None:
    address = f"ws://{server.addresses['http']}/v1/queues/{queue}/stream?prefetch=0&auto_ack=true"
    got: list[str] = []
    with connect(address, open_timeout=DEADLINE_S, compression=None, max_size=None) as reader:
        while len(got) < COUNT:
            got += [each["payload"] for each in json.loads(reader.recv(timeout=DEADLINE_S))["messages"]]
    assert got == [chr(65 + number % 26) * LARGE for number in range(COUNT)], "all of them, in order"


def test_a_long_message_comes_in_fragments_and_answers_come_behind_it(server: Server) -> None:
    http = Http(server.addresses["http"])
    queue, payload = unique("fragments"), bytes(range(128)) * 8192
    http("PUT", f"/v1/queues/{queue}")
    plain = {"content-type": "application/octet-stream"}
    for body in (payload, b"short", payload):
        http("POST", f"/v1/queues/{queue}/messages", body, headers=plain)
    address = f"ws://{server.addresses['http']}/v1/queues/{queue}/stream?prefetch=0"
    got: list[str] = []
    answers = 0
    with connect(address, open_timeout=DEADLINE_S, compression=None, max_size=None) as reader:
        reader.send(json.dumps({"action": "ack", "ack_ids": ["none"], "id": 1}))
        while len(got) < 3 or not answers:
            said = json.loads(reader.recv(timeout=DEADLINE_S))
            answers += said["kind"] == "failure"
            got += [each["payload"] for each in said.get("messages", ())]
    assert [each.encode() for each in got] == [payload, b"short", payload]


def test_a_long_message_comes_as_one_event(server: Server) -> None:
    http = Http(server.addresses["http"])
    queue, payload = unique("events"), bytes(range(128)) * 8192
    http("PUT", f"/v1/queues/{queue}")
    plain = {"content-type": "application/octet-stream"}
    http("POST", f"/v1/queues/{queue}/messages", payload, headers=plain)
    http("POST", f"/v1/queues/{queue}/messages", b"short", headers=plain)
    with socket.create_connection(split_address(server.addresses["http"]), timeout=DEADLINE_S) as reader:
        head = "host: localhost\r\nx-requested-with: a test\r\n\r\n"
        reader.sendall(f"GET /v1/queues/{queue}/stream?prefetch=0 HTTP/1.1\r\n{head}".encode())
        said = b""
        while said.count(b"\n\n") < 2:
            said += reader.recv(1 << 20)
    events = [part.partition(b"data: ")[2] for part in said.partition(b"\r\n\r\n")[2].split(b"\n\n")[:2]]
    assert [json.loads(event)["payload"].encode() for event in events] == [payload, b"short"]


def test_a_websocket_that_asks_and_does_not_read_is_not_read(server: Server) -> None:
    http = Http(server.addresses["http"])
    queue = unique("asked")
    http("PUT", f"/v1/queues/{queue}")
    ack = json.dumps({"action": "ack", "ack_ids": ["none"], "id": 1}).encode()
    frames = (bytes((0x81, 0x80 | len(ack), 0, 0, 0, 0)) + ack) * 1000
    with socket.create_connection(split_address(server.addresses["http"]), timeout=DEADLINE_S) as asker:
        head = HANDSHAKE.format("dGhlIHNhbXBsZSBub25jZQ==")
        asker.sendall(f"GET /v1/queues/{queue}/stream HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode())
        assert asker.recv(12) == b"HTTP/1.1 101"
        asker.settimeout(5)
        sent = 0
        try:
            while sent < 32 * MiB:
                asker.sendall(frames)
                sent += len(frames)
        except TimeoutError:
            pass
        assert sent < 32 * MiB
        asker.settimeout(DEADLINE_S)
        answers = 0
        while answers < sent // len(ack) // 2:
            answers += asker.recv(1 << 20).count(b'"id":1')  # those that are cut in two do not matter
