"""A connection of the load generator, and what is sent over it.

Payloads are random letters, so that no broker gains from repetition and no payload looks like an answer. Called by
`benchmarks.generator`, `benchmarks.crowd` and the Python clients (for the payloads).
"""

import base64
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from itertools import count as count_from

from benchmarks import jobs
from benchmarks.addresses import MECHANISM, Address, parse_address
from benchmarks.amqp_wire import AmqpWire
from benchmarks.native_wire import NativeWire
from benchmarks.nats_wire import NatsWire
from benchmarks.redis_wire import RedisWire
from benchmarks.wires import Wire
from waystation.client.links.login import Credentials

WIRES: dict[str, Callable[[], Wire]] = {
    "native": NativeWire,
    "nats": NatsWire,
    "redis": RedisWire,
    "amqp": AmqpWire,
    "amqp-quorum": lambda: AmqpWire("quorum"),
    "amqp-classic": lambda: AmqpWire("classic"),
}
DISTINCT_PAYLOADS = 1024
STALL_LIMIT_S = 120.0
RECEIVE_BYTES = 1 << 20


class Failed(Exception):
    """The broker did not do what the job needs."""


def payloads(size: int) -> list[bytes]:
    source = random.Random(size)
    return [base64.b64encode(source.randbytes(size))[:size] for _ in range(DISTINCT_PAYLOADS)]


class Line:
    """A connection: a socket and the wire that is spoken on it."""

    def __init__(self, wire: jobs.WireName, address: str, *, greet: bool = True) -> None:
        where = parse_address(address)
        self.wire: Wire = WIRES[wire]()
        self.socket = socket.create_connection((where.host, where.port), STALL_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.ca:
            context = ssl.create_default_context(cafile=where.ca)
            self.socket = context.wrap_socket(self.socket, server_hostname=where.host)
        if where.user:
            self._log_in(where)
        elif greet:
            self.ask(self.wire.hello(), self.wire.hello_answers)

    def _log_in(self, where: Address) -> None:
        if not isinstance(self.wire, NativeWire):
            raise Failed("of the wires, only the native one logs in by SCRAM")
        login = Credentials(where.user, where.password, MECHANISM).exchange()
        self.send(self.wire.log_in(MECHANISM, login.first()))
        while (challenge := self.wire.read_challenge(self.receive())) is None:
            pass
        self.ask(self.wire.authenticate(login.answer(challenge)))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Failed("the broker closed the connection")
        return data

    def ask(self, request: bytes, answers: int = 1) -> None:
        self.send(request)
        self.await_answers(answers)

    def await_answers(self, answers: int) -> None:
        while answers > 0:
            answers -= self.wire.answers(self.receive())

    def await_left(self) -> None:
        """Until the broker has taken every acknowledgement; the wire's `leave` was sent before."""
        data = b""
        while not self.wire.left(data):
            data = self.receive()


def made_beforehand(wire: Wire, queue: str, size: int, batch: int) -> Iterator[bytes]:
    """Requests without end, of which a few hundred different messages were encoded before the clock starts."""
    bodies, last = payloads(size), DISTINCT_PAYLOADS - 1
    kinds = max(8, DISTINCT_PAYLOADS // batch)
    made = [wire.put(n, queue, [bodies[(n * batch + i) & last] for i in range(batch)]) for n in range(kinds)]
    return (made[n % kinds] for n in count_from())
