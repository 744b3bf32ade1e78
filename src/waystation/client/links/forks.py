"""What becomes of a client or an embedded broker in a forked child: its copy is closed there, quietly, and says so.

A fork copies the memory and the file descriptors of a process, but only the thread that called it: nobody in the child
runs the client's loop, so that waiting for it would never end. Both processes have the same sockets, and an event
loop's own way of closing one would also take it away from the parent. So nothing of a loop is called in the child:
descriptors are pointed at `/dev/null`, and whoever asks for the loop gets an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast
from weakref import ref

from waystation.errors import Conflict, WaystationError


class Forked(Protocol):
    def forked(self, error: WaystationError) -> None:
        """Called in a child after a fork, on its only thread; `error` is what users of the copy are told.

        It must not wait: a lock that another thread had when the process was forked stays locked.
        """


_FIRST_LOOK = 64
"""How many there are before somebody looks who of them is gone."""


class _Opened:
    """Who is told. A process registers it once: what is registered for a fork stays so until the process ends, and a
    program may open clients for ever."""

    def __init__(self) -> None:
        self._told: list[tuple[ref[Forked], int]] = []
        self._most = _FIRST_LOOK
        self._adding = threading.Lock()

    def add(self, things: Sequence[Forked]) -> None:
        with self._adding:
            if len(self._told) >= self._most:
                self._told = [one for one in self._told if one[0]() is not None]
                self._most = max(_FIRST_LOOK, 2 * len(self._told))
            self._told += [(ref(thing), os.getpid()) for thing in things]

    def tell(self) -> None:
        self._adding = threading.Lock()  # a thread of the parent may have had the other one
        told, self._told = self._told, []
        for thing, opened_by in told:
            alive = thing()
            if alive is not None:
                alive.forked(_copy_in_child(opened_by))


_opened = _Opened()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.tell)


def tell_after_fork(*things: Forked) -> None:
    """Has `forked` of these called, in order, in every child that is forked while they are there."""
    _opened.add(things)


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
