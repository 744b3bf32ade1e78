"""`waystation doctor`: whether this machine is fit for a broker, and what to do where it is not.

It looks at what `serve` would be told here (config file, environment), measures the disk where the data would be, and
asks who answers at the ports. It changes nothing and leaves nothing behind. Exit code 1 if there is a problem:
something with which a broker does not start, or cannot keep what it promised. A warning is not a problem.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from waystation.cli.doctor.findings import Finding, worst
from waystation.cli.terminal.arguments import examples
from waystation.cli.terminal.output import print_json, spell_count
from waystation.errors import Invalid

_MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "problem": ("PROBLEM", "31")}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", metavar="DIR", help="the data folder to check (default: the one that `serve` would use)"
    )
    parser.add_argument("--config", metavar="FILE", help="as for `serve`")
    parser.add_argument("--no-disk-test", action="store_true", help="do not measure the disk, which takes some seconds")
    parser.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples("waystation doctor --data /var/lib/waystation")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found: list[Finding] = []
    for one in _findings(arguments):
        found.append(one)
        if not arguments.json:
            _print(one)
    state = worst(found)
    if arguments.json:
        print_json({"state": state, "checks": [one.as_json() for one in found]})
    else:
        _print_end(found)
    return 1 if state == "problem" else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    from waystation.cli.doctor import system
    from waystation.cli.doctor.disk import look_at_folder
    from waystation.cli.doctor.ports import look_at_port
    from waystation.cli.server.configuration import gather
    from waystation.cli.server.listeners import STANDARD_LISTENERS

    clock = system.ClockWatch()
    told = gather(os.environ, file=arguments.config, flags={"data": arguments.data})
    yield from (Finding(check="environment", state="warning", says=doubt) for doubt in told.doubts)
    yield from system.look_at_python()
    for name in (*STANDARD_LISTENERS, *told.named):
        try:
            plan = told.listener(name)
        except Invalid as error:
            yield Finding(check=f"{name} port", state="problem", says=str(error))
        else:
            yield look_at_port(name, "" if plan is None else plan.protocol, None if plan is None else plan.address)
    try:
        told.listeners()
    except Invalid as error:
        yield Finding(check="listeners", state="problem", says=str(error))
    least = told.broker_settings().integer("waystation.disk.free.min.bytes")
    yield from look_at_folder(told.text("data"), least, measure=not arguments.no_disk_test)
    yield from system.look_at_limits()
    yield system.look_at_memory()
    yield system.look_at_processors()
    yield from system.look_at_spark(os.environ)
    yield clock.finding()


def _print(one: Finding) -> None:
    word, colour = _MARKS[one.state]
    mark = f"{word:<8}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        mark = f"\033[{colour}m{mark}\033[0m"
    print(f"{mark} {one.check:<12} {one.says}")
    if one.advice:
        print(f"{'':<21} → {one.advice}")
    sys.stdout.flush()


def _print_end(found: list[Finding]) -> None:
    problems = sum(one.state == "problem" for one in found)
    warnings = sum(one.state == "warning" for one in found)
    if problems or warnings:
        print(f"\n{spell_count(problems, 'problem')}, {spell_count(warnings, 'warning')}")
    else:
        print("\nno problems found")
