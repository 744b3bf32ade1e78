"""What the load generator says to a broker, byte for byte: the shape that our native protocol, NATS JetStream, Redis
Streams and AMQP have in common.

A wire is sans-I/O: it makes requests and takes what came back apart; the generator owns the socket. Requests can be
made beforehand, and answers are taken apart many at a time, so that the generator is not what is measured. The peers'
way of speaking is that of `blast.c` in the project's peers folder: one request a message, every publish answered,
every delivery acknowledged by its own id. A broker that says no raises `Refused`. Called by `benchmarks.generator`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

GROUP = "bench"


class Refused(Exception):
    """The broker answered a request with an error; the message is what it said."""


class Taken(NamedTuple):
    """What came of some received bytes: payloads, and what to send back for them."""

    payloads: Sequence[bytes]
    reply: bytes


class Wire(Protocol):
    """One connection's worth of a protocol. `answers` and `take` swallow bytes as they come, torn anywhere."""

    def hello(self) -> bytes:
        """The first bytes of a connection; they have `hello_answers` answers."""

    hello_answers: int

    def declare(self, queue: str) -> bytes: ...

    def put(self, number: int, queue: str, payloads: Sequence[bytes], delays_ms: Sequence[int] = ()) -> bytes:
        """One request, or one a message where the protocol has no larger one; `number` tells requests apart."""

    def answers_to(self, batch: int) -> int:
        """How many answers a `put` of so many messages gets."""

    def answers(self, data: bytes) -> int:
        """How many answers these bytes completed."""

    def ask_count(self, queue: str) -> bytes: ...

    def read_count(self, data: bytes) -> int | None:
        """How many messages the queue holds, or None if the answer is not all there yet."""

    def subscribe(self, queue: str, batch: int, in_flight: int) -> bytes:
        """Begin to consume; acknowledge `batch` messages at a time where the protocol can."""

    def take(self, data: bytes) -> Taken: ...

    def leave(self) -> bytes:
        """A last request after everything was acknowledged."""

    def left(self, data: bytes) -> bool:
        """Whether the broker has by now taken every acknowledgement."""
