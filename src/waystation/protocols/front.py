"""The front of a port that several protocols share: the first byte that a client sends says which one is meant.

The front knows no protocol; it is given them. It owns the listening socket, lets in whom `enter` lets in
(`max.connections`) and closes those that are silent for too long (`connections.max.idle.ms`), whatever they speak, and
those that take too long to log in (`waystation.login.timeout.ms`) while everybody has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from waystation.observe.events import event_logger
from waystation.world.alarm import PatientTimer
from waystation.world.listener import Encryption, Enter, Leave, Listener

if TYPE_CHECKING:
    from waystation.config import BrokerSettings
    from waystation.world.clock import Clock

logger = event_logger("waystation.listener")

IDLE_CHECK_S = 10.0
FIRST_READ = 16 * 1024
FAREWELL_TURNS = 20
NOTHING = bytearray()


class Guest(Protocol):
    """A connection, as the front sees it: an asyncio.BufferedProtocol that can be asked and told a little more."""

    last_active: float

    @property
    def logs_in(self) -> bool:
        """Whether it has to log in, and has not yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def close(self) -> None: ...


Welcome = Callable[[Callable[[], None]], Guest]
"""Makes a guest; it calls what it is given once, when its connection is over."""


Prepare = Callable[[int], "asyncio.Future[None] | None"]
"""What a connection that begins with this byte has to wait for; None: nothing."""


class Front:
    """Opens when started; `stop` closes it and every connection."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: BrokerSettings,
        clock: Clock,
        enter: Enter,
        otherwise: Welcome,
        by_first_byte: Mapping[int, Welcome],
        encryption: Encryption | None = None,
        login_required: Callable[[], bool] = lambda: False,
        prepare: Prepare = lambda first_byte: None,
    ) -> None:
        self.clock = clock
        self._login_required = login_required
        self.prepare = prepare
        self._host = host
        self._settings = settings
        self._otherwise = otherwise
        self._by_first_byte = dict(by_first_byte)
        self._listener = Listener(host, port, enter, lambda leave: Arrival(self, leave), encryption)
        self._here: dict[Arrival, Guest | None] = {}
        self._idle_timer: PatientTimer | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address, with the port that was taken where 0 was asked for."""
        port = await self._listener.start()
        login_s = self._settings.integer("waystation.login.timeout.ms") / 1000
        self._idle_timer = PatientTimer(min(IDLE_CHECK_S, login_s / 2), self._close_idle)
        return self._host, port

    async def stop(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._listener.close()
        for arrival, guest in list(self._here.items()):
            (guest or arrival).close()
        for _ in range(FAREWELL_TURNS):  # what was said last is written, and each of them notices that it is over
            await asyncio.sleep(0)
            if not self._here:
                return
        for arrival in list(self._here):
            arrival.abort()  # a client that does not read would keep its connection for ever
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def add(self, arrival: Arrival) -> None:
        self._here[arrival] = None

    def welcome(self, arrival: Arrival, first_byte: int) -> Guest:
        """The guest that this arrival turns out to be."""
        guest = self._by_first_byte.get(first_byte, self._otherwise)(lambda: self.dismiss(arrival))
        self._here[arrival] = guest
        return guest

    def dismiss(self, arrival: Arrival) -> None:
        self._here.pop(arrival, None)
        arrival.over()

    def _close_idle(self) -> None:
        limit = self._settings.integer("connections.max.idle.ms") / 1000
        login_s = self._settings.integer("waystation.login.timeout.ms") / 1000
        now = self.clock.monotonic()
        required = self._login_required()
        for arrival, guest in list(self._here.items()):
            present = guest or arrival
            late = required and now - arrival.since > login_s and (guest is None or guest.logs_in)
            if late or now - present.last_active > limit:
                present.close()
        # Half of the time that a login may take is how much longer it may take.
        self._idle_timer = PatientTimer(min(IDLE_CHECK_S, login_s / 2), self._close_idle)


class Arrival(asyncio.BufferedProtocol):
    """A connection that has not said anything yet, or whose guest cannot be made yet: then it is not read on."""

    def __init__(self, front: Front, leave: Leave) -> None:
        self._front = front
        self._leave = leave
        self._buffer = bytearray(FIRST_READ)
        self._transport: asyncio.Transport | None = None
        self.since = self.last_active = front.clock.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP server makes full transports
        self._front.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.dismiss(self)

    def over(self) -> None:
        """The connection is, whoever has it by now. The guest knows this object and may be garbage that only a
        collection finds, long from now; with TLS the transport's buffers have 256 KiB, so they must not wait for it."""
        self._transport = None
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        preparing = self._front.prepare(self._buffer[0])
        if preparing is None:
            self._hand_over(transport, nbytes)
        else:
            transport.pause_reading()
            preparing.add_done_callback(partial(self._prepared, transport, nbytes))

    def _prepared(self, transport: asyncio.Transport, nbytes: int, preparing: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if preparing.cancelled() else preparing.exception()
        if self._transport is None or transport.is_closing():
            return
        if error is not None:
            logger.warning("connection.not_served", "a connection could not be served: {error}", error=repr(error))
            transport.close()
            return
        transport.resume_reading()
        self._hand_over(transport, nbytes)

    def _hand_over(self, transport: asyncio.Transport, nbytes: int) -> None:
        guest = self._front.welcome(self, self._buffer[0])
        transport.set_protocol(guest)  # type: ignore[arg-type]  # it is one, by structure
        guest.connection_made(transport)
        rest = memoryview(self._buffer)[:nbytes]
        self._buffer = NOTHING  # the front keeps this object as long as the guest stays
        while rest and not transport.is_closing():
            room = guest.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            guest.buffer_updated(size)
            rest = rest[size:]

    def eof_received(self) -> bool:
        return False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection, whoever has it by now."""
        if self._transport is not None:
            self._transport.abort()
