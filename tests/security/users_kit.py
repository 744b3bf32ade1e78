"""Users of a broker, added as an administrator adds them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.server import ROOT
from waystation.cli.security.users import offline_catalog
from waystation.security.permissions import edit_offline
from waystation.security.rules import RESOURCES, Rule

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


ALL = tuple(Rule("User:*", "all", resource, "*") for resource in RESOURCES)
"""Rules by which everybody who has logged in may do everything: for tests of who is there."""


def add_users(
    data: Path, passwords: Mapping[str, str], superusers: Sequence[str] = (), rules: Sequence[Rule] = ALL
) -> None:
    """To the folder of a broker that does not run."""
    for name, password in passwords.items():
        more = ["--superuser"] if name in superusers else []
        waystation("users", "add", name, "--password-stdin", "--data", str(data), *more, stdin=f"{password}\n")
    with offline_catalog(str(data)) as (catalog, _):
        edit_offline(catalog, add=rules)
