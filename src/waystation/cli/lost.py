"""`waystation lost`: topics whose files are there and which the catalog does not know."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.terminal.output import confirmed, print_json, print_table, spell_bytes, spell_count
from waystation.errors import Invalid, WaystationError

if TYPE_CHECKING:
    from waystation.broker.lost_restoring import LostAndFound


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show the folders in lost+found")
    restore = verbs.add_parser("restore", help="re-create topics from them; the broker must not run")
    delete = verbs.add_parser("delete", help="delete them with all their messages; the broker must not run")
    for verb in (listing, restore, delete):
        verb.add_argument("data", type=Path, metavar="DATA_DIR", help="the data folder of a broker")
    restore.add_argument("folder", nargs="*", help="as `list` shows it")
    restore.add_argument("--all", action="store_true", help="every folder in lost+found")
    restore.add_argument("--as", dest="new_name", metavar="NAME", help="another name for the topic")
    delete.add_argument("folder", nargs="+", help="as `list` shows it")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for verb, run in ((listing, _list), (restore, _restore), (delete, _delete)):
        verb.add_argument("--json", action="store_true", help="print JSON lines, for programs")
        verb.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    from waystation.broker.lost_restoring import find_lost

    found = find_lost(str(arguments.data))
    if arguments.json:
        print_json(
            [
                {
                    "folder": one.folder,
                    "topic": one.topic,
                    "partitions": one.partitions,
                    "bytes": one.size,
                    "settings_known": one.exact,
                }
                for one in found
            ]
        )
    elif found:
        print_table(
            ("folder", "topic", "partitions", "size", "settings"),
            [
                (one.folder, one.topic, one.partitions, spell_bytes(one.size), "known" if one.exact else "not known")
                for one in found
            ],
        )
    else:
        print("there are no lost topics")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    from waystation.broker.lost_restoring import lost_and_found

    if bool(arguments.folder) == arguments.all:
        raise Invalid("name the folders to restore, or give --all")
    if arguments.new_name is not None and len(arguments.folder) != 1:
        raise Invalid("--as is a name for one folder")
    done: list[dict[str, object]] = []
    refused: list[str] = []
    with lost_and_found(str(arguments.data)) as lost:
        for name in lost.names() if arguments.all else arguments.folder:
            try:
                row = lost.restore(name, arguments.new_name)
            except WaystationError as error:  # the others may do
                refused.append(str(error))
                continue
            done.append({"folder": name, "topic": row.name, "partitions": row.partitions})
            if not arguments.json:
                print(f"restored topic {row.name} with {spell_count(row.partitions, 'partition')}")
    if arguments.json:
        print_json(done)
    elif not done and not refused:
        print("there are no lost topics")
    if refused:
        raise Invalid("; ".join(refused))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    from waystation.broker.lost_restoring import lost_and_found

    names: list[str] = arguments.folder
    with lost_and_found(str(arguments.data)) as lost:
        _check(lost, names)
        if not confirmed(f"delete {', '.join(names)} with all messages?", yes=arguments.yes):
            return 1
        for name in names:
            lost.delete(name)
            if not arguments.json:
                print(f"deleted {name}")
    if arguments.json:
        print_json([{"folder": name} for name in names])
    return 0


def _check(lost: LostAndFound, names: list[str]) -> None:
    """A misspelt name is found before anything is deleted."""
    for name in names:
        lost.find(name)
