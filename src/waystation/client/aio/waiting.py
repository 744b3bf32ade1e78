"""Waiting for many answers at once."""

from __future__ import annotations

import asyncio
from typing import Any


async def gathered(waiters: list[asyncio.Future[Any]]) -> list[Any]:
    """All results; the first error, after all are over."""
    if len(waiters) == 1:
        return [await waiters[0]]
    try:
        if waiters:
            await asyncio.wait(waiters)
    finally:
        failures = [waiter.exception() for waiter in waiters if not waiter.cancel() and not waiter.cancelled()]
    for failure in failures:
        if failure is not None:
            raise failure
    return [waiter.result() for waiter in waiters]
