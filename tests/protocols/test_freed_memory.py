"""Memory that a broker has freed is there for the next answer: it is not given back to the system piece by piece. What
its start has left in holes is given back, once."""

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
HOLES, HOLE_BYTES = 200, 64 * 1024
HOLLOW = f"""
from waystation.world.memory import ProcessMemory, give_back_freed_memory
memory = ProcessMemory()
pieces = [b"x" * {HOLE_BYTES} for _ in range(2 * {HOLES})]
del pieces[::2]
before = memory.used_bytes()
give_back_freed_memory()
print(before - memory.used_bytes())
"""

WITHOUT = {
    "a Python without libffi": "import sys; sys.modules['_ctypes'] = None",
    "a static program": "import ctypes; ctypes.CDLL = lambda name: open('/a dynamic library that is not there')",
    "another libc": "import ctypes; ctypes.CDLL = lambda name: object()",
}

glibc_only = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's, with rules of its own"
)


@glibc_only
def test_answers_of_megabytes_one_after_another_use_the_same_memory() -> None:
    faults = int(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout)
    one_answer = PIECES * PIECE_BYTES // PAGE_BYTES
    assert faults < one_answer, f"{faults} fresh pages in {ROUNDS} answers of {one_answer}"


@glibc_only
def test_holes_between_what_is_in_use_are_given_back() -> None:
    given = int(subprocess.run([sys.executable, "-c", HOLLOW], check=True, capture_output=True, text=True).stdout)
    assert given > HOLES * HOLE_BYTES * 3 // 4, f"{given} of {HOLES * HOLE_BYTES} bytes were given back"


@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_where_memory_cannot_be_given_back_nothing_happens(without: str) -> None:
    program = f"{without}\nfrom waystation.world.memory import give_back_freed_memory\ngive_back_freed_memory()"
    subprocess.run([sys.executable, "-c", program], check=True)
