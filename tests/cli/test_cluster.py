"""`waystation cluster` with real processes: tried, watched, drained, shrunk, and grown from a broker that was alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import Etcd, need
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for
from waystation.cli.cluster.folder_process import stop_all
from waystation.cli.cluster.free_ports import free_ports
from waystation.cli.cluster.trial import Trial

pytestmark = pytest.mark.timeout(280)

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path),
}
PROGRAM = [sys.executable, "-m", "waystation.cli.main"]


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*PROGRAM, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done


class Up:
    """A `cluster up` that runs."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.data, self.ready, self.log = folder / "trial", folder / "ready.json", folder / "up.log"
        command = [*PROGRAM, "cluster", "up", "--nodes", str(nodes), "--data", str(self.data)]
        self.ready.unlink(missing_ok=True)  # of a command that was killed
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--ready-file", str(self.ready)], stdout=log, stderr=log, env=ENVIRONMENT
            )
        wait_for(lambda: self.ready.exists() or self.process.poll() is not None, "the cluster is ready", within_s=90)
        assert self.process.poll() is None, self.log.read_text()

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ready.read_text())
        return found

    def node(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.told()["nodes"][number - 1]
        return found

    def cli(self, *words: str, asked: int = 1, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run(*words, "--server", self.node(asked)["kafka"], code=code)

    def status(self, asked: int = 1) -> dict[str, Any]:
        done = subprocess.run(
            [*PROGRAM, "cluster", "status", "--json", "--server", self.node(asked)["kafka"]],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


@contextmanager
def up(folder: Path, nodes: int = 3) -> Iterator[Up]:
    need()
    started = Up(folder, nodes)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()


def gone(pid: int) -> bool:
    """Or a zombie, where nobody asks for those whose parents have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def healthy(cluster: Up, nodes: int) -> bool:
    status = cluster.status()
    return (
        sum(node["alive"] and node["answers"] for node in status["nodes"]) == nodes
        and not status["under_replicated"]
        and all(one["high_watermark"] == one["log_end"] is not None for one in status["partitions"])
    )


def test_a_cluster_is_up_with_one_command_and_stops_with_one_signal(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        told = cluster.told()
        assert [node["id"] for node in told["nodes"]] == [1, 2, 3]
        pids = [node["pid"] for node in told["nodes"]]
        cluster.cli("topics", "create", "orders", "--partitions", "3")
        wait_for(lambda: healthy(cluster, 3), "all replicas are in sync", every_s=0.3, within_s=60)
        orders = [one for one in cluster.status(2)["partitions"] if one["topic"] == "orders"]
        assert all(sorted(one["isr"]) == [1, 2, 3] for one in orders)
        assert {one["leader"] for one in orders} == {1, 2, 3}
        refused = run("cluster", "up", "--data", str(cluster.data), code=1)
        assert "another `waystation cluster up` runs" in refused.stderr
        assert cluster.stop() == 0
        assert all(gone(pid) for pid in pids)
        assert not cluster.ready.exists()
    with up(tmp_path) as again:
        assert [node["kafka"] for node in again.told()["nodes"]] == [node["kafka"] for node in told["nodes"]]
        wait_for(lambda: healthy(again, 3), "it is the same cluster again", every_s=0.3, within_s=60)
        assert "orders" in again.cli("topics", "list").stdout


def test_a_terminal_that_is_closed_leaves_no_process_behind(tmp_path: Path) -> None:
    with up(tmp_path, nodes=1) as cluster:
        left = [process.pid() for process in Trial(cluster.data).left_over()]
        assert len(left) == 2, "the node and etcd"
        cluster.process.send_signal(signal.SIGHUP)
        try:
            assert cluster.process.wait(90) == 0
            assert not Trial(cluster.data).left_over()
        finally:
            stop_all(Trial(cluster.data).left_over())


def test_a_killed_node_is_shown_and_brought_back_by_its_command(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        wait_for(lambda: healthy(cluster, 3), "all replicas are in sync", every_s=0.3, within_s=60)
        killed = cluster.node(2)
        os.kill(killed["pid"], signal.SIGKILL)
        wait_for(lambda: cluster.node(2)["pid"] is None, "the ready file says so")
        wait_for(lambda: [node["alive"] for node in cluster.status()["nodes"]] == [True, False, True], "it is shown")
        wait_for(lambda: not cluster.status()["offline"], "others lead", every_s=0.3, within_s=60)
        told = json.loads(run("cluster", "start-node", "2", "--data", str(cluster.data), "--json").stdout)
        assert told == {**killed, "pid": told["pid"]}
        wait_for(lambda: cluster.node(2)["pid"] == told["pid"], "the ready file says so")
        wait_for(lambda: healthy(cluster, 3), "it is in sync again", every_s=0.3, within_s=60)
        assert "runs already" in run("cluster", "start-node", "2", "--data", str(cluster.data), code=1).stderr
        assert "it has 1, 2, 3" in run("cluster", "start-node", "4", "--data", str(cluster.data), code=1).stderr
        assert cluster.stop() == 0
        assert gone(told["pid"])


def test_after_kill_9_of_the_command_the_next_one_takes_over(tmp_path: Path) -> None:
    need()
    try:
        with up(tmp_path, nodes=1) as cluster:
            left = cluster.node(1)["pid"]
            cluster.process.kill()
            cluster.process.wait()
            assert not gone(left)
        with up(tmp_path, nodes=1) as cluster:
            assert gone(left)
            assert "stopping them" in cluster.log.read_text()
    finally:
        stop_all(Trial(cluster.data).left_over())


def test_a_node_is_drained_and_removed_and_its_replicas_are_moved(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        cluster.cli("topics", "create", "orders", "--partitions", "3")
        wait_for(lambda: healthy(cluster, 3), "all replicas are in sync", every_s=0.3, within_s=60)
        assert json.loads(cluster.cli("cluster", "drain", "3", "--json").stdout) == {
            "node": 3, "draining": True, "leads": 0,
        }  # fmt: skip
        assert cluster.status()["nodes"][2]["draining"]
        moved = cluster.cli("cluster", "reassign", "orders", "--replication-factor", "2", "--wait", "--json")
        assert all(3 not in json.loads(line)["replicas"] for line in moved.stdout.splitlines())
        refused = cluster.cli("cluster", "remove", "3", "--yes", "--timeout", "60", code=1)
        assert "has no replicas any more, but runs" in refused.stderr
        os.kill(cluster.node(3)["pid"], signal.SIGTERM)
        wait_for(lambda: not cluster.status()["nodes"][2]["alive"], "it has stopped", every_s=0.3)
        assert json.loads(cluster.cli("cluster", "remove", "3", "--yes", "--json").stdout) == {"node": 3}
        status = cluster.status()
        assert [node["id"] for node in status["nodes"]] == [1, 2]
        assert all(set(one["replicas"]) == {1, 2} for one in status["partitions"])
        assert "there are 1, 2" in cluster.cli("cluster", "drain", "3", code=1).stderr


def test_a_broker_that_was_alone_is_adopted_and_grows_with_all_that_it_has(tmp_path: Path) -> None:
    need()
    with Server(tmp_path / "alone") as alone:
        run("topics", "create", "orders", "--partitions", "2", "--server", alone.bootstrap)
        run("publish", "orders", *(f"order {number}" for number in range(20)), "--server", alone.bootstrap)
        run("exchanges", "create", "events", "--server", alone.bootstrap)
        run("cluster", "adopt", "--data", str(alone.data), "--node", "1", "--cluster", "etcd://127.0.0.1:1/x", code=1)
    with Etcd(tmp_path / "etcd") as etcd:
        url = etcd.url("grown")
        made = run("cluster", "adopt", "--data", str(alone.data), "--node", "1", "--cluster", url, "--json")
        assert json.loads(made.stdout)["topics"] >= 1
        again = run("cluster", "adopt", "--data", str(alone.data), "--node", "1", "--cluster", url, code=1)
        assert "node of a cluster already" in again.stderr
        nodes: dict[int, Server] = {}
        try:
            for number in (1, 2, 3):
                nodes[number] = Server(tmp_path / f"node-{number}", arguments=["--node", str(number), "--cluster", url])
                if number == 1:
                    nodes[1].data = alone.data
                nodes[number].start()
            server = nodes[1].bootstrap
            wait_for(lambda: len(_status(server)["nodes"]) == 3, "three nodes", every_s=0.3)
            run("cluster", "reassign", "orders", "--replication-factor", "3", "--wait", "--server", server)
            wait_for(lambda: not _status(server)["under_replicated"], "all are in sync", every_s=0.3, within_s=60)
            assert "events" in run("exchanges", "list", "--server", nodes[3].bootstrap).stdout
            nodes[1].kill()
            other = nodes[2].bootstrap
            wait_for(lambda: not _status(other)["offline"], "others lead", every_s=0.3, within_s=60)
            assert _read(f"{other},{nodes[3].bootstrap}", 20) == {f"order {number}" for number in range(20)}
        finally:
            for node in nodes.values():
                if node.process is not None:
                    node.kill()
                node.close()


def _status(server: str) -> dict[str, Any]:
    done = subprocess.run(
        [*PROGRAM, "cluster", "status", "--json", "--server", server],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _read(bootstrap: str, count: int) -> set[str]:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found: set[str] = set()

    def all_there() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            found.add(bytes(value).decode())
        return len(found) >= count

    try:
        wait_for(all_there, "everything is read", within_s=90)
    finally:
        consumer.close()
    return found


def test_ports_of_nodes_are_none_that_the_system_gives_to_clients() -> None:
    """A node keeps its ports while it is down: no client's outgoing connection may take one meanwhile."""
    ports = free_ports(50)
    assert len(set(ports)) == 50
    first, _last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(1024 <= port < first for port in ports)
