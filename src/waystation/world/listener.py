"""Listening sockets whose accepting is ours, so that nobody can take the file handles that the logs need.

An event loop's own server accepts everything that waits before the first connection can be refused: a flood takes a
thousand handles in one turn. Here a connection is counted when it is accepted (`enter`), and one too many is closed
before anything is made for it. When the process has no handle even for that, accepting pauses instead of being tried
again in every turn: what waits stays in the kernel's queue.

Used by the listeners, on the loop's thread only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from waystation.observe.events import event_logger

if TYPE_CHECKING:
    import ssl

logger = event_logger("waystation.listener")

Leave = Callable[[], None]
Enter = Callable[[str], Leave | None]
"""Lets a client in, whose host it is told: gives what to call when its connection is over; None: there is no room."""
Welcome = Callable[[Leave], asyncio.BaseProtocol]
"""Makes the protocol of a connection, which calls what it is given once, when it is over."""

BACKLOG = 1024
ACCEPTS_PER_TURN = 8
"""Others have their turn between them: to make a connection takes some fifty microseconds."""
FIRST_BYTE_S = 30.0
"""Where a port speaks TLS and plain: how long a client may be silent before it is known what it speaks."""
TLS_HANDSHAKE_S = 10.0
TLS_FAREWELL_S = 3.0
TLS_FIRST_BYTE = b"\x16"
"""Of a TLS handshake. No protocol that is served here begins with it: a Kafka request would have 369 MB."""
PAUSE_S = 0.5
"""When accepting failed: no file handles, no memory. The loop would be told of the waiting client in every turn."""


class Encryption(Protocol):
    """How the connections of a listener are encrypted."""

    @property
    def plain(self) -> bool:
        """Whether those that begin without TLS are served, too."""

    def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""


class Listener:
    """One address, which may be several sockets (`localhost`). A protocol of an encrypted connection is made when its
    handshake is over; before that, the client has nothing but its place among the connections."""

    def __init__(
        self, host: str, port: int, enter: Enter, welcome: Welcome, encryption: Encryption | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._enter = enter
        self._welcome = welcome
        self._encryption = encryption
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._arriving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listens; returns the port, which was chosen now where 0 was asked for. OSError if it cannot."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        port = self._port
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                port = self._bind(socket.socket(family, kind, protocol), (address[0], port, *address[2:]))
        except OSError:
            self.close()
            raise
        for one in self._sockets:
            one.listen(BACKLOG)
            loop.add_reader(one.fileno(), self._accept, one)
        return port

    def _bind(self, one: socket.socket, address: tuple[Any, ...]) -> int:
        self._sockets.append(one)
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if one.family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        return int(one.getsockname()[1])

    def close(self) -> None:
        """No more arrivals. Connections that were made go on."""
        loop = asyncio.get_running_loop()
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()
        for one in self._sockets:
            loop.remove_reader(one.fileno())
            with suppress(OSError):  # not every system has this for a listening socket
                one.shutdown(socket.SHUT_RDWR)  # a child that was forked may have it too: closing ours is not enough
            one.close()
        self._sockets.clear()
        for task in self._arriving:
            task.cancel()  # in the middle of a handshake

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                arrived, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            leave = self._enter(str(peer[0]))
            if leave is None:
                arrived.close()
                continue
            arrived.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._receive(arrived, leave))
            self._arriving.add(task)  # a loop keeps only weak references
            task.add_done_callback(self._arriving.discard)

    async def _receive(self, arrived: socket.socket, leave: Leave) -> None:
        loop = asyncio.get_running_loop()
        encryption = self._encryption
        try:
            if encryption is None or (encryption.plain and not await _begins_with_tls(arrived)):
                await loop.connect_accepted_socket(lambda: self._welcome(leave), arrived)
            else:
                await loop.connect_accepted_socket(
                    lambda: _Handshake(self._welcome, leave),
                    arrived,
                    ssl=encryption.context(),
                    ssl_handshake_timeout=TLS_HANDSHAKE_S,
                    ssl_shutdown_timeout=TLS_FAREWELL_S,
                )
        except BaseException as error:
            arrived.close()
            leave()
            if not isinstance(error, Exception):
                raise
            if encryption is not None and isinstance(error, OSError | TimeoutError | EOFError):
                # A peer that speaks something else, has no certificate, or trusts none of ours.
                logger.info("tls.refused", "a TLS connection could not be made: {error}", error=error or "no answer")
                return
            logger.warning("connection.not_served", "a connection could not be served: {error}", error=repr(error))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        logger.warning("listener.paused", "no connections are accepted for a moment: {error}", error=error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._pauses[listening] = loop.call_later(PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)


class _Handshake(asyncio.Protocol):
    """Stands for the protocol of an encrypted connection while there is none: a loop asks for one before the handshake,
    and tells it nothing if that fails, so that whatever had noted it would keep it forever."""

    def __init__(self, welcome: Welcome, leave: Leave) -> None:
        self._welcome = welcome
        self._leave = leave

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            protocol = self._welcome(self._leave)
        except Exception as error:  # the loop would not end the connection
            logger.warning("connection.not_served", "a connection could not be served: {error}", error=repr(error))
            transport.close()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()


async def _begins_with_tls(arrived: socket.socket) -> bool:
    """Whether the first byte that the client sends is that of a TLS handshake; the byte stays where it is. Raises
    TimeoutError if none comes, EOFError if none will."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(arrived.fileno(), ready)
    try:
        async with asyncio.timeout(FIRST_BYTE_S):
            await readable
    finally:
        loop.remove_reader(arrived.fileno())
    first = arrived.recv(1, socket.MSG_PEEK)
    if not first:
        raise EOFError("the client has said nothing")
    return first == TLS_FIRST_BYTE
