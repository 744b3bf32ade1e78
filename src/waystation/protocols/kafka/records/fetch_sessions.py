"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

The broker remembers, per session, what is wanted of each partition and what was last told about it; an incremental
answer leaves out partitions about which there is nothing new. Sessions are a cache: one that is forgotten (too many, or
a restart) is answered with an error that makes the client start a new one. Where there are too many, whoever has most
loses its oldest, so that nobody takes all of them from others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID

from kio.schema.errors import ErrorCode

from waystation.errors import Invalid
from waystation.protocols.kafka.records.fetch_codec import FetchPartition, FetchRequest, PartitionAnswer
from waystation.world.random import Random

MAX_SESSIONS = 10_000
MAX_PARTITIONS = 200_000
"""Over all sessions: about 40 MB at worst. Who would have more than anybody else goes without, which is only slower."""

FINAL_EPOCH = -1
INITIAL_EPOCH = 0


class SessionError(Invalid):
    """The whole fetch is refused; the client begins a new session."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


Owner = tuple[str, str]
"""A principal and the namespace that it is in. Ids are short enough to be guessed, and a session has names of topics in
it: to others it is not there."""


class FetchSession:
    """One consumer's."""

    __slots__ = ("by_id", "epoch", "id", "owner", "partitions", "told")

    def __init__(self, session_id: int, by_id: bool, owner: Owner) -> None:
        self.id = session_id
        self.owner = owner
        self.by_id = by_id
        self.epoch = 1
        self.partitions: OrderedDict[tuple[str | UUID, int], FetchPartition] = OrderedDict()
        self.told: dict[tuple[str | UUID, int], tuple[int, int, int]] = {}

    def update(self, request: FetchRequest) -> None:
        for part in request.partitions:
            self.partitions[part.topic, part.index] = part
        for key in request.forgotten:
            self.partitions.pop(key, None)
            self.told.pop(key, None)

    def news(self, answers: list[PartitionAnswer]) -> list[PartitionAnswer]:
        """The answers that say something new; partitions with data move to the back, so that all get their turn."""
        new: list[PartitionAnswer] = []
        for answer in answers:
            key = (answer.topic, answer.index)
            state = (answer.high_watermark, answer.stable_offset, answer.start_offset)
            urgent = answer.records or answer.error or answer.diverging or answer.preferred >= 0
            if urgent or self.told.get(key) != state:
                new.append(answer)
                self.told[key] = state
                if answer.records and key in self.partitions:
                    self.partitions.move_to_end(key)
            if answer.error:
                self.told.pop(key, None)
        return new


class _Owned:
    """Sessions of a principal, in whichever namespaces; the one not used for longest is the first."""

    __slots__ = ("partitions", "sessions")

    def __init__(self) -> None:
        self.sessions: OrderedDict[int, None] = OrderedDict()
        self.partitions = 0


class Sessions:
    """All sessions of a listener; of who has most, the one not used for longest goes first."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._owned: dict[str, _Owned] = {}  # by principal
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has(self, session_id: int) -> bool:
        return session_id in self._sessions

    def enter(self, request: FetchRequest, owner: Owner) -> FetchSession | None:
        """The session that a request continues or begins; None for a fetch without. SessionError if it is unknown."""
        if request.session_epoch == FINAL_EPOCH:
            self._close(request.session_id, owner)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._close(request.session_id, owner)
            return self._begin(request, owner)
        session = self._sessions.get(request.session_id)
        if session is None or session.owner != owner:
            raise SessionError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            raise SessionError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != (request.version >= 13):
            raise SessionError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        before = len(session.partitions)
        session.update(request)
        owned = self._owned[owner[0]]
        owned.partitions += len(session.partitions) - before
        self._partitions += len(session.partitions) - before
        self._sessions.move_to_end(session.id)
        owned.sessions.move_to_end(session.id)
        while self._partitions > MAX_PARTITIONS:
            self._forget_one_of(self._most(lambda one: one.partitions))
        if session.id not in self._sessions:  # it has grown to be too large itself
            raise SessionError(ErrorCode.fetch_session_id_not_found)
        return session

    def _begin(self, request: FetchRequest, owner: Owner) -> FetchSession | None:
        if len(self._sessions) >= MAX_SESSIONS:
            self._forget_one_of(self._most(lambda one: len(one.sessions)))
        more = len(request.partitions)
        while self._partitions + more > MAX_PARTITIONS:
            known = self._owned.get(owner[0])
            most = self._most(lambda one: one.partitions) if self._owned else None
            if most is None or most.partitions < more + (0 if known is None else known.partitions):
                return None
            self._forget_one_of(most)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = 1 + self._random.below(2**31 - 2)
        session = FetchSession(session_id, request.version >= 13, owner)
        session.update(request)
        owned = self._owned.setdefault(owner[0], _Owned())
        owned.sessions[session_id] = None
        owned.partitions += len(session.partitions)
        self._partitions += len(session.partitions)
        self._sessions[session_id] = session
        return session

    def _most(self, measure: Callable[[_Owned], int]) -> _Owned:
        """Of those who have most by this measure: whose session was not used for longest, if it is one of them."""
        most = max(self._owned.values(), key=measure)
        eldest = self._owned[next(iter(self._sessions.values())).owner[0]]
        return eldest if measure(eldest) == measure(most) else most

    def _forget_one_of(self, owned: _Owned) -> None:
        self._forget(next(iter(owned.sessions)))

    def _close(self, session_id: int, owner: Owner) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._forget(session_id)

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id)
        self._partitions -= len(session.partitions)
        owned = self._owned[session.owner[0]]
        owned.partitions -= len(session.partitions)
        del owned.sessions[session_id]
        if not owned.sessions:
            del self._owned[session.owner[0]]
