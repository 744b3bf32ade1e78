"""`waystation queues`: list, describe, create, alter, delete, purge; and their messages, see `queue_messages`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from waystation.cli.queues import queue_messages
from waystation.cli.queues.queue_settings import (
    RETRY,
    add_queue_settings,
    changed,
    given,
    queue_options,
    setting_name,
    spell_settings,
    values_of,
)
from waystation.cli.shortening import agreed, queue_dangers
from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.native import all_of, open_client, queue_of
from waystation.cli.terminal.output import (
    bold,
    confirmed,
    note,
    print_json,
    print_table,
    spell_bytes,
    spell_count,
    spell_rate,
)
from waystation.cli.terminal.units import spell_about, spell_age
from waystation.errors import AlreadyExists, Invalid, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.protocol import QueueInfo


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show queues and how many messages they have")
    listing.add_argument("prefix", nargs="?", default="", help="only those whose names begin with this")

    describe = verbs.add_parser("describe", help="show counts and settings")
    describe.add_argument("queue", nargs="+")
    describe.add_argument("--all", action="store_true", help="all settings, not only those that were changed")

    create = verbs.add_parser("create", help="create queues")
    create.add_argument("queue", nargs="+")
    create.add_argument("--if-not-exists", action="store_true", help="succeed if it already exists with these settings")
    add_queue_settings(create)

    alter = verbs.add_parser("alter", help="change settings; the others stay as they are")
    alter.add_argument("queue")
    alter.add_argument("--unset", metavar="NAME", action="append", default=[], help="back to the default, like ttl")
    alter.add_argument("--yes", action="store_true", help="do not ask before stored messages are deleted")
    add_queue_settings(alter)

    delete = verbs.add_parser("delete", help="delete queues with all their messages")
    delete.add_argument("queue", nargs="+")
    delete.add_argument("--if-empty", action="store_true", help="only if there is no message in it")
    delete.add_argument("--if-unused", action="store_true", help="only if it has no consumers")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    purge = verbs.add_parser("purge", help="delete all messages that are not in flight")
    purge.add_argument("queue", nargs="+")
    purge.add_argument("--yes", action="store_true", help="do not ask")

    runs = ((listing, _list), (describe, _describe), (create, _create), (alter, _alter), (delete, _delete))
    for verb, run in (*runs, (purge, _purge), *queue_messages.configure(verbs)):
        add_server(verb)
        verb.set_defaults(run=run)


def info_json(info: QueueInfo) -> dict[str, Any]:
    """Everything, also what is zero."""
    import msgspec

    return msgspec.structs.asdict(info) | {"settings": msgspec.structs.asdict(info.settings)}


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        queues = all_of(mq, "queues", prefix=arguments.prefix)
    for one in queues:
        one["state"] = _state(one)
    if arguments.json:
        print_json(queues)
    elif queues:
        print_table(
            (
                *("queue", "state", "ready", "delayed", "in flight", "size", "consumers", "oldest"),
                *("put/s", "acked/s", "ttl", "dead letters to"),
            ),
            [
                (
                    *(one[column] for column in ("queue", "state", "ready", "parked", "held")),
                    spell_bytes(one["bytes"]),
                    one["consumers"],
                    None if one["oldest_ms"] is None else spell_age(one["oldest_ms"]),
                    *(one["rates"] and spell_rate(one["rates"][rate]) for rate in ("put", "ack")),
                    None if one["settings"]["ttl_ms"] is None else spell_about(one["settings"]["ttl_ms"]),
                    one["settings"]["dead_letter"],
                )
                for one in queues
            ],
        )
    else:
        which = f"no queue's name begins with {arguments.prefix!r}" if arguments.prefix else "no queues yet"
        print(f"{which}; create one with `waystation queues create NAME`")
    return 0


def _state(queue: dict[str, Any]) -> str:
    """`full`: one of its maxima is reached; `running`: messages come or go; `idle`: neither."""
    settings = queue["settings"]
    # As in RabbitMQ, what is in flight does not count in a queue of AMQP.
    waiting = queue["ready"] + queue["parked"] + (queue["held"] if settings["queue_type"] is None else 0)
    if settings["max_length"] is not None and waiting >= settings["max_length"]:
        return "full"
    if settings["max_bytes"] is not None and queue["bytes"] >= settings["max_bytes"]:
        return "full"
    return "running" if any((queue["rates"] or {}).values()) else "idle"


def _describe(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        for name in arguments.queue:
            queue = queue_of(mq, name)
            if arguments.json:
                one = mq.view("queue", queue=name)
                print_json({**one, "state": _state(one)})
            else:
                _print_queue(queue.describe(), every=arguments.all)
    return 0


def _print_queue(info: QueueInfo, *, every: bool) -> None:
    oldest = "" if info.oldest_ms is None else f", the oldest {spell_age(info.oldest_ms)} old"
    held = info.ready + info.parked + info.held
    print(f"{bold(info.queue)}  {spell_count(held, 'message')}, {spell_bytes(info.bytes)}{oldest}")
    print_table(
        ("ready", "delayed", "in flight", "consumers", "put", "delivered", "acked", "dead"),
        [(info.ready, info.parked, info.held, info.consumers, info.put, info.delivered, info.acked, info.dead)],
    )
    settings = spell_settings(info.settings, every=every)
    if settings:
        print_table(("setting", "value"), settings)
    print()


# -- making and changing -----------------------------------------------------------------------------------------------


def _there(mq: Client, name: str) -> bool:
    try:
        mq.queue(name, passive=True)
    except NotFound:
        return False
    return True


def _create(arguments: argparse.Namespace) -> int:
    options = queue_options(given(arguments))
    with open_client(arguments) as mq:
        for name in arguments.queue:
            there = _there(mq, name)
            if there and not arguments.if_not_exists:
                raise AlreadyExists(f"queue {name!r} exists already; `waystation queues alter` changes it")
            queue = mq.queue(name, **options)
            if arguments.json:
                print_json(info_json(queue.describe()) | {"created": not there})
            else:
                print(f"queue {name} exists already" if there else f"created queue {name}")
    return 0


def _alter(arguments: argparse.Namespace) -> int:
    said = given(arguments)
    unset = [setting_name(text) for text in arguments.unset]
    if not said and not unset:
        raise Invalid("nothing to change: give a setting, like --visibility-timeout 5m, or --unset NAME")
    both = sorted(said.keys() & set(unset))
    if both:
        raise Invalid(f"{both[0]} is both set and unset")
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        present = queue.describe()
        before = present.settings
        defaults = values_of(type(before)())
        changes = said | {name: defaults[name] for name in unset}
        if any(name in RETRY for name in changes):  # these are one option of the client's
            changes = {name: value for name, value in values_of(before).items() if name in RETRY} | changes
        options = queue_options(changes)
        if not agreed(queue_dangers(present, changed(before, options)), yes=arguments.yes):
            return 1
        info = queue.alter(**options)
    if arguments.json:
        print_json(info_json(info))
        return 0
    print(f"altered queue {arguments.queue}")
    was, now = dict(spell_settings(before, every=True)), dict(spell_settings(info.settings, every=True))
    differences = [(name, was[name], now[name]) for name in now if was[name] != now[name]]
    if differences:
        print_table(("setting", "was", "is"), differences)
    return 0


# -- deleting ----------------------------------------------------------------------------------------------------------


def _counts(mq: Client, names: list[str]) -> tuple[str, int]:
    """The names, and how many messages are in them; a misspelt one is found before anything is deleted."""
    return ", ".join(names), sum(len(queue_of(mq, name)) for name in names)


def _delete(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        names, count = _counts(mq, arguments.queue)
        if not confirmed(f"delete {names} with {spell_count(count, 'message')}?", yes=arguments.yes):
            return 1
        for name in arguments.queue:
            deleted = queue_of(mq, name).delete(if_empty=arguments.if_empty, if_unused=arguments.if_unused)
            if arguments.json:
                print_json({"queue": name, "messages": deleted})
            else:
                print(f"deleted queue {name} with {spell_count(deleted, 'message')}")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        names, count = _counts(mq, arguments.queue)
        if not confirmed(f"delete {spell_count(count, 'message')} of {names}?", yes=arguments.yes):
            return 1
        for name in arguments.queue:
            queue = queue_of(mq, name)
            purged, held = queue.purge(), queue.describe().held
            if arguments.json:
                print_json({"queue": name, "messages": purged, "held": held})
            else:
                print(f"purged queue {name} of {spell_count(purged, 'message')}")
            if held:
                note(f"{spell_count(held, 'message')} of {name} stay: in flight")
    return 0
