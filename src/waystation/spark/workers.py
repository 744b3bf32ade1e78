"""Spark's Python workers live from task to task, and search for garbage after each one.

They search everything that is loaded: PySpark, pandas, Arrow and this package. That takes 40 ms after each task, as
much CPU as 100,000 rows cost. What is loaded when the first task begins is there for good, so `settle` takes it out of
every later search.
"""

from __future__ import annotations

import gc
import os

WORKERS_HAVE = "PYTHON_WORKER_FACTORY"
"""How the variables begin that Spark starts its workers with."""

_settled = 0


def in_worker() -> bool:
    """Whether this process is a worker of Spark's, not a user's program."""
    return any(name.startswith(WORKERS_HAVE) for name in os.environ)


def settle() -> None:
    """At the beginning of whatever a worker does for us; does something once in a process."""
    global _settled
    if _settled != (pid := os.getpid()):
        _settled = pid
        if in_worker():
            gc.freeze()
