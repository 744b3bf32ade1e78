"""What can be completed where: the commands, options and arguments of the parser, as plain data for shells' scripts.

Everything comes from argparse, so a command that is added is completed without a word here. What an argument is (a
topic, a file) is known by how it is called in `--help`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from waystation.cli.terminal.parser import ANYWHERE

NAMES = ("topics", "queues", "groups", "exchanges", "namespaces", "policies", "pipelines")
"""What a running broker can be asked for."""

FILE, FOLDER, ANYTHING = "/file", "/folder", "-"

_BY_METAVAR = {
    "TOPIC": "@topics",
    "QUEUE": "@queues",
    "GROUP": "@groups",
    "EXCHANGE": "@exchanges",
    "NAMESPACE": "@namespaces",
    "FILE": FILE,
    "DIR": FOLDER,
    "DATA_DIR": FOLDER,
    "FOLDER": FOLDER,
}
_BY_NAME = {
    "topic": "@topics",
    "topics": "@topics",
    "pattern": "@topics",
    "queue": "@queues",
    "dead_letter": "@queues",
    "group": "@groups",
    "exchange": "@exchanges",
    "namespace": "@namespaces",
    "policy": "@policies",
    "file": FILE,
    "target": "@queues",
}


class Flag(msgspec.Struct, frozen=True):
    """An option; `takes` is what its value is, None if it has none."""

    name: str
    help: str
    takes: str | None = None


class Spot(msgspec.Struct, frozen=True):
    """A place in the command line, after the commands `path`: what may follow.

    What a value or an argument is: `@topics` (ask the broker), `/file`, `/folder`, `a,b,c` (one of these), or `-`
    (anything). The last of `arguments` may come again if `repeats`.
    """

    path: tuple[str, ...]
    commands: tuple[tuple[str, str], ...] = ()
    flags: tuple[Flag, ...] = ()
    arguments: tuple[str, ...] = ()
    repeats: bool = False


def spots(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Spot]:
    """This place and all below it."""
    commands: list[tuple[str, str]] = []
    below: list[Spot] = []
    flags: list[Flag] = []
    arguments: list[str] = []
    repeats = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                commands.append((name, helps.get(name, "")))
                below += spots(inner, (*path, name))
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            takes = None if action.nargs == 0 else _kind(action)
            flags += [Flag(name, _one_line(action.help), takes) for name in action.option_strings]
        else:
            arguments.append(_kind(action))
            repeats = action.nargs in ("*", "+")
    for name in ANYWHERE if commands else ():  # such an option may come before the command
        flags += [flag for spot in below for flag in spot.flags if flag.name == name][:1]
    yield Spot(path, tuple(commands), tuple(flags), tuple(arguments), repeats)
    yield from below


def _kind(action: argparse.Action) -> str:
    if action.choices is not None:
        return ",".join(str(choice) for choice in action.choices if choice)
    if isinstance(action.metavar, str) and action.metavar in _BY_METAVAR:
        return _BY_METAVAR[action.metavar]
    return _BY_NAME.get(action.dest, ANYTHING) if action.metavar is None or action.dest == "group" else ANYTHING


def _one_line(text: str | None) -> str:
    """Short, and without what would mean something to a shell."""
    plain = " ".join((text or "").split()).replace("%%", "%")
    return "".join(char for char in plain if char not in "'\"`$\\[]{}:")[:80]
