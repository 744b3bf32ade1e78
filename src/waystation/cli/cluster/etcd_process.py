"""An etcd of one member on this machine, for trying a cluster: Debian's `etcd-server`, or any `etcd` on the path.

It listens on loopback only, has its data in a folder, and is a process of its own. Whoever starts it ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from waystation.errors import NotFound, Unavailable

READY_S = 20.0
STOP_S = 20.0
_TRIES = 5


def program() -> str:
    """Raises NotFound."""
    found = shutil.which("etcd")
    if found is None:
        raise NotFound(
            "there is no etcd on this machine, which a cluster's nodes agree through; install it (Debian and Ubuntu:"
            " apt-get install etcd-server), or name one that runs elsewhere with --cluster etcd://HOST:2379/PREFIX"
        )
    return found


class EtcdProcess:
    """One life of it, and more after `start` again: folder and port stay."""

    def __init__(self, folder: Path, port: int = 0, options: Sequence[str] = (), scheme: str = "http") -> None:
        """Port 0: a free one, which `port` says when it has started."""
        self.folder = folder
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self._options = list(options)
        self._scheme = scheme

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("etcd is not running")
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.folder / "etcd.log"

    def start(self) -> None:
        """Returns when it answers. Raises NotFound, Unavailable."""
        etcd = program()
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = self.port
        for turn in range(_TRIES):
            self.port = chosen or free_port()
            if self._starts(etcd):
                return
            if chosen or turn == _TRIES - 1:
                raise Unavailable(f"etcd does not start; see {self.log}")

    def _starts(self, etcd: str) -> bool:
        """False: it ended, perhaps since somebody else took the port."""
        client, peer = f"{self._scheme}://{self.address}", f"http://127.0.0.1:{free_port()}"
        command = [etcd, "--name", "waystation", "--data-dir", str(self.folder / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"waystation={peer}"]
        # Without it, the history of everything that was ever written would stay on the disk.
        command += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"]
        command += ["--logger", "zap", "--log-level", "warn", *self._options]
        with self.log.open("ab") as log:
            # A group of its own, so that Ctrl-C in the terminal is the caller's to handle: the nodes stop before etcd.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.process = None
                return False
            if self._is_healthy():
                return True
            time.sleep(0.02)
        self.kill()
        raise Unavailable(f"etcd has not begun to listen within {READY_S:g} s; see {self.log}")

    def _is_healthy(self) -> bool:
        """It listens before it can be asked. With TLS it is not asked: only whoever has the certificates may."""
        if self._scheme != "http":
            return answers(self.port)
        asking = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            asking.request("GET", "/health")
            return b"true" in asking.getresponse().read(1000)
        except (OSError, HTTPException):
            return False
        finally:
            asking.close()

    def stop(self) -> None:
        """Returns when it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def free_port() -> int:
    """Of loopback. Somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def _environment() -> dict[str, str]:
    """Without what would configure another etcd."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
