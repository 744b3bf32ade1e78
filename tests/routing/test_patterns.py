"""Wildcards and regular expressions over names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waystation.errors import InvalidPattern
from waystation.routing.matching.patterns import MAX_WILDCARD_CHARS, compile_pattern

names = st.lists(st.sampled_from(["a", "b", ""]), max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=6).map(".".join).filter(bool)


def naive(pattern: list[str], name: list[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "#":
        return any(naive(pattern[1:], name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and pattern[0] in ("*", name[0]) and naive(pattern[1:], name[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


@given(patterns, names)
@example("#", "")
@example("*", "")
@example("#.#", "a")
@example("*.#", "a.b")
def test_wildcards_agree_with_a_naive_matcher(pattern: str, name: str) -> None:
    assert compile_pattern(pattern).matches(name) == naive(words(pattern), words(name))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders", ["orders"], ["orders.eu", "order", ""]),
        ("orders.*", ["orders.eu", "orders."], ["orders", "orders.eu.new", "xorders.eu"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.new"], ["order", "ordersx.eu"]),
        ("*.eu.#", ["orders.eu", "jobs.eu.a.b"], ["eu", "orders.us"]),
        ("#.new", ["new", "a.b.new"], ["a.new.b"]),
        ("#", ["", "a", "a.b"], []),
    ],
)
def test_what_people_write(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_pattern(pattern, "wildcard")
    assert compiled.text == pattern
    assert [name for name in yes + no if compiled.matches(name)] == yes


def test_regular_expressions_match_whole_names_in_linear_time() -> None:
    pattern = compile_pattern(r"orders\.(eu|us)", "regex")
    assert pattern.matches("orders.eu")
    assert not pattern.matches("orders.eu2")
    assert not compile_pattern("(a+)+b", "regex").matches("a" * 249)


def test_a_name_that_a_pattern_cannot_be_tried_on_is_not_matched() -> None:
    assert not compile_pattern("(.?){400}", "regex").matches("a" * 249)


def test_wildcards_that_stop_backtrackers_do_not_stop_us() -> None:
    assert not compile_pattern(".".join(["#", "a"] * 200)).matches(".".join(["a"] * 124 + ["b"]))


@pytest.mark.parametrize("pattern", ["", "order*", "a.#b", "a.**", "x" * (MAX_WILDCARD_CHARS + 1)])
def test_wildcards_that_cannot_be_meant_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="pattern"):
        compile_pattern(pattern)


def test_a_syntax_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidPattern, match="syntax"):
        compile_pattern("a", "glob")  # type: ignore[arg-type]
    with pytest.raises(InvalidPattern):
        compile_pattern("(", "regex")
