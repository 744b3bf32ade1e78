"""The brokers of the AMQP figures: our own by its AMQP port, and Debian's RabbitMQ.

RabbitMQ runs as its package has it, without plugins, on a node name, ports, an epmd and folders of its own, all on
loopback; nothing of it is left when it was stopped or killed. Called by `benchmarks.cli`.
"""

import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks import jobs
from benchmarks.peers import Died, Peer, Running, Unavailable, Waystation, free_port, program, spawn

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # what Debian's wrapper runs, which wants a user of its own
RELEASES = Path("/usr/lib/rabbitmq/lib")
EPMD_LIMIT_S = 10.0


class AmqpPeer(Peer, Protocol):
    """What the AMQP scenarios ask besides."""

    wire: jobs.WireName


@dataclass
class WaystationAmqp(Waystation):
    """Our broker, spoken to by AMQP."""

    wire: jobs.WireName = field(default="amqp", init=False)
    keeps: str = "fsynced"

    def listeners(self, port: int) -> list[str]:
        return ["--amqp", f"127.0.0.1:{port}", "--kafka", "off", "--http", "off"]


@dataclass
class RunningRabbit(Running):
    """The Erlang machine, and the port mapper that it needs besides."""

    epmd: subprocess.Popen[str]

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._end_epmd()

    def kill(self) -> None:
        super().kill()
        self._end_epmd()

    def _end_epmd(self) -> None:
        self.epmd.kill()
        self.epmd.wait()


@dataclass
class Rabbit:
    """One RabbitMQ node; `kind` is the type of its queues."""

    kind: str
    wire: jobs.WireName
    name: str = field(init=False)
    keeps: str = field(default="fsynced, several at once", init=False)
    consumes: bool = field(default=True, init=False)
    durable: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.name = f"rabbitmq-{self.kind}"

    def version(self) -> str:
        releases = sorted(RELEASES.glob("rabbitmq_server-*"))
        if not SCRIPT.exists() or not releases:
            raise Unavailable("no RabbitMQ on this machine (Debian's package `rabbitmq-server` has it)")
        return f"RabbitMQ {releases[-1].name.partition('-')[2]}, durable {self.kind} queues"

    def prepare(self, folder: Path) -> None:
        for name in ("data", "home", "log"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "enabled_plugins").write_text("[].\n")

    def spawn(self, folder: Path, port: int) -> Running:
        mapper = free_port()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file.level = warning\n")
        environment = self._environment(folder, port, mapper)
        # In the foreground and ours to end. Erlang would start one itself, on all addresses, that outlives the broker.
        epmd = spawn([program("epmd"), "-port", str(mapper), "-address", "127.0.0.1"], folder, mapper).process
        try:
            _await_listening(epmd, mapper)
            broker = spawn([str(SCRIPT)], folder, port, environment)
        except BaseException:
            epmd.kill()
            epmd.wait()
            raise
        return RunningRabbit(broker.process, broker.bootstrap, epmd)

    def _environment(self, folder: Path, port: int, mapper: int) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(folder / "home"),  # the cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"waystation-bench-{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Then the script becomes the Erlang machine instead of waiting for it, and our signals reach it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }


def _await_listening(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + EPMD_LIMIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                raise Died("Erlang's epmd ended while starting") from None
            time.sleep(0.01)
    raise Died(f"Erlang's epmd does not listen after {EPMD_LIMIT_S} s")
