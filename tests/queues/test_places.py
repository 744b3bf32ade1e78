"""Where messages are: against a dict that knows every entry by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.queues.places import Places, trace_of
from waystation.queues.states import CHUNK

blocks = st.lists(st.integers(1, 3000), min_size=1, max_size=8)


def _filled(sizes_of_blocks: list[int]) -> tuple[Places, dict[int, tuple[int, int]]]:
    places, model = Places(), {}
    first = 0
    for number, count in enumerate(sizes_of_blocks):
        offset = number * 7 + 3
        places.add(first, [entry % 5 for entry in range(first, first + count)], offset)
        for index in range(count):
            model[first + index] = (offset, index)
        first += count
    return places, model


def _check(places: Places, model: dict[int, tuple[int, int]]) -> None:
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
    _check(Places.load(places.dump()), model)


def test_ids_leave_a_trace_that_leads_back_to_them() -> None:
    places = Places()
    places.add(0, [1] * 3, 5, [None, "a", "b"])
    places.add(3, [1] * CHUNK, 6)
    places.add(3 + CHUNK, [1], 7, ["c"])
    assert list(places.with_trace(trace_of("b"))) == [2]
    assert list(places.with_trace(trace_of("c"))) == [3 + CHUNK]
    assert list(places.with_trace(trace_of("d"))) == []
    places.drop(0)
    assert list(places.with_trace(trace_of("b"))) == []
