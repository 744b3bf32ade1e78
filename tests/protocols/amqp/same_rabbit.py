"""RabbitMQ as Debian packages it, in a folder and on ports of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.protocols.amqp.same_side import Connection
from tests.support.waiting import wait_for

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S = 120.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def rabbitmq(folder: Path, management_port: int | None = None) -> Iterator[str]:
    """Its address. It has its own name server (epmd) too, which would listen on all addresses otherwise. With a port
    for it, it has its management API."""
    port, dist, epmd = free_port(), free_port(), free_port()
    for name in ("home", "log", "data"):
        (folder / name).mkdir()
    conf = f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file.level = warning\n"
    if management_port is not None:
        conf += f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management_port}\n"
    (folder / "enabled_plugins").write_text("[].\n" if management_port is None else "[rabbitmq_management].\n")
    (folder / "rabbitmq.conf").write_text(conf)
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd),
        "RABBITMQ_NODENAME": f"same{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(dist),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    with (folder / "out").open("wb") as out:
        commands = (["epmd", "-port", str(epmd), "-address", "127.0.0.1"], [str(SERVER)])
        started = [
            subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
            for command in commands
        ]
    try:
        wait_for(lambda: _speaks(f"127.0.0.1:{port}"), "RabbitMQ is there", within_s=START_S, every_s=0.5)
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGKILL)  # its own group, so nobody else's
            process.wait()


def _speaks(address: str) -> bool:
    try:
        Connection(address).socket.close()
    except (OSError, AssertionError):
        return False
    return True
