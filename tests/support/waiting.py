"""Waiting for something to become true, with a deadline and a reason.

Tests never sleep for luck: they name the condition they need and fail with that name when it does not come.
Any test may call this; nothing here knows about brokers or clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 30.0
"""Long enough for a loaded two-core machine; a test that passes never waits for it."""


class NotInTime(AssertionError):
    """The awaited condition did not come true before the deadline."""


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    *,
    within_s: float = DEADLINE_S,
    every_s: float = 0.02,
    retry_on: tuple[type[BaseException], ...] = (),
) -> T:
    """Call `condition` until it returns something true, and return that.

    `retry_on` names the exceptions that mean "not yet"; any other one ends the wait at once.
    """
    deadline = time.monotonic() + within_s
    last: BaseException | None = None
    while True:
        try:
            result = condition()
            last = None
        except retry_on as error:
            result, last = None, error
        if result:
            return result
        if time.monotonic() >= deadline:
            seen = repr(last) if last is not None else repr(result)
            raise NotInTime(f"not within {within_s:g} s: {what} (last seen: {seen})")
        time.sleep(every_s)
