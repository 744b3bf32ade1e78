"""Links over sockets: one connection for each pair and direction, in the native protocol's binary frames.

A question is the command `AskNode` with the request in msgpack (`peer.py`), to the address of the other node's listener
of a certain name (`kafka`, unless told otherwise) as its node entry says. Many may be under way at once. The connection
is made when something is asked, and again after it broke; whoever waits is told LinkLost. It begins with a login
(`security/node_links.py`), and is TLS where that listener is. All who ask while it is being made wait for the same
attempt, and hear of its failure: a node that hangs costs each of them one timeout, not one after the other.

A question without an answer in time ends the connection only if nothing else was heard meanwhile: replication must not
be cut because the other node waits for something on behalf of one question. While a long answer is being received, all
who ask go on waiting, unless no more of it comes: it may be theirs, or before theirs. On the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

import msgspec

from waystation.cluster.decisions.state import NodeState
from waystation.cluster.links.link import LinkLost, PeerRefused
from waystation.cluster.links.peer import Answer, PeerRefusal, Request
from waystation.cluster.store_view import StoreView
from waystation.protocol import MAGIC, MAX_FRAME_BYTES, AskNode, Authenticate, Hello, HelloAnswer
from waystation.protocol import Answer as NativeAnswer
from waystation.protocol import Failure as NativeFailure
from waystation.security.node_links import MECHANISM, LinkLogin

CONNECT_S = 1.0
LONG_BYTES = 64 * 1024
"""Of longer answers it is noted how far they have come."""
MAX_ANSWER_BYTES = 2**31 + MAX_FRAME_BYTES
"""Of a node that has logged in. A leader gives one batch at least, and `max.message.bytes` of a topic may be 2 GiB:
what was stored has to be copied, or nothing else of that leader would be."""
_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_native: msgspec.msgpack.Decoder[NativeAnswer | NativeFailure] = msgspec.msgpack.Decoder(NativeAnswer | NativeFailure)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


async def listens(listener: str, node: NodeState) -> bool:
    """Whether somebody takes connections where the node's entry says."""
    address = node.listeners.get(listener)
    if address is None:
        return False
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


class SocketLinks:
    """One per broker in a cluster."""

    def __init__(self, view: StoreView, login: LinkLogin, listener: str) -> None:
        """`listener`: the name of that by which nodes reach each other."""
        self._view = view
        self._login = login
        self._listener = listener
        self._links: dict[int, SocketLink] = {}

    def to(self, node_id: int) -> SocketLink:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = SocketLink(self._view, node_id, self._login, self._listener)
        return link

    async def close(self) -> None:
        for link in self._links.values():
            link.stop()


