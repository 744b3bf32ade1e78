"""The leader's side of fetching: answers followers with the bytes of its log, and counts their fetches as promises.

A follower has one session, with a position for each partition. A request changes positions, and each of them is judged
(`LeaderState.fetched`); the answer has what there is behind them, and where there is nothing the request waits until
something is appended. A partition that was given waits for its follower to name a new position, so that nothing is sent
twice. A follower that goes on asking repeats its unchanged promises: `refresh` tells those to the partitions' states.

A session also says whether its follower's process is there. Its connection may end (`disconnected`); if the node then
refuses another one, its process has ended (`refused`), as it has when it says so (`left`). Whatever it fetches after
that shows that it lives.

All of it is in memory and belongs to one process: a link that breaks, a restart on either side, begin a new session. On
the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from waystation.cluster.decisions.promises import FetchDecision, FetchVerdict
from waystation.cluster.decisions.replica_fetch import EpochEnd, ReplicaFetch
from waystation.cluster.links.peer import (
    Answer,
    Fetch,
    Fetched,
    Hurry,
    Key,
    Leaving,
    PartitionAsk,
    PartitionGiven,
    PeerDone,
    PeerRefusal,
)
from waystation.cluster.replication.led import Led, copied_from, history
from waystation.cluster.replication.throttle import Throttle, moves
from waystation.errors import CorruptBatch, OffsetOutOfRange, StorageFailed
from waystation.log.log import Log
from waystation.observe.events import event_logger
from waystation.topics.partitions.partition import log_of
from waystation.world import World

logger = event_logger("waystation.replication")

WAIT_MOST_MS = 5_000
PARTITION_BYTES = 1024 * 1024
"""Of one partition in one answer, or one batch."""
ANSWER_BYTES = 8 * 1024 * 1024


class _Position:
    """What a follower has asked for of a partition, until it asks for something else."""

    __slots__ = ("_copied", "ask", "given", "judged", "judged_number")

    def __init__(self, ask: PartitionAsk) -> None:
        self.ask = ask
        self.given = False  # and the follower has not named another position since
        self.judged = FetchDecision(FetchVerdict.STALE)
        self.judged_number = 0
        self._copied = (-1, 0)

    def start_of(self, log: Log) -> int:
        """Where the log begins for who is to be given what is at this offset."""
        return log.start_offset if self.ask.offset >= log.start_offset else self.copied_from(log)

    def copied_from(self, log: Log) -> int:
        """As the function of that name: the batch at a start is read once for what is asked, not for each question."""
        if self._copied[0] != log.start_offset:
            self._copied = (log.start_offset, copied_from(log))
        return self._copied[1]


class _Session:
    """Of one process of a follower. The leader's partitions tell it what has grown (`led.Listener`)."""

    def __init__(self, session_id: int, asked: Fetch | Leaving, heard: float) -> None:
        self.id = session_id
        self.node_id = asked.node_id
        self.folder = asked.folder if isinstance(asked, Fetch) else ""
        self.incarnation = asked.incarnation
        self.number = asked.number
        self.heard = heard
        self.connection = ""  # by which it has fetched last
        self.connected = True  # that one has not ended since
        self.ended = False  # its process is not there any more
        self.positions: dict[Key, _Position] = {}
        self.ready: dict[Key, None] = {}
        self.advanced_only: dict[Key, None] = {}
        self.news = asyncio.Event()
        self.over = False

    def grown(self, key: Key) -> None:
        position = self.positions.get(key)
        if position is not None and not position.given:
            self.ready[key] = None
            self.news.set()

    def advanced(self, key: Key) -> None:
        self.advanced_only[key] = None


