"""Where messages are: against a dict that knows every entry by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.queues.ledger.states import CHUNK
from waystation.queues.shard.message_index import MessageIndex, trace_of

blocks = st.lists(st.integers(1, 3000), min_size=1, max_size=8)


def _filled(sizes_of_blocks: list[int]) -> tuple[MessageIndex, dict[int, tuple[int, int]]]:
    places, model = MessageIndex(), {}
    first = 0
    for number, count in enumerate(sizes_of_blocks):
        offset = number * 7 + 3
        places.add(first, [entry % 5 for entry in range(first, first + count)], offset)
        for index in range(count):
            model[first + index] = (offset, index)
        first += count
    return places, model


def _check(places: MessageIndex, model: dict[int, tuple[int, int]]) -> None:
    for entry in (*list(model)[::97], max(model)):
        assert places.find(entry) == model[entry]
    last = max(model)
    for first, count, offset, index in places.blocks(0, last + 1):
        for i in (0, count - 1):
            assert model[first + i] == (offset, index + i)


@given(blocks)
@settings(max_examples=50, deadline=None)
def test_every_entry_is_found_where_it_was_written(sizes: list[int]) -> None:
    places, model = _filled(sizes)
    _check(places, model)
    assert places.bytes_of(0, len(model)) == sum(entry % 5 for entry in model)


@given(blocks, st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_written_forward_is_found_there_and_the_rest_where_it_was(
    sizes: list[int], data: st.DataObject
) -> None:
    places, model = _filled(sizes)
    for move in range(data.draw(st.integers(1, 4))):
        first = data.draw(st.integers(0, len(model) - 1))
        most = min(len(model), (first // CHUNK + 1) * CHUNK) - first
        count = data.draw(st.integers(1, most))
        offset = 10_000 + move
        places.move(first, count, offset)
        for index in range(count):
            model[first + index] = (offset, index)
        _check(places, model)
    _check(MessageIndex.load(places.dump()), model)


def test_ids_leave_a_trace_that_leads_back_to_them() -> None:
    places = MessageIndex()
    places.add(0, [1] * 3, 5, [None, "a", "b"])
    places.add(3, [1] * CHUNK, 6)
    places.add(3 + CHUNK, [1], 7, ["c"])
    assert list(places.with_trace(trace_of("b"))) == [2]
    assert list(places.with_trace(trace_of("c"))) == [3 + CHUNK]
    assert list(places.with_trace(trace_of("d"))) == []
    places.drop(0)
    assert list(places.with_trace(trace_of("b"))) == []


@given(st.lists(st.tuples(st.integers(1, 900), st.sampled_from([0, 1, 3])), min_size=1, max_size=12), st.data())
@settings(max_examples=50, deadline=None)
def test_every_id_is_found_however_many_came_and_went_since(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    """Their traces are made late: when many have come, when one is looked for, when a snapshot is taken."""
    places, model, first = MessageIndex(), {}, 0
    for count, every in counts:
        ids = [f"id-{entry}" if every and entry % every == 0 else None for entry in range(first, first + count)]
        places.add(first, [1] * count, first, ids if any(ids) else None)
        model.update({entry: message_id for entry, message_id in enumerate(ids, first) if message_id is not None})
        first += count
        if data.draw(st.sampled_from([False, False, True])):
            number = data.draw(st.integers(0, (first - 1) // CHUNK))
            places.drop(number)
            model = {entry: message_id for entry, message_id in model.items() if entry // CHUNK != number}
        if data.draw(st.sampled_from([False, False, True])):
            places = MessageIndex.load(places.dump())
        for entry in [*model][:: max(1, len(model) // 3)] if data.draw(st.booleans()) else ():
            assert entry in places.with_trace(trace_of(model[entry]))
    for entry, message_id in model.items():
        assert list(places.with_trace(trace_of(message_id))) == [entry]
    assert list(places.with_trace(trace_of("nobody"))) == []


@given(blocks, st.data())
@settings(max_examples=100, deadline=None)
def test_only_what_is_alive_keeps_its_place(sizes: list[int], data: st.DataObject) -> None:
    """Whatever was moved before, and wherever the living begin and end."""
    places, model = _filled(sizes)
    number = data.draw(st.integers(0, (len(model) - 1) // CHUNK))
    start, end = number * CHUNK, min(len(model), (number + 1) * CHUNK)
    if data.draw(st.booleans()):
        first = data.draw(st.integers(start, end - 1))
        count = data.draw(st.integers(1, end - first))
        places.move(first, count, 10_000)
        model.update({first + index: (10_000, index) for index in range(count)})
    cuts = sorted(data.draw(st.sets(st.integers(start, end), min_size=2, max_size=8)))
    alive = [(first, after - first) for first, after in zip(cuts[::2], cuts[1::2], strict=False)]
    places.keep_only(number, alive)
    for first, count in alive:
        for entry in {first, first + count // 2, first + count - 1}:
            assert places.find(entry) == model[entry]
        found = [(offset, index + i) for _, n, offset, index in places.blocks(first, count) for i in range(n)]
        assert found == [model[entry] for entry in range(first, first + count)]
    assert places.floor(number) == min(model[entry][0] for first, n in alive for entry in range(first, first + n))


def test_sizes_are_right_behind_a_gap() -> None:
    """What a damaged batch had said is not known; what comes behind it is counted as it should be."""
    places = MessageIndex()
    places.add(0, [5, 5], 1)
    places.add(10, [7, 8], 2)
    places.add(CHUNK + 3, [9], 3)
    assert (places.bytes_of(0, 2), places.bytes_of(10, 2), places.bytes_of(11, 1)) == (10, 15, 8)
    assert places.bytes_of(CHUNK + 3, 1) == 9
    assert places.find(11) == (2, 1)
