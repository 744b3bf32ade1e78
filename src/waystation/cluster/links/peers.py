"""What this node answers to the others: a table of requests, and who does each. On the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from waystation.cluster.links.peer import (
    Answer,
    Fetch,
    Hurry,
    JoinTransaction,
    Leaving,
    MarkersWritten,
    PeerDone,
    PeerRefusal,
    Request,
    ShareAsk,
    ShareTold,
    SnapshotAsk,
    WriteAudit,
    WriteMarkers,
)
from waystation.cluster.replication.serving import FetchServer
from waystation.cluster.replication.snapshots import SnapshotServer
from waystation.errors import Invalid, WaystationError
from waystation.observe.events import event_logger

logger = event_logger("waystation.cluster")

_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_encode = msgspec.msgpack.Encoder().encode

WriteAll = Callable[[WriteMarkers], Awaitable[MarkersWritten]]
Join = Callable[[JoinTransaction], Awaitable[None]]
Share = Callable[[ShareAsk], Awaitable[ShareTold]]
Leave = Callable[[Leaving], None]
Disconnect = Callable[[str], None]
TakeAudit = Callable[[WriteAudit], None]


class Peers:
    """`link.Answering`."""

    def __init__(
        self,
        server: FetchServer,
        leave: Leave,
        disconnect: Disconnect,
        snapshots: SnapshotServer,
        write_markers: WriteAll,
        join: Join,
        share: Share,
        take_audit: TakeAudit,
    ) -> None:
        self._server = server
        self._leave = leave
        self._disconnect = disconnect
        self._snapshots = snapshots
        self._write_markers = write_markers
        self._join = join
        self._share = share
        self._take_audit = take_audit

    async def answer_encoded(self, request: bytes, connection: str) -> bytes:
        """The same as it travels between processes. Invalid: this is no request that is known here."""
        try:
            asked = _request.decode(request)
        except msgspec.DecodeError as error:
            raise Invalid(f"a request of another node cannot be read: {error}; is it of a later version?") from error
        return _encode(await self.answer(asked, connection))

    def disconnected(self, connection: str) -> None:
        self._disconnect(connection)

    async def answer(self, request: Request, connection: str = "") -> Answer:
        try:
            if isinstance(request, Fetch):
                return await self._server.fetch(request, connection)
            if isinstance(request, Hurry):
                return self._server.hurry(request)
            if isinstance(request, Leaving):
                self._leave(request)
                return PeerDone()
            if isinstance(request, JoinTransaction):
                await self._join(request)
                return PeerDone()
            if isinstance(request, SnapshotAsk):
                return await self._snapshots.give(request)
            if isinstance(request, ShareAsk):
                return await self._share(request)
            if isinstance(request, WriteAudit):
                self._take_audit(request)
                return PeerDone()
            return await self._write_markers(request)
        except WaystationError as error:
            return PeerRefusal(type(error).__name__, str(error))
        except Exception as error:
            logger.exception("peer.request_failed", "a request of another node failed")
            return PeerRefusal("InternalError", str(error))
