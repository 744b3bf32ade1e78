"""A small blocking connection that speaks the native protocol: one question, one answer.

Spark's Python processes do one thing at a time, so this is a socket and msgpack, no loop. What goes wrong on the way to
the broker is an OSError, and `patiently` tries it again, with a line in the log of what is being waited for; what the
broker refuses is the error that it names. Several threads may use one link. For this package.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from waystation.client.failures import failure
from waystation.errors import ConnectionLost
from waystation.protocol import MAGIC, MAX_FRAME_BYTES, Ceased, Command, Deliver, Failure, Hello, HelloAnswer
from waystation.spark.sockets import receive_all

T = TypeVar("T")
Server = tuple[str, int]

log = logging.getLogger("waystation.spark")

CONNECT_S = 10.0
ANSWER_S = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SAY_AGAIN_S = 10.0
"""How often a wait for the broker is mentioned in the log."""


class _Answer(msgspec.Struct, tag_field="kind", tag="answer", gc=False):
    """`protocol.Answer` with its value left as it came."""

    id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


_encode = msgspec.msgpack.Encoder().encode
_Incoming = _Answer | Failure | Deliver | Ceased
_decoder: msgspec.msgpack.Decoder[_Incoming] = msgspec.msgpack.Decoder(_Incoming)


class NativeLink:
    """One connection to one broker. Raises OSError if nobody answers there."""

    def __init__(self, server: Server, client: str) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._readers: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
        self._socket = socket.create_connection(server, timeout=CONNECT_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(ANSWER_S)
            self._socket.sendall(MAGIC)
            self.ask(Hello(client=client), HelloAnswer)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, command: Command, kind: type[T]) -> T:
        """The answer as `kind`. A link on which this raises an OSError is of no more use."""
        with self._lock:
            self._last += 1
            command.id = self._last
            body = _encode(command)
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
            while True:
                found = self._receive()
                if isinstance(found, Failure) and found.id in (0, command.id):
                    raise failure(found.error, found.text)
                if isinstance(found, _Answer) and found.id == command.id:
                    return self._reader(kind).decode(found.value)  # type: ignore[no-any-return]

    def _reader(self, kind: Any) -> msgspec.msgpack.Decoder[Any]:
        reader = self._readers.get(kind)
        if reader is None:
            reader = self._readers[kind] = msgspec.msgpack.Decoder(kind)
        return reader

    def _receive(self) -> _Incoming:
        size = int.from_bytes(self._take(4), "big")
        if not 0 < size <= MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {size} bytes is none of the native protocol's")
        return _decoder.decode(self._take(size))

    def _take(self, size: int) -> bytearray:
        data = bytearray(size)
        receive_all(self._socket, data)
        return data

    def close(self) -> None:
        self._socket.close()


def link_to_any(servers: Sequence[Server], client: str) -> NativeLink:
    """A link to the first of the servers that answers; the last one's OSError if none does."""
    for server in servers[:-1]:
        try:
            return NativeLink(server, client)
        except OSError:
            continue
    return NativeLink(servers[-1], client)


def patiently(ask: Callable[[], T], servers: Sequence[Server], retry_s: float) -> T:
    """Does it, again and again while the broker is away, and says so; ConnectionLost when the time is over."""
    began = time.monotonic()
    said, pause = -SAY_AGAIN_S, FIRST_PAUSE_S
    name = ",".join(f"{host}:{port}" for host, port in servers)
    while True:
        try:
            result = ask()
        except OSError as error:
            gone = time.monotonic() - began
            trouble = f"the broker at {name} cannot be reached ({error.strerror or error or type(error).__name__})"
            if gone >= retry_s:
                raise ConnectionLost(
                    f"{trouble}, and {retry_s:.0f} s of trying are over; start it, or check the option servers (the"
                    " option retryTimeout says how long to try)"
                ) from None
            if gone - said >= SAY_AGAIN_S:
                said = gone
                log.warning("%s; trying again for %.0f s", trouble, retry_s - gone)
            time.sleep(min(pause, max(0.0, retry_s - gone)))
            pause = min(pause * 2, LONGEST_PAUSE_S)
            continue
        if said >= 0:
            log.warning("the broker at %s answers again after %.1f s", name, time.monotonic() - began)
        return result
