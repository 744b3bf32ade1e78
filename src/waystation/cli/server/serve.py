"""`waystation serve`: one broker in this process, until SIGTERM or Ctrl-C.

Everything that can be wrong with the request is found before the data folder is touched. The addresses go to standard
output and, with `--ready-file`, into a file that appears whole, and only once the listeners are open; the log goes to
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from waystation.cli.server.configuration import CONFIG_VARIABLE, gather
from waystation.cli.server.listeners import STANDARD_LISTENERS, check_reachable
from waystation.cli.server.logs import FORMATS, LEVELS, start_logging
from waystation.cli.server.options import OPTIONS
from waystation.cli.server.service import tell_service_manager
from waystation.cli.terminal.arguments import DEFAULT_SERVER, add_settings
from waystation.cli.terminal.output import spell_bytes
from waystation.client.links.address import Address
from waystation.client.links.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.errors import Invalid
from waystation.observe.events import event_logger
from waystation.security.tls_files import files_of
from waystation.station import ListenerPlan, Station
from waystation.version import __version__
from waystation.world.memory import give_back_freed_memory, keep_freed_memory
from waystation.world.memory_disk import MEMORY

if TYPE_CHECKING:
    from waystation.broker.open import ClusterPlan, LinkPlan

logger = event_logger("waystation.config")


def configure(parser: argparse.ArgumentParser) -> None:
    defaults = {name: option.default for name, option in OPTIONS.items()}
    parser.add_argument("--data", metavar="DIR", help=f"the folder for all data (default: {defaults['data']})")
    parser.add_argument(
        "--memory", action="store_true", help="keep all data in memory: nothing is on disk, nothing survives a restart"
    )
    for name in STANDARD_LISTENERS:
        help_text = f"default: {defaults[name]}; port 0 picks a free one"
        parser.add_argument(f"--{name}", metavar="HOST:PORT|off", help=help_text)
    parser.add_argument(
        "--listeners",
        metavar="NAME=PROTOCOL://HOST:PORT",
        action="append",
        help="a further listener, with ?advertised=HOST:PORT and more behind it; may be repeated",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML (default: ${CONFIG_VARIABLE}); the environment and the command line win over it",
    )
    add_settings(parser, "a setting of the broker, like log.retention.ms=7d; may be repeated")
    parser.add_argument("--cluster", metavar="etcd://…", help="the cluster that this broker is a node of")
    parser.add_argument("--node", metavar="N", help="the id of this node in the cluster, 0 or more")
    parser.add_argument(
        "--node-listener", metavar="NAME", help="the listener by which other nodes reach this one (default: kafka)"
    )
    parser.add_argument("--rack", metavar="NAME", help="where this node is; replicas are spread over racks")
    parser.add_argument(
        "--restored",
        action="store_true",
        help="the data folder was restored from a copy of a node: it may lack what this node acknowledged since",
    )
    parser.add_argument("--ready-file", metavar="FILE", help="write the addresses there, as JSON, when ready")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow listening on addresses that other machines can reach, without authentication",
    )
    parser.add_argument(
        "--pipelines", metavar="DIR", help="pipeline files that may be started from the dashboard and the API"
    )
    parser.add_argument("--log-level", choices=LEVELS, help=f"default: {defaults['log-level']}")
    parser.add_argument("--log-format", choices=FORMATS, help=f"default: {defaults['log-format']}")
    parser.set_defaults(run=_run)


class ServePlan(msgspec.Struct, frozen=True):
    """What to start, checked."""

    data: str
    listeners: tuple[ListenerPlan, ...]
    insecure: bool
    settings: BrokerSettings
    ready_file: str | None
    pipelines: str | None
    log_level: str
    log_format: str
    cluster: ClusterPlan | None = None
    doubts: tuple[str, ...] = ()

    def address(self, listener: str) -> Address | None:
        """Where it listens; None: it is off."""
        return next((plan.address for plan in self.listeners if plan.terms.name == listener), None)


def make_plan(arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> ServePlan:
    """Flags over the environment over the file over defaults; raises Invalid for anything that cannot be served."""
    flags: dict[str, str | None] = {name: getattr(arguments, name.replace("-", "_")) for name in OPTIONS}
    flags["insecure"] = "true" if arguments.insecure else None
    flags["memory"] = "true" if arguments.memory else None
    flags["listeners"] = " ".join(arguments.listeners) if arguments.listeners else None
    if arguments.memory and arguments.data is not None:
        raise Invalid("--memory and --data: a broker in memory has no data folder; give one of them")
    told = gather(
        os.environ if environment is None else environment,
        file=arguments.config,
        flags=flags,
        settings=arguments.settings,
    )
    memory = told.text("memory") == "true"
    if memory and told.text("pipelines"):
        raise Invalid("--memory and --pipelines: what pipelines print is kept in a data folder; give one of them")
    settings = told.broker_settings()
    cluster = _cluster_plan(told.text("cluster"), told.text("node"), told.text("rack"), arguments.restored)
    if cluster is not None:
        if memory:
            raise Invalid("--memory and --cluster: a node of a cluster has a data folder; give one of them")
        settings = _with_node_id(settings, told.text("node"))
    listeners = told.listeners()
    if cluster is not None:
        check_reachable(listeners)
        cluster = msgspec.structs.replace(cluster, link=_link(listeners, told.text("node-listener"), settings))
    return ServePlan(
        data=MEMORY if memory else told.text("data"),
        listeners=listeners,
        insecure=told.text("insecure") == "true",
        settings=settings,
        cluster=cluster,
        ready_file=told.text("ready-file") or None,
        pipelines=told.text("pipelines") or None,
        log_level=told.text("log-level"),
        log_format=told.text("log-format"),
        doubts=tuple(told.doubts),
    )


def _link(listeners: tuple[ListenerPlan, ...], name: str, settings: BrokerSettings) -> LinkPlan:
    """How the nodes of a cluster reach each other."""
    from waystation.broker.open import LinkPlan

    plan = next((plan for plan in listeners if plan.terms.name == name), None)
    if plan is None or plan.protocol != "kafka":
        raise Invalid(f"--node-listener {name}: there is no listener of Kafka's protocol that is called so")
    return LinkPlan(name, None if plan.tls == "off" else files_of(settings, plan.own))


def _cluster_plan(cluster: str, node: str, rack: str, restored: bool) -> ClusterPlan | None:
    if not cluster:
        if node or rack or restored:
            raise Invalid(
                "--node, --rack and --restored are of a cluster: name it with --cluster etcd://HOST:PORT/NAME"
            )
        return None
    if not node:
        raise Invalid("--cluster: say which node of it this is with --node N, another number for each")
    from waystation.broker.open import ClusterPlan
    from waystation.cluster.address import parse

    return ClusterPlan(parse(cluster), rack, restored)


def _with_node_id(settings: BrokerSettings, node: str) -> BrokerSettings:
    given = settings.given.get("node.id", node)
    if given != node:
        raise Invalid(f"--node {node} and node.id={given} name the same thing: leave one out")
    return settings.above({"node.id": node})


def _allow_many_files() -> None:
    """A connection and a partition in use hold a file each; the soft limit is often 1,024, the hard one far above."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(arguments: argparse.Namespace) -> int:
    plan = make_plan(arguments)
    start_logging(plan.log_level, plan.log_format)
    for doubt in plan.doubts:
        logger.warning("config.doubtful", "{doubt}", doubt=doubt)
    _allow_many_files()
    if plan.ready_file is not None:
        _remove(plan.ready_file)  # a file of an earlier run would tell a lie
    keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(plan))
    return 0


