"""Snapshots of queues: what is written down comes back, and any damage is seen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.message import Message
from waystation.queues.ledger.states import CHUNK
from waystation.queues.settings import QueueSettings
from waystation.queues.shard import snapshot
from waystation.queues.shard.commands import Enqueue, encode_messages
from waystation.queues.shard.queue import Death, Queue, pack_sizes
from waystation.queues.shard.snapshot import CHUNKS_AT_ONCE, Damaged, Head, Tail

NOTHING = msgspec.Raw(b"\x90")


def _file(*queues: Queue, begin: int = 7) -> bytes:
    parts = [part for number, queue in enumerate(queues) for part in snapshot.parts_of(queue, 100 + number)]
    whole = [Head(begin, snapshot.PRIORITIES), *parts, Tail(len(queues))]
    return snapshot.MAGIC + b"".join(map(snapshot.frame, whole))


def _deep(number: int, entries: int) -> Queue:
    queue = Queue(number, f"deep-{number}", QueueSettings())
    for first in range(0, entries, 1000):
        count = min(1000, entries - first)
        queue.admit(Enqueue(number, first, count, 5, True, 3, NOTHING), first, 10 + first)
    return queue


def test_a_deep_queue_comes_back_with_all_its_places() -> None:
    entries = (2 * CHUNKS_AT_ONCE + 3) * CHUNK + 17
    begin, queues = snapshot.queues_of(_file(_deep(1, entries), _deep(2, 5)))
    assert (begin, [*queues]) == (7, [1, 2])
    loaded = queues[1]
    assert (len(loaded), loaded.bytes, loaded.stamp) == (entries, 3 * entries, 100)
    assert loaded.places is not None
    for entry in (*range(0, entries, 997), entries - 1):
        assert loaded.places.find(entry) == (10 + entry // 1000 * 1000, entry % 1000)
    assert loaded.places.bytes_of(0, entries) == 3 * entries


def test_ids_the_dead_and_what_they_weigh_come_back() -> None:
    queue = Queue(3, "jobs", QueueSettings(dedup_window_ms=1000, dead_letter="dead"))
    messages = [Message(b"one", id="a"), Message(b"three", id="b"), Message(b"x", priority=3)]
    queue.admit(Enqueue(3, 0, 3, 50, False, pack_sizes([3, 5, 1]), encode_messages(messages)), 0, 9)
    queue.bury([(1, 1)], Death("rejected", 60, "no"))
    _, queues = snapshot.queues_of(_file(queue))
    loaded = queues[3]
    assert loaded.deaths == {1: Death("rejected", 60, "no")}
    assert (loaded.id_used("a", 1000), loaded.id_used("a", 1050), loaded.id_used("c", 0)) == (True, False, False)
    assert (loaded.bytes, loaded.dead_bytes, queue.dead_bytes) == (9, 5, 5)


def test_later_changes_do_not_reach_what_was_taken() -> None:
    queue = _deep(1, 3000)
    queue.open_ids().add("a", 5)
    parts = snapshot.parts_of(queue, 1)
    before = [snapshot.frame(part) for part in parts]
    queue.finish([(0, 2500)])
    queue.admit(Enqueue(1, 3000, 700, 5, True, 3, NOTHING), 3000, 99)
    queue.open_ids().add("b", 6)
    assert [snapshot.frame(part) for part in parts] == before


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_or_a_missing_end_is_always_seen(data: st.DataObject) -> None:
    whole = _file(_deep(1, 50), Queue(2, "empty", QueueSettings(ttl_ms=5)))
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = bytearray(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(Damaged):
        snapshot.queues_of(bytes(damaged))
