"""What becomes of a client or an embedded broker in a forked child: its copy is closed there, quietly, and says so.

A fork copies the memory and the file descriptors of a process, but only the thread that called it: nobody in the child
runs the client's loop, so that waiting for it would never end. Both processes have the same sockets, and an event
loop's own way of closing one would also take it away from the parent. So nothing of a loop is called in the child:
descriptors are pointed at `/dev/null`, and whoever asks for the loop gets an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Protocol, cast
from weakref import ref

from waystation.errors import Conflict, WaystationError


class Forked(Protocol):
    def forked(self, error: WaystationError) -> None:
        """Called in a child after a fork, on its only thread; `error` is what users of the copy are told.

        It must not wait: a lock that another thread had when the process was forked stays locked.
        """


def tell_after_fork(*things: Forked) -> None:
    """Has `forked` of these called, in order, in every child that is forked while they are there."""
    register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
    if register is None:
        return
    weak = [ref(thing) for thing in things]
    opened_by = os.getpid()

    def tell() -> None:
        for thing in weak:
            alive = thing()
            if alive is not None:
                alive.forked(_copy_in_child(opened_by))

    register(after_in_child=tell)


def _copy_in_child(opened_by: int) -> WaystationError:
    return Conflict(
        f"this client was opened by process {opened_by}, and this is process {os.getpid()}, a fork of it:"
        " open a client of its own here, with waystation.connect"
    )


def no_loop(error: WaystationError) -> asyncio.AbstractEventLoop:
    """Stands where the loop was: everything that is asked of it is an error."""
    return cast(asyncio.AbstractEventLoop, _NoLoop(error))


class _NoLoop:
    def __init__(self, error: WaystationError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def let_go(descriptor: int) -> None:
    """Ends this process's share in what is behind a descriptor. The number stays taken: whoever had it may close it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, descriptor, inheritable=False)
    finally:
        os.close(nothing)