async def _serve(plan: ServePlan) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, stop)
    station = Station(
        plan.data,
        plan.settings,
        plan.listeners,
        pipelines=plan.pipelines,
        cluster=plan.cluster,
        insecure=plan.insecure,
    )
    station.on_fenced = stop.set
    if not await _started(station, stop, clustered=plan.cluster is not None):
        return
    if station.certified:
        reloads: set[asyncio.Task[bool]] = set()
        loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(loop.create_task(station.reload_tls())))
    gc.freeze()  # what is there now stays: later collections need not look at it
    # A broker makes little garbage that only a collection finds, but may keep a million queues. With Python's own
    # thresholds, 200,000 queues were looked through again and again, half a second at a time.
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    try:
        _announce(plan, station.addresses, encrypted=station.encrypted, logins=station.logins)
        give_back_freed_memory()
        await stop.wait()
    finally:
        tell_service_manager("STOPPING=1")
        if plan.ready_file is not None:
            _remove(plan.ready_file)
        await station.stop()


async def _started(station: Station, stop: asyncio.Event, *, clustered: bool) -> bool:
    """False: a node that was told to stop before it had started. It may be waiting for the cluster's store, for as long
    as that is away."""
    starting = asyncio.ensure_future(station.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done() or not clustered:
        await starting
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


def _stop_or_die(stop: asyncio.Event) -> None:
    """The first signal asks; the second means it. What was acknowledged is safe either way."""
    if stop.is_set():
        os._exit(1)
    stop.set()


def _announce(plan: ServePlan, addresses: dict[str, str], *, encrypted: Collection[str], logins: bool) -> None:
    if plan.ready_file is not None:
        _write_whole(plan.ready_file, json.dumps(addresses))
    tell_service_manager("READY=1", "STATUS=" + ", ".join(f"{name} {address}" for name, address in addresses.items()))
    lines = [f"waystation {__version__}, {_where(plan)}"]
    width = max(6, *(len(name) for name in addresses)) if addresses else 0
    lines += [f"{name:<{width}} {address}" for name, address in addresses.items()]
    print("\n".join([*lines, "", *_hints(addresses, encrypted=encrypted, logins=logins)]), flush=True)


def _hints(addresses: dict[str, str], *, encrypted: Collection[str], logins: bool) -> list[str]:
    """What to do next. `encrypted`: the listeners that speak TLS; `logins`: every client has to log in."""
    hints = [] if addresses else ["warning:         all listeners are off, so no client can connect"]
    if "http" in addresses:
        hints.append(f"dashboard:       http{'s' if 'http' in encrypted else ''}://{_from_here(addresses['http'])}/")
    if "kafka" in addresses:
        near = _from_here(addresses["kafka"])
        server = "" if near == DEFAULT_SERVER else f" --server {near}"
        scheme = "waystations" if "kafka" in encrypted else "waystation"
        if logins:
            server = f" --server {scheme}://USER:PASSWORD@{near}"
        elif "kafka" in encrypted:
            server = f" --server {scheme}://{near}"
        us = _our_name()
        hints.append(f"send a message:  {us} publish hello 'first message'{server}")
        hints.append(f"read it:         {us} consume hello{server}")
    return [*hints, "stop:            Ctrl-C"]


def _where(plan: ServePlan) -> str:
    if plan.data != MEMORY:
        return f"data in {plan.data}"
    most = spell_bytes(plan.settings.integer("waystation.memory.data.max.bytes"))
    return f"data in memory only, at most {most}: nothing is on disk, nothing survives a restart"


def _from_here(address: str) -> str:
    """An address to connect to, for one that means "every interface"."""
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def _our_name() -> str:
    """How a person can call us from another terminal in this folder."""
    program = sys.argv[0]
    on_path = any(os.access(os.path.join(folder, "waystation"), os.X_OK) for folder in os.get_exec_path())
    if on_path or not os.path.exists(program):
        return "waystation"
    if program.endswith(".py"):
        return f"{os.path.basename(sys.executable)} -m waystation"
    near = os.path.relpath(program)
    return near if len(near) < len(program) else program


def _write_whole(path: str, text: str) -> None:
    """A reader sees no file or all of it."""
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
