"""A real cluster: an etcd and some brokers, each a process of its own, and everything that a test does to them.

Nodes are killed, stopped and paused by their own pid, and brought back with their data and their ports. With a
`Network` each of them is a host of its own, whose links can be cut. A node's disk can be replaced while it is down, or
be a small one that can be filled. Whatever happens to the test, `close()` leaves no process behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import etcd
from tests.support.network import SERVER, Network
from tests.support.ports import free_port
from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.cli.cluster.folder_process import FolderProcess, stop_all
from waystation.cli.cluster.free_ports import free_ports

READY_S = 90.0
COMMAND_S = 120.0
PROGRAM = (sys.executable, "-m", "waystation.cli.main")
LISTENERS = ("kafka", "amqp", "http")
LOOPBACK = "127.0.0.1"

SETTINGS: dict[str, str | int] = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "waystation.queue.shards": 3,
    "group.initial.rebalance.delay.ms": 0,
}
"""Few partitions of the brokers' own: three processes on two cores start sooner."""


class RealNode:
    """One `waystation serve`, its folder and its ports, which are the same over restarts."""

    def __init__(self, number: int, folder: Path, options: Sequence[str], host: str, on_host: Sequence[str]) -> None:
        self.id = number
        self.folder = folder
        self.data = folder / "data"
        self.process = FolderProcess(folder, "node.log")
        self.addresses = {
            name: f"{host}:{port}" for name, port in zip(LISTENERS, free_ports(len(LISTENERS)), strict=True)
        }
        self.options = list(options)
        self._on_host = list(on_host)
        self._ready = folder / "ready.json"
        folder.mkdir(parents=True, exist_ok=True)

    def launch(self, *more: str) -> None:
        """Without waiting until it is ready."""
        self._ready.unlink(missing_ok=True)
        command = [*self._on_host, *PROGRAM, "serve", "--data", str(self.data), "--node", str(self.id)]
        for name in LISTENERS:
            command += [f"--{name}", self.addresses[name]]
        command += ["--ready-file", str(self._ready), *self.options, *more]
        self.process.start(command, environment())

    def wait_ready(self) -> None:
        wait_for(self._is_ready, f"node {self.id} is ready", within_s=READY_S)

    def _is_ready(self) -> bool:
        if self.process.pid() is None:
            raise AssertionError(f"node {self.id} has ended:\n{self.process.tail(40)}")
        return self._ready.exists()

    def pid(self) -> int:
        found = self.process.pid()
        if found is None:
            raise AssertionError(f"node {self.id} does not run:\n{self.process.tail(40)}")
        return found

    def log(self) -> str:
        return self.process.log.read_text(errors="replace")


