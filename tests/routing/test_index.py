"""The pattern index gives what naive matching gives, forgets what is removed, and does not look at the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.routing.test_patterns import naive, words
from waystation.routing.matching.index import PatternIndex, step

_word = st.sampled_from(["a", "b", "c", "", "a*"])
_patterns = st.lists(_word | st.sampled_from(["*", "#"]), max_size=5).map(".".join)
_names = st.lists(_word | st.sampled_from(["*", "#"]), max_size=6).map(".".join)
_changes = st.lists(st.tuples(st.booleans(), _patterns, st.integers(0, 2)), max_size=25)


@given(_changes, st.lists(_names, min_size=1, max_size=8))
def test_it_agrees_with_naive_matching_through_all_changes(
    changes: list[tuple[bool, str, int]], names: list[str]
) -> None:
    index: PatternIndex[int] = PatternIndex()
    there: set[tuple[str, int]] = set()
    for added, pattern, value in changes:
        if added:
            assert index.add(pattern, value) == ((pattern, value) not in there)
            there.add((pattern, value))
        else:
            assert index.remove(pattern, value) == ((pattern, value) in there)
            there.discard((pattern, value))
        assert len(index) == len(there)
        for name in names:
            assert set(index.lookup(name)) == {v for p, v in there if naive(words(p), words(name))}, name
    for pattern, value in there:
        index.remove(pattern, value)
    assert index.begin()[0].empty, "what nobody needs is not kept"


def visited(index: PatternIndex[int], name: str) -> int:
    """How many nodes a lookup looks at."""
    nodes = index.begin()
    count = len(nodes)
    for word in words(name):
        nodes = step(nodes, word)
        count += len(nodes)
    return count


def test_a_lookup_does_not_grow_with_unrelated_bindings() -> None:
    index: PatternIndex[int] = PatternIndex()
    related = ["orders.eu.new", "orders.*.new", "orders.#", "#.new", "*.eu.*", "#"]
    for value, pattern in enumerate(related):
        index.add(pattern, value)
    before = visited(index, "orders.eu.new")
    for number in range(20_000):
        index.add(f"jobs.eu.{number}", number)
        index.add(f"orders.us.{number}.#", number)
        index.add(f"orders.eu.{number}", number)
        index.add(f"#.{number}", number)
        index.add(f"*.{number}.*.new", number)
    assert len(index) == 100_000 + len(related)
    assert visited(index, "orders.eu.new") == before
    assert set(index.lookup("orders.eu.new")) == set(range(len(related)))


def test_many_hashes_are_not_exponential() -> None:
    index: PatternIndex[int] = PatternIndex()
    index.add(".".join(["#", "a"] * 40 + ["b"]), 1)
    name = ".".join(["a"] * 120)
    assert visited(index, name) <= 121 * 82
    assert not index.lookup(name)
