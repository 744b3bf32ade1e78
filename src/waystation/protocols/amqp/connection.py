"""The socket around a session: bytes in and out, when to read, when to write, and when the peer is taken for dead.

The buffer that bytes arrive in belongs to the listener and is shared by all its connections, since only one of them is
read at a time; what is left of a frame is kept by the engine. So an idle connection has no buffer at all. Large
messages that are arriving, and what the peer does not read, are counted (`protocols/budget.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.observe.events import event_logger
from waystation.protocols.amqp.events import Phase
from waystation.protocols.amqp.frames import HEARTBEAT_FRAME
from waystation.protocols.amqp.session import AmqpSession
from waystation.protocols.budget import FREE_BYTES, SMALL_BYTES

if TYPE_CHECKING:
    from waystation.protocols.amqp.server import AmqpListener

logger = event_logger("waystation.amqp")

MOST_UNREAD = 16 * 1024 * 1024
"""Bytes that the peer has not read; with more, it is not read either. Not sooner, while there is memory: one that is
busy writing may read later."""
HANDSHAKE_S = 10.0
FAREWELL_S = 3.0
"""How long the peer may take to agree that a connection is closed, and then to close its end of the socket."""


class AmqpConnection(asyncio.BufferedProtocol):
    """One client's."""

    __slots__ = (
        "_assembling", "_filled", "_flushing", "_getting", "_going_on", "_listener", "_over", "_paused", "_requests",
        "_since", "_transport", "_unsent", "_working", "_writable", "closing_since", "host", "last_received",
        "last_sent", "peer", "received_bytes", "sent_bytes", "session",
    )  # fmt: skip

    def __init__(self, listener: AmqpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._requests = listener.budgets.requests.share(self, self._received)
        self._unsent = listener.budgets.unsent.share(self, self._unread)
        self._assembling = 0
        self._writable = True
        self._paused = False
        self._flushing = False
        self._working = False
        self._going_on = False  # in line for a turn of the loop
        self._getting = False  # the same, for a get
        self._over = False  # the last word is said: what comes is read and discarded
        self._filled = False  # the last read has filled the buffer: there is more, for the next turn
        self._since = self.last_received = self.last_sent = listener.now_s()
        self.closing_since: float | None = None
        self.received_bytes = self.sent_bytes = 0
        self.peer = self.host = ("", 0)
        self.session: AmqpSession | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP server makes full transports
        self.peer = _address(transport.get_extra_info("peername"))
        self.host = _address(transport.get_extra_info("sockname"))
        self._listener.add(self)
        self._transport.set_write_buffer_limits(FREE_BYTES)  # type: ignore[union-attr]
        name = f"{self.peer[0]}:{self.peer[1]} -> {self.host[0]}:{self.host[1]}"
        listener = self._listener
        certificate = listener.entrance.certificate(transport.get_extra_info("ssl_object"))
        self.session = AmqpSession(
            listener.node, listener.entrance, self, name, listener.tx_ids, listener.room, certificate
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._requests.end()
        self._unsent.end()
        self._listener.dismiss(self)
        if self.session is not None:
            self._listener.budgets.letting_go.add(self.session.engine.let_go())
            self.session.ended(politely=False)

    # -- in -----------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        session = self.session
        if session is None:
            return
        self.last_received = self._listener.now_s()
        self.received_bytes += nbytes
        session.receive(bytes(self._listener.buffer[:nbytes]))
        if nbytes == len(self._listener.buffer) and not self._filled:
            # The loop would read on at once, up to 32 times: 20,000 small publishes took 60 ms of one turn.
            self._filled = True
            if session.engine.assembling > SMALL_BYTES or self.others_wait:
                self._listener.budgets.read_much(self, self._read_on)  # one of many who do, perhaps
            else:
                asyncio.get_running_loop().call_soon(self._read_on)
        self._after()

    def _read_on(self) -> None:
        self._filled = False
        self._after()

    @property
    def others_wait(self) -> bool:
        return self._listener.budgets.long_work.others_wait(self)

    def _received(self) -> int:
        return self.received_bytes

    def asked(self) -> None:
        self._listener.budgets.long_work.asked(self)

    def eof_received(self) -> bool:
        return False

    def to_work(self) -> None:
        if not self._working:
            self._working = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._working = False
        if self.session is not None and self._transport is not None:
            self.session.work()
            self._after()

    def to_get(self) -> None:
        if not self._getting:
            self._getting = True
            self._listener.budgets.long_work.then(self._get, self)

    def _get(self) -> None:
        self._getting = False
        if self.session is not None and self._transport is not None:
            self.session.get_one()
            self._after()

    def _go_on(self) -> None:
        """It is this connection's turn to read frames that were too many for one."""
        self._going_on = False
        if self.session is not None and self._transport is not None:
            if not self.session.busy:  # else `to_work` comes
                self.session.receive(b"")
            self._after()

    def _after(self) -> None:
        """Something was worked off: answers go out, and the socket is read only while that is of use."""
        self._flush()
        transport, session = self._transport, self.session
        if transport is None or session is None or transport.is_closing():
            return
        if session.engine.assembling > FREE_BYTES or self._requests.size:
            self._claim(session)
        held = session.busy or self.congested or self._requests.wanted > 0
        if session.engine.more and not held and not self._going_on:
            self._going_on = True
            self._listener.budgets.long_work.then(self._go_on, self)
        busy = (held or session.engine.more or self._filled) and not session.closed
        if busy and not self._paused:
            self._paused = True
            transport.pause_reading()
        elif not busy and self._paused:
            self._paused = False
            self.last_received = self._listener.now_s()
            transport.resume_reading()
        if session.closed and self.closing_since is None:
            self.closing_since = self._listener.now_s()

    def _claim(self, session: AmqpSession) -> None:
        """Asks for room for large messages that have begun to arrive. A message that waits to be worked off counts."""
        need = session.engine.assembling
        if need < self._assembling and session.engine.assembling_count <= 1:
            self._requests.renew()  # another message than before
        self._assembling = need
        if need > self._requests.size:
            self._requests.want(need)
        elif not session.waiting:
            self._requests.hold(need)

    # -- among those who share the memory -----------------------------------------------------------------------------

    def on_room(self) -> None:
        self.to_work()

    def spare(self) -> bool:
        if self._writable:
            self._unsent.drop()
        return not (self._requests.size or self._unsent.size)

    def overdue(self, why: str) -> bool:
        if self._writable and self.session is not None and (self.session.busy or self.session.engine.more):
            return False  # it is we who do not read
        logger.info(
            "connection.closed",
            "connection of {client} closed: {reason}",
            protocol="amqp",
            client=self.peer[0],
            reason=why,
        )
        self.abort()
        return True

    # -- out ----------------------------------------------------------------------------------------------------------

    def to_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        session = self.session
        if session is None:
            return
        if session.out:
            self.write_out()
        if session.hungry and self._writable:
            self._feed(session)

    def write_out(self) -> None:
        session, transport = self.session, self._transport
        if session is None:
            return
        data = b"".join(session.out)
        if transport is not None and not self._over and not transport.is_closing():
            self.sent_bytes += len(data)
            self.last_sent = self._listener.now_s()
            transport.write(data)
            if not self._writable:
                self._unsent.hold(transport.get_write_buffer_size())
            elif self._unsent.size:
                self._unsent.drop()
        session.written()

    def _feed(self, session: AmqpSession) -> None:
        if self._unsent.room > FREE_BYTES:
            session.fed()
            return
        session.fed(sparingly=True)
        if session.hungry:
            self._unsent.want(SMALL_BYTES)  # then there is room

    @property
    def congested(self) -> bool:
        unread = self._unread()
        return unread > MOST_UNREAD or (unread > FREE_BYTES and self._unsent.room <= unread)

    @property
    def full(self) -> bool:
        if not self._writable:
            return True
        if self._unsent.room > FREE_BYTES:
            return False
        self._unsent.want(SMALL_BYTES)
        return True

    def _unread(self) -> int:
        """Bytes that wait for the peer to read; looked up only when they are many."""
        return 0 if self._writable or self._transport is None else self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._writable = False
        if self.session is not None:
            self.session.starve(True)

    def resume_writing(self) -> None:
        self._writable = True
        self._unsent.drop()
        if self.session is not None:
            self.session.starve(False)
        self.to_work()

    def over(self) -> None:
        """What was said is the last word. The peer may not have stopped yet: it is read, and what it sends discarded,
        until it closes its end, for `FAREWELL_S` at most. To close a socket that has unread bytes would reset the
        connection, and the last word would be lost."""
        self._flush()
        transport = self._transport
        if transport is None or self._over or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        self._over = True
        transport.write_eof()

    def close(self) -> None:
        """What was said is sent, and the peer not waited for: the broker stops."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Once a second: heartbeats, and whoever is silent for too long."""
        session, transport = self.session, self._transport
        if session is None or transport is None:
            return
        if session.closed:
            if self.closing_since is None:
                self.closing_since = now_s
            elif now_s - self.closing_since > FAREWELL_S:
                transport.abort()
            return
        if session.engine.phase is not Phase.OPEN:
            if now_s - self._since > HANDSHAKE_S:
                logger.info(
                    "connection.closed",
                    "connection of {client} closed: {reason}",
                    protocol="amqp",
                    client=self.peer[0],
                    reason=f"no login within {HANDSHAKE_S} s",
                )
                transport.abort()
            return
        heartbeat_s = session.heartbeat_s
        if not heartbeat_s:
            return
        if now_s - self.last_sent >= heartbeat_s / 2:
            self.last_sent = now_s
            transport.write(HEARTBEAT_FRAME)
        if not self._paused and now_s - self.last_received > 2 * heartbeat_s + 1:
            logger.info(
                "connection.closed",
                "connection {connection} closed: {reason}",
                protocol="amqp",
                connection=session.name,
                reason=f"missed heartbeats, timeout {heartbeat_s} s",
            )
            transport.abort()


def _address(found: object) -> tuple[str, int]:
    return found[:2] if isinstance(found, tuple) and len(found) >= 2 else ("", 0)
