"""A client that hangs up before it is answered: what it asked for is cancelled, wherever it is by then."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

HANGS_UP = 0.4
WITHIN_S = 0.02
"""Of the order of what a few disk operations take here."""


async def or_hangs_up(rng: random.Random, request: Coroutine[Any, Any, T]) -> T | None:
    """The answer; None if the client has hung up before it came."""
    if rng.random() >= HANGS_UP:
        return await request
    task = asyncio.ensure_future(request)
    await asyncio.wait([task], timeout=rng.random() * WITHIN_S)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None
