"""`waystation cluster up` and `cluster start-node`: a whole cluster on this machine, to try it.

`up` stays in the foreground, says when a node has ended, and stops all of it at SIGTERM, at Ctrl-C, or when its
terminal is closed: what it started would not notice that, and would run on.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

import msgspec

from waystation.cli.cluster.folder_process import stop_all
from waystation.cli.cluster.trial import LISTENERS, Trial, TrialNode, wait_ready, write_whole
from waystation.cli.terminal.arguments import add_settings, positive
from waystation.cli.terminal.output import note, print_json
from waystation.errors import Conflict, NotFound, WaystationError

DEFAULT_DATA = "./waystation-trial"
_LOOK_S = 0.2


class ReadyNode(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    pid: int | None
    kafka: str
    amqp: str
    http: str
    data: str


class Ready(msgspec.Struct, frozen=True):
    """The ready file."""

    etcd: str
    nodes: list[ReadyNode]


def configure_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument(
        "--data", default=DEFAULT_DATA, metavar="DIR", help=f"the folder of all of it (default: {DEFAULT_DATA})"
    )
    parser.add_argument("--ready-file", metavar="FILE", help="write pids and addresses there, as JSON, when ready")
    parser.add_argument(
        "--cluster", metavar="URL", help="an etcd that runs already: etcd://HOST:PORT/PREFIX (default: start one)"
    )
    add_settings(parser, "a setting of all nodes, like num.partitions=6; may be repeated")
    parser.set_defaults(run=_up)


def configure_start_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=positive, help="its id")
    parser.add_argument(
        "--data", default=DEFAULT_DATA, metavar="DIR", help=f"as for `cluster up` (default: {DEFAULT_DATA})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    parser.set_defaults(run=_start_node)


# -- up ---------------------------------------------------------------------------------------------------------------


def _up(arguments: argparse.Namespace) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as by `nohup`
            signal.signal(number, lambda *_: stopping.set())
    ready_file = None if arguments.ready_file is None else Path(arguments.ready_file)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)  # a file of an earlier run would tell a lie
    trial = Trial(Path(arguments.data).absolute())
    with trial.claimed():
        _end_left_over(trial)
        _run(trial, arguments, ready_file, stopping)
    return 0


def _run(trial: Trial, arguments: argparse.Namespace, ready_file: Path | None, stopping: threading.Event) -> None:
    try:
        ready = _start(trial, arguments, stopping)
        if ready is not None:
            _announce(ready, ready_file, arguments)
            _look_after(trial, ready_file, ready, stopping)
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        for late in trial.stop():
            note(f"{late.folder.name} did not stop in time and was killed; what it acknowledged is on disk")


def _end_left_over(trial: Trial) -> None:
    left = trial.left_over()
    if left:
        names = ", ".join(f"{process.folder.name} (process {process.pid()})" for process in left)
        note(f"an earlier `cluster up` was killed and left running: {names}; stopping them")
        stop_all(left)


def _start(trial: Trial, arguments: argparse.Namespace, stopping: threading.Event) -> Ready | None:
    """None: told to stop before everything was ready."""
    cluster = arguments.cluster or trial.start_etcd()
    options = [word for setting in arguments.settings for word in ("--set", setting)]
    trial.start_nodes(arguments.nodes, cluster, options)
    nodes = []
    for node in trial.nodes:
        while (addresses := node.addresses()) is None:
            if stopping.wait(0.02):
                return None
        nodes.append(_ready_node(node, addresses))
    return Ready(trial.etcd.address if trial.etcd is not None else cluster, nodes)


def _ready_node(node: TrialNode, addresses: dict[str, str]) -> ReadyNode:
    listeners = {name: addresses.get(name, "") for name in LISTENERS}
    return ReadyNode(id=node.id, pid=node.process.pid(), data=str(node.data), **listeners)


def _announce(ready: Ready, ready_file: Path | None, arguments: argparse.Namespace) -> None:
    if ready_file is not None:
        write_whole(ready_file, msgspec.json.encode(ready))
    print(f"a cluster of {len(ready.nodes)} nodes; etcd {ready.etcd}")
    for node in ready.nodes:
        print(
            f"node {node.id}  process {node.pid}  kafka {node.kafka}  amqp {node.amqp}  dashboard http://{node.http}/"
        )
    print(f"\nkafka clients:   bootstrap.servers={','.join(node.kafka for node in ready.nodes)}")
    print(f"see it:          waystation cluster status --server {ready.nodes[0].kafka}")
    print("kill a node:     kill -9 PROCESS")
    print(f"bring it back:   waystation cluster start-node ID --data {arguments.data}")
    print("stop:            Ctrl-C", flush=True)


def _look_after(trial: Trial, ready_file: Path | None, ready: Ready, stopping: threading.Event) -> None:
    """Says what has ended and what is back, and keeps the pids in the ready file true."""
    known = {node.id: node.pid for node in ready.nodes}
    etcd_was_there = True
    while not stopping.wait(_LOOK_S):
        now = {node.id: node.process.pid() for node in trial.nodes}
        for node in trial.nodes:
            if now[node.id] != known[node.id]:
                _tell(node, known[node.id], now[node.id], trial)
        if now != known and ready_file is not None:
            nodes = [msgspec.structs.replace(node, pid=now[node.id]) for node in ready.nodes]
            write_whole(ready_file, msgspec.json.encode(Ready(ready.etcd, nodes)))
        known = now
        etcd_is_there = trial.etcd is None or trial.etcd.process.pid() is not None
        if etcd_was_there and not etcd_is_there:
            note(f"etcd has ended; see {trial.folder / 'etcd' / 'etcd.log'}. Nodes go on, but none can take over")
        etcd_was_there = etcd_is_there


def _tell(node: TrialNode, before: int | None, pid: int | None, trial: Trial) -> None:
    if pid is not None:
        note(f"node {node.id} is process {pid} now")
        return
    code = None if before is None else node.process.exit_code(before)
    how = "" if code is None else f" (exit code {code})"
    note(
        f"node {node.id} has ended{how}, and {node.process.log} may say why;"
        f" `waystation cluster start-node {node.id} --data {trial.folder}` brings it back"
    )


# -- start-node -------------------------------------------------------------------------------------------------------


def _start_node(arguments: argparse.Namespace) -> int:
    trial = Trial(Path(arguments.data).absolute())
    known = trial.known_nodes()
    node = next((one for one in known if one.id == arguments.node), None)
    if node is None:
        there = f"it has {', '.join(str(one.id) for one in known)}" if known else "`waystation cluster up` creates one"
        raise NotFound(f"there is no node {arguments.node} in {arguments.data}; {there}")
    try:
        node.start()
    except Conflict as error:
        raise Conflict(f"{error}; `waystation cluster status` shows it") from None
    try:
        ready = _ready_node(node, wait_ready(node))
    except WaystationError:
        stop_all([node.process])
        raise
    if arguments.json:
        print_json(msgspec.to_builtins(ready))
    else:
        print(f"node {ready.id}  process {ready.pid}  kafka {ready.kafka}  amqp {ready.amqp}  http {ready.http}")
    return 0
