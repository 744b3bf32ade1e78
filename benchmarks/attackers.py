"""Clients that mean harm, by plain sockets: each makes the broker hold as much as it can, and costs little itself.

An attack opens its connections, sends what it has to send and then does nothing: it neither reads nor finishes. The
memory that it is worth to the broker is what the docs promise to bound ("How much memory a client can make the broker
use"). Called by the tests of that promise and by `benchmarks.hostile`.
"""

import base64
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from benchmarks.amqp_wire import AmqpWire, frame, long, method, short
from benchmarks.kafka_wire import LENGTH, MIB, kafka_fetch, kafka_request
from waystation import protocol

QUIET_S = 0.5
"""A broker that takes nothing for so long has stopped to read."""

TOPIC, EMPTY_TOPIC, QUEUE, EMPTY_QUEUE = "hostile", "hostile-empty", "hostile", "hostile-empty"
"""What whoever runs an attack has made: a topic and a queue with `STORED` messages of `MESSAGE_BYTES`; empty ones."""
STORED = 40
MESSAGE_BYTES = 900_000


class Attack:
    """Its connections, until they are closed."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self.sockets: list[socket.socket] = []

    def open(self, protocol: str) -> socket.socket:
        host, _, port = self._addresses[protocol].rpartition(":")
        opened = socket.create_connection((host, int(port)), timeout=10)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        opened.setblocking(False)
        self.sockets.append(opened)
        return opened

    def pour(self, loads: Sequence[tuple[socket.socket, bytes]]) -> None:
        """Sends all of it, or as much as the broker reads."""
        left = {opened: memoryview(data) for opened, data in loads}
        while left:
            _, ready, _ = select.select([], list(left), [], QUIET_S)
            if not ready:
                return
            for opened in ready:
                try:
                    left[opened] = left[opened][opened.send(left[opened][: 256 * 1024]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    left[opened] = memoryview(b"")  # the broker has had enough of it
                if not left[opened]:
                    del left[opened]

    def close(self) -> None:
        for opened in self.sockets:
            opened.close()
        self.sockets.clear()


# -- Kafka -------------------------------------------------------------------------------------------------------------


def kafka_fetch_pile(attack: Attack) -> None:
    """6.5 KB: a long poll, and 99 fetches behind it whose answers would have to wait for it."""
    pile = kafka_fetch(0, EMPTY_TOPIC, 60_000) + b"".join(kafka_fetch(number, TOPIC) for number in range(1, 100))
    attack.pour([(attack.open("kafka"), pile)])


def kafka_half_sent(attack: Attack) -> None:
    """Produce requests of 50 MiB without their last byte."""
    body = kafka_request(0, 9, 1, bytes(50 * MIB))[:-1]
    attack.pour([(attack.open("kafka"), body) for _ in range(20)])


def kafka_slow_readers(attack: Attack) -> None:
    """Fetches of everything, on connections that nobody reads."""
    attack.pour([(attack.open("kafka"), kafka_fetch(1, TOPIC)) for _ in range(40)])


def connection_flood(attack: Attack) -> None:
    """Connections that have said half a word."""
    attack.pour([(attack.open("kafka"), b"\x00") for _ in range(300)])


# -- native, and JSON lines --------------------------------------------------------------------------------------------


def native_frame(command: protocol.Command) -> bytes:
    body = msgspec.msgpack.encode(command)
    return LENGTH.pack(len(body)) + body


def native_half_sent(attack: Attack) -> None:
    """Frames of 50 MiB without their last byte."""
    part = protocol.MAGIC + LENGTH.pack(50 * MIB) + bytes(50 * MIB - 1)
    attack.pour([(attack.open("kafka"), part) for _ in range(20)])


def json_half_lines(attack: Attack) -> None:
    """Lines of nearly 8 MiB without their end."""
    attack.pour([(attack.open("kafka"), b"{" + b" " * (8 * MIB - 10)) for _ in range(60)])


def native_unread_gets(attack: Attack) -> None:
    """Gets of everything without a word read; and consumers with all the credit that there is."""
    get = [native_frame(protocol.Peek(id=number, queue=QUEUE, count=1_000)) for number in range(1, 200)]
    consume = [
        native_frame(protocol.Consume(id=number, consumer=number, queue=QUEUE, credit=10_000, auto_ack=False))
        for number in range(1, 100)
    ]
    for load in (get, consume):
        attack.pour([(attack.open("kafka"), protocol.MAGIC + b"".join(load)) for _ in range(10)])


# -- AMQP --------------------------------------------------------------------------------------------------------------


def amqp_unread_gets(attack: Attack) -> None:
    """basic.get, a thousand in a row, 27 bytes each; then reject what came, to get it again."""
    get = method(60, 70, b"\x00\x00" + short(QUEUE) + b"\x00")
    back = method(60, 120, Struct(">QB").pack(0, 3))  # nack of all, to be delivered again
    load = AmqpWire().hello() + (get * STORED + back) * 40
    attack.pour([(attack.open("amqp"), load) for _ in range(5)])


def amqp_unread_deliveries(attack: Attack) -> None:
    """Consumers without a prefetch, a hundred on each connection that nobody reads."""
    consume = [b"\x00\x00" + short(QUEUE) + short(f"c{number}") + b"\x00" + long(b"") for number in range(100)]
    load = AmqpWire().hello() + b"".join(method(60, 20, each) for each in consume)
    attack.pour([(attack.open("amqp"), load) for _ in range(10)])


def amqp_half_bodies(attack: Attack) -> None:
    """Messages of 15 MiB without their last frame: larger ones are refused by their header."""
    head = method(60, 40, b"\x00\x00" + short("") + short(EMPTY_QUEUE) + b"\x00")
    head += frame(2, 1, Struct(">HHQH").pack(60, 0, 15 * MIB, 0))
    body = frame(3, 1, bytes(100_000)) * (15 * MIB // 100_000 - 1)
    attack.pour([(attack.open("amqp"), AmqpWire().hello() + head + body) for _ in range(40)])


def amqp_tiny_frames(attack: Attack) -> None:
    """A message of some megabytes in frames of one byte each."""
    head = method(60, 40, b"\x00\x00" + short("") + short(EMPTY_QUEUE) + b"\x00")
    head += frame(2, 1, Struct(">HHQH").pack(60, 0, 15 * MIB, 0))
    body = frame(3, 1, b"x") * 200_000
    attack.pour([(attack.open("amqp"), AmqpWire().hello() + head + body) for _ in range(5)])


def amqp_unread_confirms(attack: Attack) -> None:
    """Publishes with confirms, which nobody reads."""
    load = AmqpWire().hello() + AmqpWire().put(1, EMPTY_QUEUE, [b"x" * 10] * 20_000)
    attack.pour([(attack.open("amqp"), load)])


# -- HTTP --------------------------------------------------------------------------------------------------------------


def http_slow_bodies(attack: Attack) -> None:
    """Bodies of 15 MiB without their last byte, with and without a length."""
    path = f"/v1/queues/{EMPTY_QUEUE}/messages?raw=true"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {15 * MIB}\r\n\r\n".encode()
    chunked = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    pieces = b"2\r\nxy\r\n" * (MIB // 2)
    loads = [head + bytes(15 * MIB - 1)] * 40 + [chunked + pieces] * 5
    attack.pour([(attack.open("http"), load) for load in loads])


def http_unread_answers(attack: Attack) -> None:
    """Requests for all that a queue has, one after another on connections that nobody reads."""
    asked = f"GET /v1/queues/{QUEUE}/peek?count=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 30
    attack.pour([(attack.open("http"), asked) for _ in range(40)])


def _websocket(path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def websockets_unread(attack: Attack) -> None:
    """Readers of a topic from its beginning, by WebSocket and by server-sent events, that do not read."""
    for number in range(10):
        path = f"/v1/subscriptions/stream?topic={TOPIC}&mode=stream&start=earliest&prefetch=0&group=unread"
        events = f"GET {path}-e{number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        attack.pour([(attack.open("http"), load) for load in (_websocket(f"{path}-w{number}"), events)])


class Known(NamedTuple):
    """An attack: which protocol's clients feel it most, and what to do."""

    protocol: str
    begin: Callable[[Attack], None]


ATTACKS: dict[str, Known] = {
    "Kafka, a pile of fetches": Known("kafka", kafka_fetch_pile),
    "Kafka, half-sent requests": Known("kafka", kafka_half_sent),
    "Kafka, answers unread": Known("kafka", kafka_slow_readers),
    "a flood of connections": Known("kafka", connection_flood),
    "native, half-sent frames": Known("native", native_half_sent),
    "JSON lines, half a line": Known("native", json_half_lines),
    "native, answers and deliveries unread": Known("native", native_unread_gets),
    "AMQP, gets unread": Known("amqp", amqp_unread_gets),
    "AMQP, deliveries unread": Known("amqp", amqp_unread_deliveries),
    "AMQP, half-sent messages": Known("amqp", amqp_half_bodies),
    "AMQP, frames of one byte": Known("amqp", amqp_tiny_frames),
    "AMQP, confirms unread": Known("amqp", amqp_unread_confirms),
    "HTTP, slow bodies": Known("http", http_slow_bodies),
    "HTTP, answers unread": Known("http", http_unread_answers),
    "WebSockets and events unread": Known("http", websockets_unread),
}
