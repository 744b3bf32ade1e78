"""Users of a broker, added as an administrator adds them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.server import ROOT

PASSWORDS = {"admin": "admin-secret", "alice": "wönder=land,", "bob": "builder"}


def waystation(*arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """The command line, with its output."""
    done = subprocess.run(
        [sys.executable, "-m", "waystation.cli.main", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    if check and done.returncode:
        raise AssertionError(f"waystation {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def add_users(data: Path, passwords: Mapping[str, str], superusers: Sequence[str] = ()) -> None:
    """To the folder of a broker that does not run."""
    for name, password in passwords.items():
        more = ["--superuser"] if name in superusers else []
        waystation("users", "add", name, "--password-stdin", "--data", str(data), *more, stdin=f"{password}\n")
