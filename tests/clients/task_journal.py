"""What tasks did, written down by the worker processes that ran them and read by the test.

A journal is a file of lines. A test waits for lines of it, so it needs no results to know what ran, where, how often.
Gates are files too: a task waits at one until the test opens it, which is how a test holds a worker in the middle of
its work. Used by the kits of Celery and Dramatiq; nothing here knows either.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S, wait_for


class Line(msgspec.Struct, frozen=True):
    """One thing that a task did; lines of the same run of a task have the same id."""

    event: str
    task: str = ""
    id: str = ""
    text: str = ""
    worker: str = ""
    pid: int = 0
    retries: int = 0
    redelivered: bool = False
    key: str = ""
    at: float = 0.0


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a journal and gates in it."""

    folder: str

    @property
    def path(self) -> Path:
        return Path(self.folder) / "journal"

    def write(self, line: Line) -> None:
        """Add a line. One write of a few bytes to the end: lines of several processes do not mix."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(descriptor)

    def lines(self, event: str = "start", **fields: object) -> list[Line]:
        """The lines of an event whose fields are as given."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        lines = [msgspec.json.decode(line, type=Line) for line in data.splitlines()]
        return [
            line
            for line in lines
            if line.event == event and all(getattr(line, name) == value for name, value in fields.items())
        ]

    def texts(self, event: str = "start", **fields: object) -> list[str]:
        return [line.text for line in self.lines(event, **fields)]

    def wait(self, count: int, event: str = "start", **fields: object) -> list[Line]:
        """The lines of an event, once there are so many."""
        what = f"{count} lines {event} {fields} in {self.path}"
        wait_for(lambda: len(self.lines(event, **fields)) >= count, what)
        return self.lines(event, **fields)

    def open_gate(self, name: str) -> None:
        """Let the tasks go on that are held at this gate."""
        (Path(self.folder) / f"gate-{name}").touch()

    def pass_gate(self, name: str) -> None:
        """Wait until somebody opens it. A test that died opens none: the deadline is for that."""
        gate = Path(self.folder) / f"gate-{name}"
        wait_for(gate.exists, f"the gate {name}", within_s=2 * DEADLINE_S)


def environment(variable: str, stage: Journal) -> dict[str, str]:
    """For a process that imports from this repository and finds its stage in a variable."""
    path = os.pathsep.join(p for p in (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, variable: msgspec.json.encode(stage).decode()}
