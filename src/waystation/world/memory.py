"""How much memory the process uses, as handed to the core."""

from __future__ import annotations

import os
from typing import Protocol

LARGEST_KEPT = 16 * 1024 * 1024


def keep_freed_memory() -> None:
    """Lets the allocator keep up to twice LARGEST_KEPT that was freed, for what is allocated next.

    glibc gives memory above a threshold back to the system at once, and the threshold is the largest piece that it
    has seen given back. Fresh memory costs more to touch than to fill (0.3 ms of 0.4 ms for a megabyte that is read
    from the disk's cache), and all of that is the loop's time. So it is shown a large piece once, which is never
    touched. Elsewhere this does nothing.
    """
    bytes(LARGEST_KEPT)


def give_back_freed_memory() -> None:
    """Makes the allocator give all pages back that hold nothing; 0.2 ms, where little was freed.

    glibc gives back the end of its memory alone, and a start leaves holes: each module's file is read as a whole. They
    are 0.9 MiB of an idle broker's 42 (`ctypes` itself takes 0.3). Elsewhere this does nothing: with another libc, in a
    Python that was built without libffi, or as a static program.
    """
    try:
        import ctypes  # here: 1.4 ms that only a server pays

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        return


class Memory(Protocol):
    def used_bytes(self) -> int:
        """What the process has in memory now; 0 where that is not known."""


class ProcessMemory:
    """As Linux tells it."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def used_bytes(self) -> int:
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * self._page_bytes
        except OSError:
            return 0


class UnknownMemory:
    """Where nobody counts."""

    def used_bytes(self) -> int:
        return 0
