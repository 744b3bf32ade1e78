"""Share sessions (KIP-932): which partitions a share consumer fetches from, named once and then only changed.

A session belongs to one member of one group; its requests are numbered (the epoch), so that a lost or doubled one is
noticed. It is a cache: after a restart the member is told that there is none, and begins a new one. When it ends, what
the member has in flight goes back to the group (who calls this sees to that). There is room for so many. When it is
used up, a session ends of whoever has most, for somebody who has less; who would have most itself is refused.

Pure. Used by the Kafka protocol's ShareFetch and ShareAcknowledge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from waystation.groups.machines.calls import TopicPartition
from waystation.share.machines.errors import InvalidShareSessionEpoch, TooManyShareSessions, UnknownShareSession

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 2**31 - 1
MAX_PARTITIONS = 500_000
"""Over all sessions: some 50 MB."""

SessionKey = tuple[str, str]
"""(group id, member id)."""
Evict = Callable[["ShareSession"], object]
"""Ends a session (`ShareSessions.end`) and requeues what its member has in flight."""


class ShareSession:
    """One member's."""

    __slots__ = ("ended", "ends", "epoch", "key", "on_end", "owner", "partitions", "poke")

    def __init__(self, key: SessionKey, owner: str) -> None:
        self.key = key
        self.owner = owner
        """The principal that has begun it."""
        self.epoch = 1
        self.partitions: dict[TopicPartition, None] = {}
        """In the order in which they are looked at; those that gave records move to the back."""
        self.ends: dict[TopicPartition, int] = {}
        """Up to where the coordinator of the group, another node, was told what is in a partition."""
        self.ended = False
        """Nobody may use it any more: the member left, began another one, or was silent for too long."""
        self.poke: Callable[[], None] | None = None
        """Ends the wait of a fetch that waits: the member has sent another request behind it."""
        self.on_end: Callable[[], object] | None = None
        """Whoever has begun it need not end it any more."""

    def served(self, partition: TopicPartition) -> None:
        """It gave records: the others are next."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class _Owned:
    """Sessions of a principal; the one not used for longest is the first."""

    __slots__ = ("partitions", "sessions")

    def __init__(self) -> None:
        self.sessions: OrderedDict[SessionKey, ShareSession] = OrderedDict()
        self.partitions = 0


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._owned: dict[str, _Owned] = {}  # by principal
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def change(
        self, session: ShareSession, added: Sequence[TopicPartition], removed: Iterable[TopicPartition], evict: Evict
    ) -> None:
        """The member's partitions; those that it names again stay where they are in the line. TooManyShareSessions:
        nothing was changed."""
        if session.ended:
            raise UnknownShareSession(f"the session of member {session.key[1]!r} has ended; begin a new one")
        new = dict.fromkeys(one for one in added if one not in session.partitions)
        gone = {one for one in removed if one in session.partitions or one in new}
        more, owned = len(new) - len(gone), self._owned[session.owner]
        while more > 0 and self._partitions + more > MAX_PARTITIONS:
            most = max(self._owned.values(), key=lambda one: one.partitions)
            if most.partitions <= owned.partitions + more:
                raise TooManyShareSessions(
                    f"the share sessions of this broker name {MAX_PARTITIONS} partitions, the most there may be, and"
                    f" nobody has more of them than {session.owner} would have"
                )
            evict(next(iter(most.sessions.values())))
        session.partitions.update(new)
        for partition in gone:
            del session.partitions[partition]
            session.ends.pop(partition, None)
        owned.partitions += more
        self._partitions += more

    def find(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def begin(self, key: SessionKey, owner: str, limit: int, evict: Evict) -> ShareSession:
        """A new session, in the place of one that the member may have had."""
        if key not in self._sessions and len(self._sessions) >= limit:
            known = self._owned.get(owner)
            most = max(self._owned.values(), key=lambda one: len(one.sessions))
            if len(most.sessions) <= (0 if known is None else len(known.sessions)) + 1:
                raise TooManyShareSessions(
                    f"this broker has {limit} share sessions, the most there may be (group.share.max.share.sessions),"
                    f" and nobody has more of them than {owner} would have"
                )
            evict(next(iter(most.sessions.values())))
        self.end(key)
        session = self._sessions[key] = ShareSession(key, owner)
        self._owned.setdefault(owner, _Owned()).sessions[key] = session
        return session

    def enter(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session that a request continues, or ends (`FINAL_EPOCH`: the caller calls `end` when it is through)."""
        session = self._sessions.get(key)
        if session is None:
            raise UnknownShareSession(f"member {key[1]!r} of share group {key[0]!r} has no session; begin a new one")
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise InvalidShareSessionEpoch(
                    f"the session of member {key[1]!r} of share group {key[0]!r} is at epoch {session.epoch}, the"
                    f" request says {epoch}; begin a new one"
                )
            session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        self._owned[session.owner].sessions.move_to_end(key)
        return session

    def end(self, key: SessionKey, session: ShareSession | None = None) -> bool:
        """Forgets a session; with `session` only if it is still that one. Says whether there was one."""
        present = self._sessions.get(key)
        if present is None or (session is not None and present is not session):
            return False
        del self._sessions[key]
        owned = self._owned[present.owner]
        owned.partitions -= len(present.partitions)
        self._partitions -= len(present.partitions)
        del owned.sessions[key]
        if not owned.sessions:
            del self._owned[present.owner]
        present.partitions.clear()
        present.ended = True
        on_end, present.on_end = present.on_end, None
        if on_end is not None:
            on_end()
        return True

    def end_all_of(self, group_id: str) -> None:
        """Those of a group that is gone from here; a fetch that waits does not go on waiting."""
        for key, session in [item for item in self._sessions.items() if item[0][0] == group_id]:
            self.end(key)
            if session.poke is not None:
                session.poke()
