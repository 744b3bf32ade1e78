"""`waystation namespaces`: list, describe, create, alter, delete. AMQP calls them virtual hosts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import add_server, not_negative
from waystation.cli.terminal.native import advised, all_of, open_client
from waystation.cli.terminal.output import confirmed, print_json, print_table, spell_bytes, spell_count, visible
from waystation.cli.terminal.units import size
from waystation.errors import AlreadyExists, Invalid, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client

LIMITS = ("max_queues", "max_bytes", "max_connections", "max_topics", "max_partitions")
NO_LIMIT = -1


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show namespaces, their contents and limits")

    describe = verbs.add_parser("describe", help="show all details of namespaces")
    describe.add_argument("namespace", nargs="+")

    create = verbs.add_parser("create", help="create a namespace")
    create.add_argument("namespace")
    create.add_argument("--if-not-exists", action="store_true", help="succeed if it already exists, and change it")

    alter = verbs.add_parser("alter", help="change the description or limits; the others stay as they are")
    alter.add_argument("namespace")
    alter.add_argument("--unset", choices=[_option(name) for name in LIMITS], action="append", default=[])

    for verb in (create, alter):
        verb.add_argument("--description", metavar="TEXT")
        verb.add_argument("--max-queues", type=not_negative, metavar="N", help="maximum number of queues")
        verb.add_argument("--max-bytes", type=size, metavar="SIZE", help="of messages in its queues and topics")
        verb.add_argument("--max-connections", type=not_negative, metavar="N", help="maximum number of connections")
        verb.add_argument("--max-topics", type=not_negative, metavar="N", help="maximum number of topics")
        verb.add_argument("--max-partitions", type=not_negative, metavar="N", help="of all its topics together")

    delete = verbs.add_parser("delete", help="delete namespaces with all queues, exchanges and messages in them")
    delete.add_argument("namespace", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    runs: tuple[tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]], ...] = (
        *((listing, _list), (describe, _describe), (create, _create), (alter, _alter)),
        (delete, _delete),
    )
    for verb, run in runs:
        add_server(verb)
        verb.set_defaults(run=run)


def namespace_of(mq: Client, name: str) -> dict[str, Any]:
    """A namespace that is there; NotFound says what to do."""
    try:
        return mq.view("namespace", namespace=name)
    except NotFound as error:
        raise NotFound(advised(error, "`waystation namespaces list` shows what there is")) from None


def _option(name: str) -> str:
    return name.replace("_", "-")


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        found = all_of(mq, "namespaces")
    if arguments.json:
        print_json(found)
        return 0
    columns = ("namespace", "queues", "connections", "policies")
    rows = [
        (*(one[column] for column in columns), *_limits(one), "blocked" if one["alarm"] else "running") for one in found
    ]
    print_table((*columns, *(name.replace("_", " ") for name in LIMITS), "state"), rows)
    return 0


def _limits(one: dict[str, Any]) -> list[int | str | None]:
    return [spell_bytes(one[name]) if name == "max_bytes" and one[name] is not None else one[name] for name in LIMITS]


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        found = [namespace_of(mq, name) for name in arguments.namespace]
    if arguments.json:
        print_json(found)
        return 0
    for one in found:
        for name, value in {**one, **dict(zip(LIMITS, _limits(one), strict=True))}.items():
            if value not in (None, ""):
                print(f"{name.replace('_', ' '):<17}{visible(str(value))}")
        print()
    return 0


def _terms(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in ("description", *LIMITS)}
    return {name: value for name, value in given.items() if value is not None}


def _create(arguments: argparse.Namespace) -> int:
    name = arguments.namespace
    with open_client(arguments) as mq:
        there = any(one["namespace"] == name for one in all_of(mq, "namespaces", search=name))
        if there and not arguments.if_not_exists:
            raise AlreadyExists(f"namespace {name!r} exists already; `waystation namespaces alter` changes it")
        made = mq.act("set-namespace", namespace=name, **_terms(arguments)) or {}
    if arguments.json:
        print_json({**made, "created": not there})
    else:
        print(f"namespace {name} exists already" if there else f"created namespace {name}")
    return 0


def _alter(arguments: argparse.Namespace) -> int:
    changes = _terms(arguments)
    unset = {name.replace("-", "_"): NO_LIMIT for name in arguments.unset}
    both = sorted(changes.keys() & unset.keys())
    if both:
        raise Invalid(f"{_option(both[0])} is both set and unset")
    if not changes and not unset:
        raise Invalid("nothing to change: give --description TEXT, a limit, or --unset NAME")
    with open_client(arguments) as mq:
        namespace_of(mq, arguments.namespace)
        made = mq.act("set-namespace", namespace=arguments.namespace, **changes, **unset) or {}
    if arguments.json:
        print_json(made)
    else:
        print(f"altered namespace {arguments.namespace}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        count = sum(namespace_of(mq, name)["queues"] for name in arguments.namespace)
        names = ", ".join(arguments.namespace)
        if not confirmed(f"delete {names} with {spell_count(count, 'queue')} and all messages?", yes=arguments.yes):
            return 1
        for name in arguments.namespace:
            mq.act("delete-namespace", namespace=name)
            if arguments.json:
                print_json({"namespace": name})
            else:
                print(f"deleted namespace {name}")
    return 0