class FetchServer:
    """One per broker in a cluster."""

    def __init__(self, world: World, node_id: int, throttle: Throttle) -> None:
        self._world = world
        self._node_id = node_id
        self._throttle = throttle
        self._led: dict[Key, Led] = {}
        self._sessions: dict[int, _Session] = {}  # by node
        self._last_session = 0

    @property
    def led(self) -> Mapping[Key, Led]:
        return self._led

    def begin(self, led: Led) -> None:
        """This node leads the partition: followers that have asked for it too early are answered now."""
        self._led[led.key] = led
        for session in self._sessions.values():
            if led.key in session.positions:
                led.listeners[session] = None
                session.advanced(led.key)
                self._judge(session, session.positions[led.key], led)

    def end(self, key: Key) -> None:
        """It does not lead it any more: whoever follows is told, and waits for what its watch tells."""
        led = self._led.pop(key, None)
        if led is None:
            return
        led.close()
        for session in self._sessions.values():
            if key in session.positions:
                session.ready[key] = None
                session.news.set()

    def forget(self, node_id: int) -> None:
        """The cluster has forgotten the node: one that comes later under its id counts its starts and its requests
        from the beginning."""
        known = self._sessions.pop(node_id, None)
        if known is not None:
            self._close(known)

    def disconnected(self, connection: str) -> list[tuple[int, int]]:
        """The connection has ended. Returns the followers that fetched by it: nodes, and their incarnations."""
        lost = [one for one in self._sessions.values() if one.connected and one.connection == connection]
        for session in lost:
            session.connected = False
        return [(session.node_id, session.incarnation) for session in lost if not session.ended]

    def refused(self, node_id: int, incarnation: int) -> None:
        """The node of this incarnation refuses connections. As long as the one that it fetches by is there, its process
        is there, too."""
        session = self._sessions.get(node_id)
        if session is not None and not session.connected and session.incarnation <= incarnation:
            session.ended = True

    def left(self, request: Leaving) -> None:
        """The node's process stops."""
        known = self._sessions.get(request.node_id)
        if known is not None:
            if (request.incarnation, request.number) <= (known.incarnation, known.number):
                return  # of a former process, or sent twice
            self._close(known)
        session = self._begin_session(request)
        session.over = session.ended = True

    def is_connected(self, node_id: int) -> bool:
        """Whether the connection is there by which the follower has fetched last."""
        session = self._sessions.get(node_id)
        return session is not None and session.connected

    def has_ended(self, node_id: int) -> bool:
        """Whether the process that has fetched last as this follower is known to have ended."""
        session = self._sessions.get(node_id)
        return session is not None and session.ended

    def refresh(self) -> None:
        """What followers have promised again without saying it. Before anybody asks who keeps up."""
        for session in self._sessions.values():
            for key, position in session.positions.items():
                led = self._led.get(key)
                if led is not None and position.judged_number < session.number and not position.given:
                    self._judge(session, position, led)

    # -- requests -----------------------------------------------------------------------------------------------------

    def hurry(self, request: Hurry) -> Answer:
        session = self._sessions.get(request.node_id)
        if session is not None and session.id == request.session:
            session.news.set()
        return PeerDone()

    async def fetch(self, request: Fetch, connection: str = "") -> Answer:
        session = self._session(request)
        if session is None:
            return PeerRefusal("UnknownSession", "this session is not known here: begin a new one with all partitions")
        session.number = request.number
        session.heard = self._world.clock.monotonic()
        session.connection, session.connected, session.ended = connection, True, False
        self._place(session, request)
        number = request.number
        session.news.clear()
        if not session.ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(request.wait_ms, WAIT_MOST_MS) / 1000):
                    await session.news.wait()
        if session.over or session.number != number:
            return Fetched(request.session)  # another request of this follower is the one that counts
        return Fetched(session.id, tuple(self._give(session, request.max_bytes or ANSWER_BYTES)))

    def _session(self, request: Fetch) -> _Session | None:
        known = self._sessions.get(request.node_id)
        if known is not None and (request.incarnation, request.number) <= (known.incarnation, known.number):
            return None  # a late one of a former process, or of a link that is no more
        if request.session:
            return known if known is not None and known.id == request.session else None
        if known is not None:
            self._close(known)
        return self._begin_session(request)

    def _begin_session(self, request: Fetch | Leaving) -> _Session:
        self._last_session += 1
        session = _Session(self._last_session, request, self._world.clock.monotonic())
        self._sessions[request.node_id] = session
        return session

    def _close(self, session: _Session) -> None:
        session.over = True
        session.news.set()
        for key in session.positions:
            if key in self._led:
                self._led[key].listeners.pop(session, None)

    def _place(self, session: _Session, request: Fetch) -> None:
        for key in request.forgotten:
            if session.positions.pop(key, None) is not None and key in self._led:
                self._led[key].listeners.pop(session, None)
            session.ready.pop(key, None)
        for ask in request.changed:
            position = _Position(ask)
            session.positions[ask.key] = position
            led = self._led.get(ask.key)
            if led is None:
                session.ready[ask.key] = None
            else:
                led.listeners[session] = None
                session.advanced(ask.key)  # it may know less than what was acknowledged before this epoch began
                self._judge(session, position, led)

    def _judge(self, session: _Session, position: _Position, led: Led) -> None:
        """Counts the promise, and notes what the follower is to be answered."""
        ask = position.ask
        log = log_of(led.partition)
        fetch = ReplicaFetch(
            session.node_id,
            ask.epoch,
            session.folder,
            session.incarnation,
            session.number,
            ask.offset,
            ask.last_epoch,
        )
        state = led.state
        broken = state.broken
        state.wrote(log.end_offset, log.durable_offset)
        position.judged = state.fetched(fetch, history(log, position.start_of(log)), session.heard)
        position.judged_number = session.number
        if state.broken - broken:
            logger.error(
                "replica.lost_records",
                "node {node} asked for {topic}-{partition} from offset {offset}, which is less than it had: its disk"
                " has lost records. It is taken out of the in-sync set",
                node=session.node_id,
                topic=led.partition.topic.name,
                partition=led.partition.index,
                offset=ask.offset,
            )
        led.advance()
        if position.judged.verdict is not FetchVerdict.SERVED or ask.offset < log.written_offset:
            session.ready[ask.key] = None
            session.news.set()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _give(self, session: _Session, room: int) -> list[PartitionGiven]:
        given: list[PartitionGiven] = []
        for key in list(session.ready):
            position = session.positions.get(key)
            if position is None:
                del session.ready[key]
                continue
            if room <= 0 and given:
                break
            del session.ready[key]
            answer = self._answer(session, position, room)
            if answer is not None:  # else it is yet to be told how far it is acknowledged
                session.advanced_only.pop(key, None)
                position.given = True
                room -= len(answer.records)
                given.append(answer)
        for key in session.advanced_only:
            position, led = session.positions.get(key), self._led.get(key)
            if position is not None and led is not None and not position.given and self._serves(position, led):
                given.append(self._given(position, led))
        session.advanced_only.clear()
        return given

    def _answer(self, session: _Session, position: _Position, room: int) -> PartitionGiven | None:
        ask = position.ask
        led = self._led.get(ask.key)
        if led is None:
            return PartitionGiven(ask.topic, ask.index, self._node_id, ask.epoch, ask.offset, 0, 0, refused=True)
        if not self._serves(position, led):
            verdict, diverging = position.judged
            if verdict is FetchVerdict.DIVERGING:
                return self._given(position, led, diverging=diverging)
            if verdict is FetchVerdict.BEHIND_START:
                return self._given(position, led)
            return self._given(position, led, refused=True)
        moved = moves(led.state.view.state, session.node_id)
        if moved and (wait_s := self._throttle.wait_s()):
            asyncio.get_running_loop().call_later(wait_s, session.grown, ask.key)
            return None
        if ask.offset < position.start_of(log_of(led.partition)):  # the start has moved meanwhile
            return self._given(position, led)
        try:
            records = self._read(led, ask.offset, min(room, PARTITION_BYTES))
        except OffsetOutOfRange:
            return self._given(position, led)
        except (CorruptBatch, StorageFailed) as error:
            logger.error(
                "replica.unreadable",
                "{topic}-{partition} cannot be read at offset {offset}, so that it cannot be copied: {error}",
                topic=led.partition.topic.name,
                partition=led.partition.index,
                offset=ask.offset,
                error=error,
            )
            return None
        if moved:
            self._throttle.spend(len(records))
        return self._given(position, led, records) if records else None

    @staticmethod
    def _serves(position: _Position, led: Led) -> bool:
        return position.judged.verdict is FetchVerdict.SERVED and position.ask.epoch == led.state.epoch

    def _given(
        self,
        position: _Position,
        led: Led,
        records: bytes = b"",
        *,
        diverging: EpochEnd | None = None,
        refused: bool = False,
    ) -> PartitionGiven:
        ask, log = position.ask, log_of(led.partition)
        return PartitionGiven(
            ask.topic,
            ask.index,
            self._node_id,
            led.state.epoch,
            ask.offset,
            position.start_of(log) if diverging is None else position.copied_from(log),
            led.state.high_watermark,
            records,
            diverging,
            refused,
        )

    @staticmethod
    def _read(led: Led, offset: int, max_bytes: int) -> bytes:
        """Whole batches."""
        log = log_of(led.partition)
        data = log.read(max(offset, log.start_offset), max_bytes)
        if not data:
            return b""
        whole, _ = log.whole_of_read(data)
        return data if whole == len(data) else data[:whole]
