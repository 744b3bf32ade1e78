"""Bad input against the real broker: its sender gets an error or loses its connection, nobody else feels anything.

Requests are real ones of every action, changed with a fixed seed: other values, other types, missing and unknown
fields, bytes flipped, frames cut. After every few a well-behaved client must still be served, the log must not speak of
failures of our own, and the broker's memory must not have grown out of proportion.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import psutil
import pytest

from tests.protocols.native.kit import Frames, JsonLines, frame_of
from tests.support.ports import split_address
from tests.support.server import Server
from waystation.protocol import MAGIC, AnyCommand
from waystation.protocols.native.framing.json_lines import COMMANDS

ROUNDS = 60
REQUESTS = 60
MEMORY_GROWTH_LIMIT = 150 * 1024 * 1024

NAMES = ["q", "q2", "t", "t.a", "", "x" * 300, "no/name", "__queues", "\x00", "ü", "*", "#", "("]
NUMBERS = [0, 1, 2, -1, 7, 255, 2**31, 2**53, 2**63 - 1, -(2**63)]
ODD: list[Any] = [None, True, 1.5, "text", [], {}, [[]], {"a": {"b": []}}, [1, 2], [[1, 2], [3, 4]], b"\xff"]
SETTINGS: list[Any] = [None, {}, {"max_length": 5}, {"hold_ms": -1}, {"overflow": "no"}, {"dead_letter": "q2"}, 5]
MESSAGES: list[Any] = [
    {"payload": "x"},
    {"payload": "x", "priority": 999},
    {"json": {"a": [1, 2]}},
    {"payload": "x", "delay_ms": 5, "ttl_ms": 50, "id": "same"},
    {"payload_base64": "///"},
    {},
    5,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


def _value(rng: random.Random, name: str, binary: bool) -> Any:
    if rng.random() < 0.15:
        odd = rng.choice(ODD)
        return odd if binary or not isinstance(odd, bytes) else "bytes"
    if name in ("queue", "topic", "exchange", "to", "alternate", "dead_letter", "group", "message_id", "prefix"):
        return rng.choice(NAMES)
    if name in ("topics", "message_ids"):
        return rng.sample(NAMES, rng.randrange(3))
    if name == "settings":
        return rng.choice(SETTINGS)
    if name == "messages":
        found = [rng.choice(MESSAGES) for _ in range(rng.randrange(4))]
        return [[b"x"], [b"y", None, None, {}, rng.choice(NUMBERS)]][: rng.randrange(3)] if binary else found
    if name == "message":
        return [b"x", "id"] if binary else rng.choice(MESSAGES)
    if name in ("runs", "offsets"):
        return [[rng.choice(NUMBERS), rng.choice(NUMBERS)] for _ in range(rng.randrange(3))]
    if name == "consumer":
        return rng.choice([1, 2, 3, -1, -2, 0, 2**60])
    if name in ("wait_ms", "rate", "timeout_ms"):
        return rng.choice([0, 1, 50, -1])
    if name == "mode":
        return rng.choice(["shared", "stream", "live", "other"])
    if name == "verdict":
        return rng.choice(["ack", "reject", "release", "kill", "other"])
    if name == "filter":
        return rng.choice([None, "headers.a = 1", "((((", "json.a like '%'", "not " * 500 + "true"])
    if name in ("kind", "syntax", "state", "start", "slow", "acks"):
        return rng.choice(["direct", "regex", "wildcard", "ready", "earliest", "drop", "none", "written", "topic"])
    return rng.choice([*NUMBERS, True, "text"])


def _request(rng: random.Random, binary: bool) -> dict[str, Any]:
    kinds = list(get_args(AnyCommand))
    kind = rng.choice(kinds)
    fields = [name for name in kind.__struct_fields__ if rng.random() < 0.85]
    found = {name: _value(rng, name, binary) for name in fields}
    found["id"] = rng.choice([0, 1, 5, 2**40])
    if rng.random() < 0.05:
        found["unknown"] = 1
    return {"action": kind.__struct_config__.tag, **found}


def _garbled(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.9:
        return data
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(1, len(changed) + 1)] if rng.random() < 0.3 else changed)


def _send(server: Server, data: bytes) -> None:
    """Sends all of it, and reads until the broker has nothing more to say."""
    with socket.create_connection(split_address(server.bootstrap), 10) as rude:
        try:
            rude.sendall(data)
            rude.settimeout(0.05)
            while rude.recv(65536):
                pass
        except OSError:
            pass


class Canary:
    """A client that must never notice what the others do."""

    def __init__(self, server: Server) -> None:
        self._lines = JsonLines(server.bootstrap)
        self._lines.queue("canary")
        self._sent = 0

    def sings(self) -> None:
        self._sent += 1
        self._lines.put("canary", str(self._sent))
        (message,) = self._lines.get("canary", wait_ms=20_000)
        assert message["payload"] == str(self._sent)
        self._lines.settle(message)

    def close(self) -> None:
        self._lines.close()


@pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])
def test_random_requests(server: Server, binary: bool) -> None:
    rng = random.Random(21 + binary)
    canary = Canary(server)
    assert server.process is not None
    before = psutil.Process(server.process.pid).memory_info().rss
    for _ in range(ROUNDS):
        requests = [_request(rng, binary) for _ in range(REQUESTS)]
        if binary:
            data = MAGIC + b"".join(_garbled(rng, frame_of(request)) for request in requests)
        else:
            lines = (json.dumps(request, default=str).encode() for request in requests)
            data = b'{"action": "ping"}\n' + b"".join(_garbled(rng, line) + b"\n" for line in lines)
        _send(server, data)
        canary.sings()
    canary.close()
    grown = psutil.Process(server.process.pid).memory_info().rss - before
    assert grown < MEMORY_GROWTH_LIMIT
    _no_faults_of_ours(server)


def _no_faults_of_ours(server: Server) -> None:
    log = server.log.read_text(errors="replace")
    if "Traceback" in log:
        pytest.fail(log[log.index("Traceback") - 300 :][:3000], pytrace=False)


def test_every_command_with_every_field_of_a_wrong_type(server: Server) -> None:
    with JsonLines(server.bootstrap) as lines:
        lines.ask("ping")
        for action, kind in COMMANDS.items():
            if action == "authenticate":
                continue  # a login that fails ends the connection
            for name in kind.__struct_fields__:
                if name == "id":
                    continue
                for value in (5.5, "text", [["deep"]], {"a": 1}, None):
                    request = {field: 1 for field in kind.__struct_fields__ if field not in ("id", "wait_ms")}
                    lines.send(action, **{**request, name: value})
                    assert lines.answer()["status"] in ("success", "error")
    _no_faults_of_ours(server)


def test_absurd_frames(server: Server) -> None:
    canary = Canary(server)
    huge = msgspec.msgpack.encode({"action": "put", "queue": "q", "messages": [[b""]] * 1_000_000})
    bodies = [
        b"\x91" * 100_000,
        b"\x81\xa1a" * 50_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x83\xa6action\xa3put\xa5queue\xa1q\xa8messages\xdd\x7f\xff\xff\xff",
        huge,
    ]
    for body in bodies:
        _send(server, MAGIC + len(body).to_bytes(4, "big") + body)
        canary.sings()
    for line in (b"[" * 1_000_000, b'{"a":' * 100_000, b'{"action":"put","queue":"q","messages":[' + b"{}," * 100_000):
        _send(server, b'{"action": "ping"}\n' + line + b"\n")
        canary.sings()
    canary.close()
    _no_faults_of_ours(server)


def test_a_broker_that_was_talked_at_starts_again(tmp_path: Path) -> None:
    """Whatever nonsense was stored, it can be read back."""
    rng = random.Random(3)
    with Server(tmp_path) as server:
        for _ in range(10):
            requests = [_request(rng, True) for _ in range(100)]
            _send(server, MAGIC + b"".join(map(frame_of, requests)))
        server.kill()
        server.restart()
        with Frames(server.bootstrap) as frames, JsonLines(server.bootstrap) as lines:
            frames.socket.sendall(b"")
            lines.queue("after")
            lines.put("after", "x")
            assert lines.get_payloads("after") == ["x"]
        _no_faults_of_ours(server)
