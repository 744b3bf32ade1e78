"""`waystation exchanges`: list, describe, create, delete, bind, unbind, route."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.message_options import add_content, headers, message_options, payload_of
from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import bold, confirmed, json_line, print_json, print_table, visible
from waystation.errors import AlreadyExists, Conflict, NotFound, near_matches

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.client.sync.exchange import Exchange
    from waystation.protocol import RoutingInfo

KINDS = ("direct", "fanout", "topic", "headers", "filter", "x-consistent-hash")
DEFAULT_NAME = "(default)"
UNBOUND = "unbound"
BINDING = ("target", "key", "arguments")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show exchanges and their bindings")
    listing.add_argument("exchange", nargs="*", help="only these")

    describe = verbs.add_parser("describe", help="show an exchange and its bindings")
    describe.add_argument("exchange", nargs="+")

    create = verbs.add_parser("create", help="create an exchange")
    create.add_argument("exchange")
    create.add_argument("--kind", choices=KINDS, default="direct", help="default: direct")
    create.add_argument("--alternate", metavar="EXCHANGE", help="gets what matches no binding")
    create.add_argument("--if-not-exists", action="store_true", help="succeed if it already exists with these settings")

    delete = verbs.add_parser("delete", help="delete exchanges and their bindings")
    delete.add_argument("exchange", nargs="+")
    delete.add_argument("--if-unused", action="store_true", help="only if it has no bindings")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    bind = verbs.add_parser("bind", help="bind an exchange to a queue, a topic or another exchange")
    unbind = verbs.add_parser("unbind", help="remove a binding; takes the same options as bind")
    for verb in (bind, unbind):
        verb.add_argument("exchange")
        verb.add_argument("target", help="a queue, queue:NAME, topic:NAME or exchange:NAME")
        verb.add_argument("--key", default="", help="the routing key, or a pattern of a topic exchange")
        verb.add_argument("--header", metavar="NAME=VALUE", action="append", default=[], help="NAME:=JSON for others")
        verb.add_argument("--match", choices=("all", "any"), default="all", help="of the headers (default: all)")
        verb.add_argument("--filter", metavar="EXPRESSION", help="of a filter exchange")

    route = verbs.add_parser("route", help="show where a message would be routed; nothing is sent")
    route.add_argument("exchange")
    route.add_argument("message", nargs="?", default="", help="its payload, for filters")
    route.add_argument("--routing-key", metavar="KEY", default="")
    add_content(route)
    route.formatter_class = argparse.RawDescriptionHelpFormatter
    route.epilog = examples("waystation exchanges route shop --routing-key order.eu.paid --header region=eu")

    runs: list[tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]] = [
        *((listing, _list), (describe, _describe), (create, _create), (delete, _delete)),
        *((bind, _bind), (unbind, _unbind), (route, _route)),
    ]
    for verb, run in runs:
        add_server(verb)
        verb.set_defaults(run=run)


def _known(mq: Client, names: list[str]) -> RoutingInfo:
    """All there is; NotFound, with names that are near, unless `names` are among it."""
    routing = mq.routing()
    there = {name for name, _, _ in routing.exchanges}
    for name in names:
        if name not in there:
            near = near_matches(name, sorted(there))
            raise NotFound(f"there is no exchange {name!r}{near}; `waystation exchanges list` shows what there is")
    return routing


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        routing = _known(mq, arguments.exchange)
    shown = [row for row in routing.exchanges if not arguments.exchange or row[0] in arguments.exchange]
    names = {name for name, _, _ in shown}
    bindings = [row for row in routing.bindings if row[0] in names]
    if arguments.json:
        print_json(_as_json(routing, row) for row in shown)
        return 0
    counts = {name: sum(row[0] == name for row in bindings) for name in names}
    rows = [(name or DEFAULT_NAME, kind, alternate, counts[name]) for name, kind, alternate in shown]
    print_table(("exchange", "kind", "alternate", "bindings"), rows)
    if bindings:
        print()
        print_table(("exchange", *BINDING), [(row[0] or DEFAULT_NAME, *_spelled(row)) for row in bindings])
    return 0


def _as_json(routing: RoutingInfo, exchange: tuple[str, str, str | None]) -> dict[str, Any]:
    name, kind, alternate = exchange
    own = [{"target": t, "key": key, "arguments": a} for of, t, key, a in routing.bindings if of == name]
    return {"exchange": name, "kind": kind, "alternate": alternate, "bindings": own}


def _spelled(binding: tuple[str, str, str, dict[str, Any]]) -> tuple[str, str, str | None]:
    _, target, key, said = binding
    return target, visible(key), visible(json_line(said)) if said else None


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        routing = _known(mq, arguments.exchange)
    for name, kind, alternate in routing.exchanges:
        if name not in arguments.exchange:
            continue
        if arguments.json:
            print_json(_as_json(routing, (name, kind, alternate)))
            continue
        print(bold(name or DEFAULT_NAME) + f"  {kind}" + (f", alternate {alternate}" if alternate else ""))
        rows = [_spelled(binding) for binding in routing.bindings if binding[0] == name]
        if rows:
            print_table(BINDING, rows)
        else:
            print("no bindings")
        print()
    return 0


def _create(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        there = any(name == arguments.exchange for name, _, _ in mq.routing().exchanges)
        if there and not arguments.if_not_exists:
            raise AlreadyExists(f"exchange {arguments.exchange!r} exists already")
        mq.exchange(arguments.exchange, arguments.kind, alternate=arguments.alternate)
    if arguments.json:
        made = {"exchange": arguments.exchange, "kind": arguments.kind, "alternate": arguments.alternate}
        print_json(made | {"created": not there})
    else:
        print(f"exchange {arguments.exchange} exists already" if there else f"created exchange {arguments.exchange}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        routing = _known(mq, arguments.exchange)
        count = sum(row[0] in arguments.exchange for row in routing.bindings)
        if count and arguments.if_unused:
            raise Conflict(f"{', '.join(arguments.exchange)}: there are {count} bindings (--if-unused)")
        if not confirmed(f"delete {', '.join(arguments.exchange)} with {count} bindings?", yes=arguments.yes):
            return 1
        for name in arguments.exchange:
            mq.exchange(name, passive=True).delete(if_unused=arguments.if_unused)
            if arguments.json:
                print_json({"exchange": name})
            else:
                print(f"deleted exchange {name}")
    return 0


def _bind(arguments: argparse.Namespace) -> int:
    return _binding(arguments, lambda exchange: exchange.bind, "bound")


def _unbind(arguments: argparse.Namespace) -> int:
    return _binding(arguments, lambda exchange: exchange.unbind, UNBOUND)


def _binding(arguments: argparse.Namespace, verb: Callable[[Exchange], Callable[..., None]], done: str) -> int:
    said: dict[str, Any] = {"match": arguments.match, "filter": arguments.filter}
    if arguments.header:
        said["headers"] = headers(arguments.header)
    with open_client(arguments) as mq:
        known = _known(mq, [arguments.exchange])
        before = known.bindings
        if done != UNBOUND:
            from waystation.client.admin import check_conditions  # loaded by now, and not for `--help`

            kind = next(kind for name, kind, _ in known.exchanges if name == arguments.exchange)
            check_conditions(arguments.exchange, kind, said.get("headers"), arguments.filter)
        verb(mq.exchange(arguments.exchange, passive=True))(arguments.target, arguments.key, **said)
        if done == UNBOUND and mq.routing().bindings == before:  # the broker is content with what is not there
            raise NotFound(
                f"exchange {arguments.exchange!r} has no such binding to {arguments.target!r};"
                f" `waystation exchanges list {arguments.exchange}` shows what it has"
            )
    if arguments.json:
        print_json({"exchange": arguments.exchange, "target": arguments.target, "key": arguments.key})
    else:
        print(f"{done} {arguments.target} {'from' if done == UNBOUND else 'to'} {arguments.exchange}")
    return 0


def _route(arguments: argparse.Namespace) -> int:
    value = payload_of(os.fsencode(arguments.message), arguments)
    with open_client(arguments) as mq:
        _known(mq, [arguments.exchange])
        exchange = mq.exchange(arguments.exchange, passive=True)
        targets = exchange.route(value, arguments.routing_key, **message_options(arguments))
    if arguments.json:
        print_json({"exchange": arguments.exchange, "targets": targets})
    elif targets:
        print("\n".join(targets))
    else:
        print("nowhere: no binding matches")
    return 0
