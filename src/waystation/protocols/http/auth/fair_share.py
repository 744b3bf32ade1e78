"""Which entry makes way where users share a table that is full: the oldest of the user who has most, so that nobody who
fills the table takes the place of others. Looks at all of them: for tables of some thousand, when they are full. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

K = TypeVar("K")


def oldest_of_most(keys: Collection[K], user_of: Callable[[K], Hashable]) -> K:
    """Of keys that are there, the oldest first. Where several have as many, the user with the oldest entry."""
    (most, _), *_ = Counter(map(user_of, keys)).most_common(1)
    return next(key for key in keys if user_of(key) == most)
