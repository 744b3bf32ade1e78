"""`waystation connections`: who is connected to the broker, through which protocol, and closing one."""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.arguments import add_server, positive
from waystation.cli.native import open_client, view_pages
from waystation.cli.output import confirmed, note, print_json, print_table
from waystation.errors import NotFound

DOORS = ("kafka", "native", "amqp", "http")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="who is connected, and what they do")
    listing.add_argument("--protocol", dest="door", choices=DOORS, help="only connections of this protocol")
    listing.add_argument("--door", dest="door", choices=DOORS, help=argparse.SUPPRESS)
    listing.add_argument("--search", metavar="TEXT", default="", help="only those whose names have this in them")
    listing.add_argument("--limit", type=positive, metavar="N", default=100, help="default: 100")
    add_server(listing)
    listing.set_defaults(run=_list)
    close = actions.add_parser("close", help="close connections, by the names that `list` shows")
    close.add_argument("name", nargs="+")
    close.add_argument("--reason", metavar="TEXT", default="closed by an operator", help="what the client is told")
    close.add_argument("--yes", action="store_true", help="do not ask")
    add_server(close)
    close.set_defaults(run=_close)


def _list(arguments: argparse.Namespace) -> int:
    query: dict[str, object] = {"search": arguments.search}
    if arguments.door is not None:
        query["door"] = arguments.door
    with open_client(arguments) as mq:
        found = view_pages(mq, "connections", "connections", arguments.limit, **query)
    if arguments.json:
        print_json(found)
        return 0
    rows = [
        (one["name"], one["door"], _client(one["client"]), one["state"], one["doing"]) for one in found["connections"]
    ]
    print_table(["name", "protocol", "client", "state", "doing"], rows)
    if found["next"] is not None:
        note(f"there are {found['total']} in all; --limit shows more")
    return 0


def _client(told: dict[str, Any]) -> str | None:
    """What it says of itself, in a word or two."""
    return told.get("connection_name") or told.get("client_id") or told.get("name") or told.get("product")


def _close(arguments: argparse.Namespace) -> int:
    names = ", ".join(arguments.name)
    if not confirmed(f"close {names}?", yes=arguments.yes):
        return 1
    missing = []
    with open_client(arguments) as mq:
        for name in arguments.name:
            try:
                mq.end_connection(name, arguments.reason)
            except NotFound as error:
                missing.append(str(error))
    closed = len(arguments.name) - len(missing)
    if arguments.json:
        print_json({"closed": closed, "missing": missing})
    elif closed:
        print(f"closed {closed} of {len(arguments.name)}")
    for sentence in missing:
        note(sentence)
    return 1 if missing else 0
