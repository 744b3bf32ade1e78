"""A real cluster: an etcd and three brokers, each a process of its own, as `waystation cluster up` starts them.

A node is killed by its own pid and brought back by `waystation cluster start-node`, with its data and its ports.
Whatever happens to the test, `close()` leaves no process behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import etcd
from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.cli.cluster.trial import TrialNode

READY_S = 90.0
STOP_S = 40.0
PROGRAM = (sys.executable, "-m", "waystation.cli.main", "cluster")

SETTINGS: dict[str, str | int] = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "waystation.queue.shards": 3,
    "group.initial.rebalance.delay.ms": 0,
}
"""Few partitions of the brokers' own: three processes on two cores start sooner."""


class ClusterOfThree:
    def __init__(self, folder: Path, settings: Mapping[str, str | int] | None = None) -> None:
        etcd.need()
        self.folder = folder
        self.log = folder / "up.log"
        self._ready = folder / "ready.json"
        self._data = folder / "trial"
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._nodes: dict[int, dict[str, Any]] = {}
        self._admin: AdminClient | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ClusterOfThree:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        options = [word for name, value in self._settings.items() for word in ("--set", f"{name}={value}")]
        command = [*PROGRAM, "up", "--data", str(self._data), "--ready-file", str(self._ready), *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment()
            )
        try:
            told = wait_for(self._told, "the cluster is up", within_s=READY_S, every_s=0.05)
            self._nodes = {node["id"]: node for node in told["nodes"]}
        except BaseException:
            self.close()
            raise

    def _told(self) -> dict[str, Any] | None:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"`cluster up` ended: {self.log.read_text()[-2000:]}")
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return dict(json.loads(self._ready.read_text()))
        return None

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def kill(self, node_id: int) -> None:
        """As `kill -9` does."""
        os.kill(self._pid(node_id), signal.SIGKILL)

    def start_node(self, node_id: int) -> None:
        """Brings a killed one back, and returns when it is ready."""
        command = [*PROGRAM, "start-node", str(node_id), "--data", str(self._data), "--json"]
        done = subprocess.run(command, capture_output=True, env=_environment(), timeout=READY_S, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:]

    def _pid(self, node_id: int) -> int:
        pid = TrialNode(self._data, node_id).process.pid()
        assert pid is not None, f"node {node_id} does not run"
        return pid

    # -- what clients see -------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """All nodes, for Kafka clients; the same over restarts."""
        return ",".join(self.address(node_id) for node_id in self._nodes)

    def address(self, node_id: int, protocol: str = "kafka") -> str:
        return str(self._nodes[node_id][protocol])

    @property
    def admin(self) -> AdminClient:
        """The same one each time: what it was asked for ends with it."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create(self, topic: str, partitions: int = 3, replicas: int = 3) -> str:
        """A topic, when all of its replicas are in sync."""
        self.admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(DEADLINE_S)
        self.wait_in_sync(topic, replicas)
        return topic

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads it, when there is one that lives."""

        def found() -> int | None:
            told = self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition]
            return told.leader if told.leader > 0 and told.error is None else None

        return wait_for(found, f"{topic}-{partition} has a leader", within_s=60)

    def wait_in_sync(self, topic: str, replicas: int = 3) -> None:
        """Returns when all partitions of the topic have so many replicas in sync, and a leader."""

        def so() -> bool:
            told = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
            return all(len(one.isrs) == replicas and one.leader > 0 for one in told)

        wait_for(so, f"{topic} has {replicas} replicas in sync", within_s=90, every_s=0.2)


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
