"""Lines from a file descriptor, without waiting for more than there is.

`None` comes between the lines whenever nothing is ready: the moment to send what was gathered, so that a message typed
at a terminal or trickling through a pipe goes out at once while a file goes out in large batches.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator

from waystation.cli.terminal.output import note
from waystation.errors import TooLarge

CHUNK_BYTES = 64 * 1024
LARGEST_LINE_BYTES = 64 * 1024 * 1024
"""No broker takes a message of this size; a file without line ends should not fill the memory."""


def lines_from(path: str | None) -> Iterator[bytes | None]:
    """Lines of a file, or of standard input (None, `-`); None is a pause in them."""
    if path not in (None, "-"):
        with open(path, "rb") as file:
            yield from lines_of(file.fileno())
        return
    if sys.stdin.isatty():
        note("every line is a message; Ctrl-D ends")
    yield from lines_of(sys.stdin.fileno())


def lines_of(descriptor: int) -> Iterator[bytes | None]:
    """Every line without its line feed (the last one may lack it), and None where reading on would block."""
    rest = bytearray()
    while True:
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
            select.select([descriptor], [], [])
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        rest += first
        for part in others:
            yield bytes(rest)
            rest[:] = part
        if len(rest) > LARGEST_LINE_BYTES:
            raise TooLarge(f"a line is longer than {LARGEST_LINE_BYTES} bytes; nothing takes a message of that size")
    if rest:
        yield bytes(rest)
