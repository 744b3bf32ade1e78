"""One client's connection: requests in their order, one at a time, and what may take the connection over.

Requests that come before the last one is answered wait; while too many wait, or the client does not read its answers,
or there is no room for a large request (`protocols/budget.py`), its socket is not read. A call that waits for messages
ends when its client goes away; any other runs to its end, since what it does must not stop half-way. Whatever a client
sends, the worst that happens is that its own connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from waystation.broker.access.types import ANONYMOUS, EXPIRED, LoginPeer, Principal
from waystation.errors import Unavailable
from waystation.observe.connections import ConnectionInfo
from waystation.observe.events import event_logger
from waystation.protocols.budget import FEW_BYTES, FREE_BYTES, MUCH_BYTES, SMALL_BYTES
from waystation.protocols.http.auth.login import Shown
from waystation.protocols.http.transport.calls import SHORT_STEP_BYTES, STEP_BYTES, AnyRoute, Stream
from waystation.protocols.http.transport.engine import Broken, Engine, Expects, Request
from waystation.protocols.http.transport.events import EventStream
from waystation.protocols.http.transport.problems import problem_of_status
from waystation.protocols.http.transport.replies import (
    LAST_CHUNK,
    Reply,
    chunk,
    error_reply,
    problem_reply,
    reply_bytes,
)
from waystation.protocols.http.transport.websocket import WebSocket
from waystation.protocols.http.transport.wire import Takeover

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.http.server import HttpListener

logger = event_logger("waystation.http")

MAX_WAITING = 32
"""Requests of a client that wait for their turn; and their bodies have no more than FREE_BYTES."""
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer that shows messages: 8 MiB of them, as they are read and as text. Their JSON is made and sent a
step at a time."""
REQUEST_S = 60.0
"""How long a request may take to arrive."""
LINGER_S = 5.0
PARSE_BYTES = 8 * 1024
"""Are looked through at once, since each few of them may be a piece of a body or a request of their own: a third of
a millisecond. What is the body of one request is taken as a whole."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """Made by the listener for each client. It is the `Wire` of whatever takes it over, and the `Peer` of calls."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._engine = Engine()
        self._waiting: deque[Request] = deque()
        self._broken: Broken | None = None
        self._task: asyncio.Task[None] | None = None
        self._route: AnyRoute | None = None  # what is being answered, or has taken the connection over
        self._takeover: Takeover | None = None
        self._transport: asyncio.Transport | None = None
        self._requests = listener.budgets.requests.share(self, lambda: self._received)
        self._unsent = listener.budgets.unsent.share(self, self._unsent_bytes)
        self._granted: asyncio.Future[None] | None = None  # room for the answer that is waited for
        self._making = False  # a long answer: what it shows may be nowhere else any more
        self._text = 0  # bytes of messages in an answer that is being sent
        self._read: asyncio.Future[None] | None = None  # the client has read most, or has disconnected
        self._received = 0
        self._unparsed = b""  # what has come and was not looked at; the socket is not read meanwhile
        self._parsing = False  # in line for a turn of the loop
        self._much = False  # the last read has given much
        self._served_bytes = 0  # the body that is being dealt with
        self._writing_paused = False
        self._reading_paused = False
        self._held_back = False
        self._closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self.last_active_s = 0.0
        self.since_ms = 0
        self.name = "http:gone"
        self._principal = ANONYMOUS
        self._inside: Access | None = None  # of the last request, in the namespace that it was in
        self._expires_ms: int | None = None  # of what the last request has shown
        self._expiry: asyncio.TimerHandle | None = None  # of what a stream began with
        self._certificate: Principal | None = None  # whom the client's certificate stands for

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(FREE_BYTES)
        self.last_active_s = self._listener.now_s()
        peer = self._address("peername")
        self.name = f"http:{peer[0]}:{peer[1]}"
        self._certificate = self._listener.entrance.certificate(transport.get_extra_info("ssl_object"))
        self._listener.add(self)
        self.since_ms = self._listener.broker.world.clock.now_ms()
        self._listener.broker.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._takeover is not None:
            self._unparsed = self._unparsed + data if self._unparsed else data
            if not self._parsing:
                self._parse()
            return
        if self._lingering is not None:
            return
        self._received += len(data)
        if self._engine.between_requests:
            self.last_active_s = self._listener.now_s()
        if len(data) <= FEW_BYTES:
            self._listener.budgets.long_work.asked(self)
        self._unparsed = self._unparsed + data if self._unparsed else data
        if len(data) >= MUCH_BYTES and not self._much:
            self._much = True
            self._listener.budgets.read_much(self, self._read_on)
        if not self._parsing:
            self._parse()

    def _read_on(self) -> None:
        self._much = False
        self._balance()

    def _parse(self) -> None:
        """Looks through a part of what has come, and through the rest when nobody else has long work to do."""
        self._parsing = False
        if self._lingering is not None or self._transport is None:
            self._unparsed = b""
            return
        if self._takeover is not None:
            self._unparsed = self._takeover.received(self._unparsed)
            self._parse_on()
            self._balance()
            return
        self._parse_some()
        if self._unparsed and len(self._unparsed) <= max(PARSE_BYTES, self._engine.left):
            self._parse_some()
        self._parse_on()
        self._count()
        self._go_on()

    def _parse_on(self) -> None:
        """In the line, unless what has taken the connection over holds back."""
        if self._unparsed and not self._parsing and not (self._held_back and self._takeover is not None):
            self._parsing = True
            self._listener.budgets.long_work.then(self._parse, self)

    def _parse_some(self) -> None:
        data, left = self._unparsed, self._engine.left
        size = max(PARSE_BYTES, min(left, len(data)))
        part, self._unparsed = (data[:size], data[size:]) if len(data) > size else (data, b"")
        for event in self._engine.receive(part):
            if isinstance(event, Request):
                if event.websocket:
                    event.rest, self._unparsed = event.rest + self._unparsed, b""
                self._waiting.append(event)
            elif isinstance(event, Expects):
                if self._task is None:
                    self.write(CONTINUE)
            else:
                self._broken, self._unparsed = event, b""

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent.hold(self._text + self._unsent_bytes())
        if self._takeover is not None:
            self._takeover.filled()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._read is not None:
            self._unsent.hold(self._text)
            self._wake_writer()
            return
        self._unsent.drop()
        if self._takeover is not None:
            self._takeover.drained()
        else:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.dismiss(self)
        self._listener.broker.connections.discard(self)
        self._requests.end()
        self._unsent.end()
        self._listener.budgets.letting_go.add(self._engine.let_go())
        self._waiting.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._takeover is not None:
            self._takeover.lost()
        if self._granted is not None:
            self._granted.cancel()
        self._wake_writer()
        if self._task is not None and self._waits:
            self._task.cancel()

    # -- what the listener calls --------------------------------------------------------------------------------------

    def tick(self, now_s: float, idle_s: float) -> None:
        """Every few seconds: closes a client that is idle for too long, or too slow to send a request."""
        if self._takeover is not None:
            self._takeover.tick(now_s)
        elif self._task is None:
            limit = idle_s if self._engine.between_requests else REQUEST_S
            if now_s - self.last_active_s > limit:
                self.close()

    def shut(self) -> None:
        """The broker stops: a call that waits ends now, any other is still answered."""
        self._closing = True
        if self._takeover is not None:
            self._takeover.shut()
        elif self._task is None:
            self.close()
        elif self._waits:
            self._task.cancel()

    # -- among those who share the memory ------------------------------------------------------------------------------

    def _count(self) -> None:
        """Asks for room for a large body that has begun to arrive. Those that wait to be dealt with count as well."""
        waiting = sum(len(request.body) for request in self._waiting)
        need = self._served_bytes + waiting + self._engine.awaited
        if need > self._requests.size:
            self._requests.want(need)
        elif self._requests.size:
            self._requests.hold(need)
        self.hold_back(len(self._waiting) > MAX_WAITING or waiting > FREE_BYTES)

    def _room(self) -> bool:
        """Whether there is room for what this client would not read; if not, it is called when there is."""
        if self._unsent.room > FREE_BYTES:
            return True
        self._unsent.want(SMALL_BYTES)
        return False

    async def room_for(self, route: AnyRoute) -> None:
        """Messages are not read before there is room for them. One who waits for messages cannot keep it so long."""
        if not route.shows_messages or self.disconnected or (route.waits and self._unsent.room >= LARGEST_ANSWER):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._granted = granted
        at_once = self._unsent.want(LARGEST_ANSWER, lambda: granted.set_result(None))
        if not at_once:
            await granted  # and its turn
        if route.waits:
            self._unsent.drop()
        elif at_once and self._listener.budgets.long_work.taken_from(self):
            await self._listener.budgets.long_work.turn(self)

    @property
    def answer_bytes(self) -> int:
        """Of messages in an answer to one who only looks: little, as long as it has read little."""
        return self._unsent.trusted

    @property
    def others_wait(self) -> bool:
        """Whether other clients wait for answers, so that the steps of a long one are to be short."""
        return self._listener.budgets.long_work.others_wait(self)

    async def rest(self, size: int) -> None:
        """Others get their turn while a long answer is made, of which there are so many bytes; they count."""
        self._making = True
        if not self.disconnected:
            self._unsent.hold(max(size, self._unsent.size))
        await self._listener.budgets.long_work.turn(self)

    def on_room(self) -> None:
        self._balance()
        if self._takeover is None:
            self._go_on()
        elif not self._writing_paused:
            self._takeover.drained()

    def spare(self) -> bool:
        if not self._writing_paused:
            self._unsent.hold(self._text)
        return not (self._requests.size or self._unsent.size)

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def overdue(self, why: str) -> bool:
        if self._task is not None and not self._writing_paused:
            return False  # its request is here, and we are at it
        logger.info(
            "connection.closed",
            "connection {connection} closed: {reason}",
            protocol="http",
            connection=self.name,
            reason=why,
        )
        self.abort()
        return True

    # -- one request after another -------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._task is not None or self._takeover is not None or self._writing_paused or self._lingering is not None:
            return
        if self._waiting:
            request = self._waiting.popleft()
            self._served_bytes = len(request.body)
            self._count()
            self._task = asyncio.get_running_loop().create_task(self._serve(request))
        elif self._broken is not None:
            reply = problem_reply(problem_of_status(self._broken.status, self._broken.detail))
            self.write(reply_bytes(reply, self._listener.date(), keep_alive=False))
            self._linger()

    def _linger(self) -> None:
        """Ends the connection a little later: a client that is still sending would lose the answer with its socket."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():  # TLS cannot
                self._transport.write_eof()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self.close)

    async def _serve(self, request: Request) -> None:
        try:
            with self._listener.dispatcher.under_way():
                outcome = await self._outcome(request)
                if isinstance(outcome, Reply) and outcome.pieces is not None:
                    await self._send_long(outcome, request)
        finally:
            self._task = None
            self._making = False
            self._text = self._served_bytes = 0
            self._requests.renew()
            self._count()
            self.last_active_s = self._listener.now_s()
        if isinstance(outcome, Stream):
            self._hand_over(outcome, request)
            return
        self._route = None
        if outcome.pieces is None:
            head_only = request.method == "HEAD"
            self.write(reply_bytes(outcome, self._listener.date(), self._keeps(request), head_only=head_only))
        elif self._writing_paused:
            self._unsent.hold(self._unsent_bytes())
        else:
            self._unsent.drop()
        if self._keeps(request):
            self._go_on()
        else:
            self.close()

    async def _outcome(self, request: Request) -> Reply | Stream:
        try:
            return await self._listener.dispatcher.answer(request, self)
        except asyncio.CancelledError:
            return error_reply(Unavailable("the broker is stopping; retry"))

    def _keeps(self, request: Request) -> bool:
        """Whether the connection goes on behind the answer. One in pieces ends it where there are no chunks."""
        return request.keep_alive and not request.websocket and not self._closing

    async def _send_long(self, reply: Reply, request: Request) -> None:
        """An answer that is made as far as its client reads it, a step at a time."""
        self._making = True
        self._text = reply.text
        chunked = request.chunks
        if not chunked:
            request.keep_alive = False  # the end of the connection is the end of the answer
        self.write(reply_bytes(reply, self._listener.date(), self._keeps(request), chunked=chunked))
        if request.method == "HEAD":
            return
        sent, part, size = 0, [reply.body], len(reply.body)
        for piece in reply.pieces or ():
            if size > (SHORT_STEP_BYTES if self.others_wait else STEP_BYTES):
                self.write(chunk(part) if chunked else b"".join(part))
                sent, part, size = sent + size, [], 0
                await self._client_reads()
                if self.disconnected:
                    return
                await self._listener.budgets.long_work.turn(self)
            part.append(piece)
            size += len(piece)
        self.write(chunk(part) + LAST_CHUNK if chunked else b"".join(part))
        self._unsent.was_read(sent)

    async def _client_reads(self) -> None:
        """Waits while the socket is full."""
        while self._writing_paused and not self.disconnected:
            self._read = asyncio.get_running_loop().create_future()
            try:
                await self._read
            finally:
                self._read = None
        if not self.disconnected:
            self._unsent.hold(self._text)

    def _wake_writer(self) -> None:
        if self._read is not None and not self._read.done():
            self._read.set_result(None)

    def serving(self, route: AnyRoute, inside: Access | None) -> None:
        """The dispatcher has found what the request is for. `inside`: the access of one who has entered a namespace."""
        self._route = route
        self._inside = inside
        if route.waits and self.disconnected:
            raise Unavailable("the client has disconnected")

    @property
    def _waits(self) -> bool:
        """What is being answered ends when its client goes away."""
        return self._route is not None and self._route.waits and not self._making

    def _hand_over(self, stream: Stream, request: Request) -> None:
        if self.disconnected or self._closing:
            stream.session.end()
            self.close()
            return
        self._requests.drop()
        self.hold_back(False)
        if request.websocket:
            self._takeover = WebSocket(stream, self, request)
        else:
            self._takeover = EventStream(stream.session, self, self._listener.date())
        self._takeover.begin()
        self._unparsed = request.rest
        if not self._parsing:
            self._parse()
        if self._expires_ms is not None:
            left_s = max(0.0, (self._expires_ms - self._listener.broker.world.clock.now_ms()) / 1000)
            self._expiry = asyncio.get_running_loop().call_later(left_s, self.end, EXPIRED)

    # -- among the connections -----------------------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return "http"

    @property
    def namespace(self) -> str:
        return ""

    @property
    def login(self) -> str:
        """Of the last request."""
        return "" if self._principal.anonymous else self._principal.name

    @property
    def asked_with_users(self) -> bool:
        return self._listener.entrance.asked_with_users

    @property
    def credential(self) -> str:
        return self._principal.credential

    @property
    def login_peer(self) -> LoginPeer:
        """Where its logins come from."""
        return LoginPeer("http", self._address("peername")[0], self._certificate)

    @property
    def secure(self) -> bool:
        """Whether it is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def entered(self, shown: Shown) -> None:
        """Who has sent the request that is answered now."""
        self._principal = shown.principal
        self._expires_ms = shown.expires_ms

    def check_entry(self) -> None:
        """Of a stream, or a request that waits: others are asked about when they come, and answered at once."""
        if self._inside is not None and (self._takeover is not None or self._waits):
            self._inside.namespaces.check_entry(self._inside.namespace)

    def info(self) -> ConnectionInfo:
        kind = "" if self._takeover is None else "WebSocket" if isinstance(self._takeover, WebSocket) else "events"
        return ConnectionInfo(
            self.name,
            self.protocol,
            self.login,
            self.namespace,
            self._address("peername"),
            self._address("sockname"),
            self.since_ms,
            "closing" if self._closing else "running",
            {"kind": kind} if kind else {},
            doing=self._doing(kind),
        )

    def texts(self) -> Iterable[str]:
        return (self.name, "" if self._route is None else self._route.path)

    def _doing(self, kind: str) -> str:
        if self._route is not None:
            return f"{'streams' if kind else 'is answered'} {self._route.method} {self._route.path}"
        idle_s = int(self._listener.now_s() - self.last_active_s)
        return f"idle for {idle_s} s" if idle_s else "idle"

    def _address(self, which: str) -> tuple[str, int]:
        found: Any = None if self._transport is None else self._transport.get_extra_info(which)
        return (str(found[0]), int(found[1])) if found else ("", 0)

    def end(self, reason: str) -> None:
        """A stream is told why; a request that is being answered still is."""
        logger.info(
            "connection.closed",
            "connection {connection} closed: {reason}",
            protocol="http",
            connection=self.name,
            reason=reason,
        )
        self._closing = True
        if self._takeover is not None:
            self._takeover.finish(Unavailable(reason))
        elif self._task is None:
            self.close()
        elif self._waits:
            self._task.cancel()

    # -- the wire, and the peer ----------------------------------------------------------------------------------------

    @property
    def disconnected(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def writable(self) -> bool:
        return not self._writing_paused and not self.disconnected and self._room()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._writing_paused:
                self._unsent.hold(self._text + self._transport.get_write_buffer_size())
            elif self._unsent.size and not self._text:
                self._unsent.drop()

    def hold_back(self, stop: bool) -> None:
        self._held_back = stop
        if self._takeover is not None:
            self._parse_on()
        self._balance()

    async def turn(self) -> None:
        await self._listener.budgets.long_work.turn(self)

    def _balance(self) -> None:
        stop = self._held_back or self._requests.wanted > 0 or bool(self._unparsed) or self._much
        if stop == self._reading_paused or self._transport is None or self._transport.is_closing():
            return
        self._reading_paused = stop
        if stop:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
