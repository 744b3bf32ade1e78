"""`waystation serve`, as it is, with a window: on SIGUSR2 it writes what only the process itself knows to a file.

Started by path with the file as its first argument, the rest is what `waystation` takes. Written are the number of
asyncio tasks, what the garbage collector tracks, what the allocator has taken and uses, and, when Python was started
with `-X soak_trace=FRAMES`, which lines hold how much of what was taken since the first signal. Only tests/soak_real
starts this.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

TOP = 60


class Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocator() -> dict[str, int]:
    """Bytes that malloc took from the kernel, gave out, and keeps free; empty where it is not glibc."""
    try:
        call = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return {}
    call.restype = Mallinfo
    info = call()
    return {"mapped": info.hblkhd, "arena": info.arena, "used": info.uordblks, "free": info.fordblks}


def look(deep: bool) -> dict[str, Any]:
    """One view of the inside. `deep` also counts objects by type and lines by size, which takes a second."""
    tasks = Counter(_name(task) for task in asyncio.all_tasks())
    found: dict[str, Any] = {
        "tasks": tasks.total(),
        "tracked": sum(map(len, (gc.get_objects(generation=n) for n in range(3)))) if deep else -1,
        "blocks": sys.getallocatedblocks(),
        "malloc": allocator(),
    }
    if deep:
        found["tasks_by_name"] = dict(tasks.most_common(TOP))
        found["types"] = dict(Counter(type(thing).__qualname__ for thing in gc.get_objects()).most_common(TOP))
        found["traced"] = tracemalloc.get_traced_memory() if tracemalloc.is_tracing() else None
    return found


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


def main() -> int:
    out = Path(sys.argv[1])
    deep = out.suffix == ".deep"
    frames = int(sys._xoptions.get("soak_trace", 0))
    count = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        view = look(deep)
        if frames and not tracemalloc.is_tracing():
            tracemalloc.start(frames)
        if deep and tracemalloc.is_tracing():
            tracemalloc.take_snapshot().dump(f"{out}.{count:03d}")
        temporary = Path(f"{out}.{os.getpid()}")
        temporary.write_text(json.dumps({"count": count, **view}))
        temporary.replace(out)

    signal.signal(signal.SIGUSR2, on_signal)
    from waystation.cli.main import main as waystation

    sys.argv[:] = ["waystation", *sys.argv[2:]]
    return waystation()


if __name__ == "__main__":
    sys.exit(main())
