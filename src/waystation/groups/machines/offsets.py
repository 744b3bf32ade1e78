"""Committed offsets of the groups on one `__consumer_offsets` partition, as a pure state machine.

Two things can be true of an offset: it is *committed*, or it is *pending* inside a transaction of some producer, until
that producer's marker comes (`resolve`). Whichever was written later in the log wins, as compaction will decide too:
a plain commit that followed a pending one is not undone by the marker. So every entry carries its order in the log.

A deletion is final for both: a topic that is re-created under the same name must not inherit a position from a
transaction that was open when the old one went. Live calls and replay go through the same methods, in log order.

Each change says where it ends in the log (`end`). Clients are shown (`shown`, `shown_keys`) what is replicated, since a
group that was told of an offset must not find itself before it when another broker coordinates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from waystation.groups.machines.unreplicated import Unreplicated

Key = tuple[str, int]
"""(topic, partition)"""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """One committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int = -1
    """Set by clients of old that ask for a retention of their own."""
    order: int = -1
    """Its place in the log, relative to the others."""


class OffsetStore:
    """See the module."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[Key, Committed]] = {}
        self._pending: dict[int, dict[str, dict[Key, Committed]]] = {}  # producer id → group → key
        self._order = 0
        self._topics: dict[str, str] = {}  # one string object per topic, however many groups commit to it
        self._unreplicated: Unreplicated[tuple[str, Key], Committed] = Unreplicated()
        self._replicated = 0

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._committed.get(group_id, {}).get((topic, partition))

    def shown(self, group_id: str, topic: str, partition: int) -> Committed | None:
        """As `get`, of what is replicated."""
        change = self._unreplicated.first((group_id, (topic, partition)), self._replicated)
        return self.get(group_id, topic, partition) if change is None else change.before

    def shown_keys(self, group_id: str) -> set[Key]:
        """All for which there may be something to show, or something that is not certain yet."""
        return self.keys(group_id).union(key for group, key in self._unreplicated if group == group_id)

    def all(self, group_id: str) -> Iterator[tuple[Key, Committed]]:
        return iter(self._committed.get(group_id, {}).items())

    def groups(self) -> Iterable[str]:
        """Every group that has offsets, committed or pending."""
        return self._committed.keys() | {group_id for groups in self._pending.values() for group_id in groups}

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or any(group_id in groups for groups in self._pending.values())

    def is_changing(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether it is another one than is shown, as soon as that is replicated."""
        return self._unreplicated.first((group_id, (topic, partition)), self._replicated) is not None

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended wrote this offset."""
        key = (topic, partition)
        return any(key in groups.get(group_id, ()) for groups in self._pending.values())

    def keys(self, group_id: str) -> set[Key]:
        """Everything that a deletion of the group has to take away."""
        keys = set(self._committed.get(group_id, ()))
        return keys.union(*(groups.get(group_id, ()) for groups in self._pending.values()))

    def keys_of_topics(self, topics: frozenset[str]) -> Iterator[tuple[str, Key]]:
        """(group, key) of every offset of these topics, committed or pending."""
        for group_id in list(self.groups()):
            for key in self.keys(group_id):
                if key[0] in topics:
                    yield group_id, key

    def expired(
        self, group_id: str, now_ms: int, retention_ms: int, *, emptied_at_ms: int, subscribed: frozenset[str]
    ) -> list[Key]:
        """The offsets that have outlived their use: nobody reads the topic, and the retention has passed.

        It counts from the commit or, if that was later, from when the group lost its last member.
        """
        keys: list[Key] = []
        for key, entry in self.all(group_id):
            if key[0] in subscribed or self.is_unstable(group_id, *key):
                continue
            expires_at_ms = entry.expires_at_ms
            if expires_at_ms < 0:
                expires_at_ms = max(entry.committed_at_ms, emptied_at_ms) + retention_ms
            if now_ms >= expires_at_ms:
                keys.append(key)
        return keys

    # -- changes, in log order -------------------------------------------------------------------------------

    def replicated_to(self, offset: int) -> None:
        """What ends in the log up to there is replicated. To be told before anything is shown, too."""
        self._replicated = offset
        self._unreplicated.forget(offset)

    def commit(self, group_id: str, topic: str, partition: int, entry: Committed, *, end: int = 0) -> None:
        key = self._key(topic, partition)
        self._changes(group_id, key, end)
        self._committed.setdefault(group_id, {})[key] = self._ordered(entry)

    def pend(self, producer_id: int, group_id: str, topic: str, partition: int, entry: Committed) -> None:
        """An offset inside a transaction: not seen until the marker."""
        groups = self._pending.setdefault(producer_id, {})
        groups.setdefault(group_id, {})[self._key(topic, partition)] = self._ordered(entry)

    def delete(self, group_id: str, topic: str, partition: int, *, end: int = 0) -> None:
        key = self._key(topic, partition)
        self._changes(group_id, key, end)
        _take(self._committed, group_id, key)
        for producer_id in [producer_id for producer_id, groups in self._pending.items() if group_id in groups]:
            _take(self._pending[producer_id], group_id, key)
            if not self._pending[producer_id]:
                del self._pending[producer_id]

    def resolve(self, producer_id: int, *, commit: bool, end: int = 0) -> set[str]:
        """The producer's transaction ended: its offsets become visible, or were never there. Returns the groups."""
        groups = self._pending.pop(producer_id, {})
        if commit:
            for group_id, entries in groups.items():
                committed = self._committed.setdefault(group_id, {})
                for key, entry in entries.items():
                    present = committed.get(key)
                    if present is None or present.order < entry.order:
                        self._changes(group_id, key, end)
                        committed[key] = entry
        return set(groups)

    def _changes(self, group_id: str, key: Key, end: int) -> None:
        if end > self._replicated:
            self._unreplicated.note((group_id, key), self._committed.get(group_id, {}).get(key), end)

    def _key(self, topic: str, partition: int) -> Key:
        return self._topics.setdefault(topic, topic), partition

    def _ordered(self, entry: Committed) -> Committed:
        self._order += 1
        return msgspec.structs.replace(entry, order=self._order)


def _take(groups: dict[str, dict[Key, Committed]], group_id: str, key: Key) -> None:
    entries = groups.get(group_id)
    if entries is not None and entries.pop(key, None) is not None and not entries:
        del groups[group_id]
