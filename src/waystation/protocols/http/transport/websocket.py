"""A WebSocket: frames in and out over a connection that began as HTTP, with JSON objects as its messages.

The protocol engine is the sans-I/O core of the `websockets` package; this puts bytes in and carries bytes out. A
client that sends something that is no JSON object gets one error back and stays; one that breaks the protocol, sends a
message that is too large or does not answer pings is closed, and whatever was in flight to it is requeued.

A read may have tens of thousands of frames. They are looked at, and what they say is done, a few at a time
(`FRAMES_PER_TURN`), each time in a turn of the line of long work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.server import ServerProtocol

from waystation.errors import Invalid, Unavailable, WaystationError
from waystation.observe.events import event_logger
from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.http.transport.calls import Stream, read_json
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.http.transport.problems import problem_of
from waystation.protocols.http.transport.replies import encode_json
from waystation.protocols.http.transport.wire import Wire

logger = event_logger("waystation.http")
LIBRARY_LOGGER = "waystation.http.websocket"
"""What the library has to say about one connection."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""What a client sends are acks and credit."""
MAX_WAITING = 1000
"""Messages of a client that wait for their turn: its socket is not read while there are more, or while those and the
one that is dealt with have more than FREE_BYTES."""
FRAMES_PER_TURN = 256
"""Of a client, and messages that are dealt with: a few milliseconds."""
SHORT_FRAMES = 64
"""The same while other clients wait for answers."""
PIECE_BYTES = 512
"""Are given to the engine at once: of the smallest frames 85. A large one costs no more for being in pieces."""
FRAME_BYTES = 256 * 1024
"""Messages are sent together up to this size: many clients take no frame above a megabyte unless told to."""
PING_EVERY_S = 20.0
MAX_PINGS_UNANSWERED = 2
GOING_AWAY, INTERNAL = 1001, 1011
PONG_HEAD = b"\x8a"


