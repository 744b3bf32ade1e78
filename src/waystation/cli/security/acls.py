"""`waystation acls`: who may do what: add, list, remove.

With `--data` it works on the folder of a broker that does not run; otherwise it asks a running one. One call makes a
rule for each operation and each resource that it names; `remove` removes every rule that it does not exclude.
"""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.security.users import offline_catalog
from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import all_of, open_client
from waystation.cli.terminal.output import confirmed, print_json, print_table
from waystation.errors import Invalid, nearest_field

KINDS = ("topic", "queue", "exchange", "group", "transactional-id")
"""Resources that have names, as options."""
COLUMNS = ("principal", "", "operation", "resource", "name", "namespace", "host")
ANY = "*"
CLUSTER = "kafka-cluster"
AT_ONCE = 500
"""Rules in one request."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation acls add --user app --allow read,write,create,describe --topic orders",
        "waystation acls add --user app --allow read --group app- --prefix",
        "waystation acls add --user app --deny delete --topic '*'",
        "waystation acls list",
        "waystation acls remove --user app --topic orders --yes",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = verbs.add_parser("add", help="add rules that allow or deny operations to a user")
    listing = verbs.add_parser("list", help="show the rules")
    remove = verbs.add_parser("remove", help="remove the rules that match these options")
    for verb, run in ((add, _add), (listing, _list), (remove, _remove)):
        _selectors(verb)
        verb.add_argument("--data", metavar="DIR", help="the data folder of a broker that does not run")
        add_server(verb)
        verb.set_defaults(run=run)
    remove.add_argument("--yes", action="store_true", help="do not ask")


def _selectors(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--user", metavar="NAME", action="append", default=[], help="the user; * for everybody")
    verb.add_argument("--in-group", metavar="NAME", action="append", default=[], help="users of this group of users")
    for kind in ("allow", "deny"):
        verb.add_argument(
            f"--{kind}", metavar="OPERATIONS", help=f"operations to {kind}: read,write,create,describe,… or all"
        )
    for kind in KINDS:
        verb.add_argument(
            f"--{kind}",
            metavar="NAME",
            action="append",
            default=[],
            help=f"a{'n' if kind == 'exchange' else ''} {kind.replace('-', ' ')}; * for all",
        )
    verb.add_argument(
        "--namespace", metavar="NAME", help="where the rules hold; without another resource, the namespace itself"
    )
    verb.add_argument("--cluster", action="store_true", help="the broker itself: its settings, users and rules")
    matching = verb.add_mutually_exclusive_group()
    matching.add_argument("--prefix", action="store_true", help="the names are prefixes")
    matching.add_argument("--regex", action="store_true", help="the names are regular expressions")
    verb.add_argument("--host", metavar="ADDRESS", help="clients at this address only")


def _add(arguments: argparse.Namespace) -> int:
    rules = [
        {**about, "principal": principal, "operation": operation, "allow": allow, "host": arguments.host or ANY}
        for principal in _principals(arguments)
        for allow, operation in _operations(arguments)
        for about in _resources(arguments)
    ]
    if not rules:
        raise Invalid("say whom (--user), what (--allow or --deny) and with what (--topic, --queue, …)")
    changed = _change(arguments, "add-acls", rules)
    if arguments.json:
        print_json({"added": changed})
    else:
        print(f"added {_count(changed)}" if changed else "no rule added: they are there already")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = _selected(arguments)
    if arguments.json:
        print_json(found)
    elif found:
        print_table(COLUMNS, [_cells(one) for one in found])
    else:
        print("no rules: superusers may do everything, and nobody else anything")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    found = _selected(arguments)
    if not found:
        print("no rule removed: there is none like that; `waystation acls list` shows what there is")
        return 0
    if not arguments.json:
        print_table(COLUMNS, [_cells(one) for one in found])
    if not confirmed(f"remove {_count(len(found))}?", yes=arguments.yes):
        return 1
    changed = _change(arguments, "remove-acls", found)
    if arguments.json:
        print_json({"removed": changed})
    else:
        print(f"removed {_count(changed)}")
    return 0


# -- what the options say ----------------------------------------------------------------------------------------------


def _principals(arguments: argparse.Namespace) -> list[str]:
    users = (name if name.startswith("User:") else f"User:{name}" for name in arguments.user)
    return [*users, *(f"Group:{name}" for name in arguments.in_group)]


def _operations(arguments: argparse.Namespace) -> list[tuple[bool, str]]:
    from waystation.security.rules import OPERATIONS

    found = []
    for allow, text in ((True, arguments.allow), (False, arguments.deny)):
        for operation in filter(None, (part.strip().lower().replace("_", "-") for part in (text or "").split(","))):
            if operation not in (*OPERATIONS, "all"):
                hint = nearest_field(operation, (*OPERATIONS, "all")) or f"; there are {', '.join(OPERATIONS)} and all"
                raise Invalid(f"there is no operation {operation!r}{hint}")
            found.append((allow, operation))
    return found


def _resources(arguments: argparse.Namespace) -> list[dict[str, str]]:
    namespace = arguments.namespace or ANY
    match = "prefixed" if arguments.prefix else "regex" if arguments.regex else "literal"
    found = [
        # A prefix of everything is written as it is read: every name.
        {"resource": kind, "name": name, "match": "literal" if name == ANY else match, "namespace": namespace}
        for kind in KINDS
        for name in getattr(arguments, kind.replace("-", "_"))
    ]
    if arguments.cluster:
        found.append({"resource": "cluster", "name": CLUSTER, "match": "literal", "namespace": ANY})
    if not found and arguments.namespace is not None:
        found.append({"resource": "namespace", "name": namespace, "match": match, "namespace": ANY})
    return found


def _selected(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rules that none of the options excludes."""
    principals, operations, resources = _principals(arguments), _operations(arguments), _resources(arguments)
    return [
        one
        for one in _listed(arguments)
        if (not principals or one["principal"] in principals)
        and (not operations or (one["allow"], one["operation"]) in operations)
        and (not resources or any(all(one[key] == value for key, value in about.items()) for about in resources))
        and (arguments.host is None or one["host"] == arguments.host)
    ]


