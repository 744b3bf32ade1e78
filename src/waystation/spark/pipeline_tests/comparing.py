"""Rows that were expected and rows that came: which are missing, which are too many, and which differ in a few columns.

Each expected row is matched with one that is equal; of the rest, rows that agree in at least half of their columns are
told as one row that differs. Fractions are equal within what arithmetic loses. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from waystation.spark.pipeline_tests.values import AsJson

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Different:
    """An expected row (by its number) and the one that came in its place; `columns` are those that differ."""

    expected: int
    row: Values
    columns: tuple[str, ...]


@dataclass(slots=True)
class Differences:
    """None of all: the rows are the same. `missing` are numbers of expected rows."""

    different: list[Different] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    unexpected: list[Values] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.different or self.missing or self.unexpected)


def compare(expected: Sequence[Values], found: Sequence[Values], *, ordered: bool = False) -> Differences:
    """Rows have the same columns. `ordered`: the n-th row is compared with the n-th."""
    return _in_order(expected, found) if ordered else _in_any_order(expected, found)


def _in_order(expected: Sequence[Values], found: Sequence[Values]) -> Differences:
    differences = Differences()
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if columns := _columns_that_differ(one, other):
            differences.different.append(Different(number, other, columns))
    differences.missing = list(range(len(found), len(expected)))
    differences.unexpected = list(found[len(expected) :])
    return differences


def _in_any_order(expected: Sequence[Values], found: Sequence[Values]) -> Differences:
    differences = Differences()
    left = list(found)
    missing = []
    for number, one in enumerate(expected):
        at = next((at for at, other in enumerate(left) if not _columns_that_differ(one, other)), None)
        if at is None:
            missing.append(number)
        else:
            left.pop(at)
    for number in missing:
        one = expected[number]
        nearest = min(left, key=lambda other: len(_columns_that_differ(one, other)), default=None)
        columns = _columns_that_differ(one, nearest) if nearest is not None else ()
        if nearest is None or 2 * len(columns) > len(one) or len(one) == 1:
            differences.missing.append(number)
        else:
            left.remove(nearest)
            differences.different.append(Different(number, nearest, columns))
    differences.unexpected = left
    return differences


def _columns_that_differ(expected: Values, found: Values) -> tuple[str, ...]:
    return tuple(name for name, value in expected.items() if not equal(value, found.get(name)))


def equal(expected: Any, found: Any) -> bool:
    """Whether a value is the expected one."""
    if isinstance(expected, AsJson):
        try:
            return found is not None and equal(json.loads(expected.text()), json.loads(found))
        except ValueError:
            return False
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, float) or isinstance(found, float):
        return _close(expected, found)
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(equal(one, found[name]) for name, one in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(equal, expected, found))
    return bool(expected == found)


def _close(one: Any, other: Any) -> bool:
    numbers = (int, float, Decimal)
    if not isinstance(one, numbers) or not isinstance(other, numbers):
        return False
    first, second = float(one), float(other)
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(first) and math.isnan(second))
