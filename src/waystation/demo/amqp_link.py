"""A small AMQP 0-9-1 client for `waystation demo`: publish with confirms, consume, ack; one connection, one channel.

The demo has to speak AMQP as RabbitMQ's users do, and a plain install brings no client for it. This is not one to build
on: it blocks, and it knows just what the demo asks for. For one thread at a time.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar

from pamqp import body, commands, frame, header, heartbeat

from waystation.client.links.address import Address
from waystation.errors import Unavailable

WAIT_S = 20.0
CHUNK = 256 * 1024
MIN_FRAME = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was delivered."""

    tag: int
    routing_key: str
    body: bytes


class AmqpLink:
    """Open from the start; `close` says goodbye."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port), WAIT_S)
        self._buffer = b""
        self._letters: deque[Letter] = deque()
        self._half: tuple[commands.Basic.Deliver, int, bytes] | None = None
        self._published = 0
        self._confirmed = 0
        self._socket.sendall(header.ProtocolHeader().marshal())
        self._expect(commands.Connection.Start)
        self._send(
            commands.Connection.StartOk({"product": "waystation demo"}, "PLAIN", "\0guest\0guest", "en_US"), channel=0
        )
        tune = self._expect(commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._send(commands.Connection.Open("/"), channel=0)
        self._expect(commands.Connection.OpenOk)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)
        self.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def call(self, method: Any, answer: type[T]) -> T:
        """Sends a method and waits for its answer."""
        self._send(method)
        return self._expect(answer)

    def publish(self, exchange: str, routing_key: str, payload: bytes, content_type: str) -> None:
        """Persistent; `settle` waits for the confirms."""
        properties = commands.Basic.Properties(content_type=content_type, delivery_mode=2)
        self._send(commands.Basic.Publish(0, exchange, routing_key))
        self._send(header.ContentHeader(body_size=len(payload), properties=properties))
        if payload:
            self._send(body.ContentBody(payload))
        self._published += 1

    def settle(self) -> int:
        """Waits until the broker has confirmed all that was published; returns how much that is."""
        while self._confirmed < self._published:
            self._read(WAIT_S)
        return self._confirmed

    def consume(self, queue: str, prefetch: int) -> None:
        self.call(commands.Basic.Qos(0, prefetch), commands.Basic.QosOk)
        self.call(commands.Basic.Consume(0, queue), commands.Basic.ConsumeOk)

    def take(self, wait_s: float) -> Letter | None:
        """The next message, or None when none came for so long."""
        while not self._letters:
            if not self._read(wait_s):
                return None
        return self._letters.popleft()

    def ack(self, tag: int) -> None:
        self._send(commands.Basic.Ack(tag))

    def close(self) -> None:
        try:
            self._send(commands.Connection.Close(200, "done", 0, 0), channel=0)
            self._expect(commands.Connection.CloseOk)
        except (OSError, Unavailable):
            pass  # it is deleted already
        finally:
            self._socket.close()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _send(self, value: Any, channel: int = 1) -> None:
        self._socket.sendall(frame.marshal(value, channel))

    def _expect(self, kind: type[T]) -> T:
        while True:
            for value in self._frames(WAIT_S):
                if isinstance(value, kind):
                    return value
                self._take(value)

    def _read(self, wait_s: float) -> bool:
        """Takes what the broker sends next; False if nothing came for so long."""
        values = self._frames(wait_s)
        for value in values:
            self._take(value)
        return bool(values)

    def _frames(self, wait_s: float) -> list[Any]:
        self._socket.settimeout(wait_s)
        try:
            data = self._socket.recv(CHUNK)
        except TimeoutError:
            return []
        if not data:
            raise Unavailable("the broker closed the AMQP connection")
        self._buffer += data
        values: list[Any] = []
        while len(self._buffer) >= MIN_FRAME:
            size = int.from_bytes(self._buffer[3:7], "big") + MIN_FRAME
            if len(self._buffer) < size:
                break
            values.append(frame.unmarshal(self._buffer[:size])[2])
            self._buffer = self._buffer[size:]
        return values

    def _take(self, value: Any) -> None:
        if isinstance(value, commands.Basic.Ack):
            self._confirmed = value.delivery_tag if value.multiple else self._confirmed + 1
        elif isinstance(value, commands.Basic.Deliver):
            self._half = (value, -1, b"")
        elif isinstance(value, header.ContentHeader) and self._half is not None:
            self._complete(self._half[0], value.body_size, b"")
        elif isinstance(value, body.ContentBody) and self._half is not None:
            self._complete(self._half[0], self._half[1], self._half[2] + value.value)
        elif isinstance(value, commands.Connection.Close | commands.Channel.Close):
            raise Unavailable(f"the broker closed the AMQP connection: {value.reply_text}")
        elif not isinstance(value, heartbeat.Heartbeat):
            raise Unavailable(f"the broker sent {type(value).__name__}, which the demo did not ask for")

    def _complete(self, method: commands.Basic.Deliver, size: int, payload: bytes) -> None:
        if len(payload) < size:
            self._half = (method, size, payload)
            return
        self._half = None
        self._letters.append(Letter(method.delivery_tag or 0, method.routing_key or "", payload))
