"""The broker of `waystation demo`: a process of its own, as `waystation serve` starts it, and its end.

It takes the usual ports where they are free and others where they are not. Whatever happens to the demo, `close` leaves
no process behind, and no data folder unless one was asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from waystation.client.address import Address, parse_address
from waystation.errors import Unavailable

PORTS = {"kafka": 9092, "amqp": 5672, "http": 8080}
START_S = 30.0
STOP_S = 20.0


class DemoBroker:
    """Started when made."""

    def __init__(self, data: str | None, *, free_ports: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="waystation-demo-"))
        self.data = Path(data) if data is not None else self._folder / "data"
        self.log = self._folder / "broker.log"
        self._ready = self._folder / "ready.json"
        began = time.monotonic()
        command = [sys.executable, "-m", "waystation", "serve", "--data", str(self.data)]
        for door, port in PORTS.items():
            command += [f"--{door}", f"127.0.0.1:{port if not free_ports and _free(port) else 0}"]
        command += ["--ready-file", str(self._ready)]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C is for the demo, which stops its clients first.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            addresses = self._await_ready()
        except BaseException:
            self.close()
            raise
        self.started_s = time.monotonic() - began
        self.addresses = addresses

    def address(self, door: str) -> Address:
        return parse_address(self.addresses[door], default_port=PORTS[door])

    @property
    def server(self) -> str:
        return self.addresses["kafka"]

    @property
    def dashboard(self) -> str:
        return f"http://{self.addresses['http']}/"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_ready(self) -> dict[str, str]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._ready.exists():
                found: dict[str, str] = json.loads(self._ready.read_text())
                return found
            if self._process.poll() is not None:
                words = self.log.read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"the broker did not start: {words[-1] if words else 'it said nothing'}")
            time.sleep(0.02)
        raise Unavailable(f"the broker was not ready within {START_S:g} s")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
