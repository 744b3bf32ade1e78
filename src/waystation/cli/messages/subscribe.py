"""`waystation subscribe`: messages of topics as they come, by name or pattern, alone or sharing with a group.

Messages are acked after they were written out, so stopping it anywhere repeats at most, and never skips.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.received import FIELDS, add_format, speller
from waystation.cli.terminal.arguments import add_server, examples, not_negative, positive
from waystation.cli.terminal.interrupt import Interrupt
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import note, spell_count
from waystation.cli.terminal.units import duration, moment
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.sync.subscription import Subscription

WAIT_S = 0.25
"""How long to wait for the first message: also how soon a stop is noticed."""
AT_ONCE = 500
PREFETCH = 200
LOOKING_S = 3600.0
"""With --no-ack, how long messages are kept from others; the end of the command gives them back sooner."""
NAMED = 5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="+", help="a topic, or a pattern: * is one word, # any number, between dots")
    parser.add_argument("--group", metavar="NAME", help="share the messages with the group's other members, and ack")
    parser.add_argument(
        "--mode",
        choices=("shared", "stream", "live"),
        help="shared (default with --group): an ack per message; stream: partitions and offsets; live: from now on",
    )
    parser.add_argument("--filter", metavar="EXPRESSION", help='only messages that match, like "json.total > 100"')
    parser.add_argument("--regex", action="store_true", help="patterns are regular expressions")
    parser.add_argument("--history", type=not_negative, metavar="N", default=0, help="live: the last N first")
    parser.add_argument(
        "--from",
        dest="start",
        type=_start,
        metavar="POSITION",
        help="where a new group begins: earliest, latest (default), a time like 2026-03-01T12:00, an age like 15m",
    )
    parser.add_argument("--count", type=positive, metavar="N", help="stop after N messages")
    parser.add_argument("--timeout", type=duration, metavar="TIME", help="stop when no message arrived for this time")
    parser.add_argument(
        "--no-ack", action="store_true", help="do not acknowledge: everything is redelivered to the group"
    )
    add_format(parser)
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation subscribe 'orders.#' --history 10",
        "waystation subscribe 'orders.*' --group billing --from earliest --filter \"headers.region = 'eu'\"",
        r"waystation subscribe 'orders.#' --format '{time} {topic}: {value}\n'",
        f"fields: {' '.join(FIELDS)}",
    )
    parser.set_defaults(run=_run)


def _start(text: str) -> str | float:
    """A place to begin, as the client takes it: a word, or seconds since 1970."""
    if text in ("earliest", "latest"):
        return text
    try:
        return time.time() - duration(text) if text[-1:].isalpha() and text[:1].isdecimal() else moment(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a position: write earliest, latest, a time like 2026-03-01T12:00 or"
            " @1772366400000, or an age like 15m"
        ) from None


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    spell = speller(arguments)
    output = sys.stdout.buffer
    interrupt = Interrupt()
    seen, quiet_since = 0, time.monotonic()
    with open_client(arguments) as mq, mq.subscribe(arguments.pattern, **_options(arguments)) as subscription:
        _say_what(subscription, arguments)
        while not interrupt.came and seen != arguments.count:
            most = AT_ONCE if arguments.count is None else min(AT_ONCE, arguments.count - seen)
            messages = subscription.poll(WAIT_S, most)
            if messages:
                output.write(b"".join([spell(message) for message in messages]))
                output.flush()
                if arguments.group is not None and not arguments.no_ack:
                    subscription.commit()
                seen += len(messages)
                quiet_since = time.monotonic()
            elif arguments.timeout is not None and time.monotonic() - quiet_since >= arguments.timeout:
                break
    return 0


def _check(arguments: argparse.Namespace) -> None:
    live = arguments.mode == "live" or (arguments.mode is None and arguments.group is None)
    if live and arguments.start is not None:
        raise Invalid("--from is for a --group; without one it begins now, and --history N shows the last N first")
    if not live and arguments.history:
        raise Invalid("--history is for live subscriptions; a --group begins where --from says")
    if live and arguments.no_ack:
        raise Invalid("--no-ack is for a --group; a live subscription acks nothing")


def _options(arguments: argparse.Namespace) -> Any:
    options: dict[str, Any] = {
        "group": arguments.group,
        "mode": arguments.mode,
        "filter": arguments.filter,
        "regex": arguments.regex,
        "history": arguments.history,
        "manual": True,
        # No more than will be shown, so that as little as can be is taken from others only to be given back.
        "prefetch": arguments.count if arguments.count and arguments.count <= PREFETCH else 0,
    }
    if arguments.start is not None:
        options["start"] = arguments.start
    if arguments.no_ack and arguments.mode != "stream":
        options["hold"] = LOOKING_S
    return options


def _say_what(subscription: Subscription, arguments: argparse.Namespace) -> None:
    topics = subscription.topics
    named = ", ".join(topics[:NAMED]) + (", …" if len(topics) > NAMED else "")
    if topics:
        note(f"subscribed to {spell_count(len(topics), 'topic')}: {named}")
    else:
        note(f"subscribed; no topic matches {' '.join(arguments.pattern)} yet, those that come are picked up")
