"""`waystation serve`: one broker in this process, until SIGTERM or Ctrl-C.

Everything that can be wrong with the request is found before the data folder is touched. The addresses go to standard
output and, with `--ready-file`, into a file that appears whole, and only once the doors are open; the log goes to
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
from dataclasses import dataclass

from waystation.cli.arguments import DEFAULT_SERVER, KAFKA_PORT, add_settings, parse_pairs
from waystation.cli.logs import FORMATS, LEVELS, start_logging
from waystation.client.address import Address, parse_address
from waystation.client.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.embedded import AMQP_PORT, HTTP_PORT, Station
from waystation.errors import Invalid
from waystation.version import __version__

DEFAULT_DATA = "./waystation-data"
OFF = "off"
DEFAULT_HTTP = f"127.0.0.1:{HTTP_PORT}"
DEFAULT_AMQP = f"127.0.0.1:{AMQP_PORT}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help=f"where to keep everything (default: {DEFAULT_DATA})")
    parser.add_argument("--kafka", metavar="HOST:PORT|off", help=f"default: {DEFAULT_SERVER}; port 0 takes a free one")
    parser.add_argument("--amqp", metavar="HOST:PORT|off", help=f"default: {DEFAULT_AMQP}; port 0 takes a free one")
    parser.add_argument("--http", metavar="HOST:PORT|off", help=f"default: {DEFAULT_HTTP}; port 0 takes a free one")
    parser.add_argument("--config", metavar="FILE", help="TOML; what is given on the command line wins over it")
    add_settings(parser, "a setting of the broker, like log.retention.ms=86400000; may be repeated")
    parser.add_argument("--ready-file", metavar="FILE", help="write the addresses there, as JSON, when ready")
    parser.add_argument(
        "--insecure", action="store_true", help="allow addresses that other machines reach, without authentication"
    )
    parser.add_argument("--log-level", choices=LEVELS, help="default: info")
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="default: text")
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start, checked."""

    data: str
    kafka: Address | None
    amqp: Address | None
    http: Address | None
    settings: BrokerSettings
    ready_file: str | None
    log_level: str


def make_plan(arguments: argparse.Namespace) -> Plan:
    """Flags over the file over defaults; raises Invalid for anything that cannot be served."""
    texts: dict[str, str] = {}
    settings: dict[str, str] = {}
    insecure: bool = arguments.insecure
    if arguments.config is not None:
        from waystation.cli.config_file import read_config

        config = read_config(arguments.config)
        texts, settings, insecure = config.texts, config.settings, insecure or config.insecure

    def chosen(name: str, flag: str | None) -> str | None:
        return texts.get(name) if flag is None else flag

    level = chosen("log-level", arguments.log_level) or "info"
    if level not in LEVELS:
        raise Invalid(f"log-level {level!r}: expected one of {', '.join(LEVELS)}")
    return Plan(
        data=chosen("data", arguments.data) or DEFAULT_DATA,
        kafka=_address("kafka", chosen("kafka", arguments.kafka) or DEFAULT_SERVER, KAFKA_PORT, insecure=insecure),
        amqp=_address("amqp", chosen("amqp", arguments.amqp) or DEFAULT_AMQP, AMQP_PORT, insecure=insecure),
        http=_address("http", chosen("http", arguments.http) or DEFAULT_HTTP, HTTP_PORT, insecure=insecure),
        settings=BrokerSettings(settings | dict(parse_pairs(arguments.settings, "--set"))),
        ready_file=chosen("ready-file", arguments.ready_file),
        log_level=level,
    )


def _address(door: str, text: str, port: int, *, insecure: bool) -> Address | None:
    if text == OFF:
        return None
    address = parse_address(text, default_port=port)
    if not address.loopback and not insecure:
        raise Invalid(
            f"--{door} {text} can be reached from other machines while authentication is off: anybody could read and"
            " write. Listen on 127.0.0.1, or say --insecure if the network keeps others out"
        )
    return address


def _allow_many_files() -> None:
    """A connection and a partition in use hold a file each; the soft limit is often 1,024, the hard one far above."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(arguments: argparse.Namespace) -> int:
    plan = make_plan(arguments)
    start_logging(plan.log_level, arguments.log_format)
    _allow_many_files()
    if plan.ready_file is not None:
        _remove(plan.ready_file)  # a file of an earlier run would tell a lie
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(plan))
    return 0


async def _serve(plan: Plan) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, stop)
    station = Station(plan.data, plan.settings, kafka=plan.kafka, amqp=plan.amqp, http=plan.http)
    await station.start()
    gc.freeze()  # what is there now stays: later collections need not look at it
    # A broker makes little garbage that only a collection finds, but may keep a million queues. With Python's own
    # thresholds, 200,000 queues were looked through again and again, half a second at a time.
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    try:
        _announce(plan, station.addresses)
        await stop.wait()
    finally:
        if plan.ready_file is not None:
            _remove(plan.ready_file)
        await station.stop()


def _stop_or_die(stop: asyncio.Event) -> None:
    """The first signal asks; the second means it. What was acknowledged is safe either way."""
    if stop.is_set():
        os._exit(1)
    stop.set()


def _announce(plan: Plan, addresses: dict[str, str]) -> None:
    if plan.ready_file is not None:
        _write_whole(plan.ready_file, json.dumps(addresses))
    lines = [f"waystation {__version__}, data in {plan.data}"]
    lines += [f"{door:<6} {address}" for door, address in addresses.items()]
    if "kafka" in addresses:
        near = _from_here(addresses["kafka"])
        server = "" if near == DEFAULT_SERVER else f" --server {near}"
        us = _our_name()
        lines += [
            "",
            f"send a message:  {us} publish hello 'first message'{server}",
            f"read it:         {us} consume hello{server}",
            "stop:            Ctrl-C",
        ]
    print("\n".join(lines), flush=True)


def _from_here(address: str) -> str:
    """An address to connect to, for one that means "every interface"."""
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def _our_name() -> str:
    """How a person can call us from another terminal in this folder."""
    from shutil import which

    program = sys.argv[0]
    if which("waystation") or not os.path.exists(program):
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
