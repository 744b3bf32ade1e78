"""Three brokers and an etcd as processes of this machine, as `waystation cluster up` starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0


def until(condition: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    give_up = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > give_up:
            raise AssertionError("it did not come to pass in time")
        time.sleep(0.05)


class Processes:
    def __init__(self, folder: Path, ready: dict[str, Any]) -> None:
        self.folder = folder
        self.nodes = {node["id"]: node for node in ready["nodes"]}

    @property
    def bootstrap(self) -> str:
        return ",".join(node["kafka"] for node in self.nodes.values())

    def signal(self, node_id: int, number: int) -> None:
        os.kill(self.nodes[node_id]["pid"], number)

    def kill(self, node_id: int) -> None:
        self.signal(node_id, signal.SIGKILL)

    def start(self, node_id: int) -> None:
        command = [
            sys.executable,
            "-m",
            "waystation",
            "cluster",
            "start-node",
            str(node_id),
            "--data",
            str(self.folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        words = done.stdout.split()
        self.nodes[node_id]["pid"] = int(words[words.index("process") + 1])

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("node-*/node.log")))


@contextmanager
def processes(folder: Path, nodes: int = 3) -> Iterator[Processes]:
    data, ready = folder / "cluster", folder / "ready.json"
    command = [sys.executable, "-m", "waystation", "cluster", "up", "--nodes", str(nodes)]
    with open(folder / "up.log", "w", encoding="utf-8") as log:
        up = subprocess.Popen(
            [*command, "--data", str(data), "--ready-file", str(ready)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: ready.exists() or up.poll() is not None)
        assert ready.exists(), (folder / "up.log").read_text()
        yield Processes(data, json.loads(ready.read_text()))
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)
