"""`waystation groups`: list, describe, reset, delete."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from waystation.cli.arguments import add_server, connect
from waystation.cli.output import bold, confirmed, print_json, print_table, spell_count
from waystation.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from waystation.client.groups import Committed, GroupDetail
    from waystation.client.topics import Found, Place
    from waystation.client.wire import Connection

_IDLE = ("Empty", "Dead")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show all groups")
    listing.add_argument("--state", action="append", default=[], help="only groups in this state; may be repeated")

    describe = verbs.add_parser("describe", help="show members, offsets and lag")
    describe.add_argument("group", nargs="+")

    reset = verbs.add_parser("reset", help="move the offsets of a group that has no members now")
    reset.add_argument("group")
    reset.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="earliest, latest, an offset, -N (the last N), a time like 2026-03-01T12:00, an age like 15m",
    )
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:PARTITIONS]",
        help="which topic, or only some partitions of it (orders:0,2); may be repeated; default: all it has read",
    )
    reset.add_argument("--dry-run", action="store_true", help="only show what would change")
    reset.add_argument("--yes", action="store_true", help="do not ask")

    delete = verbs.add_parser("delete", help="forget groups, or what they committed for a topic")
    delete.add_argument("group", nargs="+")
    delete.add_argument("--topic", help="forget the offsets of this topic only")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    for verb, run in ((listing, _list), (describe, _describe), (reset, _reset), (delete, _delete)):
        add_server(verb)
        verb.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    from waystation.client.groups import list_groups

    with connect(arguments) as connection:
        groups = list_groups(connection, states=arguments.state)
    if arguments.json:
        print_json([{"group": g.name, "kind": g.kind, "state": g.state, "protocol": g.protocol} for g in groups])
    elif groups:
        print_table(("group", "kind", "state"), [(g.name, g.kind, g.state) for g in groups])
    else:
        print("no groups")
    return 0


# -- describe ------------------------------------------------------------------------------------------------------


def _describe(arguments: argparse.Namespace) -> int:
    from waystation.client.groups import committed_offsets, describe_group

    described = []
    with connect(arguments) as connection:
        for name in arguments.group:
            group = describe_group(connection, name)
            committed = committed_offsets(connection, name)
            assigned = {place for member in group.members for place in member.assigned}
            ends = _ends(connection, sorted(committed.keys() | assigned))
            if arguments.json:
                described.append(_as_json(group, committed, ends))
            else:
                _print_group(group, committed, ends)
    if arguments.json:
        print_json(described)
    return 0


def _ends(connection: Connection, places: list[Place]) -> dict[Place, Found]:
    """End offsets; a topic that was deleted while the group still remembers it has none."""
    from waystation.client.topics import LATEST, find_offsets, list_topics

    there = {(topic.name, number) for topic in list_topics(connection) for number in topic.partitions}
    wanted = dict.fromkeys((place for place in places if place in there), LATEST)
    return find_offsets(connection, wanted) if wanted else {}


def _lag(place: Place, committed: dict[Place, Committed], ends: dict[Place, Found]) -> int | None:
    return max(0, ends[place].offset - committed[place].offset) if place in committed and place in ends else None


def _as_json(group: GroupDetail, committed: dict[Place, Committed], ends: dict[Place, Found]) -> dict[str, object]:
    owners = {place: member.id for member in group.members for place in member.assigned}
    return {
        "group": group.name,
        "kind": group.kind,
        "state": group.state,
        "assignor": group.assignor,
        "members": [
            {
                "id": member.id,
                "instance": member.instance,
                "client": member.client,
                "host": member.host,
                "assigned": [{"topic": topic, "partition": number} for topic, number in sorted(member.assigned)],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": place[0],
                "partition": place[1],
                "committed": committed[place].offset if place in committed else None,
                "end": ends[place].offset if place in ends else None,
                "lag": _lag(place, committed, ends),
                "metadata": committed[place].metadata if place in committed else None,
                "member": owners.get(place),
            }
            for place in sorted(committed.keys() | owners.keys())
        ],
    }


def _print_group(group: GroupDetail, committed: dict[Place, Committed], ends: dict[Place, Found]) -> None:
    owners = {place: member for member in group.members for place in member.assigned}
    print(
        f"{bold(group.name)}  {group.kind}, {group.state}" + (f", assignor {group.assignor}" if group.assignor else "")
    )
    rows = [
        (
            place[0],
            place[1],
            committed[place].offset if place in committed else None,
            ends[place].offset if place in ends else None,
            _lag(place, committed, ends),
            owners[place].id if place in owners else None,
        )
        for place in sorted(committed.keys() | owners.keys())
    ]
    if rows:
        print_table(("topic", "partition", "committed", "end", "lag", "member"), rows)
    else:
        print("nothing committed, nothing assigned")
    if group.members:
        print_table(
            ("member", "client", "host", "partitions"),
            [(member.id, member.client, member.host, len(member.assigned)) for member in group.members],
        )
    print()


# -- reset ---------------------------------------------------------------------------------------------------------


def _reset(arguments: argparse.Namespace) -> int:
    from waystation.client.groups import commit_offsets, committed_offsets
    from waystation.client.positions import parse_start, resolve

    start = parse_start(arguments.to, time.time_ns() // 1_000_000)
    with connect(arguments) as connection:
        _refuse_active(connection, arguments.group)
        before = committed_offsets(connection, arguments.group)
        places = _chosen(connection, arguments.topic) or sorted(before)
        if not places:
            raise Invalid(f"group {arguments.group!r} has committed nothing yet: say which topic with --topic")
        after = resolve(connection, start, places)
        moves = [(place, before[place].offset if place in before else None, after[place]) for place in places]
        if not arguments.json:
            print_table(("topic", "partition", "from", "to"), [(p[0], p[1], was, will) for p, was, will in moves])
        done = not arguments.dry_run and confirmed(f"move group {arguments.group}?", yes=arguments.yes)
        if done:
            commit_offsets(connection, arguments.group, after)
    if arguments.json:
        offsets = [{"topic": p[0], "partition": p[1], "from": was, "to": will} for p, was, will in moves]
        print_json({"group": arguments.group, "done": done, "offsets": offsets})
    elif done:
        print(f"moved group {arguments.group} on {spell_count(len(moves), 'partition')}")
    elif arguments.dry_run:
        print("nothing was changed (--dry-run)")
    return 0 if done or arguments.dry_run else 1


def _refuse_active(connection: Connection, name: str) -> None:
    """A member would go on from where it is and commit over the new offsets. A group may well not exist yet."""
    from waystation.client.groups import describe_group

    try:
        group = describe_group(connection, name)
    except NotFound:
        return
    if group.members or group.state not in _IDLE:
        raise Conflict(
            f"group {name!r} has {spell_count(len(group.members), 'member')} ({group.state}); stop them, then reset"
        )


def _chosen(connection: Connection, texts: list[str]) -> list[Place]:
    """The partitions that `--topic` names; empty where it was not given."""
    from waystation.client.topics import find_topic

    places: set[Place] = set()
    for text in texts:
        name, _, numbers = text.partition(":")
        there = find_topic(connection, name).partitions
        wanted = [int(n) if n.isdecimal() else -1 for n in numbers.split(",")] if numbers else list(there)
        strange = [number for number in wanted if number not in there]
        if strange:
            raise Invalid(f"--topic {text!r}: topic {name!r} has partitions 0 to {len(there) - 1}")
        places.update((name, number) for number in wanted)
    return sorted(places)


# -- delete --------------------------------------------------------------------------------------------------------


def _delete(arguments: argparse.Namespace) -> int:
    from waystation.client.groups import delete_group, describe_group

    names: list[str] = arguments.group
    with connect(arguments) as connection:
        for name in names:
            describe_group(connection, name)  # a misspelt name is found before anything is gone
        what = f"the offsets of topic {arguments.topic} in {', '.join(names)}" if arguments.topic else ", ".join(names)
        if not confirmed(f"delete {what}?", yes=arguments.yes):
            return 1
        for name in names:
            if arguments.topic:
                _forget_topic(connection, name, arguments.topic)
            else:
                delete_group(connection, name)
            if not arguments.json:
                print(f"deleted {f'offsets of {arguments.topic} in ' if arguments.topic else ''}group {name}")
    if arguments.json:
        print_json([{"group": name, "topic": arguments.topic} for name in names])
    return 0


def _forget_topic(connection: Connection, name: str, topic: str) -> None:
    from waystation.client.groups import committed_offsets, delete_offsets

    places = [place for place in committed_offsets(connection, name) if place[0] == topic]
    if not places:
        raise NotFound(f"group {name!r} has committed nothing for topic {topic!r}")
    delete_offsets(connection, name, places)
