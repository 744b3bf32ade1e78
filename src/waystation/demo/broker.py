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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.client.links.address import Address, parse_address
from waystation.errors import Unavailable

PORTS = {"kafka": 9092, "amqp": 5672, "http": 8080}
START_S = 30.0
STOP_S = 20.0


class DemoBroker:
    """Started when made."""

    def __init__(self, data: str | None, *, free_ports: bool = False) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="waystation-demo-"))
        self.data = Path(data) if data is not None else self._folder / "data"
        self.log = self._folder / "broker.log"
        self._ready = self._folder / "ready.json"
        began = time.monotonic()
        command = [sys.executable, "-m", "waystation", "serve", "--data", str(self.data)]
        for protocol, port in PORTS.items():
            command += [f"--{protocol}", f"127.0.0.1:{port if not free_ports and _free(port) else 0}"]
        command += ["--ready-file", str(self._ready)]
        try:
            with self.log.open("wb") as log, _signals_held():
                # A session of its own: Ctrl-C is for the demo, which stops its clients first.
                self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            addresses = self._await_ready(self._process)
        except BaseException:
            self.close()
            raise
        self.started_s = time.monotonic() - began
        self.addresses = addresses

    def address(self, protocol: str) -> Address:
        return parse_address(self.addresses[protocol], default_port=PORTS[protocol])

    @property
    def server(self) -> str:
        return self.addresses["kafka"]

    @property
    def dashboard(self) -> str:
        return f"http://{self.addresses['http']}/"

    def close(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await_ready(self, process: subprocess.Popen[bytes]) -> dict[str, str]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._ready.exists():
                found: dict[str, str] = json.loads(self._ready.read_text())
                return found
            if process.poll() is not None:
                words = self.log.read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"the broker did not start: {words[-1] if words else 'it said nothing'}")
            time.sleep(0.02)
        raise Unavailable(f"the broker was not ready within {START_S:g} s")


@contextmanager
def _signals_held() -> Iterator[None]:
    """What would interrupt us does so afterwards: in the middle of starting a process nobody would know its id. For the
    main thread."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda told, frame: came.append(told))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
