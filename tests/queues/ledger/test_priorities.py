"""All 256 priorities in the ledger: strictly higher first, in the order of ids within one, also after a restart."""

from __future__ import annotations

import random
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.message import HIGHEST_PRIORITY
from waystation.queues.ledger.chunk import Chunk
from waystation.queues.ledger.ledger import CHUNK, Ledger, LedgerState
from waystation.queues.ledger.moves import LEVELS, PRIORITY_SHIFT, TOP
from waystation.queues.ledger.old_levels import with_priorities
from waystation.queues.ledger.ready_line import FEW
from waystation.queues.ledger.states import State, States, StatesState

PRIORITIES = st.lists(st.integers(0, HIGHEST_PRIORITY) | st.sampled_from([0, TOP, TOP + 1, 255]), min_size=1)


def _ledger(priorities: list[int]) -> Ledger:
    ledger = Ledger()
    ledger.attach("anna")
    for entry, priority in enumerate(priorities):
        ledger.admit(entry, priority=priority)
    return ledger


def _line(priorities: list[int], entries: list[int] | None = None) -> list[int]:
    return sorted(range(len(priorities)) if entries is None else entries, key=lambda entry: (-priorities[entry], entry))


def _acquire(ledger: Ledger, count: int) -> list[int]:
    grants = ledger.acquire("anna", count, 0, 1_000)
    return [entry for grant in grants for entry in range(grant.first, grant.first + grant.count)]


def _again(ledger: Ledger) -> Ledger:
    stored = msgspec.msgpack.encode(ledger.dump())
    loaded = Ledger.load(msgspec.msgpack.decode(stored, type=LedgerState))
    loaded.attach("anna")
    return loaded


@given(PRIORITIES, st.integers(1, 20))
def test_higher_priorities_are_always_first_however_many_are_taken_at_once(priorities: list[int], step: int) -> None:
    ledger = _ledger(priorities)
    taken: list[int] = []
    while more := _acquire(ledger, step):
        taken += more
    assert taken == _line(priorities)


@given(PRIORITIES, st.data())
def test_the_order_survives_redelivery_and_a_restart(priorities: list[int], data: st.DataObject) -> None:
    ledger = _ledger(priorities)
    taken = _acquire(ledger, data.draw(st.integers(1, len(priorities))))
    done = set(data.draw(st.lists(st.sampled_from(taken))))
    ledger.ack("anna", [(entry, 1) for entry in sorted(done)])
    if data.draw(st.booleans()):
        ledger.release("anna", [(entry, 1) for entry in sorted(set(taken) - done)])
    else:
        ledger = _again(ledger)
    left = [entry for entry in range(len(priorities)) if entry not in done]
    assert ledger.next_ready() == (_line(priorities, left)[0] if left else None)
    assert _acquire(ledger, len(priorities)) == _line(priorities, left)


def test_every_priority_in_several_chunks_in_any_mix() -> None:
    rng = random.Random(14)
    priorities = [rng.randrange(256) for _ in range(3 * CHUNK + 100)]
    ledger = _again(_ledger(priorities))
    assert _acquire(ledger, 1_000) + _acquire(ledger, 10_000) == _line(priorities)


def test_the_oldest_is_dropped_whatever_its_priority() -> None:
    ledger = _ledger([200, 3, 255, 0, 16])
    assert [ledger.drop_oldest() for _ in range(6)] == [0, 1, 2, 3, 4, None]


def test_what_comes_late_into_a_chunk_with_other_priorities_is_found() -> None:
    """A chunk has second bytes from the first entry that needs one on; those before it and behind it have none."""
    ledger = _ledger([TOP, TOP + 1, TOP, 0, 255])
    assert _acquire(ledger, 2) == [4, 1]
    ledger.admit(5, priority=TOP)
    ledger.admit_run(6, 3, 100)
    ledger.release("anna", [(1, 1), (4, 1)])
    assert _acquire(ledger, 9) == [4, 6, 7, 8, 1, 0, 2, 5, 3]


def test_few_priorities_cost_nothing_more_and_many_only_where_they_are() -> None:
    states = States()
    states.add(0, 1, State.READY, 255)
    assert states.lines is not None
    assert len(states.lines) == 1, "a line for the priority that is in use, not for those below it"
    plain = States()
    plain.add(0, CHUNK, State.READY, 9)
    assert plain.chunks[0].above is None, "no second bytes without a priority that needs them"
    deep = States()
    deep.add(0, 2 * CHUNK, State.READY, 3)
    deep.add(2 * CHUNK, 1, State.READY, 16)
    assert [chunk.above is None for chunk in deep.chunks.values()] == [True, True, False]
    assert sys.getsizeof(Chunk()) <= 96


def test_lines_of_priorities_that_were_used_once_do_not_stay() -> None:
    states = States()
    for priority in range(256):
        states.add(priority, 1, State.READY, priority)
    for _ in range(255):
        states.take(1)
    assert states.lines is not None
    assert states.next_ready() == 0
    assert len(states.lines) <= FEW + 1


@pytest.mark.parametrize("most", [9, 15, 16, 20, 100, 255])
def test_a_ledger_that_was_stored_with_sixteen_levels_keeps_its_order(most: int) -> None:
    rng = random.Random(most)
    sent = [rng.randrange(most + 1) for _ in range(500)]
    levels = [priority if most <= TOP else priority * TOP // most for priority in sent]
    chunk = bytes(State.READY | level << PRIORITY_SHIFT for level in levels)
    old = StatesState(len(sent) - 1, [0], [chunk], None, None)
    states = States.load(with_priorities(old, most))
    states.add(len(sent), 1, State.READY, most)
    states.add(len(sent) + 1, 1, State.READY, 0)
    taken = [states.take(1)[0] for _ in range(len(sent) + 2)]
    highest = [entry for entry, level in enumerate(levels) if level == min(most, TOP)]
    assert taken[: len(highest) + 1] == [*highest, len(sent)], "a new one of the highest is behind the old ones"
    assert [entry for entry in taken if entry < len(sent)] == _line(levels)
    assert taken[-1] == len(sent) + 1
    assert len(set(levels)) == min(most + 1, LEVELS)
