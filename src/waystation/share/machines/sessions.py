"""Share sessions (KIP-932): which partitions a share consumer fetches from, named once and then only changed.

A session belongs to one member of one group; its requests are numbered (the epoch), so that a lost or doubled one is
noticed. It is a cache: after a restart the member is told that there is none, and begins a new one. When it ends, what
the member has in flight goes back to the group (the owner of the sessions sees to that).

Pure. Used by the Kafka protocol's ShareFetch and ShareAcknowledge.
"""

from __future__ import annotations

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


class ShareSession:
    """One member's."""

    __slots__ = ("ended", "ends", "epoch", "key", "partitions", "poke")

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.epoch = 1
        self.partitions: dict[TopicPartition, None] = {}
        """In the order in which they are looked at; those that gave records move to the back."""
        self.ends: dict[TopicPartition, int] = {}
        """Up to where the coordinator of the group, another node, was told what is in a partition."""
        self.ended = False
        """Nobody may use it any more: the member left, began another one, or was silent for too long."""
        self.poke: Callable[[], None] | None = None
        """Ends the wait of a fetch that waits: the member has sent another request behind it."""

    def served(self, partition: TopicPartition) -> None:
        """It gave records: the others are next."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def change(self, session: ShareSession, added: Sequence[TopicPartition], removed: Iterable[TopicPartition]) -> None:
        """The member's partitions; those that it names again stay where they are in the line."""
        if self._partitions + len(added) > MAX_PARTITIONS:
            raise TooManyShareSessions(f"the share sessions of this broker name {MAX_PARTITIONS} partitions already")
        before = len(session.partitions)
        for partition in added:
            session.partitions.setdefault(partition)
        for partition in removed:
            session.partitions.pop(partition, None)
            session.ends.pop(partition, None)
        self._partitions += len(session.partitions) - before

    def find(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def begin(self, key: SessionKey, most: int) -> ShareSession:
        """A new session, in the place of one that the member may have had."""
        if key not in self._sessions and len(self._sessions) >= most:
            raise TooManyShareSessions(
                f"this broker has {most} share sessions, the most there may be (group.share.max.share.sessions)"
            )
        self.end(key)
        session = self._sessions[key] = ShareSession(key)
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
        return session

    def end(self, key: SessionKey, session: ShareSession | None = None) -> bool:
        """Forgets a session; with `session` only if it is still that one. Says whether there was one."""
        present = self._sessions.get(key)
        if present is None or (session is not None and present is not session):
            return False
        del self._sessions[key]
        self._partitions -= len(present.partitions)
        present.partitions.clear()
        present.ended = True
        return True

    def end_all_of(self, group_id: str) -> None:
        """Those of a group that is gone from here; a fetch that waits does not go on waiting."""
        for key, session in [item for item in self._sessions.items() if item[0][0] == group_id]:
            self.end(key)
            if session.poke is not None:
                session.poke()
