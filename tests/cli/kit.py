"""Runs `waystation …`, as a process of its own or in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S
from waystation.cli.main import main


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def objects(self) -> list[Any]:
        """The documents on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def checked(self, words: tuple[str, ...], code: int) -> Done:
        assert self.code == code, f"{words} ended with {self.code}: {self.err}"
        assert "Traceback" not in self.err
        return self


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with the sources of this checkout in front."""
    path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.modules['hypothesis'] = None;"
    " from waystation.cli.main import main; sys.exit(main())"
)
"""As the installed `waystation` does it at a terminal. kio imports hypothesis where it finds it, which users do not
have and which takes longer than all the rest; and what runs in the background inherits that Ctrl-C is ignored."""


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", START, *words]


@dataclass(frozen=True, slots=True)
class Cli:
    """A person at a terminal, with `WAYSTATION_SERVER` set."""

    server: str

    def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> Done:
        """Runs a command to its end, which has to be with this exit code."""
        done = self.start(*words)
        out, err = done.communicate(stdin, timeout=DEADLINE_S)
        result = Done(done.returncode, out, err.decode())
        return result.checked(words, code)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command and returns the process, with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = environment({"WAYSTATION_SERVER": self.server})
        return subprocess.Popen(command(*words), env=env, **pipes)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class QuickCli(Cli):
    """The same without a process for each command, which would be most of the time that a test takes."""

    def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> Done:
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with _standard_input(stdin), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _signals():
            with patch.dict(os.environ, {"WAYSTATION_SERVER": self.server}):
                try:
                    ended = main(words)
                except SystemExit as left:  # what argparse does with a command that is written wrongly
                    ended = int(left.code or 0)
            out.flush()
        return Done(ended, out.buffer.getvalue(), err.getvalue()).checked(words, code)


@contextlib.contextmanager
def _standard_input(data: bytes) -> Iterator[None]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        with patch("sys.stdin", io.TextIOWrapper(file)):
            yield


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Puts back the handlers that a command sets for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
