"""An etcd of one member on this machine, for trying a cluster: Debian's `etcd-server`, or any `etcd` on the path.

It listens on loopback only, has its data in a folder, and is a process of its own. Whoever starts it ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from waystation.cli.cluster.folder_process import FolderProcess, stop_all
from waystation.cli.cluster.free_ports import answers, free_ports
from waystation.errors import NotFound, Unavailable

READY_S = 30.0
_TRIES = 5


def program() -> str:
    """Raises NotFound."""
    found = shutil.which("etcd")
    if found is None:
        raise NotFound(
            "there is no etcd on this machine, which the nodes of a cluster agree through; install it (Debian and"
            " Ubuntu: apt-get install etcd-server), or name one that runs elsewhere with --cluster"
            " etcd://HOST:2379/PREFIX"
        )
    return found


class EtcdProcess:
    """One life of it, and more after `start` again: folder and port stay."""

    def __init__(self, folder: Path, port: int = 0, options: Sequence[str] = (), scheme: str = "http") -> None:
        """Port 0: a free one, which `port` says when it has started."""
        self.folder = folder
        self.port = port
        self.process = FolderProcess(folder, "etcd.log")
        self._options = list(options)
        self._scheme = scheme

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.process.log

    def start(self) -> None:
        """Returns when it answers. Raises NotFound, Conflict, Unavailable."""
        etcd = program()
        chosen = self.port
        for _ in range(1 if chosen else _TRIES):
            self.port = chosen or free_ports(1)[0]
            if self._starts(etcd):
                return
        raise Unavailable(f"etcd does not start; the end of {self.log}:\n{self.process.tail()}")

    def _starts(self, etcd: str) -> bool:
        """False: it ended, perhaps since somebody else took the port."""
        client, peer = f"{self._scheme}://{self.address}", f"http://127.0.0.1:{free_ports(1)[0]}"
        command = [etcd, "--name", "waystation", "--data-dir", str(self.folder / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"waystation={peer}"]
        # Without it, the history of everything that was ever written would stay on the disk.
        command += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"]
        command += ["--logger", "zap", "--log-level", "warn", *self._options]
        self.process.start(command, _environment())
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.pid() is None:
                return False
            if self._is_healthy():
                return True
            time.sleep(0.02)
        self.kill()
        raise Unavailable(f"etcd does not answer {READY_S:g} s after its start; see {self.log}")

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
        """Returns when it has ended. Fine if it does not run."""
        stop_all([self.process])

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.wait_ended(time.monotonic() + READY_S)


def _environment() -> dict[str, str]:
    """Without what would configure another etcd."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
