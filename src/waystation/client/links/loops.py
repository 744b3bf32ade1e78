"""Event loops on threads of their own: which kind, and how they end when the program forgets to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol
from weakref import ref


class Closable(Protocol):
    def close(self) -> None: ...


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, where it installs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def close_at_exit(thing: Closable) -> None:
    """Closes what was forgotten, while threads still work; the last one made is the first to be closed.

    `atexit` comes too late: by then Python has shut every thread pool, and a broker could not flush. Python's own
    pools use this same hook, which has no public name.
    """
    weak = ref(thing)

    def close() -> None:
        alive = weak()
        if alive is not None:
            alive.close()

    register: Callable[[Callable[[], None]], object] | None = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(close)
