"""Work that comes to its end although whoever asked for it is cancelled: a client hangs up, the broker stops.

Cancelling a task that waits for a thread does not stop the thread. Whoever went on at once would not know how far the
thread came, would not hear of its failure, and would let go of a lock that the thread still needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from waystation.observe.events import event_logger

logger = event_logger("waystation.world")

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns or raises. The caller's cancellation is raised when the work is over, not before."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.warning("caller.not_told", "the caller does not hear that this failed: {error}", error=failure)
    raise cancelled
