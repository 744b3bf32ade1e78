"""How many files, sockets included, the process may have open, as handed to the core."""

from __future__ import annotations

from typing import Protocol


class Handles(Protocol):
    def most(self) -> int:
        """The limit as it is now; 0 where there is none, or nobody knows."""


class ProcessHandles:
    """The soft limit of the process (`ulimit -n`). Somebody may change it while we run."""

    def most(self) -> int:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 0 if soft == resource.RLIM_INFINITY else soft


class UnlimitedHandles:
    """Where nobody counts."""

    def most(self) -> int:
        return 0