# -- asking ------------------------------------------------------------------------------------------------------------


def _listed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.data is None:
        with open_client(arguments) as mq:
            return all_of(mq, "acls")
    import msgspec

    from waystation.security.permissions import describe, stored_rules

    with offline_catalog(arguments.data) as (catalog, _):
        return [msgspec.structs.asdict(rule) for rule in sorted(stored_rules(catalog), key=describe)]


def _change(arguments: argparse.Namespace, action: str, rules: list[dict[str, Any]]) -> int:
    """How many were not so before."""
    if arguments.data is None:
        with open_client(arguments) as mq:
            parts = [rules[at : at + AT_ONCE] for at in range(0, len(rules), AT_ONCE)]
            return sum((mq.act(action, acls=part) or {}).get("changed", 0) for part in parts)
    import msgspec

    from waystation.security.permissions import edit_offline, stored_rules
    from waystation.security.rules import Rule

    wanted = [msgspec.convert(rule, Rule) for rule in rules]
    with offline_catalog(arguments.data) as (catalog, _):
        before = len(stored_rules(catalog))
        edit_offline(catalog, add=wanted) if action == "add-acls" else edit_offline(catalog, remove=wanted)
        return abs(len(stored_rules(catalog)) - before)


# -- showing -----------------------------------------------------------------------------------------------------------


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    name = {"literal": one["name"], "prefixed": f"{one['name']}…", "regex": f"/{one['name']}/"}[one["match"]]
    verb = "may" if one["allow"] else "may not"
    return one["principal"], verb, one["operation"], one["resource"], name, one["namespace"], one["host"]


def _count(rules: int) -> str:
    return "1 rule" if rules == 1 else f"{rules} rules"
