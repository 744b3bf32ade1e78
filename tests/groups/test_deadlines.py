"""Deadlines come in order, once, and never early, however often they are moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waystation.world.deadlines import Deadlines


def test_postponing_and_cancelling() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 20)
    deadlines.set("a", 30)
    assert deadlines.next_ms() == 20
    deadlines.cancel("b")
    assert deadlines.due(29) == []
    assert deadlines.due(30) == ["a"]
    assert deadlines.next_ms() is None


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.sampled_from("abcd"), st.just(0)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 50)),
        st.tuples(st.just("next"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(_steps)
def test_it_is_a_dict_of_deadlines(steps: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    for kind, key, at in steps:
        if kind == "set":
            deadlines.set(key, at)
            model[key] = at
        elif kind == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        elif kind == "due":
            due = deadlines.due(at)
            assert sorted(due) == sorted(name for name, moment in model.items() if moment <= at)
            assert [model[name] for name in due] == sorted(model[name] for name in due)
            for name in due:
                del model[name]
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
