"""Bad input against the real broker: its sender gets an error or loses its connection, nobody else feels anything.

Frames are real requests of every API and version, mutated with a fixed seed. After every few frames a well-behaved
client on its own connection must still be served, and at the end the broker's memory must not have grown out of
proportion. The long run is `make soak`.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from tests.protocols.kafka import frames
from tests.support.server import Server
from waystation.log.batches import batch, compression

ANSWER_S = 5.0
CANARY_EVERY = 400
MEMORY_GROWTH_LIMIT = 150 * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"socket.request.max.bytes": 16 * 1024 * 1024, "group.min.session.timeout.ms": 100}
    with Server(tmp_path_factory.mktemp("fuzz"), settings=settings) as server:
        yield server


class Canary:
    """A client that must never notice what the others do."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all", "log_level": 0})
        self._sent = 0

    def sings(self) -> None:
        failures: list[object] = []
        self._producer.produce(
            "canary", str(self._sent), on_delivery=lambda error, _: failures.append(error) if error else None
        )
        assert self._producer.flush(20) == 0, self._server.tail()
        assert failures == [], self._server.tail()
        self._sent += 1

    def heard_everything(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._server.bootstrap,
                "group.id": "canary",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe(["canary"])
            heard: list[bytes] = []
            while len(heard) < self._sent:
                message = consumer.poll(20)
                assert message is not None, self._server.tail()
                assert message.error() is None
                heard.append(message.value() or b"")
            assert heard == [str(n).encode() for n in range(self._sent)]
        finally:
            consumer.close()


def connect(server: Server) -> socket.socket:
    host, _, port = server.bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=ANSWER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(server: Server, data: bytes, *, finish: bool = True) -> bytes | None:
    """What the broker answers (one frame), or None if it closed the connection."""
    with connect(server) as connection:
        try:
            connection.sendall(data)
            if finish:
                connection.shutdown(socket.SHUT_WR)  # nothing more will come: half a frame must not be waited for
            size = _read(connection, 4)
            return None if size is None else _read(connection, struct.unpack(">i", size)[0])
        except (ConnectionResetError, BrokenPipeError):
            return None


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = connection.recv(min(65536, size - len(data)))
        if not chunk:
            return None
        data += chunk
    return data


def all_frames() -> list[tuple[str, int, bytes]]:
    return [
        (api.name, version, frames.frame(api, version))
        for api in frames.apis()
        for version in range(api.min_version, api.max_version + 1)
    ]


@pytest.mark.parametrize("api", [api.name for api in frames.apis()])
def test_every_advertised_version_is_answered(server: Server, api: str) -> None:
    for name, version, data in all_frames():
        if name != api:
            continue
        answer = exchange(server, data, finish=False)
        assert answer is not None, f"{name} v{version} closed the connection:\n{server.tail()}"
        assert struct.unpack(">i", answer[:4])[0] == 1, f"{name} v{version}: not our correlation id"


class Mutator:
    """Makes bad frames out of good ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds = (self._flip, self._flip, self._truncate, self._lie, self._negative, self._splice, self._insert)

    def __call__(self, data: bytes) -> bytes:
        return self._random.choice(self._kinds)(bytearray(data))

    def _flip(self, data: bytearray) -> bytes:
        for _ in range(self._random.randint(1, 8)):
            data[self._random.randrange(4, len(data))] = self._random.randrange(256)
        return bytes(data)

    def _truncate(self, data: bytearray) -> bytes:
        """Ends early, with a length that fits what is left."""
        body = data[4 : self._random.randrange(4, len(data))]
        return struct.pack(">i", len(body)) + body

    def _lie(self, data: bytearray) -> bytes:
        """Claims another length than it has."""
        return struct.pack(">i", self._random.choice((0, 1, 7, 2**31 - 1, -1, -(2**31), len(data) * 3))) + data[4:]

    def _negative(self, data: bytearray) -> bytes:
        """A count or a length somewhere becomes negative or huge."""
        at = self._random.randrange(8, max(9, len(data) - 4))
        data[at : at + 4] = self._random.choice(
            (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\x7f")
        )
        return struct.pack(">i", len(data) - 4) + data[4:]

    def _splice(self, data: bytearray) -> bytes:
        """Another API's or version's number in front of the same body."""
        struct.pack_into(">hh", data, 4, self._random.randint(-2, 100), self._random.randint(-2, 25))
        return bytes(data)

    def _insert(self, data: bytearray) -> bytes:
        at = self._random.randrange(12, len(data) + 1)
        data[at:at] = self._random.randbytes(self._random.randint(1, 40))
        return struct.pack(">i", len(data) - 4) + data[4:]


def fuzz(server: Server, seed: int, rounds: int) -> None:
    canary = Canary(server)
    canary.sings()
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    good = all_frames()
    mutate = Mutator(seed)
    sent = 0
    for _ in range(rounds):
        for _, _, data in good:
            exchange(server, mutate(data))
            sent += 1
            if sent % CANARY_EVERY == 0:
                canary.sings()
    canary.sings()
    canary.heard_everything()
    grown = process.memory_info().rss - before
    assert grown < MEMORY_GROWTH_LIMIT, f"{sent} bad frames cost {grown} bytes of memory"
    assert "Traceback" not in server.log.read_text(), server.tail(80)


def test_mutated_frames_harm_nobody(server: Server) -> None:
    fuzz(server, seed=20261115, rounds=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_mutated_frames_harm_nobody_for_long(server: Server, seed: int) -> None:
    fuzz(server, seed, rounds=100)


def test_a_huge_length_costs_only_what_is_really_sent(server: Server) -> None:
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    connections = [connect(server) for _ in range(50)]
    try:
        for connection in connections:
            connection.sendall(struct.pack(">i", 16 * 1024 * 1024 - 100) + b"\0\0\0\x09" * 1_000)
        Canary(server).sings()
        assert process.memory_info().rss - before < 50 * 200_000
    finally:
        for connection in connections:
            connection.close()


def test_a_request_above_the_limit_ends_only_its_connection(server: Server) -> None:
    assert exchange(server, struct.pack(">i", 17 * 1024 * 1024) + bytes(1_000), finish=False) is None
    Canary(server).sings()


def test_an_unknown_api_version_is_told_in_the_oldest_form(server: Server) -> None:
    header = struct.pack(">hhih", 18, 99, 5, -1)
    answer = exchange(server, struct.pack(">i", len(header)) + header)
    assert answer is not None
    assert struct.unpack(">ih", answer[:6]) == (5, 35)


def produce_frame(data: bytes) -> bytes:
    topic = b"bomb"
    body = struct.pack(">hhii", -1, -1, 1_000, 1) + struct.pack(">h", len(topic)) + topic
    body += struct.pack(">iii", 1, 0, len(data)) + data
    header = struct.pack(">hhih", 0, 7, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_error(answer: bytes | None) -> int:
    """The error code of the only partition in a Produce v7 answer."""
    assert answer is not None
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(b"bomb") + 4 + 4)[0])


@pytest.fixture(scope="module")
def bomb_topic(server: Server) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topic = NewTopic("bomb", 1, 1, config={"cleanup.policy": "compact", "max.message.bytes": "12000000"})
    for future in admin.create_topics([topic]).values():
        future.result()


@pytest.mark.usefixtures("bomb_topic")
@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD])
def test_a_zip_bomb_is_refused_and_not_stored(server: Server, codec: int) -> None:
    """A compacted topic looks into batches; one that swells beyond all bounds is an error, not a swollen broker."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    header = batch.Header(0, 0, -1, 2, 0, codec, 0, 0, 0, -1, -1, -1, 1)
    swollen = compression.compress(codec, bytes(compression.MAX_DECOMPRESSED_BYTES + 1))
    answer = exchange(server, produce_frame(bytes(batch.assemble(header, swollen))), finish=False)
    assert produce_error(answer) == 10  # MESSAGE_TOO_LARGE
    assert process.memory_info().rss < 600 * 1024 * 1024
    Canary(server).sings()


@pytest.mark.usefixtures("bomb_topic")
@pytest.mark.parametrize(
    ("what", "damage", "error"),
    [
        ("a flipped bit", lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:], 2),
        ("a wrong length", lambda data: data[:8] + b"\0\0\0\x40" + data[12:], 2),
        ("an old format", lambda data: data[:16] + b"\1" + data[17:], 43),
        ("an unknown format", lambda data: data[:16] + b"\7" + data[17:], 2),
        ("nothing", lambda data: b"", 87),
    ],
)
def test_a_broken_batch_is_refused_with_its_own_error(server: Server, what: str, damage: object, error: int) -> None:
    good = bytes(batch.build([(b"k", b"v" * 100, ())], 1_700_000_000_000))
    answer = exchange(server, produce_frame(damage(good)))  # type: ignore[operator]
    assert produce_error(answer) == error, what


def test_the_log_file_has_no_traceback(server: Server, tmp_path: Path) -> None:
    """Last on purpose: whatever the tests above sent was the peer's fault, and was treated as such."""
    assert "Traceback" not in server.log.read_text(), server.tail(80)
