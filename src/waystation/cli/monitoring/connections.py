"""`waystation connections`: who is connected to the broker, through which protocol; one in detail; closing one."""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.terminal.arguments import add_server, positive
from waystation.cli.terminal.native import advised, open_client, view_pages
from waystation.cli.terminal.output import bold, confirmed, note, print_json, print_table, spell_bytes, visible
from waystation.cli.terminal.units import spell_age, spell_moment
from waystation.errors import NotFound
from waystation.observe.connections import PROTOCOLS


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list connections, and what they do")
    listing.add_argument("--protocol", dest="protocol", choices=PROTOCOLS, help="only connections of this protocol")
    listing.add_argument("--door", dest="protocol", choices=PROTOCOLS, help=argparse.SUPPRESS)
    listing.add_argument("--search", metavar="TEXT", default="", help="only those whose names contain this")
    listing.add_argument("--limit", type=positive, metavar="N", default=100, help="default: 100")
    add_server(listing)
    listing.set_defaults(run=_list)
    describe = actions.add_parser("describe", help="show all details of connections and their channels")
    describe.add_argument("name", nargs="+", help="as `list` shows it")
    add_server(describe)
    describe.set_defaults(run=_describe)
    close = actions.add_parser("close", help="close connections, by the names that `list` shows")
    close.add_argument("name", nargs="+")
    close.add_argument("--reason", metavar="TEXT", default="closed by an operator", help="what the client is told")
    close.add_argument("--yes", action="store_true", help="do not ask")
    add_server(close)
    close.set_defaults(run=_close)


def _list(arguments: argparse.Namespace) -> int:
    query: dict[str, object] = {"search": arguments.search}
    if arguments.protocol is not None:
        query["door"] = arguments.protocol
    with open_client(arguments) as mq:
        found = view_pages(mq, "connections", "connections", arguments.limit, **query)
    if arguments.json:
        print_json(found["connections"])
    else:
        rows = [
            (
                one["name"],
                one["door"],
                _peer(one),
                _client(one["client"]),
                one["state"],
                spell_age(one["since_ms"]),
                one["doing"],
            )
            for one in found["connections"]
        ]
        print_table(["name", "protocol", "from", "client", "state", "open for", "doing"], rows)
    if found["next"] is not None:
        note(f"there are {found['total']} in all; --limit shows more")
    return 0


def _client(told: dict[str, Any]) -> str | None:
    """What it says of itself, in a word or two."""
    return told.get("connection_name") or told.get("client_id") or told.get("name") or told.get("product")


def _peer(connection: dict[str, Any]) -> str:
    host, port = connection["peer"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        for name in arguments.name:
            try:
                one = mq.view("connection", connection=name)
            except NotFound as error:
                raise NotFound(advised(error, "`waystation connections list` shows what there is")) from None
            if arguments.json:
                print_json(one)
            else:
                _print_connection(one)
    return 0


def _print_connection(one: dict[str, Any]) -> None:
    print(f"{bold(one['name'])}  {one['door']}, {one['state']}, {one['doing']}")
    told = ", ".join(f"{name} {value}" for name, value in one["client"].items() if isinstance(value, str | int))
    fields = [
        ("from", _peer(one)),
        ("client", told or None),
        ("user", one["user"] or None),
        ("namespace", one["namespace"] or None),
        ("opened", spell_moment(one["since_ms"])),
        ("received", spell_bytes(one["received_bytes"])),
        ("sent", spell_bytes(one["sent_bytes"])),
    ]
    for name, value in fields:
        if value is not None:
            print(f"{name:<12}{visible(value)}")
    columns = ("number", "prefetch", "unacked", "unconfirmed", "published", "delivered", "acked")
    if one["channels"]:
        print_table(("channel", *columns[1:]), [tuple(row[column] for column in columns) for row in one["channels"]])
    consumers = [consumer for channel in one["channels"] for consumer in channel["consumers"]]
    if consumers:
        rows = [(row["tag"], row["queue"], row["channel"], row["prefetch"], row["priority"]) for row in consumers]
        print_table(("consumer", "queue", "channel", "prefetch", "priority"), rows)
    print()


def _close(arguments: argparse.Namespace) -> int:
    names = ", ".join(arguments.name)
    if not confirmed(f"close {names}?", yes=arguments.yes):
        return 1
    missing: dict[str, str] = {}
    with open_client(arguments) as mq:
        for name in arguments.name:
            try:
                mq.end_connection(name, arguments.reason)
            except NotFound as error:
                missing[name] = str(error)
    closed = [name for name in arguments.name if name not in missing]
    if arguments.json:
        print_json({"name": name, "closed": name not in missing} for name in arguments.name)
    elif closed:
        print(f"closed {len(closed)} of {len(arguments.name)}")
    for sentence in missing.values():
        note(sentence)
    return 1 if missing else 0