class SocketLink:
    def __init__(self, view: StoreView, node_id: int, login: LinkLogin, listener: str) -> None:
        self._view = view
        self._login = login
        self._listener = listener
        self._node_id = node_id
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[asyncio.StreamWriter] | None = None
        self._heard = 0  # answers, on all connections
        self._received = 0  # bytes of a long answer that is on its way
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last = 0

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        writer = self._writer or await self._connected()
        heard = self._heard
        self._last += 1
        number = self._last
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        frame = _encoder.encode(AskNode(id=number, request=_encoder.encode(request)))
        try:
            writer.write(_LENGTH.pack(len(frame)) + frame)
            return await self._wait_for(waiting, timeout_s)
        except TimeoutError:
            if self._heard == heard and self._writer is writer:
                self.close(f"node {self._node_id} gave no answer within {timeout_s:g} s")
            raise LinkLost(f"node {self._node_id} gave no answer within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def _wait_for(self, waiting: asyncio.Future[Answer], timeout_s: float) -> Answer:
        """TimeoutError: it has not come in time, nor within that time of the end of the long answer that was arriving
        then, or that one does not go on."""
        arriving, received = -1, 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await asyncio.shield(waiting)
            if arriving < 0:
                arriving = self._heard
            if received < 0 or (arriving == self._heard and self._received <= received):
                raise TimeoutError
            received = self._received if arriving == self._heard else -1

    async def _connected(self) -> asyncio.StreamWriter:
        """By the attempt that is under way, or a new one."""
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = asyncio.get_running_loop().create_task(
                self._connect(), name=f"connect-{self._node_id}"
            )
            connecting.add_done_callback(self._attempted)
        await asyncio.wait([connecting])
        if connecting.cancelled():
            raise LinkLost(f"node {self._node_id}: this node stops")
        return connecting.result()

    def _attempted(self, connecting: asyncio.Task[asyncio.StreamWriter]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # whoever asked may have gone

    async def _connect(self) -> asyncio.StreamWriter:
        state = self._view.node_state(self._node_id)
        if state is None or self._listener not in state.listeners:
            raise LinkLost(f"node {self._node_id} is not known to be alive")
        address = state.listeners[self._listener]
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, limit=1024 * 1024, ssl=self._login.context()
                )
                await self._log_in(reader, writer)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()  # the loop would keep it open for as long as the other node does
            if isinstance(error, ConnectionRefusedError):
                raise PeerRefused(
                    f"node {self._node_id} refuses connections at {address.host}:{address.port}"
                ) from error
            if isinstance(error, TimeoutError):
                raise LinkLost(f"node {self._node_id} does not answer at {address.host}:{address.port}") from error
            if isinstance(error, OSError | EOFError | msgspec.MsgspecError):
                raise LinkLost(f"node {self._node_id} cannot be reached: {error}") from error
            raise
        self._writer = writer
        self._reading = asyncio.get_running_loop().create_task(self._read(reader), name=f"link-{self._node_id}")
        return writer

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises LinkLost if the other node does not let this one in."""
        writer.write(MAGIC)
        answer = await self._say(reader, writer, Hello(mechanism=MECHANISM, client="node"))
        if answer.challenge is not None:
            await self._say(reader, writer, Authenticate(data=self._login.proof(answer.challenge)))

    async def _say(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: Hello | Authenticate
    ) -> HelloAnswer:
        self._last += 1
        command.id = self._last
        frame = _encoder.encode(command)
        writer.write(_LENGTH.pack(len(frame)) + frame)
        (size,) = _LENGTH.unpack(await reader.readexactly(4))
        if size > MAX_FRAME_BYTES:
            raise LinkLost(f"node {self._node_id}: a frame of {size} bytes")
        heard = _native.decode(await reader.readexactly(size))
        if isinstance(heard, NativeFailure):
            raise LinkLost(f"node {self._node_id} refuses the login: {heard.text}")
        return msgspec.convert(heard.value, HelloAnswer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = "the connection was closed"
        try:
            while True:
                (size,) = _LENGTH.unpack(await reader.readexactly(4))
                if size > MAX_ANSWER_BYTES:
                    raise ValueError(f"a frame of {size} bytes")
                self._hear(_native.decode(await self._receive(reader, size)))
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
            why = str(error) or why
        finally:
            self._reading = None
            self.close(f"node {self._node_id}: {why}")

    async def _receive(self, reader: asyncio.StreamReader, size: int) -> bytes | bytearray:
        if size <= LONG_BYTES:
            return await reader.readexactly(size)
        data = bytearray()
        try:
            while len(data) < size:
                piece = await reader.read(size - len(data))
                if not piece:
                    raise EOFError("the connection was closed")
                data += piece
                self._received = len(data)
        finally:
            self._received = 0
        return data

    def _hear(self, heard: NativeAnswer | NativeFailure) -> None:
        self._heard += 1
        waiting = self._waiting.get(heard.id)
        if waiting is None or waiting.done():
            return
        if isinstance(heard, NativeFailure):
            waiting.set_result(PeerRefusal(heard.error, heard.text))
        else:
            waiting.set_result(_answer.decode(heard.value))

    def stop(self) -> None:
        """This node stops."""
        if self._connecting is not None:
            self._connecting.cancel()
        self.close("this node stops")

    def close(self, why: str) -> None:
        """Whoever waits is told, and the next question connects again."""
        writer, self._writer = self._writer, None
        reading, self._reading = self._reading, None
        if writer is not None:
            writer.transport.abort()
        if reading is not None:
            reading.cancel()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(LinkLost(why))
