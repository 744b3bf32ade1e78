"""Patterns mean what `re` says they mean, and no pattern can hold the broker up."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waystation.errors import InvalidPattern
from waystation.routing.matching.regex import Regex

_atoms = st.sampled_from(
    ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c.]", r"\d", r"\w", "(a|b)", "(?:ab)", "(a*b)", "(a|b|)", "()"]
)
_repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "{1,2}?"])
_pieces = st.builds(lambda atom, repeat: atom + repeat, _atoms, _repeats)
_branches = st.lists(_pieces, max_size=5).map("".join)
_patterns = st.lists(_branches, min_size=1, max_size=3).map("|".join)


@given(_patterns, st.lists(st.text("abc.-1", max_size=8), min_size=1, max_size=8))
@example("^a$|b", ["a", "b", "ab"])
@example("(^a)+", ["a", "aa"])
@example(r"\Aab\z".replace(r"\z", "$"), ["ab", "abc"])
def test_it_agrees_with_pythons_re(pattern: str, names: list[str]) -> None:
    ours, theirs = Regex(pattern), re.compile(pattern)
    for name in names:
        assert ours.matches(name) == (theirs.fullmatch(name) is not None), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("^orders[.].*", "orders.eu"),
        ("(?i)ORD[A-Z]+", "orders"),
        ("[[:alpha:]_-]+", "ab_-"),
        ("[[:^digit:]]+", "abc"),
        ("a{,3}", "a{,3}"),
        ("[]a]+", "]a"),
        ("[a-]", "-"),
        (r"(?P<region>eu|us)\.x", "eu.x"),
        (r"\x61b", "ab"),
    ],
)
def test_what_people_write_matches(pattern: str, name: str) -> None:
    assert Regex(pattern).matches(name)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "a**",
        "*a",
        "(?=a)",
        "(?<!a)",
        r"\1",
        r"\bx",
        "a{5,2}",
        "a{1001}",
        "\\",
        "[z-a]",
        "(?P<n",
        "[[:x:]]",
    ],
)
def test_what_is_not_offered_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="pattern"):
        Regex(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a*)*b", "a*a*a*a*a*a*a*b", "(.*.*.*)*x"])
def test_patterns_that_stop_backtrackers_do_not_stop_us(pattern: str) -> None:
    assert not Regex(pattern).matches("a" * 249)


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "(" * 500 + ")" * 500, "a" * 5000])
def test_patterns_that_are_too_large_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        Regex(pattern)


def test_patterns_that_keep_too_much_open_are_refused_when_they_do() -> None:
    pattern = Regex("(.?){400}")
    with pytest.raises(InvalidPattern, match="alternatives"):
        pattern.matches("a" * 249)
