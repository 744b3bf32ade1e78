"""The options that say what a message is beside its payload: for `queues put`, `request` and `exchanges route`."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import not_negative, parse_pairs
from waystation.cli.terminal.units import duration, moment
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.options.values import MessageOptions

TYPES = ("text", "json", "binary", "command", "event")
"""Those of `MessageType`, which is not loaded for `--help`."""
_SAME = ("id", "type", "correlation_id", "content_type", "reply_to", "priority", "delay", "deliver_at", "ttl")


def add_content(parser: argparse.ArgumentParser) -> None:
    """What every message may have."""
    parser.add_argument("--key", help="the message's key")
    parser.add_argument(
        "--header",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="may be repeated; NAME:=JSON for a number, a boolean or another JSON value",
    )
    parser.add_argument("--content-type", metavar="TYPE", help="default: text/plain where it is text")
    parser.add_argument(
        "--type",
        metavar="NAME",
        help="the type of the message, any text",
    )
    parser.add_argument(
        "--priority", type=int, metavar="0-255", default=0, help="higher is delivered first (default: 0)"
    )


def add_delivery(parser: argparse.ArgumentParser) -> None:
    """What a message that waits in a queue may have."""
    parser.add_argument(
        "--id", metavar="ID", help="of the one message that is given: for find, cancel and deduplication"
    )
    parser.add_argument("--delay", type=duration, metavar="TIME", help="not before 30s, 5m, 2h, 7d from now")
    parser.add_argument("--deliver-at", type=moment, metavar="WHEN", help="not before this time, like 2026-03-01T12:00")
    parser.add_argument("--ttl", type=duration, metavar="TIME", help="no longer delivered after this time")
    parser.add_argument("--max-deliveries", type=not_negative, metavar="N", default=0, help="wins over the queue's")
    parser.add_argument("--correlation-id", metavar="ID")
    parser.add_argument("--reply-to", metavar="NAME", help="where to send the reply")


def message_options(arguments: argparse.Namespace) -> MessageOptions:
    """What was said. Raises Invalid for a header that is none."""
    said: dict[str, Any] = {name: getattr(arguments, name, None) for name in _SAME}
    options: Any = {name: value for name, value in said.items() if value is not None}
    if arguments.key is not None:
        options["key"] = os.fsencode(arguments.key)
    if getattr(arguments, "max_deliveries", 0):
        options["max_deliveries"] = arguments.max_deliveries
    if arguments.header:
        options["headers"] = headers(arguments.header)
    return options  # type: ignore[no-any-return]  # its keys are those of _SAME, which a test compares


def headers(texts: list[str]) -> dict[str, Any]:
    """`name=value` is text, `name:=value` is JSON; a name that is there several times has the list of its values."""
    found: dict[str, list[Any]] = {}
    for name, value in parse_pairs(texts, "--header"):
        if not name.endswith(":"):
            found.setdefault(name, []).append(value)
            continue
        try:
            found.setdefault(name[:-1], []).append(json.loads(value))
        except ValueError as error:
            raise Invalid(f"--header {name}={value}: {value!r} is not JSON ({error})") from None
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def payload_of(data: bytes, arguments: argparse.Namespace) -> str | bytes:
    """What to send: text where it is text, so that it arrives as text. JSON is checked where it is said to be."""
    kind = (arguments.content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            json.loads(data)
        except ValueError as error:
            raise Invalid(f"--content-type {arguments.content_type}: the message is not JSON ({error})") from None
        return data
    if not kind and arguments.type in TYPES:
        return data  # the client checks that it is what the type says
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
