"""`waystation groups`: list, describe, reset, delete."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.native import advised, all_of, open_client
from waystation.cli.terminal.output import bold, confirmed, print_json, print_table, spell_count
from waystation.errors import Invalid, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client

STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
SHOWN_TOPICS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show all groups")
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        type=_state,
        metavar="STATE",
        help=f"only groups in this state; may be repeated: {', '.join(STATES)}",
    )

    describe = verbs.add_parser("describe", help="show members, offsets and lag")
    describe.add_argument("group", nargs="+")

    reset = verbs.add_parser("reset", help="reset the offsets of a group that has no members")
    reset.add_argument("group")
    reset.add_argument(
        "--to",
        required=True,
        metavar="POSITION",
        help="earliest, latest, an offset, -N (the last N), a time like 2026-03-01T12:00, an age like 15m",
    )
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:PARTITIONS]",
        help="only this topic, or some partitions of it (orders:0,2); may be repeated; default: all that it has read",
    )
    reset.add_argument("--dry-run", action="store_true", help="only show what would change")
    reset.add_argument("--yes", action="store_true", help="do not ask")

    delete = verbs.add_parser("delete", help="delete groups, or their offsets of a topic")
    delete.add_argument("group", nargs="+")
    delete.add_argument("--topic", help="delete the offsets of this topic only")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    for verb, run in ((listing, _list), (describe, _describe), (reset, _reset), (delete, _delete)):
        add_server(verb)
        verb.set_defaults(run=run)


def _state(text: str) -> str:
    """A state of a group, in capitals or not."""
    known = {state.lower(): state for state in STATES}
    if text.lower() not in known:
        from waystation.errors import near_matches

        hint = near_matches(text, STATES) or f"; there are {', '.join(STATES)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a state of a group{hint}")
    return known[text.lower()]


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        groups = [one for one in all_of(mq, "groups") if not arguments.state or one["state"] in arguments.state]
    if arguments.json:
        print_json(groups)
    elif groups:
        columns = ("group", "kind", "state", "members", "lag")
        rows = [(*(one[column] for column in columns), _spell_topics(one["topics"])) for one in groups]
        print_table((*columns, "topics"), rows)
    else:
        print("no groups")
    return 0


def _spell_topics(names: list[str]) -> str | None:
    """The first few."""
    shown = ", ".join(names[:SHOWN_TOPICS])
    return f"{shown} and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else shown or None


# -- describe ------------------------------------------------------------------------------------------------------


def _describe(arguments: argparse.Namespace) -> int:
    described = []
    with open_client(arguments) as mq:
        for name in arguments.group:
            group = _group(mq, name)
            if arguments.json:
                described.append(_as_json(group))
            else:
                _print_group(group)
    if arguments.json:
        print_json(described)
    return 0


def _group(mq: Client, name: str) -> dict[str, Any]:
    """A group of any kind that is there; NotFound says what to do."""
    try:
        return mq.view("group", group=name)
    except NotFound as error:
        raise NotFound(advised(error, "`waystation groups list` shows what there is")) from None


def _as_json(group: dict[str, Any]) -> dict[str, object]:
    return {
        "group": group["group"],
        "kind": group["kind"],
        "state": group["state"],
        "assignor": group["assignor"],
        "lag": group["lag"],
        "generation": group["generation"],
        "coordinator": group["coordinator"],
        "redriven": group["redriven"],
        "members": [
            {
                "id": member["member"],
                "instance": member["instance"],
                "client": member["client"],
                "host": member["host"],
                "assigned": [
                    {"topic": one["topic"], "partition": number}
                    for one in member["assignment"]
                    for number in one["partitions"]
                ],
            }
            for member in group["members"]
        ],
        "offsets": [
            {field: one[field] for field in ("topic", "partition", "committed", "end", "lag", "metadata", "member")}
            for one in group["partitions"]
        ],
    }


def _print_group(group: dict[str, Any]) -> None:
    assignor = f", assignor {group['assignor']}" if group["assignor"] else ""
    where = f"generation {group['generation']}, coordinator {group['coordinator']}"
    print(f"{bold(group['group'])}  {group['kind']}, {group['state']}{assignor}, {where}")
    if group["redriven"]:
        print(f"lag of what was redriven to it: {group['redriven']}")
    columns = ("topic", "partition", "committed", "end", "lag", "member")
    if group["partitions"]:
        print_table(columns, [tuple(one[column] for column in columns) for one in group["partitions"]])
    else:
        print("nothing committed, nothing assigned")
    if group["members"]:
        rows = [
            (one["member"], one["client"], one["host"], sum(len(part["partitions"]) for part in one["assignment"]))
            for one in group["members"]
        ]
        print_table(("member", "client", "host", "partitions"), rows)
    print()


# -- reset ---------------------------------------------------------------------------------------------------------


def _reset(arguments: argparse.Namespace) -> int:
    from waystation.topics.partitions.start_position import parse_start

    parse_start(arguments.to, 0)  # what makes no sense is said before anything else
    with open_client(arguments) as mq:
        moves = _moves(mq, arguments, dry_run=True)
        if not arguments.json:
            rows = [(one["topic"], one["partition"], one["from"], one["to"]) for one in moves]
            print_table(("topic", "partition", "from", "to"), rows)
        done = not arguments.dry_run and confirmed(f"move group {arguments.group}?", yes=arguments.yes)
        if done:
            moves = _moves(mq, arguments, dry_run=False)
    if arguments.json:
        print_json({"group": arguments.group, "done": done, "offsets": moves})
    elif done:
        print(f"moved group {arguments.group} on {spell_count(len(moves), 'partition')}")
    elif arguments.dry_run:
        print("nothing was changed (--dry-run)")
    return 0 if done or arguments.dry_run else 1


def _moves(mq: Client, arguments: argparse.Namespace, *, dry_run: bool) -> list[dict[str, Any]]:
    """What changes, in the order of topics and partitions."""
    query = {"group": arguments.group, "to": arguments.to, "dry_run": dry_run}
    if not arguments.topic:
        try:
            found: list[dict[str, Any]] = (mq.act("reset-group", **query) or {})["changes"]
        except (Invalid, NotFound) as error:
            how = "--topic TOPIC says where a group begins that has no position yet"
            raise type(error)(advised(error, how)) from None
        return found
    moves: list[dict[str, Any]] = []
    for topic, numbers in sorted(_chosen(arguments.topic).items()):
        only = {} if numbers is None else {"partitions": sorted(numbers)}
        moves += (mq.act("reset-group", **query, topic=topic, **only) or {})["changes"]
    return moves


def _chosen(texts: list[str]) -> dict[str, set[int] | None]:
    """The partitions that `--topic` names, by topic; None: all of them."""
    chosen: dict[str, set[int] | None] = {}
    for text in texts:
        name, _, numbers = text.partition(":")
        known = chosen.setdefault(name, set())
        if not numbers:
            chosen[name] = None
        elif known is not None:
            known.update(int(number) if number.isdecimal() else -1 for number in numbers.split(","))
    return chosen


# -- delete --------------------------------------------------------------------------------------------------------


def _delete(arguments: argparse.Namespace) -> int:
    names: list[str] = arguments.group
    with open_client(arguments) as mq:
        for name in names:
            _group(mq, name)  # a misspelt name is found before anything is deleted
        what = f"the offsets of topic {arguments.topic} in {', '.join(names)}" if arguments.topic else ", ".join(names)
        if not confirmed(f"delete {what}?", yes=arguments.yes):
            return 1
        for name in names:
            mq.act("delete-group", group=name, topic=arguments.topic)
            if not arguments.json:
                print(f"deleted {f'offsets of {arguments.topic} in ' if arguments.topic else ''}group {name}")
    if arguments.json:
        print_json([{"group": name, "topic": arguments.topic} for name in names])
    return 0
