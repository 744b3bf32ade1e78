"""`waystation dead-letters delete`: deletes dead letters for good, some by their ids or a filter, or all of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import examples
from waystation.cli.terminal.native import dead_letters_in, open_client, peek_on, view_pages
from waystation.cli.terminal.output import confirmed, note, print_json, spell_count
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.client.sync.queue import Queue


def configure(verbs: Any) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    parser: argparse.ArgumentParser = verbs.add_parser("delete", help="delete dead letters permanently")
    parser.add_argument("queue", help="the dead-letter queue")
    parser.add_argument("id", nargs="*", help="those with these ids, as `show` lists them")
    parser.add_argument("--filter", metavar="EXPRESSION", help="those that match")
    parser.add_argument("--all", action="store_true", help="all of them but those in flight")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation dead-letters delete jobs.dead resize-a",
        "waystation dead-letters delete jobs.dead --filter \"headers.x-death[0].reason = 'expired'\"",
    )
    return parser, _delete


def _delete(arguments: argparse.Namespace) -> int:
    if bool(arguments.id) + bool(arguments.filter) + arguments.all != 1:
        raise Invalid("say which: their ids, --filter EXPRESSION or --all")
    with open_client(arguments) as mq:
        queue = dead_letters_in(mq, arguments.queue)
        if arguments.all:
            _check_target(mq, queue.name)
        ids = arguments.id or ([] if arguments.all else list(_matching(queue, arguments.filter)))
        count = len(queue) if arguments.all else len(ids)
        if not confirmed(f"delete {spell_count(count, 'message')} of {queue.name} permanently?", yes=arguments.yes):
            return 1
        missing = [] if arguments.all else [one for one in ids if not queue.cancel(one)]
        deleted = queue.purge() if arguments.all else len(ids) - len(missing)
    if arguments.json:
        print_json({"queue": queue.name, "deleted": deleted, "missing": missing})
    else:
        print(f"deleted {spell_count(deleted, 'message')} of {queue.name}")
    for one in missing:
        note(f"{one} was not deleted: it is not in queue {queue.name}, or it is in flight")
    return 1 if missing else 0


def _check_target(mq: Client, name: str) -> None:
    """So that a slip does not empty a queue that is at work."""
    rows = view_pages(mq, "dead-letters", "dead_letters", sys.maxsize, search=name)["dead_letters"]
    if not any(row["target"] == name for row in rows):
        raise Invalid(f"queue {name!r} is nobody's dead-letter queue; `waystation queues purge {name}` deletes all")


def _matching(queue: Queue, expression: str) -> Iterator[str]:
    """By QUEUE#TAG, since several dead letters may have one id. It is the broker's own filter."""
    from waystation.routing.filtering.filters import compile_filter

    wanted = compile_filter(expression)
    for message in peek_on(queue, None):
        if wanted.matches(message.delivered.message):
            yield f"{queue.name}#{message.tag}"
