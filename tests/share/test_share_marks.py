"""The marks of a share partition: whatever is set, they say what a plain dict would, in as few runs as possible."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from waystation.share.machines.marks import DONE, DYING, Mark, Marks

SPAN = 40
changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, SPAN), st.integers(0, 12), st.integers(0, 4)),
        st.tuples(st.just("clear"), st.integers(0, SPAN), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, SPAN), st.just(0), st.just(0)),
    ),
    max_size=30,
)


def change(marks: Marks, verb: str, first: int, count: int, mark: int) -> None:
    if verb == "set":
        marks.set(first, first + count, mark)
    elif verb == "clear":
        marks.clear(first, first + count)
    else:
        marks.cut(first)


@given(changes)
def test_marks_say_what_a_dict_would(story: list[tuple[str, int, int, int]]) -> None:
    marks, plain = Marks(), dict[int, int]()
    for verb, first, count, mark in story:
        change(marks, verb, first, count, mark)
        if verb == "set":
            plain |= dict.fromkeys(range(first, first + count), mark)
        else:
            gone = range(first, first + count) if verb == "clear" else range(first)
            plain = {offset: mark for offset, mark in plain.items() if offset not in gone}
        assert {offset: run.mark for run in marks for offset in range(run.first, run.end)} == plain
        assert all(marks.at(offset) == plain.get(offset) for offset in range(-1, SPAN + 15))
        assert marks.done == sum(mark == DONE for mark in plain.values())
        assert marks.dying == sum(mark == DYING for mark in plain.values())


@given(changes)
def test_runs_are_as_few_as_can_be(story: list[tuple[str, int, int, int]]) -> None:
    marks = Marks()
    for verb, first, count, mark in story:
        change(marks, verb, first, count, mark)
        runs = list(marks)
        assert all(run.first < run.end for run in runs)
        assert all(
            one.end < other.first or (one.end == other.first and one.mark != other.mark)
            for one, other in pairwise(runs)
        )


@given(changes, st.integers(0, SPAN), st.integers(0, SPAN))
def test_between_cuts_to_what_was_asked_for(story: list[tuple[str, int, int, int]], first: int, end: int) -> None:
    marks = Marks()
    for verb, at, count, mark in story:
        change(marks, verb, at, count, mark)
    wanted = {offset: marks.at(offset) for offset in range(first, end) if marks.at(offset) is not None}
    found = {offset: run.mark for run in marks.between(first, end) for offset in range(run.first, run.end)}
    assert found == wanted


def test_neighbours_of_one_mark_become_one_run() -> None:
    marks = Marks([Mark(0, 2, DONE), Mark(4, 6, DONE)])
    marks.set(2, 4, DONE)
    assert list(marks) == [Mark(0, 6, DONE)]
