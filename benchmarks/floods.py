"""One tenant's clients at full speed by one protocol, as `jobs.Flood` describes it.

Run as `python -m benchmarks.floods JOB`. Every connection sends what it has as fast as the broker reads it, asks for as
much as the broker gives, and heeds no word about quotas: a client that waits when it is told to is no flood. Requests
are made beforehand. It is nice to the other processes of the machine: what it takes from the broker's other clients is
to be measured, not what it takes from the machine.
"""

import base64
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

import msgspec

from benchmarks import jobs
from benchmarks.addresses import parse_address
from benchmarks.amqp_wire import AmqpWire
from benchmarks.kafka_wire import LOGIN_ANSWERS, KafkaAnswers, kafka_fetch, kafka_login, kafka_produce
from benchmarks.line import STALL_LIMIT_S, Failed, payloads
from benchmarks.native_wire import NativeWire
from benchmarks.wires import Wire

SIZE = 100
REQUESTS = 500
"""In the load that is sent again and again."""
RECORDS = 1_000
"""In a batch of Kafka's protocol."""
UNACKED = 500
"""Messages of a consumer."""
RECEIVE_BYTES = 256 * 1024
NICE = 10


class Load(Protocol):
    """What one connection sends, and what it makes of the answers. Sans-I/O."""

    again: bytes
    """Sent without end; nothing, if it only answers."""

    def hello(self) -> bytes: ...

    def greeted(self, data: bytes) -> bool:
        """Whether these bytes were the last of the answers to the hello."""

    def begin(self) -> bytes: ...

    def took(self, data: bytes) -> tuple[int, bytes]:
        """How many bytes of messages these bytes stand for, and what to send back."""


class _OfWire:
    """What puts and takes by a wire have in common."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._missing = wire, wire.hello_answers

    def hello(self) -> bytes:
        return self._wire.hello()

    def greeted(self, data: bytes) -> bool:
        self._missing -= self._wire.answers(data)
        return self._missing <= 0


class Puts(_OfWire):
    """One message a request."""

    def __init__(self, wire: Wire, queue: str) -> None:
        super().__init__(wire)
        bodies = payloads(SIZE)
        self.again = b"".join(wire.put(number, queue, [bodies[number]]) for number in range(REQUESTS))

    def begin(self) -> bytes:
        return b""

    def took(self, data: bytes) -> tuple[int, bytes]:
        return self._wire.answers(data) * SIZE, b""


class Takes(_OfWire):
    """Consumes, and acknowledges each message by itself."""

    again = b""

    def __init__(self, wire: Wire, queue: str) -> None:
        super().__init__(wire)
        self._queue = queue

    def begin(self) -> bytes:
        return self._wire.subscribe(self._queue, 1, UNACKED)

    def took(self, data: bytes) -> tuple[int, bytes]:
        taken = self._wire.take(data)
        return sum(map(len, taken.payloads)), taken.reply


class KafkaRequests:
    """Requests of one kind. `size`: what an answer stands for; None: as many bytes as it has."""

    def __init__(self, job: jobs.Flood, again: bytes, size: int | None) -> None:
        self._login = kafka_login(job.user, job.password)
        self.again, self._size = again, size
        self._answers, self._missing = KafkaAnswers(), LOGIN_ANSWERS

    def hello(self) -> bytes:
        return self._login

    def greeted(self, data: bytes) -> bool:
        self._missing -= self._answers.count(data)
        return self._missing <= 0

    def begin(self) -> bytes:
        return b""

    def took(self, data: bytes) -> tuple[int, bytes]:
        return (len(data) if self._size is None else self._answers.count(data) * self._size), b""


class Posts:
    """One message a request, one request behind the other without waiting."""

    def __init__(self, job: jobs.Flood, queue: str) -> None:
        login = base64.b64encode(f"{job.user}:{job.password}".encode()).decode()
        head = f"POST /v1/queues/{quote(queue, safe='')}/messages?raw=true HTTP/1.1\r\nHost: localhost\r\n"
        whole = f"{head}Authorization: Basic {login}\r\nContent-Length: {SIZE}\r\n\r\n".encode() + payloads(SIZE)[0]
        self.again = whole * REQUESTS

    def hello(self) -> bytes:
        return b""

    def greeted(self, data: bytes) -> bool:
        return True

    def begin(self) -> bytes:
        return b""

    def took(self, data: bytes) -> tuple[int, bytes]:
        return data.count(b"HTTP/1.1 2") * SIZE, b""  # one that is torn between two reads is not counted


def load_of(job: jobs.Flood) -> Load:
    login = {"user": job.user, "password": job.password}
    match job.kind:
        case "kafka-produce":
            bodies = payloads(SIZE)[:RECORDS]
            batch = kafka_produce(3, job.name, bodies, int(time.time() * 1000))
            return KafkaRequests(job, batch, SIZE * len(bodies))
        case "kafka-fetch":
            return KafkaRequests(job, kafka_fetch(3, job.name) * REQUESTS, None)
        case "native-put":
            return Puts(NativeWire(**login), job.name)
        case "native-take":
            return Takes(NativeWire(**login), job.name)
        case "amqp-publish":
            return Puts(AmqpWire(**login, vhost=job.namespace), job.name)
        case "amqp-consume":
            return Takes(AmqpWire(**login, vhost=job.namespace), job.name)
        case "http-post":
            return Posts(job, job.name)


class Connection:
    """One that has logged in."""

    def __init__(self, load: Load, address: str) -> None:
        where = parse_address(address)
        self.socket = socket.create_connection((where.host, where.port), STALL_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.moved = 0  # bytes of messages
        self._load, self._pending = load, memoryview(b"")
        if hello := load.hello():
            self.socket.sendall(hello)
            while not load.greeted(self._receive()):
                pass
        self.socket.setblocking(False)

    def begin(self) -> None:
        self._pending = memoryview(self._load.begin())

    @property
    def events(self) -> int:
        more = bool(self._pending or self._load.again)
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if more else 0)

    def read(self) -> None:
        moved, reply = self._load.took(self._receive())
        self.moved += moved
        if reply:
            self._pending = memoryview(bytes(self._pending) + reply)

    def write(self) -> None:
        data = self._pending or memoryview(self._load.again)
        self._pending = data[self.socket.send(data) :]

    def _receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Failed("the broker closed a connection of the flood")
        return data


def flood(connections: list[Connection], over: Callable[[], bool]) -> float:
    """Until it is over; how long that was."""
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.begin()
            selector.register(connection.socket, connection.events, connection)
        while not over():
            for key, ready in selector.select(0.05):
                connection = key.data
                if ready & selectors.EVENT_READ:
                    connection.read()
                if ready & selectors.EVENT_WRITE:
                    connection.write()
                if connection.events != key.events:
                    selector.modify(connection.socket, connection.events, connection)
    return time.monotonic() - began


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=jobs.Flood)
    os.nice(NICE)
    connections = [Connection(load_of(job), job.address) for _ in range(job.connections)]
    print(jobs.READY, flush=True)
    sys.stdin.readline()
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    seconds = flood(connections, over.is_set)
    moved = sum(connection.moved for connection in connections)
    if not moved:
        raise Failed("the broker has taken nothing of the flood")
    print(msgspec.json.encode(jobs.Transfer(moved, seconds, time.process_time())).decode(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
