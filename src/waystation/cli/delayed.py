"""`waystation delayed`: messages that are not due yet, in the order of their times, and cancelling one."""

from __future__ import annotations

import argparse
import time

from waystation.cli.arguments import add_server, positive
from waystation.cli.native import open_client, queue_of, topic_of, view_pages
from waystation.cli.output import note, print_json, print_table
from waystation.errors import Conflict, NotFound


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="which queues have delayed messages, or those of one queue")
    listing.add_argument("queue", nargs="?", help="its messages, the next one due first")
    listing.add_argument("--topic", metavar="TOPIC", help="those that will be published to this topic")
    listing.add_argument("--limit", type=positive, metavar="N", default=100, help="default: 100")
    add_server(listing)
    listing.set_defaults(run=_list)
    cancel = actions.add_parser("cancel", help="take back messages that are not due yet")
    cancel.add_argument("name", help="the queue they wait in, or with --to-topic the topic they are for")
    cancel.add_argument("id", nargs="+")
    cancel.add_argument("--to-topic", action="store_true", help="they are delayed to a topic of this name")
    add_server(cancel)
    cancel.set_defaults(run=_cancel)


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
    if arguments.json:
        print_json(found)
    elif arguments.queue is None and arguments.topic is None:
        rows = [(one["queue"], one["messages"]) for one in found["queues"]]
        print_table(["queue", "delayed"], [*rows, ("(to topics)", found["to_topics"])])
    else:
        messages = [(one["id"], _moment(one["due_ms"]), one["why"], one["bytes"]) for one in found["messages"]]
        print_table(["id", "due", "why", "bytes"], messages)
    if found["next"] is not None and not arguments.json:
        note("there are more; --limit shows them")
    return 0


def _moment(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def _cancel(arguments: argparse.Namespace) -> int:
    cancelled: list[str] = []
    missing: list[str] = []
    with open_client(arguments) as mq:
        for message_id in arguments.id:
            try:
                if arguments.to_topic:
                    mq.act("cancel-delayed", topic=arguments.name, id=message_id)
                elif not queue_of(mq, arguments.name).cancel(message_id):
                    raise NotFound(f"queue {arguments.name!r} has no message {message_id!r} that could be cancelled")
            except (NotFound, Conflict) as error:
                missing.append(str(error))
            else:
                cancelled.append(message_id)
    if arguments.json:
        print_json({"cancelled": cancelled, "missing": missing})
    elif cancelled:
        print(f"cancelled {len(cancelled)} of {len(arguments.id)}")
    for sentence in missing:
        note(sentence)
    return 1 if missing else 0
