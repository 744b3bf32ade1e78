"""`like` means what a regular expression says it means, and cannot be made slow."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.routing.naive_filter import like
from waystation.routing.filtering.like import compile_like


@given(st.text("ab_%\n", max_size=8), st.text("ab\n", max_size=12))
@example("%a_%", "ba")
@example("_%_", "a")
@example("a%a", "a")
@example("%_b%b", "abb")
def test_it_agrees_with_a_regular_expression(pattern: str, text: str) -> None:
    assert compile_like(pattern)(text) == like(text, pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("100\\%", "100%", True),
        ("100\\%", "1000", False),
        ("a\\_b", "a_b", True),
        ("a\\_b", "axb", False),
        ("%\\__%", "x_y", True),
        ("a\\\\b", "a\\b", True),
        ("a\\", "a\\", True),
        ("%größe%", "die größe x", True),
        ("A", "a", False),
    ],
)
def test_a_backslash_takes_the_meaning_away(pattern: str, text: str, expected: bool) -> None:
    assert compile_like(pattern)(text) is expected


@pytest.mark.parametrize(
    "pattern", ["%a" * 500 + "%b", "%a_" * 300 + "%b", "%" + "a" * 500 + "_b%", "%_a_" * 300 + "c"]
)
def test_patterns_that_stop_backtrackers_do_not_stop_us(pattern: str) -> None:
    assert not compile_like(pattern)("a" * 20_000)
