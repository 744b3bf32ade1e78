"""Memory that a broker has freed is there for the next answer: it is not given back to the system piece by piece."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS, PIECES, PIECE_BYTES, PAGE_BYTES = 20, 40, 256 * 1024, 4096
PROGRAM = f"""
import resource
from waystation.world.memory import keep_freed_memory
keep_freed_memory()
def answer():
    pieces = [b"x" * {PIECE_BYTES} for _ in range({PIECES})]
answer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    answer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's, with rules of its own")
def test_answers_of_megabytes_one_after_another_use_the_same_memory() -> None:
    faults = int(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout)
    one_answer = PIECES * PIECE_BYTES // PAGE_BYTES
    assert faults < one_answer, f"{faults} fresh pages in {ROUNDS} answers of {one_answer}"
