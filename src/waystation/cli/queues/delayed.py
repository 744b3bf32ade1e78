"""`waystation delayed`: messages that are not due yet, in the order of their times; one in detail; cancelling one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.received import looked_json, print_fields, spell_payload
from waystation.cli.terminal.arguments import add_server, positive
from waystation.cli.terminal.native import open_client, queue_of, topic_of, view_pages
from waystation.cli.terminal.output import note, print_json, print_table, visible
from waystation.cli.terminal.units import spell_moment
from waystation.errors import Conflict, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client

TO_TOPICS = "(to topics)"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list", help="list the queues that have delayed messages, or the delayed messages of one queue"
    )
    listing.add_argument("queue", nargs="?", help="its messages, the next one due first")
    listing.add_argument("--topic", metavar="TOPIC", help="those that will be published to this topic")
    listing.add_argument("--limit", type=positive, metavar="N", default=100, help="default: 100")
    describe = actions.add_parser("describe", help="show messages that are not due yet")
    cancel = actions.add_parser("cancel", help="delete messages that are not due yet")
    for verb in (describe, cancel):
        verb.add_argument("name", help="the queue they wait in, or with --to-topic the topic they are for")
        verb.add_argument("id", nargs="+")
        verb.add_argument("--to-topic", action="store_true", help="they are delayed to a topic of this name")
    for verb, run in ((listing, _list), (describe, _describe), (cancel, _cancel)):
        add_server(verb)
        verb.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    query: dict[str, object] = {}
    if arguments.queue is not None:
        query["queue"] = arguments.queue
    if arguments.topic is not None:
        query["topic"] = arguments.topic
    with open_client(arguments) as mq:
        found = view_pages(mq, "delayed", "messages" if query else "queues", arguments.limit, **query)
        if arguments.topic is not None and not found["messages"]:
            topic_of(mq, arguments.topic)  # NotFound, with names that are near
    if query:
        _print_messages(found["messages"], json=arguments.json)
    else:
        _print_places(found["queues"], found["to_topics"], json=arguments.json)
    if found["next"] is not None:
        note("there are more; --limit shows them")
    return 0


def _print_places(queues: list[dict[str, Any]], to_topics: int | None, *, json: bool) -> None:
    """`to_topics` None: in a namespace it is not known."""
    rows = queues if to_topics is None else [*queues, {"queue": None, "messages": to_topics}]
    if json:
        print_json(rows)
    else:
        print_table(["queue", "delayed"], [(one["queue"] or TO_TOPICS, one["messages"]) for one in rows])


def _print_messages(messages: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(messages)
    else:
        rows = [(one["id"], spell_moment(one["due_ms"]), one["why"], one["bytes"]) for one in messages]
        print_table(["id", "due", "why", "bytes"], rows)


# -- one of them -------------------------------------------------------------------------------------------------------


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        for message_id in arguments.id:
            if arguments.to_topic:
                _describe_to_topic(mq, arguments, message_id)
            else:
                _describe_in_queue(mq, arguments, message_id)
    return 0


def _describe_in_queue(mq: Client, arguments: argparse.Namespace, message_id: str) -> None:
    message = queue_of(mq, arguments.name).find(message_id)
    if message is None or message.state != "parked":
        raise NotFound(f"no message {message_id!r} is delayed in queue {arguments.name!r}; it may have become due")
    if arguments.json:
        print_json(looked_json(message))
    else:
        print_fields(message)
        print(spell_payload(message.payload))


def _describe_to_topic(mq: Client, arguments: argparse.Namespace, message_id: str) -> None:
    """What the list knows of it: until it is published it is nowhere else."""
    waiting = view_pages(mq, "delayed", "messages", sys.maxsize, topic=arguments.name)["messages"]
    found = next((one for one in waiting if one["id"] == message_id), None)
    if found is None:
        topic_of(mq, arguments.name)
        raise NotFound(f"no message {message_id!r} waits for topic {arguments.name!r}; it may have been published")
    if arguments.json:
        print_json(found)
        return
    for name, value in _fields(found):
        print(f"{name:<12}{visible(value)}")


def _fields(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in message.items():
        if name.endswith("_ms"):
            yield name.removesuffix("_ms").replace("taken", "enqueued"), spell_moment(value)
        elif value is not None:
            yield name.replace("_", " "), str(value)


def _cancel(arguments: argparse.Namespace) -> int:
    missing: dict[str, str] = {}
    with open_client(arguments) as mq:
        for message_id in arguments.id:
            try:
                if arguments.to_topic:
                    mq.act("cancel-delayed", topic=arguments.name, id=message_id)
                elif not queue_of(mq, arguments.name).cancel(message_id):
                    raise NotFound(f"queue {arguments.name!r} has no message {message_id!r} that could be cancelled")
            except (NotFound, Conflict) as error:
                missing[message_id] = str(error)
    if arguments.json:
        kind = "topic" if arguments.to_topic else "queue"
        print_json({kind: arguments.name, "id": one, "cancelled": one not in missing} for one in arguments.id)
    elif len(missing) < len(arguments.id):
        print(f"cancelled {len(arguments.id) - len(missing)} of {len(arguments.id)}")
    for sentence in missing.values():
        note(sentence)
    return 1 if missing else 0
