"""Comparisons of filters, as closures over a `Subject`.

Values are of a kind: text, number, boolean, null; lists and objects are of no kind. Values of two kinds are not equal
(`true != 1`) and have no order. Beside a number in the filter, though, a text that is a number counts as that number:
headers that crossed a topic are text, whatever they were before. A comparison with a field that is missing is false,
whichever it is. Pure; for the grammar beside it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from waystation.routing.filtering.like import compile_like
from waystation.routing.filtering.subject import MISSING, Getter, Subject

Test = Callable[[Subject], bool]
Constant = str | int | float | bool | None

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUAL = ("=", "==")
UNEQUAL = ("!=", "<>")
SIGNS = frozenset({*ORDER, *EQUAL, *UNEQUAL})
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""What a sign becomes when its sides change places; the others stay."""

MAX_NUMBER_CHARS = 40
"""A longer text is no number: reading one costs more than its length."""

# As JSON writes numbers, so neither `007` nor `+5` nor `1_000`: those are names that happen to have digits.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_in(text: str) -> int | float | None:
    """The number that a text is, written in decimal as JSON does; None if it is something else."""
    if len(text) > MAX_NUMBER_CHARS or not text:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    if found[1] is None and found[2] is None:
        return int(text)
    number = float(text)
    return number if isfinite(number) else None


def _as_number(value: object) -> object:
    """What a value is beside a number."""
    if isinstance(value, str):
        number = number_in(value)
        return value if number is None else number
    return value


def same(left: object, right: object) -> bool:
    """Equal and of one kind. Missing is equal to nothing."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, str | int | float) and isinstance(right, str | int | float):
        return left == right
    return False


def compare(sign: str, left: Getter, right: Getter) -> Test:
    """Two fields, or whatever is not special enough for `compare_constant`."""
    if sign in ORDER:
        before = ORDER[sign]

        def ordered(subject: Subject) -> bool:
            a, b = left(subject), right(subject)
            if (isinstance(a, str) and isinstance(b, str)) or (is_number(a) and is_number(b)):
                return before(a, b)
            return False

        return ordered
    if sign in EQUAL:
        return lambda subject: same(left(subject), right(subject))

    def unequal(subject: Subject) -> bool:
        a, b = left(subject), right(subject)
        return a is not MISSING and b is not MISSING and not same(a, b)

    return unequal


def compare_constant(sign: str, field: Getter, constant: Constant) -> Test:
    """A field and a value that is known now: what nearly every filter is made of, so the kinds are told apart once."""
    if is_number(constant):
        return _compare_number(sign, field, constant)
    if sign in UNEQUAL:

        def unequal(subject: Subject) -> bool:
            value = field(subject)
            return value is not MISSING and not same(value, constant)

        return unequal
    if constant is None or isinstance(constant, bool):
        return _is(field, constant) if sign in EQUAL else _never
    if sign in EQUAL:
        return lambda subject: bool(field(subject) == constant)
    before = ORDER[sign]
    return lambda subject: isinstance(value := field(subject), str) and before(value, constant)


def _compare_number(sign: str, field: Getter, constant: Constant) -> Test:
    if sign in UNEQUAL:

        def unequal(subject: Subject) -> bool:
            value = field(subject)
            return value is not MISSING and not same(_as_number(value), constant)

        return unequal
    before = operator.eq if sign in EQUAL else ORDER[sign]
    return lambda subject: is_number(value := _as_number(field(subject))) and before(value, constant)


def _is(field: Getter, constant: bool | None) -> Test:
    return lambda subject: field(subject) is constant


def _never(subject: Subject) -> bool:
    return False


def among(field: Getter, constants: Sequence[Constant], negated: bool) -> Test:
    """`field in (…)`. Sets, so that a long list costs no more than a short one."""
    texts = frozenset(value for value in constants if isinstance(value, str))
    numbers = frozenset(value for value in constants if isinstance(value, int | float) and not isinstance(value, bool))
    singles = tuple(value for value in constants if value is None or isinstance(value, bool))

    def test(subject: Subject) -> bool:
        value = field(subject)
        if isinstance(value, str):
            found = value in texts or (bool(numbers) and number_in(value) in numbers)
            return found is not negated
        if is_number(value):
            return (value in numbers) is not negated
        if value is MISSING:
            return False
        return any(value is single for single in singles) is not negated

    return test


def member(value: Getter, collection: Getter, negated: bool) -> Test:
    """`value in field`, where the field is a list. False if either is missing or the field is no list."""

    def test(subject: Subject) -> bool:
        wanted, values = value(subject), collection(subject)
        if wanted is MISSING or not isinstance(values, list | tuple):
            return False
        # Python's own search is much faster, but takes true for 1; what it does not find is not there.
        found = wanted in values and any(same(wanted, one) for one in values)
        return found is not negated

    return test


def like(field: Getter, pattern: str, negated: bool) -> Test:
    """Of texts alone: a number is neither like nor not like a pattern."""
    matches = compile_like(pattern)
    return lambda subject: isinstance(value := field(subject), str) and matches(value) is not negated


def exists(field: Getter) -> Test:
    return lambda subject: field(subject) is not MISSING


def true(field: Getter) -> Test:
    """A field alone, as a condition: it is there and is `true`."""
    return lambda subject: field(subject) is True
