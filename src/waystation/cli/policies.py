"""`waystation policies`: list, describe, set, delete. A policy changes settings of the queues that it matches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from waystation.cli.terminal.arguments import add_server, examples, parse_pairs
from waystation.cli.terminal.native import advised, all_of, open_client
from waystation.cli.terminal.output import bold, confirmed, json_line, print_json, print_table, visible
from waystation.errors import NotFound

DEFAULT_NAMESPACE = "/"
APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show policies, in the order of namespaces and names")
    listing.add_argument("--namespace", metavar="NAMESPACE", default="", help="only those of this one (default: all)")

    describe = verbs.add_parser("describe", help="show policies")
    describe.add_argument("policy", nargs="+")

    change = verbs.add_parser("set", help="create or replace a policy")
    change.add_argument("policy")
    change.add_argument("pattern", help="a regular expression: names in which it occurs")
    change.add_argument("definition", nargs="+", metavar="NAME=VALUE", help="like message-ttl=60000 or max-length=1000")
    change.add_argument("--priority", type=int, metavar="N", default=0, help="the highest that matches is in force")
    change.add_argument("--apply-to", choices=APPLY_TO, default="all", help="default: all")
    change.formatter_class = argparse.RawDescriptionHelpFormatter
    change.epilog = examples("waystation policies set short '^jobs' message-ttl=60000 overflow=reject-publish")

    delete = verbs.add_parser("delete", help="delete policies: what they matched returns to its declared settings")
    delete.add_argument("policy", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    for verb in (describe, change, delete):
        verb.add_argument("--namespace", metavar="NAMESPACE", default=DEFAULT_NAMESPACE, help="default: /")
    runs: tuple[tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]], ...] = (
        *((listing, _list), (describe, _describe)),
        *((change, _set), (delete, _delete)),
    )
    for verb, run in runs:
        add_server(verb)
        verb.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        found = all_of(mq, "policies", namespace=arguments.namespace)
    if arguments.json:
        print_json(found)
    elif found:
        columns = ("namespace", "policy", "pattern", "apply_to", "priority")
        rows = [(*(one[column] for column in columns), json_line(one["definition"])) for one in found]
        print_table((*(column.replace("_", " ") for column in columns), "definition"), rows)
    else:
        print("no policies; create one with `waystation policies set NAME PATTERN NAME=VALUE`")
    return 0


def _described(arguments: argparse.Namespace, mq: Any) -> list[dict[str, Any]]:
    """All that are named; NotFound says what to do."""
    try:
        return [mq.view("policy", namespace=arguments.namespace, policy=name) for name in arguments.policy]
    except NotFound as error:
        raise NotFound(advised(error, "`waystation policies list` shows what there is")) from None


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        found = _described(arguments, mq)
    if arguments.json:
        print_json(found)
        return 0
    for one in found:
        print(
            f"{bold(visible(one['policy']))}  in {one['namespace']}, for {one['apply_to']} that match"
            f" {visible(one['pattern'])}, priority {one['priority']}"
        )
        print_table(("setting", "value"), [(name, json.dumps(value)) for name, value in one["definition"].items()])
        print()
    return 0


def _set(arguments: argparse.Namespace) -> int:
    definition = {name: _value(text) for name, text in parse_pairs(arguments.definition, "policies set")}
    with open_client(arguments) as mq:
        made = mq.act(
            "set-policy",
            namespace=arguments.namespace,
            policy=arguments.policy,
            pattern=arguments.pattern,
            definition=definition,
            priority=arguments.priority,
            apply_to=arguments.apply_to,
        )
    if arguments.json:
        print_json(made or {})
    else:
        print(f"policy {arguments.policy} is in force")
    return 0


def _value(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _delete(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        _described(arguments, mq)  # a misspelt name is found before anything is deleted
        if not confirmed(f"delete {', '.join(arguments.policy)} of {arguments.namespace}?", yes=arguments.yes):
            return 1
        for name in arguments.policy:
            mq.act("delete-policy", namespace=arguments.namespace, policy=name)
            if arguments.json:
                print_json({"namespace": arguments.namespace, "policy": name})
            else:
                print(f"deleted policy {name}")
    return 0
