"""A worker of Spark does not search what it has loaded for garbage again. A user's program is left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FROZEN = """
import gc
from waystation.spark.workers import settle
settle()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
settle()
second = gc.get_freeze_count()
import decimal, fractions, statistics
settle()
print(first, second, gc.get_freeze_count())
"""


@pytest.mark.parametrize("in_worker", [True, False])
def test_what_is_loaded_is_taken_out_of_the_search_when_more_is_and_only_in_a_worker(in_worker: bool) -> None:
    worker = {"PYTHON_WORKER_FACTORY_SECRET": "x"} if in_worker else {}
    run = subprocess.run(
        [sys.executable, "-c", FROZEN], env=os.environ | worker, capture_output=True, text=True, check=True
    )
    first, second, loaded_more = map(int, run.stdout.split())
    assert (first > 0) == in_worker
    assert second == first
    assert (loaded_more > second + 1000) == in_worker
