"""Committed and pending offsets: what is seen, what waits for its transaction, what has expired."""

from __future__ import annotations

from waystation.groups.machines.offsets import Committed, OffsetStore

DAY_MS = 86_400_000


def at(offset: int, committed_at_ms: int = 0, expires_at_ms: int = -1) -> Committed:
    return Committed(offset, -1, "", committed_at_ms, expires_at_ms)


def offset_of(store: OffsetStore, group: str = "g", topic: str = "t", partition: int = 0) -> int | None:
    entry = store.get(group, topic, partition)
    return None if entry is None else entry.offset


def test_the_newest_commit_counts() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(5))
    store.commit("g", "t", 0, at(3))  # back is allowed: somebody resets the group
    assert offset_of(store) == 3
    assert offset_of(store, partition=1) is None


def test_an_offset_in_a_transaction_is_seen_after_its_commit_only() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(1))
    store.pend(7, "g", "t", 0, at(2))
    assert offset_of(store) == 1
    assert store.is_unstable("g", "t", 0)
    assert not store.is_unstable("g", "t", 1)
    assert store.resolve(7, commit=True) == {"g"}
    assert offset_of(store) == 2
    assert not store.is_unstable("g", "t", 0)


def test_an_aborted_transaction_leaves_no_trace() -> None:
    store = OffsetStore()
    store.pend(7, "g", "t", 0, at(2))
    store.resolve(7, commit=False)
    assert offset_of(store) is None
    assert not store.has_any("g")
    assert store.resolve(7, commit=True) == set()


def test_a_plain_commit_after_a_pending_one_wins_as_it_will_in_the_compacted_log() -> None:
    store = OffsetStore()
    store.pend(7, "g", "t", 0, at(2))
    store.commit("g", "t", 0, at(9))
    store.resolve(7, commit=True)
    assert offset_of(store) == 9


def test_the_later_of_two_transactions_wins_whichever_ends_first() -> None:
    store = OffsetStore()
    store.pend(7, "g", "t", 0, at(2))
    store.pend(8, "g", "t", 0, at(3))
    store.resolve(8, commit=True)
    assert store.is_unstable("g", "t", 0)
    store.resolve(7, commit=True)
    assert offset_of(store) == 3


def test_a_deletion_takes_what_is_pending_too() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(1))
    store.pend(7, "g", "t", 0, at(2))
    store.delete("g", "t", 0)
    store.resolve(7, commit=True)
    assert offset_of(store) is None
    assert not store.has_any("g")


def test_offsets_of_topics_are_found_in_every_group() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(1))
    store.commit("g", "other", 0, at(1))
    store.pend(7, "h", "t", 1, at(2))
    assert set(store.keys_of_topics(frozenset({"t"}))) == {("g", ("t", 0)), ("h", ("t", 1))}
    assert set(store.groups()) == {"g", "h"}


def test_what_nobody_reads_expires_after_the_retention() -> None:
    store = OffsetStore()
    store.commit("g", "old", 0, at(1, committed_at_ms=0))
    store.commit("g", "new", 0, at(1, committed_at_ms=5 * DAY_MS))
    store.commit("g", "read", 0, at(1, committed_at_ms=0))
    store.commit("g", "own", 0, at(1, committed_at_ms=0, expires_at_ms=DAY_MS))
    store.commit("g", "busy", 0, at(1, committed_at_ms=0))
    store.pend(7, "g", "busy", 0, at(2))

    def expired(now_ms: int, emptied_at_ms: int = 0) -> set[str]:
        keys = store.expired("g", now_ms, 7 * DAY_MS, emptied_at_ms=emptied_at_ms, subscribed=frozenset({"read"}))
        return {topic for topic, _ in keys}

    assert expired(DAY_MS - 1) == set()
    assert expired(DAY_MS) == {"own"}
    assert expired(7 * DAY_MS) == {"own", "old"}
    assert expired(7 * DAY_MS, emptied_at_ms=DAY_MS) == {"own"}
    assert expired(12 * DAY_MS) == {"own", "old", "new"}
