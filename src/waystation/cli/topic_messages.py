"""`waystation topics search` and `delete-records`: looking for messages in a topic, and deleting its oldest ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import add_server, not_negative, positive
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import confirmed, note, print_json, visible
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.sync.client import Client

AT_ONCE = 100


def configure_looking(verbs: Any) -> None:
    search = verbs.add_parser("search", help="find messages by key, id, header or a text in them")
    search.add_argument("topic", help="the topic")
    search.add_argument("--key", metavar="KEY")
    search.add_argument("--id", metavar="ID")
    search.add_argument("--text", metavar="TEXT", help="somewhere in the payload")
    search.add_argument("--header", metavar="NAME=VALUE", action="append", help="NAME alone: has one; may be repeated")
    search.add_argument("--partition", type=not_negative, metavar="N", help="only this one")
    search.add_argument("--newest", action="store_true", help="the newest first")
    search.add_argument(
        "--count", type=positive, metavar="N", default=20, help="maximum number of matches (default: 20)"
    )
    add_server(search)
    search.set_defaults(run=_search)

    records = verbs.add_parser("delete-records", help="delete the oldest messages of a partition")
    records.add_argument("topic", help="the topic")
    records.add_argument("--partition", type=not_negative, metavar="N", required=True)
    records.add_argument("--before", type=not_negative, metavar="OFFSET", required=True, help="this one stays")
    records.add_argument("--yes", action="store_true", help="do not ask")
    add_server(records)
    records.set_defaults(run=_delete_records)


def _search(arguments: argparse.Namespace) -> int:
    terms = {name: getattr(arguments, name) for name in ("key", "id", "text", "header", "partition")}
    wanted = {name: value for name, value in terms.items() if value is not None}
    if not wanted.keys() - {"partition"}:
        raise Invalid("say what to look for: --key, --id, --text or --header")
    if arguments.newest:
        wanted["newest"] = True
    count = 0
    with open_client(arguments) as mq:
        for message in _found(mq, {**wanted, "topic": arguments.topic}, arguments.count):
            count += 1
            if arguments.json:
                print_json(message)
            else:
                key = message.get("key", message.get("key_base64"))
                shown = "-" if key is None else visible(key)
                print(f"{message['partition']}@{message['offset']}  {shown}  {_glance(message)}")
    if not count and not arguments.json:
        note(f"topic {arguments.topic!r} has no such message")
    return 0 if count else 1


def _found(mq: Client, query: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Page by page: the broker does a bounded piece of the work in each call."""
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = mq.view("search", **query, **more, limit=min(AT_ONCE, most))
        for message in page["messages"]:
            yield message
            most -= 1
            if not most:
                return
        cursor = page["cursor"]
        if page["done"] or cursor is None:
            return


def _glance(message: dict[str, Any]) -> str:
    payload = message.get("payload")
    if payload is None:
        return "(no value)"
    if message.get("encoding") == "base64":
        return f"(binary: {payload[:60]})"
    return visible(payload if len(payload) <= 100 else f"{payload[:100]}…")


def _delete_records(arguments: argparse.Namespace) -> int:
    place = f"partition {arguments.partition} of topic {arguments.topic}"
    if not confirmed(f"delete everything before offset {arguments.before} in {place}?", yes=arguments.yes):
        return 1
    with open_client(arguments) as mq:
        done = mq.act(
            "delete-records", topic=arguments.topic, partition=arguments.partition, before_offset=arguments.before
        )
    if arguments.json:
        print_json(done or {})
    else:
        print(f"{place} begins at offset {(done or {})['start_offset']} now")
    return 0
