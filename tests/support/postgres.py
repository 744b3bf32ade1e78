"""A PostgreSQL server of a test's own: Debian's package, a private folder, a socket in it, no network port.

PostgreSQL refuses to run as root, so as root it is run as `postgres` or `nobody`. Ended by its own pid.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.waiting import wait_for

PACKAGES = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`, of the newest version installed."""
    found = sorted(PACKAGES.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3].split(".")[0]))
    if found:
        return found[-1].parent
    which = shutil.which("initdb")
    return Path(which).resolve().parent if which else None


def need() -> Path:
    folder = programs()
    if folder is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is missing (Debian: postgresql)")
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    return folder


class Postgres:
    """A server with one database, `postgres`."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="waystation-pg-"))  # short: a socket's path is limited
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgres:
        user = _somebody() if os.geteuid() == 0 else None
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        data = self.folder / "data"
        uid, gid = (None, None) if user is None else (user.pw_uid, user.pw_gid)
        make = [str(self._programs / "initdb"), "-D", str(data), "-U", "test", "--auth=trust", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, user=uid, group=gid)
        command = [
            str(self._programs / "postgres"),
            "-D",
            str(data),
            "-k",
            str(self.folder),
            "-c",
            "listen_addresses=",
            "-F",
        ]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, user=uid, group=gid)
        wait_for(self._answers, "PostgreSQL to answer")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=test dbname=postgres"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True


def _somebody() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError("there is no user postgres or nobody to run PostgreSQL as")