class RealCluster:
    """While it is entered. Nodes are known by their ids, from 1 on."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str | int] | None = None,
        *,
        nodes: int = 3,
        network: Network | None = None,
    ) -> None:
        """Hosts of the network are the ids of nodes; etcd is the test's own `SERVER`."""
        etcd.need()
        self.folder = folder
        self.network = network
        self.nodes: dict[int, RealNode] = {}
        self._first = nodes
        self._settings = {**SETTINGS, **(settings or {})}
        self._admin: AdminClient | None = None
        self._hung: set[int] = set()
        self._disks: list[SmallDisk] = []
        folder.mkdir(parents=True, exist_ok=True)
        host, port = LOOPBACK if network is None else network.address(SERVER), free_port()
        listen = dict.fromkeys((LOOPBACK, host))
        urls = ",".join(f"http://{one}:{port}" for one in listen)
        self.etcd = etcd.Etcd(folder / "etcd", port, ["--listen-client-urls", urls])
        self.url = f"etcd://{host}:{port}/real"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self.etcd.start()
            for number in range(1, self._first + 1):
                self.add(number).launch()
            for node in self.nodes.values():
                node.wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        late = stop_all([node.process for node in self.nodes.values()])
        self.etcd.kill()
        for disk in self._disks:
            disk.close()
        if late:
            raise AssertionError(f"did not stop: {', '.join(process.folder.name for process in late)}")

    def add(self, number: int) -> RealNode:
        """A node that is not started yet."""
        options = ["--cluster", self.url]
        for name, value in self._settings.items():
            options += ["--set", f"{name}={value}"]
        folder = self.folder / f"node-{number}"
        if self.network is None:
            node = RealNode(number, folder, options, LOOPBACK, [])
        else:
            host = str(number)
            options.append("--insecure")  # other hosts reach it
            node = RealNode(number, folder, options, self.network.address(host), self.network.command(host))
        self.nodes[number] = node
        return node

    # -- what happens to a node ---------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """As `kill -9` does; returns when it is gone."""
        os.kill(self.nodes[number].pid(), signal.SIGKILL)
        self._wait_gone(number)

    def stop(self, number: int) -> None:
        """As `systemctl stop` does; returns when it is gone."""
        os.kill(self.nodes[number].pid(), signal.SIGTERM)
        self._wait_gone(number)

    def _wait_gone(self, number: int) -> None:
        process = self.nodes[number].process
        wait_for(lambda: process.pid() is None, f"node {number} has ended", within_s=READY_S)

    def pause(self, number: int) -> None:
        """It hangs: SIGSTOP. Connections to it stay open and silent."""
        os.kill(self.nodes[number].pid(), signal.SIGSTOP)
        self._hung.add(number)
        self._admin = None  # librdkafka asks whom it is connected to, so it would ask this one for a minute

    def resume(self, number: int) -> None:
        os.kill(self.nodes[number].pid(), signal.SIGCONT)
        self._hung.discard(number)

    def start_node(self, number: int, *options: str) -> None:
        """Brings it back, and returns when it is ready."""
        self.nodes[number].launch(*options)
        self.nodes[number].wait_ready()

    # -- etcd's ------------------------------------------------------------------------------------------------------

    def copy_etcd(self) -> Path:
        """A backup of etcd, which is away for a moment."""
        copy = self.folder / f"etcd-{time.monotonic_ns()}"
        self.etcd.stop()
        shutil.copytree(self.etcd.folder / "data", copy)
        self.etcd.start()
        return copy

    def restore_etcd(self, copy: Path) -> None:
        """While all nodes are down."""
        self.etcd.kill()
        shutil.rmtree(self.etcd.folder / "data")
        shutil.copytree(copy, self.etcd.folder / "data")
        self.etcd.start()

    # -- its disk -----------------------------------------------------------------------------------------------------

    def copy_disk(self, number: int) -> Path:
        """A backup of a node that is down."""
        copy = self.folder / f"disk-{number}-{time.monotonic_ns()}"
        shutil.copytree(self.nodes[number].data, copy)
        return copy

    def empty_disk(self, number: int) -> None:
        shutil.rmtree(self.nodes[number].data)

    def replace_disk(self, number: int, copy: Path) -> None:
        """Of a node that is down, by a backup of its own or another's."""
        self.empty_disk(number)
        shutil.copytree(copy, self.nodes[number].data)

    def small_disk(self, number: int, size_bytes: int) -> SmallDisk:
        """A node's disk is small from now on. Before it is started for the first time."""
        disk = SmallDisk(self.nodes[number].data, size_bytes)
        self._disks.append(disk)
        return disk

    # -- what clients see -------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """All nodes, for Kafka clients; the same over restarts."""
        return ",".join(self.address(number) for number in self.nodes)

    def address(self, number: int, protocol: str = "kafka") -> str:
        return self.nodes[number].addresses[protocol]

    @property
    def admin(self) -> AdminClient:
        """The same one until a node hangs: what it was asked for ends with it."""
        if self._admin is None:
            asked = ",".join(self.address(number) for number in self.nodes if number not in self._hung)
            self._admin = AdminClient({"bootstrap.servers": asked, "log_level": 0})
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

    # -- what operators do --------------------------------------------------------------------------------------------

    def run(self, *words: str, asked: int | None = None, code: int | None = 0) -> str:
        """A command, with a node that lives or a certain one as its server; what it printed. `code` None: any."""
        number = asked or next(one.id for one in self.nodes.values() if one.process.pid() is not None)
        command = [*PROGRAM, *words, "--server", self.address(number)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=COMMAND_S, check=False
        )
        assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def status(self, asked: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("cluster", "status", "--json", asked=asked, code=None))
        return found

    def wait_whole(self) -> None:
        """Returns when all nodes are there, and every replica of every partition is in sync."""

        def so() -> bool:
            told = self.status()
            alive = {node["id"] for node in told["nodes"] if node["alive"] and node["answers"]}
            return alive >= set(self.nodes) and not told["offline"] and not told["under_replicated"]

        wait_for(so, "the cluster is whole", within_s=90, every_s=0.3)


class ClusterOfThree(RealCluster):
    """With three nodes, on loopback."""

    def __init__(self, folder: Path, settings: Mapping[str, str | int] | None = None) -> None:
        super().__init__(folder, settings)


class SmallDisk:
    """A tmpfs that is full when it is told to be. Needs root."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        _mount("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))

    def fill(self) -> None:
        """Nothing more can be written, not even a byte to a file that is there."""
        with (self._path / "ballast").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self._path / "ballast").unlink()

    def close(self) -> None:
        if os.path.ismount(self._path):
            _mount("umount", "--lazy", str(self._path))


def why_no_small_disk(folder: Path) -> str | None:
    """Why none can be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "mounting a tmpfs needs root"
    try:
        SmallDisk(folder / "probe", 65536).close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"mounts are not allowed here: {getattr(error, 'stderr', None) or error}"
    return None


def environment() -> dict[str, str]:
    """Of commands that run the code of this tree."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _mount(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
