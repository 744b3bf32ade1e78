"""`waystation quotas`: how fast users, clients, addresses and namespaces may be: set, list, remove.

An entity is a user, a client id or both, an address, or a namespace; `default` stands for everybody of that kind who
has no quota of its own.
"""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import all_of, open_client
from waystation.cli.terminal.output import print_json, print_table
from waystation.errors import Invalid

KINDS = ("user", "client-id", "ip", "namespace")
NAMED = {"client-id": "client id", "ip": "IP address"}
DEFAULT = "default"
DEFAULT_NAME = "<default>"
"""As the broker calls it."""
UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation quotas set --user app producer_byte_rate=1M consumer_byte_rate=2M",
        "waystation quotas set --user default producer_byte_rate=10M",
        "waystation quotas set --user app --client-id reports consumer_byte_rate=100k",
        "waystation quotas set --namespace shop producer_message_rate=500",
        "waystation quotas set --ip default connection_creation_rate=20",
        "waystation quotas list",
        "waystation quotas remove --user app producer_byte_rate",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    setting = verbs.add_parser("set", help="set quotas of a user, client id, address or namespace")
    listing = verbs.add_parser("list", help="show the quotas")
    remove = verbs.add_parser("remove", help="remove quotas; without names, all of them")
    for verb, run in ((setting, _set), (listing, _list), (remove, _remove)):
        for kind in KINDS:
            verb.add_argument(
                f"--{kind}",
                metavar="NAME",
                help=f"the {NAMED.get(kind, kind)}; {DEFAULT}: those without quotas of their own",
            )
        add_server(verb)
        verb.set_defaults(run=run)
    setting.add_argument("quotas", metavar="NAME=RATE", nargs="+", help="producer_byte_rate=1M, …")
    remove.add_argument("quotas", metavar="NAME", nargs="*", help="producer_byte_rate, …")


def _spell(rate: float) -> str:
    return f"{rate:.15g}"


def _set(arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    if not entity:
        raise Invalid("say whom: --user, --client-id, --ip or --namespace")
    quotas = dict(_rate(text) for text in arguments.quotas)
    with open_client(arguments) as mq:
        made = mq.act("set-quotas", quotas=quotas, **entity)
    if arguments.json:
        print_json(made or {})
    else:
        print(f"set {', '.join(f'{name}={_spell(value)}' for name, value in quotas.items())} of {_said(entity)}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    wanted = _entity(arguments)
    with open_client(arguments) as mq:
        found = [one for one in all_of(mq, "quotas") if all(one.get(key) == name for key, name in wanted.items())]
    if arguments.json:
        print_json(found)
    elif found:
        rows = [(_said(one), name, _spell(rate)) for one in found for name, rate in sorted(one["quotas"].items())]
        print_table(("of", "quota", "rate"), rows)
    else:
        print("no quotas: everybody may be as fast as they can")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    if not entity:
        raise Invalid("say whose: --user, --client-id, --ip or --namespace")
    with open_client(arguments) as mq:
        removed = (mq.act("remove-quotas", quotas=arguments.quotas, **entity) or {}).get("removed", 0)
    if arguments.json:
        print_json({"removed": removed})
    else:
        print(f"removed {removed} {'quota' if removed == 1 else 'quotas'} of {_said(entity)}")
    return 0


def _entity(arguments: argparse.Namespace) -> dict[str, str]:
    found = {kind.replace("-", "_"): getattr(arguments, kind.replace("-", "_")) for kind in KINDS}
    return {key: DEFAULT_NAME if name == DEFAULT else name for key, name in found.items() if name is not None}


def _said(entity: dict[str, Any]) -> str:
    named = ((kind, entity.get(kind.replace("-", "_"))) for kind in KINDS)
    return ", ".join(f"{kind} {name}" for kind, name in named if name is not None)


def _rate(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Invalid(f"{text[:60]!r}: write NAME=RATE, such as producer_byte_rate=1M")
    number = value
    factor = 1
    for unit, size in sorted(UNITS.items(), key=lambda one: -len(one[0])):
        if value.endswith(unit):
            number, factor = value.removesuffix(unit), size
            break
    try:
        return name, float(number) * factor
    except ValueError:
        raise Invalid(f"{text[:60]!r}: {value[:40]!r} is no rate; write 500, 100k, 1M or 2Mi") from None
