"""A person at a pseudo terminal: runs `waystation …`, reads what it shows, types answers. Used by tests/cli alone."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.cli.kit import command, environment
from tests.support.waiting import DEADLINE_S


class Terminal:
    """What a command shows there, standard output and standard error together."""

    def __init__(self, words: tuple[str, ...], variables: Mapping[str, str]) -> None:
        self.seen = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*words), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(variables)
        )
        os.close(theirs)

    def read_until(self, part: str) -> None:
        self._read(lambda: part in self.seen)
        assert part in self.seen, self.seen

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        """The exit code, when all that it showed is in `seen`."""
        self._read(lambda: False)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not enough():
            assert time.monotonic() < deadline, self.seen
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    more = os.read(self._ours, 65536)
                except OSError:  # what Linux says when the other end is closed
                    return
                self.seen += more.decode(errors="replace")


@contextmanager
def terminal(*words: str, **variables: str) -> Iterator[Terminal]:
    made = Terminal(words, variables)
    try:
        yield made
    finally:
        made.close()