class WebSocket:
    """Takes over a connection. Messages of the client are handled one after another."""

    def __init__(self, stream: Stream, wire: Wire, request: Request) -> None:
        self._session = stream.session
        self._single = stream.single
        self._wire = wire
        self._request = request
        self._engine = ServerProtocol(max_size=MAX_MESSAGE_BYTES, logger=logging.getLogger(LIBRARY_LOGGER))
        self._open = False
        self._over = False
        self._begun = bytearray()  # a message, as far as its fragments are here: not the pieces, each costs fifty bytes
        self._behind: list[bytes] | None = None  # what is to be said behind a message that is half sent
        self._waiting: deque[bytes] = deque()  # as they came: made into objects they have many times the size
        self._waiting_bytes = 0  # with the one that is dealt with
        self._task: asyncio.Task[None] | None = None
        self._held_back = False  # too many wait
        self._full = False  # the client does not read
        self._pong = b""  # of the last ping since then: the one that it is owed
        self._stuck: asyncio.Future[None] | None = None  # the client does not read: done when it does
        self._pinged_s = 0.0
        self._unanswered = 0

    # -- what the connection calls -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self._engine.receive_data(_as_sent(self._request))
        for event in self._engine.events_received():
            if isinstance(event, Handshake):
                response = self._engine.accept(event)
                self._engine.send_response(response)
                self._open = response.status_code == 101
        self._flush()
        if not self._open:
            self._wire.close()
            return
        self._session.begin(self)

    def received(self, data: bytes) -> bytes:
        self._unanswered = 0
        at = frames = 0
        while at < len(data) and frames < self._frames_per_turn and not self._held_back:
            self._engine.receive_data(data[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            for event in self._engine.events_received():
                frames += 1
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    self._take(event)
        self._flush()
        if self._engine.close_expected():
            self._wire.close()
            return b""
        return data[at:]

    @property
    def _frames_per_turn(self) -> int:
        return SHORT_FRAMES if self._wire.others_wait else FRAMES_PER_TURN

    def filled(self) -> None:
        self._full = True
        self._session.filled()

    def drained(self) -> None:
        self._full = False
        pong, self._pong = self._pong, b""
        if pong:
            self._wire.write(pong)
        if self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(None)
        self._session.drained()

    def lost(self) -> None:
        if not self._over:
            self._open, self._over = False, True
            if self._task is not None:
                self._task.cancel()
            self._session.end()

    def shut(self) -> None:
        self.finish(Unavailable("the broker is stopping; reconnect"))

    def tick(self, now_s: float) -> None:
        if now_s - self._pinged_s < PING_EVERY_S or not self._open:
            return
        self._pinged_s = now_s
        self._unanswered += 1
        if self._unanswered > MAX_PINGS_UNANSWERED:
            self._wire.abort()
            return
        try:
            self._engine.send_ping(b"")
        except InvalidState:
            self._wire.abort()  # it said goodbye long ago
        self._flush()

    # -- what the session calls --------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return self._open and self._wire.writable

    def deliver(self, messages: Sequence[dict[str, Any]]) -> None:
        frame: list[bytes] = []
        size = 0
        for encoded in map(encode_json, messages):
            if frame and (self._single or size + len(encoded) > FRAME_BYTES):
                self._send_frame(frame)
                frame, size = [], 0
            frame.append(encoded)
            size += len(encoded)
        self._send_frame(frame)

    def _send_frame(self, encoded: list[bytes]) -> None:
        whole = b",".join(encoded)
        self._send_text(whole if self._single else b"".join((b'{"kind":"deliver","messages":[', whole, b"]}")))

    def deliver_part(self, part: bytes, *, first: bool, last: bool) -> None:
        """As a fragment of one message."""
        if not self._open:
            return
        before = b'{"kind":"deliver","messages":[' if first and not self._single else b""
        data = b"".join((before, part, b"]}" if last and not self._single else b""))
        try:
            if first:
                self._engine.send_text(data, fin=last)
            else:
                self._engine.send_continuation(data, fin=last)
        except InvalidState:
            return  # it is closing
        self._flush()
        behind, self._behind = self._behind or [], None if last else self._behind or []
        for text in behind if last else ():
            self._send_text(text)

    def tell(self, kind: str, data: bytes) -> None:
        self._send_text(b'{"kind":"%b","data":%b}' % (kind.encode(), data))

    def finish(self, error: WaystationError) -> None:
        if not self._single:
            self.send({"kind": "ceased", "problem": problem_of(error)})
        self._close(GOING_AWAY, str(error))

    def send(self, value: Any) -> None:
        """One message to the client."""
        self._send_text(encode_json(value))

    def _send_text(self, text: bytes) -> None:
        if self._behind is not None:
            self._behind.append(text)
        elif self._open:
            try:
                self._engine.send_text(text)
            except InvalidState:
                return  # it is closing
            self._flush()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _close(self, code: int, reason: str = "") -> None:
        if self._open:
            try:
                self._engine.send_close(code, reason.encode()[:120].decode(errors="ignore"))
            except InvalidState:
                pass
            self._flush()
            self._wire.close()

    def _flush(self) -> None:
        for data in self._engine.data_to_send():
            if self._full and data.startswith(PONG_HEAD):
                self._pong = data  # a client that pings and does not read would be sent any number of them
            elif data:
                self._wire.write(data)

    def _take(self, frame: Frame) -> None:
        if not frame.fin or self._begun:
            self._begun += frame.data
        if not frame.fin:
            return
        whole = bytes(self._begun or frame.data)
        self._begun = bytearray()
        self._waiting.append(whole)
        self._waiting_bytes += len(whole)
        self._balance()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _balance(self) -> None:
        held_back = len(self._waiting) > MAX_WAITING or self._waiting_bytes > FREE_BYTES
        if held_back != self._held_back:
            self._held_back = held_back
            self._wire.hold_back(held_back)

    async def _work(self) -> None:
        done = 0
        while self._waiting and self._open:
            if done >= self._frames_per_turn:
                done = 0
                await self._wire.turn()
                continue
            done += 1
            said = self._waiting.popleft()
            try:
                if await self._answer(_object(said)):
                    await self._client_reads()
            except Exception:
                logger.exception("websocket.failed", "a WebSocket's message could not be handled")
                self._close(INTERNAL)
            self._waiting_bytes -= len(said)
            self._balance()

    async def _client_reads(self) -> None:
        """Whoever asks and does not read the answers is answered no more, and then not read."""
        while self._open and not self._wire.writable:
            self._stuck = asyncio.get_running_loop().create_future()
            await self._stuck

    async def _answer(self, value: dict[str, Any] | Invalid) -> bool:
        """A message that carries an `id` gets an answer that repeats it; an error is told in any case. Whether anything
        was sent."""
        number = None if isinstance(value, Invalid) else value.pop("id", None)
        try:
            if isinstance(value, Invalid):
                raise value
            answer = await self._session.receive(value)
            if number is None:
                return False
            answer = {"kind": "answer", **(answer or {})}
        except WaystationError as error:
            answer = {"kind": "failure", "problem": problem_of(error)}
        if number is not None:
            answer["id"] = number
        self.send(answer)
        return True


def _object(data: bytes) -> dict[str, Any] | Invalid:
    try:
        value = read_json(data)
    except Invalid as error:
        return Invalid(str(error).replace("the body", "this message", 1))
    return value if isinstance(value, dict) else Invalid("a message is a JSON object with an action")


def _as_sent(request: Request) -> bytes:
    """The handshake, for an engine that wants to read it itself."""
    lines = [f"{request.method} {request.target.decode('latin-1')} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
