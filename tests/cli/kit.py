"""Runs `waystation …` as a process of its own. Used by tests/cli alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S


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


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with the sources of this checkout in front."""
    path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


START = "import sys; sys.modules['hypothesis'] = None; from waystation.cli.main import main; sys.exit(main())"
"""As the installed `waystation` does it. kio imports hypothesis where it finds it, which users do not have and which
takes longer than all the rest."""


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
        assert result.code == code, f"{words} ended with {result.code}: {result.err}"
        assert "Traceback" not in result.err
        return result

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command and returns the process, with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = environment({"WAYSTATION_SERVER": self.server})
        return subprocess.Popen(command(*words), env=env, **pipes)  # type: ignore[call-overload, no-any-return]
