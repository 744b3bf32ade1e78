"""What the fixture `waystation_cluster` gives to a test: three brokers and an etcd on this machine, each a process.

The processes are those of `waystation cluster up` (`cli/cluster/trial.py`), and so is what is in the folder. Nodes are
killed, stopped and started by the test; whatever has happened to them, none of the processes outlives `close`. It is
whole when it is handed out: every replica is in sync, so that any one node may end at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import waystation
from waystation.cli.cluster.folder_process import STOP_S, stop_all
from waystation.cli.cluster.trial import Trial, TrialNode, wait_ready
from waystation.cli.terminal.native import all_of
from waystation.errors import Unavailable, WaystationError

NODES = 3
WHOLE_S = 60.0
_LOOK_S = 0.05
_ANSWER_S = 5.0


class ClusterNode:
    """One of its brokers. Its addresses are the same over restarts."""

    def __init__(self, node: TrialNode) -> None:
        self._node = node
        addresses = wait_ready(node)
        self.id = node.id
        self.data = str(node.data)
        self.kafka = addresses["kafka"]
        self.amqp = addresses["amqp"]
        self.http = addresses["http"]

    def __repr__(self) -> str:
        return f"<ClusterNode {self.id} at {self.kafka}, {'process ' + str(self.pid) if self.pid else 'not running'}>"

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return self._node.process.pid()

    def kill(self) -> None:
        """As `kill -9`; returns when it has ended."""
        self._node.process.signal(signal.SIGKILL)
        self._node.process.wait_ended(time.monotonic() + STOP_S)

    def stop(self) -> None:
        """As SIGTERM; returns when it has ended: it has handed over what it led."""
        stop_all([self._node.process])

    def start(self) -> None:
        """Brings it back, with its data; returns when it is ready. Conflict if it runs."""
        self._node.start()
        wait_ready(self._node)


class RunningCluster:
    """Use it as a context manager."""

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> None:
        """NotFound: there is no etcd on this machine."""
        options = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
        self._trial = Trial(Path(folder).absolute())
        self._trial.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._trial.start_nodes(NODES, self._trial.start_etcd(), options)
            self.nodes = {node.id: ClusterNode(node) for node in self._trial.nodes}
            self.wait_until_whole()
        except BaseException:
            self.close()
            raise

    @property
    def kafka(self) -> str:
        """All nodes: `bootstrap.servers` of Kafka clients."""
        return ",".join(node.kafka for node in self.nodes.values())

    def leader(self, topic: str, partition: int = 0) -> ClusterNode:
        """The node that leads a partition. Unavailable: none does now."""
        with waystation.connect(self.kafka) as mq:
            found = [one for one in all_of(mq, "partitions", topic=topic) if one["partition"] == partition]
        leader = None if not found else self.nodes.get(found[0]["leader"])
        if leader is None:
            raise Unavailable(f"{topic}-{partition} has no leader now")
        return leader

    def wait_until_whole(self, within_s: float = WHOLE_S) -> None:
        """Returns when all nodes are there, and every replica of every partition is in sync. Unavailable if that takes
        too long: a node may be down."""
        deadline = time.monotonic() + within_s
        while (missing := self._missing()) is not None:
            if time.monotonic() > deadline:
                raise Unavailable(f"the cluster is not whole after {within_s:g} s: {missing}")
            time.sleep(_LOOK_S)

    def _missing(self) -> str | None:
        try:
            with waystation.connect(self.kafka, timeout=_ANSWER_S) as mq:
                nodes: Sequence[dict[str, Any]] = mq.view("cluster")["nodes"]
                partitions: Sequence[dict[str, Any]] = all_of(mq, "partitions", which="all")
        except WaystationError as error:
            return str(error)
        away = self.nodes.keys() - {node["id"] for node in nodes if node["alive"]}
        if away:
            return f"node {min(away)} is not there"
        for one in partitions:
            wanted = NODES if one["topic"].startswith("__") else len(one["replicas"])  # those grow with the cluster
            if one["leader"] is None or len(one["isr"]) < wanted or one["adding"] or one["removing"]:
                return f"{one['topic']}-{one['partition']} has {len(one['isr'])} of {wanted} replicas in sync"
        return None

    def close(self) -> None:
        """Ends all of it."""
        self._trial.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
