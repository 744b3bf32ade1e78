"""A small blocking connection that speaks the native protocol: one question, one answer.

Spark's Python processes do one thing at a time, so this is a socket and msgpack, no loop. What goes wrong on the way to
the broker is an OSError, and `retrying.patiently` tries it again; what the broker refuses is the error that it names.
Several threads may use one link. For this package.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, TypeVar

import msgspec

from waystation.client.links.failures import failure
from waystation.errors import NotAuthenticated
from waystation.protocol import (
    MAGIC,
    MAX_FRAME_BYTES,
    Authenticate,
    Ceased,
    Command,
    Deliver,
    Failure,
    Hello,
    HelloAnswer,
)
from waystation.spark.links.servers import Address, Servers
from waystation.spark.links.sockets import receive_all

T = TypeVar("T")


class _Answer(msgspec.Struct, tag_field="kind", tag="answer", gc=False):
    """`protocol.Answer` with its value left as it came."""

    id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


_encode = msgspec.msgpack.Encoder().encode
_Incoming = _Answer | Failure | Deliver | Ceased
_decoder: msgspec.msgpack.Decoder[_Incoming] = msgspec.msgpack.Decoder(_Incoming)


class NativeLink:
    """One connection to one of the brokers, logged in. Raises OSError if nobody answers there."""

    def __init__(self, servers: Servers, address: Address, client: str) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._readers: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
        self._socket = servers.open(address)
        try:
            self._socket.sendall(MAGIC)
            self._greet(servers, client)
        except NotAuthenticated as error:
            self._socket.close()
            raise servers.refused(address, str(error)) from None
        except (ssl.SSLError, ConnectionError) as error:
            self._socket.close()
            raise servers.unanswered(address, error) from None
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, servers: Servers, client: str) -> None:
        hello = Hello(client=client)
        if servers.login is None:
            self.ask(hello, HelloAnswer)
            return
        login = servers.login.exchange()
        hello.mechanism, hello.data = servers.login.mechanism, login.first()
        answer = self.ask(hello, HelloAnswer)
        while answer.challenge is not None:
            answer = self.ask(Authenticate(data=login.answer(answer.challenge)), HelloAnswer)
        login.finish(answer.data)

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


def link_to_any(servers: Servers, client: str) -> NativeLink:
    """A link to the first of the servers that answers; the last one's OSError if none does."""
    *others, last = servers.addresses
    for address in others:
        try:
            return NativeLink(servers, address, client)
        except OSError:
            continue
    return NativeLink(servers, last, client)
