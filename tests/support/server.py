"""A real broker in a process of its own, as a user would start it.

The process is started by the command line, tells its addresses through `--ready-file`, and is ended by SIGTERM (clean)
or SIGKILL (a crash). A restart keeps the data folder and the port, so that clients find it again. Whatever happens to
the test, `close()` leaves no process behind. Tests use it through fixtures; soak tests and benchmarks may use it too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 20.0


class ServerDied(AssertionError):
    """The broker process ended before it was told to."""


class Server:
    """One `waystation serve` process and its data folder."""

    module = "waystation.cli.main"
    """The module that is run."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str | int | bool] | None = None,
        arguments: Sequence[str] = (),
        open_files: int | None = None,
        memory: bool = False,
    ) -> None:
        self.folder = folder
        self.arguments = list(arguments)
        self.open_files = open_files  # RLIMIT_NOFILE, soft and hard
        self.memory = memory  # instead of the data folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.settings = dict(settings or {})
        self.addresses: dict[str, str] = {}
        self._reserved: list[socket.socket] = []
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Where Kafka clients find it; stays the same over restarts."""
        return self.addresses["kafka"]

    def start(self) -> None:
        """Start the process and wait until it says that it is ready."""
        if self.process is not None:
            raise RuntimeError("this server is already running")
        if not self.addresses:
            self._reserve()
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(ready), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment()
            )
        try:
            self.addresses = wait_for(lambda: self._read(ready), "the broker is ready", every_s=0.01)
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End it as `kill -9` does: no farewell, no flush."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it cleanly and return its exit code."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again on the same data and the same port (after `kill` or `stop`)."""
        self.start()

    def close(self) -> None:
        """Leave nothing running, whatever state the test is in."""
        try:
            if self.process is not None:
                self._end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self._end(signal.SIGKILL)
        finally:
            for held in self._reserved:
                held.close()
            self._reserved.clear()

    def tail(self, lines: int = 40) -> str:
        """The last lines of its log, for failure messages."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _reserve(self) -> None:
        """Ports that are this server's until it is closed. A socket that is bound but does not listen keeps everybody
        else off, also while the broker is down between two starts; the broker may listen there."""
        for protocol in ("kafka", "amqp", "http"):
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self._reserved.append(held)
            self.addresses[protocol] = f"127.0.0.1:{held.getsockname()[1]}"

    def _command(self, ready: Path) -> list[str]:
        command = [sys.executable, "-m", self.module, "serve"]
        command += ["--memory"] if self.memory else ["--data", str(self.data)]
        for protocol in ("kafka", "amqp", "http"):
            command += [f"--{protocol}", self.addresses.get(protocol, "127.0.0.1:0")]
        command += ["--ready-file", str(ready), *self.arguments]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        if self.open_files is not None:
            command = ["sh", "-c", f'ulimit -n {self.open_files}; exec "$@"', "sh", *command]
        return command

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    def _read(self, ready: Path) -> dict[str, str] | None:
        if self.process is not None and self.process.poll() is not None:
            raise ServerDied(f"the broker ended with {self.process.returncode} before it was ready:\n{self.tail()}")
        try:
            addresses = json.loads(ready.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return {str(protocol): str(address) for protocol, address in addresses.items() if address}

    def _end(self, how: signal.Signals) -> int:
        if self.process is None:
            raise RuntimeError("this server is not running")
        self.process.send_signal(how)
        code = self.process.wait(timeout=STOP_S)
        self.process = None
        return code
