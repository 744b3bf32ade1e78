"""Arguments that several commands share, and their types."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from waystation.errors import Invalid

DEFAULT_SERVER = "127.0.0.1:9092"
SERVER_VARIABLE = "WAYSTATION_SERVER"
CONTEXT_VARIABLE = "WAYSTATION_CONTEXT"
KAFKA_PORT = 9092


def add_server(parser: argparse.ArgumentParser) -> None:
    """`--server`, `--context` and `--json`, for every command that talks to a broker. What `server` is when nobody says
    so is found by `contexts.choose_server`, after the arguments are parsed."""
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=argparse.SUPPRESS,
        help="the broker's Kafka listener; a port alone is one of this machine's, and several addresses, separated by"
        f" commas, are tried in turn (default: the context, ${SERVER_VARIABLE}, or {DEFAULT_SERVER})",
    )
    add_context(parser)
    parser.add_argument("--json", action="store_true", help="print JSON lines, for programs")


def add_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context",
        metavar="NAME",
        help=f"a broker of `waystation context list` (default: ${CONTEXT_VARIABLE}, or the current one)",
    )


def add_settings(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--set", dest="settings", metavar="NAME=VALUE", action="append", default=[], help=help_text)


def parse_pairs(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    """`name=value` texts, in order; a name may come twice."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"{option} {text!r}: write NAME=VALUE")
        pairs.append((name.strip(), value))
    return pairs


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def not_negative(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def examples(*lines: str) -> str:
    """An epilog for `--help`, with the line breaks kept (see `RawDescriptionHelpFormatter`)."""
    return "examples:\n" + "\n".join(f"  {line}" for line in lines)
