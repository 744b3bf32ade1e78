"""The brokers that people would take for queues instead: NATS JetStream and Redis Streams, from Debian's packages.

Both run with the settings that their manuals give for a queue that survives a restart. Neither fsyncs before it
acknowledges, which the table's foot says. Called by `benchmarks.cli`.
"""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import jobs
from benchmarks.peers import Running, program, spawn


def _version(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Nats:
    """One JetStream server; a queue is a file stream with one durable pull consumer."""

    name: str = field(default="nats", init=False)
    keeps: str = field(default="in the page cache", init=False)
    consumes: bool = field(default=True, init=False)
    durable: bool = field(default=True, init=False)
    wire: jobs.WireName = field(default="nats", init=False)
    library: jobs.LibraryName = field(default="nats-py", init=False)
    delays: bool = field(default=False, init=False)
    # A stream is a folder with files and goroutines of its own: a million of them is not what it is made for.
    most_queues: int | None = field(default=5_000, init=False)

    def version(self) -> str:
        return f"NATS JetStream {_version(program('nats-server'), '-v').removeprefix('nats-server: v')}, file storage"

    def prepare(self, folder: Path) -> None:
        pass

    def spawn(self, folder: Path, port: int) -> Running:
        where = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "data")]
        return spawn([program("nats-server"), *where], folder, port)


@dataclass
class Redis:
    """One server with the append-only file; a queue is a stream with one consumer group."""

    name: str = field(default="redis", init=False)
    keeps: str = field(default="in the page cache, fsynced every second", init=False)
    consumes: bool = field(default=True, init=False)
    durable: bool = field(default=True, init=False)
    wire: jobs.WireName = field(default="redis", init=False)
    library: jobs.LibraryName = field(default="redis-py", init=False)
    delays: bool = field(default=False, init=False)
    most_queues: int | None = field(default=None, init=False)

    def version(self) -> str:
        words = dict(word.split("=") for word in _version(program("redis-server"), "-v").split() if "=" in word)
        return f"Redis {words['v']}, appendonly, appendfsync everysec"

    def prepare(self, folder: Path) -> None:
        (folder / "data").mkdir(exist_ok=True)

    def spawn(self, folder: Path, port: int) -> Running:
        where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder / "data")]
        keep = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        return spawn([program("redis-server"), *where, *keep], folder, port)
