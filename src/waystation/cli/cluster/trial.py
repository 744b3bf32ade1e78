"""A trial cluster in a folder: an etcd and some nodes, each a process of its own, on this machine.

    DIR/trial.json            the port of etcd
    DIR/etcd/                 its data and its log
    DIR/node-1/command.json   how the node is started, always with the same ports
    DIR/node-1/data/          its data folder
    DIR/node-1/node.log

What must hold: what is in the folder is enough to start the same cluster again, or one node of it, by another command.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from waystation.cli.cluster.etcd_process import EtcdProcess
from waystation.cli.cluster.folder_process import FolderProcess, stop_all
from waystation.cli.cluster.free_ports import free_ports
from waystation.errors import Conflict, Invalid, NotFound, Unavailable

PREFIX = "trial"
LISTENERS = ("kafka", "amqp", "http")
READY_S = 60.0

PROGRAM = (sys.executable, "-m", "waystation.cli.main")


class TrialFile(msgspec.Struct, frozen=True):
    etcd_port: int


class NodeFile(msgspec.Struct, frozen=True):
    """`command.json`."""

    id: int
    command: list[str]


class TrialNode:
    """One node."""

    def __init__(self, folder: Path, node_id: int) -> None:
        self.id = node_id
        self.folder = folder / f"node-{node_id}"
        self.data = self.folder / "data"
        self.process = FolderProcess(self.folder, "node.log")
        self._file = self.folder / "command.json"
        self._ready = self.folder / "ready.json"

    def is_known(self) -> bool:
        return self._file.exists()

    def make(self, cluster: str, options: Sequence[str], program: Sequence[str]) -> None:
        """Chooses its ports and writes down how it is started. One that is known keeps its ports."""
        ports = self._ports() if self.is_known() else dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        command = [*program, "serve", "--data", str(self.data), "--node", str(self.id), "--cluster", cluster]
        for listener in LISTENERS:
            command += [f"--{listener}", f"127.0.0.1:{ports[listener]}"]
        command += ["--ready-file", str(self._ready), *options]
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, msgspec.json.format(msgspec.json.encode(NodeFile(self.id, command))))

    def _ports(self) -> dict[str, int]:
        command = self.command()
        return {name: int(command[command.index(f"--{name}") + 1].rpartition(":")[2]) for name in LISTENERS}

    def command(self) -> list[str]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=NodeFile).command
        except FileNotFoundError:
            raise NotFound(f"there is no node {self.id} in {self.folder.parent}") from None
        except msgspec.DecodeError as error:
            raise Invalid(f"{self._file} cannot be read: {error}") from error

    def start(self) -> None:
        """Conflict if it runs."""
        command = self.command()
        self._ready.unlink(missing_ok=True)
        try:
            self.process.start(command, os.environ)
        except Conflict as error:
            raise Conflict(f"node {self.id} runs already: {error}") from error

    def addresses(self) -> dict[str, str] | None:
        """None: it is not ready. Unavailable if it has ended."""
        try:
            return msgspec.json.decode(self._ready.read_bytes(), type=dict[str, str])
        except (FileNotFoundError, msgspec.DecodeError):
            if self.process.pid() is None:
                raise Unavailable(
                    f"node {self.id} has ended; the end of {self.process.log}:\n{self.process.tail()}"
                ) from None
            return None


class Trial:
    """All of it."""

    def __init__(self, folder: Path, program: Sequence[str] = PROGRAM) -> None:
        self.folder = folder
        self._program = program
        self._file = folder / "trial.json"
        self.etcd: EtcdProcess | None = None
        self.nodes: list[TrialNode] = []

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """By this process alone, as long as it lives. Conflict if another one has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "up").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"another `waystation cluster up` runs in {self.folder}; stop it, or give another folder (--data)"
                ) from None
            yield

    def known_nodes(self) -> list[TrialNode]:
        """Those that the folder has, in the order of their ids."""
        found = (path.name.removeprefix("node-") for path in self.folder.glob("node-*"))
        nodes = [TrialNode(self.folder, int(number)) for number in found if number.isdecimal()]
        return sorted((node for node in nodes if node.is_known()), key=lambda node: node.id)

    def left_over(self) -> list[FolderProcess]:
        """What an earlier `up` has left running since it was killed; etcd is the last."""
        processes = [node.process for node in self.known_nodes()]
        processes.append(FolderProcess(self.folder / "etcd", "etcd.log"))
        return [process for process in processes if process.pid() is not None]

    def start_etcd(self) -> str:
        """Its address as nodes write it."""
        port = msgspec.json.decode(self._file.read_bytes(), type=TrialFile).etcd_port if self._file.exists() else 0
        self.etcd = EtcdProcess(self.folder / "etcd", port)
        self.etcd.start()
        write_whole(self._file, msgspec.json.encode(TrialFile(self.etcd.port)))
        return f"etcd://{self.etcd.address}/{PREFIX}"

    def start_nodes(self, count: int, cluster: str, options: Sequence[str]) -> None:
        self.nodes = [TrialNode(self.folder, number) for number in range(1, count + 1)]
        for node in self.nodes:
            node.make(cluster, options, self._program)
            node.start()

    def stop(self) -> list[FolderProcess]:
        """Nodes first, so that they can leave properly; also those that `start-node` started. Those that had to be
        killed are returned."""
        late = stop_all([node.process for node in self.known_nodes()])
        if self.etcd is not None:
            self.etcd.stop()
        return late


def wait_ready(node: TrialNode, within_s: float = READY_S) -> dict[str, str]:
    """Where it listens. Unavailable if it has ended or takes too long."""
    deadline = time.monotonic() + within_s
    while (addresses := node.addresses()) is None:
        if time.monotonic() > deadline:
            raise Unavailable(f"node {node.id} is not ready after {within_s:g} s; see {node.process.log}")
        time.sleep(0.02)
    return addresses


def write_whole(path: Path, text: bytes) -> None:
    """A reader sees no file or all of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.write_bytes(text)
    temporary.replace(path)
