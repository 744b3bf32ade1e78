"""A link over a socket: the four bytes of `MAGIC`, then frames of a four-byte length and one msgpack command or answer.

What is sent within one turn of the loop leaves in one write. Frames are decoded straight into the structs of
`protocol.py`; the value of an answer stays raw until the one who asked says what it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from waystation.client.links.forks import let_go
from waystation.client.links.link import Dial, Ear, Link
from waystation.client.links.servers import Server, elsewhere
from waystation.client.options.values import seconds
from waystation.errors import ConnectionLost, Invalid, TooLarge, WaystationError
from waystation.protocol import MAGIC, MAX_FRAME_BYTES, Ceased, Command, Deliver, Failure

BUSY_BYTES = 4 * 1024 * 1024
"""So much may wait in the socket's buffer before senders are asked to wait."""

_OTHERS = {b"HTTP": "HTTP", b"AMQP": "AMQP"}
"""Protocols that show in the first bytes of whatever they answer."""


class _Answer(msgspec.Struct, tag_field="kind", tag="answer", gc=False):
    """`protocol.Answer` with its value left as it came."""

    id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


def socket_dials(servers: Sequence[Server], timeout_s: float) -> list[Dial]:
    """A way to open sockets to each of the addresses; those that do not answer share the time."""
    if not seconds("timeout", timeout_s):
        raise Invalid("timeout: how long to wait for the broker, in seconds")
    return [_socket_dial(server, timeout_s / len(servers)) for server in servers]


def _socket_dial(server: Server, timeout_s: float) -> Dial:
    """Opens sockets to one address."""
    address = server.address
    context = None if server.tls is None else server.tls.context()

    async def dial(ear: Ear) -> Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, link = await loop.create_connection(
                    lambda: SocketLink(ear, str(address)), address.host, address.port, ssl=context
                )
        except TimeoutError:
            raise ConnectionLost(f"the broker at {address} did not answer within {timeout_s:g} s") from None
        except OSError as error:
            if _is_of_tls(error):
                raise ConnectionLost(
                    f"no TLS connection to {address} could be made: {error}{_ca_hint(error)}"
                ) from None
            raise ConnectionLost(
                f"no server answers at {address} ({_why(error)}); is `waystation serve` running there?"
            ) from None
        return link

    return dial


def _is_of_tls(error: OSError) -> bool:
    """A certificate that is not trusted, or no TLS at the other end."""
    return type(error).__module__ == "ssl"


def _ca_hint(error: OSError) -> str:
    return (
        "; `?ca=FILE` at the end of the address names a certificate authority to trust"
        if "VERIFY" in str(error)
        else ""
    )


def _why(error: OSError) -> str:
    """Without its number."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class SocketLink(asyncio.Protocol):
    """A `Link` and the asyncio protocol behind it."""

    remote = True

    def __init__(self, ear: Ear, peer: str) -> None:
        self._ear = ear
        self.peer = peer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._scheduled = False
        self._full = False
        self._over = False
        self._heard = False
        self._rest: list[bytes] = []  # pieces of a frame that is not whole yet
        self._have = 0
        self._need = 4
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Answer | Failure | Deliver | Ceased).decode
        self._readers: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    # -- out -------------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        if self._over:
            return
        body = self._encode(command)
        if len(body) > MAX_FRAME_BYTES:
            raise TooLarge(f"a request of {len(body)} bytes; the most is {MAX_FRAME_BYTES}: send less at once")
        self._out.append(len(body).to_bytes(4, "big"))
        self._out.append(body)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        out, self._out = self._out, []
        # The broker may have hung up in the same turn: uvloop's transports refuse what comes after that.
        if out and not self._over and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    @property
    def busy(self) -> bool:
        return self._full

    def close(self) -> None:
        if self._over:
            return
        self._write()
        self._over = True
        if self._transport is not None:
            self._transport.close()

    def forked(self) -> None:
        self._over = True
        if self._transport is not None:
            descriptor = self._transport.get_extra_info("socket").fileno()
            if descriptor >= 0:
                let_go(descriptor)

    # -- in --------------------------------------------------------------------------------------------------------

    def read(self, value: Any, kind: Any) -> Any:
        reader = self._readers.get(kind)
        if reader is None:
            reader = self._readers[kind] = msgspec.msgpack.Decoder(kind)
        return reader.decode(value)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, so there is nothing to check here.
        self._transport = stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=BUSY_BYTES)
        stream.write(MAGIC)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._heard = True
        if self._rest:
            self._rest.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._rest)
            self._rest = []
        try:
            self._frames(data)
        except msgspec.MsgspecError as error:
            self._fail(ConnectionLost(f"{self.peer} does not speak the native protocol ({error}); check the port"))

    def _frames(self, data: bytes) -> None:
        """All whole frames; what is left over is kept."""
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at >= 4:
            size = int.from_bytes(view[at : at + 4], "big")
            if size > MAX_FRAME_BYTES:
                self._fail(ConnectionLost(self._stranger(bytes(view[at : at + 4]), size)))
                return
            if end - at - 4 < size:
                self._keep(view[at:], size + 4)
                return
            self._dispatch(self._decode(view[at + 4 : at + 4 + size]))
            at += 4 + size
            if self._over:
                return
        if at < end:
            self._keep(view[at:], 4)

    def _stranger(self, head: bytes, size: int) -> str:
        """Who listens there, as far as it shows."""
        other = _OTHERS.get(head)
        if other is not None:
            return elsewhere(self.peer, other, self.peer)
        return f"{self.peer} does not speak the native protocol (a frame of {size} bytes); check the port"

    def _keep(self, left: memoryview, need: int) -> None:
        self._rest = [bytes(left)]
        self._have = len(left)
        self._need = need

    def _dispatch(self, item: _Answer | Failure | Deliver | Ceased) -> None:
        if isinstance(item, _Answer):
            self._ear.answered(item.id, item.value)
        elif isinstance(item, Deliver):
            self._ear.delivered(item.consumer, item.messages)
        elif isinstance(item, Failure):
            self._ear.failed(item.id, item.error, item.text)
        else:
            self._ear.ceased(item.consumer, item.error, item.text)

    def connection_lost(self, error: Exception | None) -> None:
        why = _why(error) if isinstance(error, OSError) else str(error or "")
        said = f" ({why})" if why else ""
        if not self._heard:
            said += " before it answered; is it a Waystation broker? Other Kafka brokers cannot be used"
        self._fail(ConnectionLost(f"the broker at {self.peer} closed the connection{said}"))

    def _fail(self, error: WaystationError) -> None:
        if self._over:
            return
        self._over = True
        if self._transport is not None:
            self._transport.abort()
        self._ear.lost(error)
