"""AMQP by hand: frames made with pamqp, sent over a plain socket, so that tests can also send what no client would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pamqp import body, commands, header, heartbeat
from pamqp import frame as frames
from pamqp.base import Frame

from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES: dict[str, Any] = {
    "capabilities": {
        "authentication_failure_close": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "basic.nack": True,
    }
}
Content = tuple[Frame, header.ContentHeader, bytes]


class Gone(AssertionError):
    """The broker closed the connection."""


def raw(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """A frame of any kind."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(value: Frame, channel: int) -> bytes:
    return frames.marshal(value, channel)


def publish(
    channel: int, payload: bytes, key: str, exchange: str = "", frame_max: int = 131_072, **options: Any
) -> bytes:
    """The frames of a publish; options of `Basic.Publish`, and `properties`."""
    properties = options.pop("properties", None) or commands.Basic.Properties(delivery_mode=2)
    parts = [
        method(commands.Basic.Publish(0, exchange, key, **options), channel),
        frames.marshal(header.ContentHeader(0, len(payload), properties), channel),
    ]
    step = frame_max - 8
    parts += [frames.marshal(body.ContentBody(payload[at : at + step]), channel) for at in range(0, len(payload), step)]
    return b"".join(parts)


class Amqp:
    """One connection. `open` does the handshake; `ask` sends a method and returns the next one that comes."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(split_address(address), DEADLINE_S)
        self._buffer = b""

    def __enter__(self) -> Amqp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def open(self, vhost: str = "/", *, heartbeat_s: int = 0, frame_max: int = 131_072, channel_max: int = 0) -> Amqp:
        self.send(HEADER)
        start = self.expect(commands.Connection.Start)
        assert start.version_major == 0
        self.login()
        self.expect(commands.Connection.Tune)
        self.say(commands.Connection.TuneOk(channel_max, frame_max, heartbeat_s), 0)
        self.say(commands.Connection.Open(vhost), 0)
        self.expect(commands.Connection.OpenOk)
        return self

    def login(self, user: str = "guest", password: str = "guest") -> None:
        self.say(commands.Connection.StartOk(dict(CAPABILITIES), "PLAIN", f"\x00{user}\x00{password}", "en_US"), 0)

    def channel(self, number: int = 1) -> int:
        self.say(commands.Channel.Open(), number)
        self.expect(commands.Channel.OpenOk)
        return number

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, value: Frame, channel: int = 1) -> None:
        self.send(method(value, channel))

    def ask(self, value: Frame, channel: int = 1) -> Any:
        self.say(value, channel)
        return self.next()

    def expect(self, kind: type[Frame]) -> Any:
        found = self.next()
        assert isinstance(found, kind), f"{kind.__name__} was expected, and this came: {shown(found)}"
        return found

    def next(self) -> Any:
        """The next frame that is no heartbeat: a method, a content header or a body."""
        while True:
            _, _, value = frames.unmarshal(self._frame())
            if not isinstance(value, heartbeat.Heartbeat):
                return value

    def next_raw(self) -> bytes:
        """The payload of the next frame, whatever it is."""
        return self._frame()[7:-1]

    def _frame(self) -> bytes:
        while True:
            if len(self._buffer) >= 7:
                size = 8 + int.from_bytes(self._buffer[3:7], "big")
                if len(self._buffer) >= size:
                    data, self._buffer = self._buffer[:size], self._buffer[size:]
                    return data
            more = self.socket.recv(65536)
            if not more:
                raise Gone("the broker closed the connection")
            self._buffer += more

    def content(self) -> Content:
        """A deliver, get-ok or return, with its properties and body."""
        what = self.next()
        head = self.next()
        assert isinstance(head, header.ContentHeader), f"{shown(what)}, {shown(head)}"
        payload = b""
        while len(payload) < head.body_size:
            payload += self.next().value
        return what, head, payload

    def until_gone(self) -> list[Any]:
        """Everything that still comes."""
        found = []
        try:
            while True:
                found.append(self.next())
        except (Gone, ConnectionError):
            return found


def shown(value: Any) -> str:
    return f"{getattr(value, 'name', value)} {dict(value) if isinstance(value, Frame) else ''}"


@contextmanager
def connected(server: Server, vhost: str = "/", **options: Any) -> Iterator[Amqp]:
    """A connection with channel 1 open."""
    with Amqp(server.addresses["amqp"]) as amqp:
        amqp.open(vhost, **options)
        amqp.channel()
        yield amqp
