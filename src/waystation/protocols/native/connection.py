"""A native client's socket: bytes to and from a talk, which knows what they mean.

While too much of what the client asked for is under way, or the client does not read, or there is no room for a large
frame (`protocols/budget.py`), its socket is not read and its consumers are sent nothing more: its memory here stays
bounded, and nobody else notices. What is sent within one turn of the loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from waystation.broker.access.types import Entrance, Principal
from waystation.observe.events import event_logger
from waystation.protocols.budget import FEW_BYTES, FREE_BYTES, MUCH_BYTES, SMALL_BYTES
from waystation.protocols.native.framing.intake import KEPT_BUFFER
from waystation.protocols.native.session import ANSWER_BYTES

if TYPE_CHECKING:
    from waystation.protocols.budget import Budgets
    from waystation.protocols.native.framing.intake import Intake
    from waystation.protocols.native.session import NativeSession
    from waystation.world.clock import Clock

logger = event_logger("waystation.native")

READ_BYTES = 1024 * 1024
"""In one read: half a millisecond."""
SHORT_READ_BYTES = 256 * 1024
"""Of a large frame or line, while others wait."""

FULL_BYTES = 1024 * 1024
"""So much may wait to be handed to the transport; then it is handed over before anything else is looked at."""

SHORT_ANSWER_BYTES = 128 * 1024
"""Of messages in an answer to one who only looks while others wait: half a millisecond. It asks on."""


class TalkOver(Exception):
    """Nothing more can be made of what this client sends."""


class Talk(Protocol):
    """One framing's side of a connection. It writes by the bytearray and the callable that it was made with."""

    intake: Intake
    session: NativeSession

    def work(self) -> bool:
        """Deals with what has arrived, as far as it may. True: call again when what it said is written. Raises
        TalkOver, having said why."""

    @property
    def busy(self) -> bool:
        """Too much is under way."""

    @property
    def awaited(self) -> int:
        """Bytes of what has begun to arrive, all of it; 0 if that is not known yet."""

    def pause(self) -> None:
        """The client does not read."""

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Out:
    """What is to be written at the end of this turn of the loop."""

    __slots__ = ("_flush", "_scheduled", "buffer")

    def __init__(self, flush: Callable[[], None]) -> None:
        self.buffer = bytearray()
        self._flush = flush
        self._scheduled = False

    def touched(self) -> None:
        """Something was added to the buffer."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._later)

    def _later(self) -> None:
        self._scheduled = False
        self._flush()

    def take(self) -> bytearray:
        taken, self.buffer = self.buffer, bytearray()
        return taken


class NativeConnection(asyncio.BufferedProtocol):
    """Made by the listener for each client. `talk` makes the framing's side, given where to write and whom to call
    when it is no longer busy."""

    def __init__(
        self,
        talk: Callable[[Out, Callable[[], None]], Talk],
        budgets: Budgets,
        clock: Clock,
        on_closed: Callable[[], None],
        kind: str,
        entrance: Entrance,
    ) -> None:
        self.entrance = entrance
        self._out = Out(self._flush)
        self._talk = talk(self._out, self._on_room)
        self._clock = clock
        self._on_closed = on_closed
        self._kind = kind
        self._transport: asyncio.Transport | None = None
        self._requests = budgets.requests.share(self, lambda: self._talk.intake.unread)
        self._unsent = budgets.unsent.share(self, self._unsent_bytes)
        self._awaited = 0  # bytes of the large frame that is arriving
        self._budgets = budgets
        self._much = False  # of a large frame much has come: more of it is for another turn
        self._writing = 0  # bytes of what was written last
        self._writing_paused = False
        self._reading_paused = False
        self.client_host = ""
        self.certificate: Principal | None = None
        self.last_active = clock.monotonic()

    # -- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP server makes full transports
        transport.set_write_buffer_limits(high=FREE_BYTES)  # type: ignore[attr-defined]
        self.client_host = self.peer[0]
        self.certificate = self.entrance.certificate(transport.get_extra_info("ssl_object"))
        self._talk.session.appear(self)

    @property
    def logs_in(self) -> bool:
        """Whether it has to log in, and has not yet."""
        return self._talk.session.guarded

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._requests.end()
        self._unsent.end()
        self._budgets.letting_go.add(self._talk.intake.let_go())
        self._talk.close()
        self._on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        most = READ_BYTES
        if self._awaited > FREE_BYTES and self.others_wait:
            most = SHORT_READ_BYTES
        return self._talk.intake.buffer()[:most]

    def buffer_updated(self, nbytes: int) -> None:
        self._talk.intake.received(nbytes)
        if nbytes <= FEW_BYTES:
            self._budgets.long_work.asked(self)
        self._work()
        unread = self._talk.intake.unread
        if (
            nbytes >= MUCH_BYTES
            and not self._much
            and (unread > SMALL_BYTES or (unread > FREE_BYTES and self.others_wait))
        ):
            self._much = True
            self._budgets.read_much(self, self._read_on)
            self._balance()

    def _read_on(self) -> None:
        self._much = False
        self._balance()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent.hold(self._unsent_bytes())
        self._talk.pause()
        self._balance()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._unsent.drop()
        self._was_read()
        self._talk.resume()
        self._work()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # -- among those who share the memory -----------------------------------------------------------------------------

    def on_room(self) -> None:
        self._work()

    def spare(self) -> bool:
        if self._requests.size and self._talk.intake.shrink():
            self._requests.drop()
        return not (self._requests.size or self._unsent.size)

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def overdue(self, why: str) -> bool:
        logger.info(
            "connection.closed",
            "connection of {client} closed: {reason}",
            protocol=self._kind,
            client=self.client_host,
            reason=why,
        )
        if self._transport is not None:
            self._transport.abort()
        return True

    # -- for whoever looks at connections -----------------------------------------------------------------------------

    @property
    def peer(self) -> tuple[str, int]:
        return self._address("peername")

    @property
    def host(self) -> tuple[str, int]:
        return self._address("sockname")

    @property
    def others_wait(self) -> bool:
        return self._budgets.long_work.others_wait(self)

    @property
    def answer_bytes(self) -> int:
        most = SHORT_ANSWER_BYTES if self.others_wait else ANSWER_BYTES
        return min(most, self._unsent.trusted)

    def _address(self, which: str) -> tuple[str, int]:
        found = None if self._transport is None else self._transport.get_extra_info(which)
        return (str(found[0]), int(found[1])) if found else ("", 0)

    def end(self, reason: str) -> None:
        logger.info(
            "connection.closed",
            "connection of {client} closed: {reason}",
            protocol=self._kind,
            client=self.client_host,
            reason=reason,
        )
        self.close()

    # -- both ways ----------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._writing_paused or self._talk.busy

    def _on_room(self) -> None:
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_active = self._clock.monotonic()
        try:
            while not self._busy and self._talk.work():
                self._flush()
        except TalkOver as over:
            logger.info(
                "connection.closed",
                "connection of {client} closed: {reason}",
                protocol=self._kind,
                client=self.client_host,
                reason=over,
            )
            self.close()
        except Exception:
            logger.exception(
                "connection.failed", "connection of {client} closed", protocol=self._kind, client=self.client_host
            )
            self.close()
        else:
            self._flush()
            if self._talk.awaited > FREE_BYTES or self._requests.size:
                self._claim(self._talk.awaited)
        self._balance()

    def _claim(self, awaited: int) -> None:
        """Asks for room for a large frame that has begun to arrive. Between two of them the room goes with the buffer,
        which is kept until somebody else needs room."""
        intake = self._talk.intake
        if awaited != self._awaited:
            self._awaited = awaited
            self._requests.renew()
        if awaited > FREE_BYTES:
            self._requests.want(awaited)
        elif not intake.unread:
            self._requests.hold(intake.kept if intake.kept <= KEPT_BUFFER else 0)

    def _balance(self) -> None:
        """Reads the socket only while there is something to be done with what comes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        stop = self._busy or self._requests.wanted > 0 or self._much
        if stop and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        elif not stop and self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def _flush(self) -> None:
        if not self._out.buffer:
            return
        data = self._out.take()
        if self._transport is not None and not self._transport.is_closing():
            self.last_active = self._clock.monotonic()
            self._writing = len(data)
            self._transport.write(data)
            if not self._writing_paused and self._writing > FREE_BYTES:
                self._was_read()

    def _was_read(self) -> None:
        """What was written last has left: answers may be longer from now on."""
        self._unsent.was_read(self._writing)
