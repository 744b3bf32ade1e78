"""The brokers under test: how each is started, and how it is stopped.

A peer is a recipe; a `Running` is a live broker on an empty loopback port with its own data folder. Only processes
started here are ever signalled, by their own pid. Called by the scenarios.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks import jobs

STOP_LIMIT_S = 60.0


class Unavailable(Exception):
    """This peer cannot run on this machine; the message says why, for the table's foot."""


class Died(RuntimeError):
    """The broker ended by itself; the message holds the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Running:
    """A broker process; `bootstrap` is where its clients go."""

    process: subprocess.Popen[str]
    bootstrap: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Ask it to end, as an operator would, and wait until it has."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """kill -9: what a crash of the process leaves behind."""
        self.process.kill()
        self.process.wait()


class Peer(Protocol):
    """What a scenario may ask of a broker."""

    name: str
    keeps: str
    """What an acknowledgement promises: printed under the table, since rates mean little without it."""
    consumes: bool
    """Whether what was produced can be read back; without it there are no consume and end-to-end figures."""
    durable: bool
    """Whether there is anything to restart from."""

    def version(self) -> str: ...

    def prepare(self, folder: Path) -> None:
        """Everything a user does once, before the start that is timed. May raise `Unavailable`."""

    def spawn(self, folder: Path, port: int) -> Running: ...


class QueuePeer(Peer, Protocol):
    """What the queue scenarios ask besides."""

    wire: jobs.WireName
    library: jobs.LibraryName
    delays: bool
    """Whether a message can be put now and come due later."""
    most_queues: int | None
    """More than these are left out of the run; None: as many as asked for."""


def run_waystation(*arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Our own command line, by the interpreter that runs the benchmark; what it prints."""
    command = [sys.executable, "-m", "waystation.cli.main", *arguments]
    answer = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        last_line = (answer.stderr.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"`waystation {' '.join(arguments)}` does not run: {last_line}")
    return answer.stdout.strip()


def make_certificates(folder: Path) -> None:
    """ca.crt, server.crt and server.key for 127.0.0.1, the same kind for every broker."""
    run_waystation("tls", "create", "--out", str(folder), "--for", "127.0.0.1")


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable(f"no `{name}` on this machine (Debian's package of that name has it)")
    return found


def spawn(command: list[str], folder: Path, port: int, environment: Mapping[str, str] | None = None) -> Running:
    """A broker process of its own session (so that Ctrl-C reaches us first), logging into its folder."""
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            env=environment,
        )
    return Running(process, f"127.0.0.1:{port}")


@dataclass
class Waystation:
    """Our broker, from the interpreter that runs the benchmark."""

    name: str = "waystation"
    flush: str = "commit"
    keeps: str = "fsynced (acks=all)"
    profile: Path | None = None
    checkout: Path | None = None
    """Another version's source tree, whose broker is run instead of ours, by the same interpreter and packages."""
    consumes: bool = field(default=True, init=False)
    durable: bool = field(default=True, init=False)
    wire: jobs.WireName = field(default="native", init=False)
    library: jobs.LibraryName = field(default="waystation", init=False)
    delays: bool = field(default=True, init=False)
    most_queues: int | None = field(default=None, init=False)

    def version(self) -> str:
        return f"{self._waystation('--version')}, Python {sys.version.split()[0]}, flush={self.flush}"

    def prepare(self, folder: Path) -> None:
        self._waystation("serve", "--help")

    def _waystation(self, *arguments: str, stdin: str = "") -> str:
        return run_waystation(*arguments, stdin=stdin, environment=self._environment())

    def _environment(self) -> dict[str, str] | None:
        return None if self.checkout is None else {**os.environ, "PYTHONPATH": str(self.checkout / "src")}

    def listeners(self, port: int) -> list[str]:
        return ["--kafka", f"127.0.0.1:{port}", "--amqp", "off", "--http", "off"]

    def options(self, folder: Path) -> list[str]:
        """More arguments of `serve`."""
        return []

    def spawn(self, folder: Path, port: int) -> Running:
        profiler = ["-m", "cProfile", "-o", str(self.profile)] if self.profile else []
        serve = ["serve", "--data", str(folder / "data"), *self.listeners(port)]
        flush = ["--set", f"waystation.flush={self.flush}"] if self.flush != "commit" else []
        command = [sys.executable, *profiler, "-m", "waystation.cli.main", *serve, *flush, *self.options(folder)]
        return spawn(command, folder, port, self._environment())


@dataclass
class MockCluster:
    """librdkafka's mock cluster in a process of its own: what the protocol costs when nothing is kept.

    It holds the last 5 MB of a partition in memory, answers a fetch with a single produced batch and does not wake a
    waiting fetch, so reading from it would measure those shortcuts: it has produce and acknowledge figures only.
    """

    name: str = "mock"
    keeps: str = "in memory, the last 5 MB"
    consumes: bool = field(default=False, init=False)
    durable: bool = field(default=False, init=False)

    def version(self) -> str:
        command = [sys.executable, "-c", "import confluent_kafka as c; print(c.libversion()[0])"]
        return f"librdkafka {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"

    def prepare(self, folder: Path) -> None:
        pass

    def spawn(self, folder: Path, port: int) -> Running:
        with (folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.clients", msgspec.json.encode(jobs.Mock()).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        address = process.stdout.readline().strip() if process.stdout else ""  # it picks its port itself
        if not address:
            process.kill()
            raise Unavailable(f"the mock cluster did not start, see {folder / 'server.log'}")
        return Running(process, address)


def log_end(folder: Path) -> str:
    return " / ".join((folder / "server.log").read_text(errors="replace").strip().splitlines()[-3:])


def start(peer: Peer, folder: Path, probe: jobs.Probe | jobs.Knock) -> tuple[Running, jobs.Probed, float]:
    """Start a broker while a client is already knocking; also returns when the process was started.

    The client is loaded and waiting before the broker's process exists, so its own start costs nothing.
    """
    port = free_port()
    with jobs.started(probe) as client:
        client.wait_ready()
        began = time.monotonic()
        running = peer.spawn(folder, port)
        try:
            client.tell(running.bootstrap)
            while client.process.poll() is None:
                if running.process.poll() is not None:  # nobody will ever answer the client: say why, now
                    raise Died(f"{peer.name} ended while starting: {log_end(folder)}")
                time.sleep(0.05)
            return running, client.result(jobs.Probed), began
        except BaseException:
            running.kill()
            raise
