"""Committed and pending offsets: what is seen, what waits for its transaction, what has expired."""

from __future__ import annotations

import random

import pytest

from waystation.groups.machines.offsets import Committed, OffsetStore
from waystation.groups.machines.unreplicated import MOST

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


def test_what_is_not_replicated_yet_is_not_shown() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(1), end=1)
    store.commit("g", "t", 0, at(2), end=2)
    store.commit("g", "t", 1, at(5), end=3)
    assert (store.shown("g", "t", 0), offset_of(store)) == (None, 2)
    store.replicated_to(1)
    assert store.shown("g", "t", 0) == store_entry(1, order=1)
    assert store.is_changing("g", "t", 0)
    store.replicated_to(2)
    assert store.shown("g", "t", 0) == store.get("g", "t", 0)
    assert not store.is_changing("g", "t", 0)
    assert store.is_changing("g", "t", 1)
    assert store.shown_keys("g") == {("t", 0), ("t", 1)}


def store_entry(offset: int, order: int) -> Committed:
    return Committed(offset, -1, "", 0, -1, order)


def test_a_deletion_and_the_end_of_a_transaction_are_shown_when_they_are_replicated() -> None:
    store = OffsetStore()
    store.commit("g", "t", 0, at(1))
    store.delete("g", "t", 0, end=5)
    shown = store.shown("g", "t", 0)
    assert (offset_of(store), shown and shown.offset) == (None, 1)
    assert store.shown_keys("g") == {("t", 0)}
    store.pend(7, "g", "t", 1, at(2))
    store.resolve(7, commit=True, end=7)
    assert store.shown("g", "t", 1) is None
    store.replicated_to(5)
    assert store.shown("g", "t", 0) is None
    assert store.shown_keys("g") == {("t", 1)}
    store.replicated_to(7)
    shown = store.shown("g", "t", 1)
    assert shown is not None
    assert shown.offset == 2


def test_however_many_changes_are_not_replicated_few_are_remembered() -> None:
    store = OffsetStore()
    for end in range(1, 1_001):
        store.commit("g", "t", 0, at(end), end=end)
    for replicated in (0, MOST - 1, MOST, 999):
        store.replicated_to(replicated)
        shown = store.shown("g", "t", 0)
        assert (shown.offset if shown else 0) == min(replicated, MOST - 1)
    store.replicated_to(1_000)
    assert store.shown("g", "t", 0) == store.get("g", "t", 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shown_is_what_a_log_that_ends_there_says(seed: int) -> None:
    rng = random.Random(seed)
    keys = [("g", "t", 0), ("g", "t", 1), ("h", "t", 0)]
    changes = [(rng.randrange(5), rng.choice(keys), rng.randrange(2)) for _ in range(120)]
    store, known = OffsetStore(), 0
    for end, change in enumerate(changes, 1):
        make(store, change, end, end)
        known = rng.randint(max(known, end - MOST + 1), end)
        store.replicated_to(known)
        replayed = OffsetStore()
        for number, earlier in enumerate(changes[:known], 1):
            make(replayed, earlier, number, 0)
        for group, topic, partition in keys:
            shown = store.shown(group, topic, partition)
            assert shown == replayed.get(group, topic, partition)
            assert shown is None or (topic, partition) in store.shown_keys(group)


def make(store: OffsetStore, change: tuple[int, tuple[str, str, int], int], offset: int, end: int) -> None:
    kind, key, producer = change
    match kind:
        case 0:
            store.commit(*key, at(offset), end=end)
        case 1:
            store.pend(producer, *key, at(offset))
        case 2 | 3:
            store.resolve(producer, commit=kind == 2, end=end)
        case 4:
            store.delete(*key, end=end)
