"""Spark's Python workers live from task to task, and search for garbage after each one.

They search everything that is loaded: PySpark, pandas, Arrow and this package. That takes 40 ms after each task, as
much CPU as 100,000 rows cost. What is loaded when a task begins is there for good, so `settle` takes it out of every
later search: when the first task begins, and again when one begins before which others have loaded more.
"""

from __future__ import annotations

import gc
import os
import sys

WORKERS_HAVE = "PYTHON_WORKER_FACTORY"
"""How the variables begin that Spark starts its workers with."""

_settled = (0, 0)


def in_worker() -> bool:
    """Whether this process is a worker of Spark's, not a user's program."""
    return any(name.startswith(WORKERS_HAVE) for name in os.environ)


def settle() -> None:
    """At the beginning of whatever a worker does for us; does something where modules came since the last time."""
    global _settled
    if _settled != (now := (os.getpid(), len(sys.modules))):
        _settled = now
        if in_worker():
            gc.freeze()
