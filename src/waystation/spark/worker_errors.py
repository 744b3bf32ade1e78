"""What a user sees of an error that was raised in one of Spark's Python workers: its sentence, not how it came about.

A worker sends an exception to Spark with its whole traceback, and ends. Spark can leave the traceback out; it looks for
that in the worker's environment at the moment of the error. For errors that we raise on purpose, whose text says what
happened and what to do, `without_traceback` asks for it; any other error keeps its traceback, since it is a fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from waystation.errors import WaystationError
from waystation.spark.workers import in_worker

_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def without_traceback() -> Iterator[None]:
    """Around whatever Spark calls: as a decorator of a method, or by `with` in a generator."""
    try:
        yield
    except WaystationError:
        if in_worker():
            os.environ[_HIDE] = "1"
        raise
