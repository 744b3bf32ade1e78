"""`waystation dead-letters`: list dead letters by queue, show their failure history; `redrive` moves them back, and
`delete` (`dead_letter_delete`) deletes them.

A dead letter is a message with a failure history, the header `x-death`: a list of failures, the latest first.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.received import clip, looked_json, preview, print_fields, spell_payload
from waystation.cli.queues import dead_letter_delete, redrive
from waystation.cli.terminal.arguments import add_server, examples, positive
from waystation.cli.terminal.native import dead_letters_in, open_client, peek_on, queue_of, view_pages
from waystation.cli.terminal.output import bold, note, print_json, print_table, spell_bytes, spell_count, visible
from waystation.cli.terminal.units import spell_age, spell_moment
from waystation.errors import NotFound

if TYPE_CHECKING:
    from waystation.client.consuming.looked import Looked
    from waystation.client.sync.client import Client
    from waystation.protocol import QueueInfo

TOPIC = "topic:"
SCANNED = 10_000
LONGEST_ERROR = 60

FailureHistory = list[dict[str, Any]]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="show where dead letters are, from which queues, and why they died")
    listing.add_argument("queue", nargs="*", help="only these; default: all that are some queue's dead-letter target")
    listing.add_argument(
        "--scan",
        type=positive,
        metavar="N",
        default=SCANNED,
        help=f"maximum number of messages of each to read for reasons and sources (default: {SCANNED})",
    )

    show = verbs.add_parser("show", help="list the dead letters of a queue, or show the failure history of some")
    show.add_argument("queue")
    show.add_argument("id", nargs="*", help="the message whose failure history to show; without any: a list")
    show.add_argument("--filter", metavar="EXPRESSION", help="list only those that match")
    show.add_argument("--count", type=positive, metavar="N", default=20, help="maximum number to list (default: 20)")
    show.add_argument("--after", type=int, metavar="TAG", default=-1, help="list those behind this one")
    show.add_argument("--payload", choices=("auto", "json", "text", "hex"), default="auto", help="how it is shown")
    show.formatter_class = argparse.RawDescriptionHelpFormatter
    show.epilog = examples(
        "waystation dead-letters show jobs.dead",
        "waystation dead-letters show jobs.dead --filter \"headers.x-death[0].reason = 'expired'\"",
        "waystation dead-letters show jobs.dead resize-a",
    )

    for verb, run in ((listing, _list), (show, _show), redrive.configure(verbs), dead_letter_delete.configure(verbs)):
        add_server(verb)
        verb.set_defaults(run=run)


def failure_history_of(message: Looked) -> FailureHistory:
    """Its deaths, the latest first; none for a message that somebody put there."""
    return [death for death in message.deaths if isinstance(death, dict)]


def latest(message: Looked) -> tuple[str | None, str | None]:
    """From where it came, and why."""
    for death in failure_history_of(message):
        return str(death.get("queue")), str(death.get("reason"))
    return None, None


# -- list --------------------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        infos = {info.queue: info for info in mq.queues()}
        places = _places(mq, infos, arguments.queue)
        shown = False
        rows: list[Sequence[str | int | None]] = []
        for target, sources in places.items():
            shown = True
            found = _look_into(mq, target, infos.get(target), arguments.scan) | {"sources": sources}
            if arguments.json:
                print_json(found)
            else:
                rows += _rows(found)
                _note_rest(found)
    if rows:
        print_table(("queue", "messages", "from", "reason", "died first", "died last"), rows)
    elif not shown and not arguments.json:
        print("nothing is dead-lettered yet; `waystation queues alter NAME --dead-letter TARGET` sets a queue's target")
    return 0


def _places(mq: Client, infos: dict[str, QueueInfo], named: list[str]) -> dict[str, list[str]]:
    """Targets, and the queues and groups whose dead go there."""
    rows = view_pages(mq, "dead-letters", "dead_letters", sys.maxsize)["dead_letters"]
    sources: dict[str, list[str]] = {row["target"]: row["sources"] for row in rows}
    for name in named:
        if name not in infos and name not in sources:
            queue_of(mq, name)  # NotFound, with names that are near
    return {name: sources.get(name, []) for name in named} if named else dict(sorted(sources.items()))


def _look_into(mq: Client, target: str, info: QueueInfo | None, most: int) -> dict[str, Any]:
    """How many there are, and the first `most` by source and reason. A target may come with its first dead letter."""
    if target.startswith(TOPIC):
        return {"queue": target, "messages": _in_topic(mq, target.removeprefix(TOPIC)), "counted": 0, "counts": []}
    if info is None:
        return {"queue": target, "messages": 0, "counted": 0, "counts": []}
    by_kind: Counter[tuple[str | None, str | None]] = Counter()
    times: dict[tuple[str | None, str | None], list[int]] = {}
    for message in peek_on(queue_of(mq, target), most):
        kind = latest(message)
        by_kind[kind] += 1
        at_ms = _died_ms(message)
        first_last = times.setdefault(kind, [at_ms, at_ms])
        first_last[:] = min(first_last[0], at_ms), max(first_last[1], at_ms)
    counts = [
        {"source": kind[0], "reason": kind[1], "messages": n, "first_ms": times[kind][0], "last_ms": times[kind][1]}
        for kind, n in by_kind.most_common()
    ]
    messages = info.ready + info.parked + info.held
    return {"queue": target, "messages": messages, "bytes": info.bytes, "counted": by_kind.total(), "counts": counts}


def _died_ms(message: Looked) -> int:
    for death in failure_history_of(message):
        if isinstance(death.get("time"), int):
            return int(death["time"])
    return message.delivered.taken_ms


def _in_topic(mq: Client, topic: str) -> int:
    try:
        return sum(end - start for start, end, _ in mq.describe_topic(topic).partitions)
    except NotFound:
        return 0


def _rows(found: dict[str, Any]) -> Iterator[Sequence[str | int | None]]:
    if not found["counts"]:
        yield found["queue"], found["messages"], ", ".join(found["sources"]) or None, None, None, None
    for row in found["counts"]:
        first, last = spell_age(row["first_ms"]), spell_age(row["last_ms"])
        yield found["queue"], row["messages"], row["source"], row["reason"], f"{first} ago", f"{last} ago"


def _note_rest(found: dict[str, Any]) -> None:
    if found["counts"] and found["counted"] < found["messages"]:
        rest = found["messages"] - found["counted"]
        note(f"{found['queue']}: {spell_count(rest, 'more message')} not looked at; --scan {found['messages']} does")


# -- show --------------------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        queue = dead_letters_in(mq, arguments.queue)
        if not arguments.id:
            return _show_list(arguments, _matching(peek_on(queue, None, arguments.after), arguments))
        for message_id in arguments.id:
            message = queue.find(message_id)
            if message is None:
                raise NotFound(
                    f"queue {arguments.queue!r} has no message with the id {message_id!r};"
                    f" `waystation dead-letters show {arguments.queue}` lists what it has"
                )
            if arguments.json:
                print_json(_letter_json(message))
            else:
                _tell(message, arguments.payload)
    return 0


def _matching(messages: Iterator[Looked], arguments: argparse.Namespace) -> Iterator[Looked]:
    """The first `--count` that `--filter` lets through. It is the broker's own filter, on what it would be asked."""
    if arguments.filter is None:
        wanted = None
    else:
        from waystation.routing.filtering.filters import compile_filter

        wanted = compile_filter(arguments.filter)
    left = arguments.count
    for message in messages:
        if wanted is None or wanted.matches(message.delivered.message):
            yield message
            left -= 1
            if not left:
                return


def _letter_json(message: Looked) -> dict[str, Any]:
    return looked_json(message) | {"deaths": failure_history_of(message)}


def _show_list(arguments: argparse.Namespace, messages: Iterator[Looked]) -> int:
    if arguments.json:
        for message in messages:
            print_json(_letter_json(message))
        return 0
    rows = []
    for message in messages:
        source, reason = latest(message)
        history = failure_history_of(message)
        error = visible(str(history[0]["error"])) if history and history[0].get("error") else None
        rows.append(
            (
                message.tag,
                message.id,
                source,
                reason,
                f"{spell_age(_died_ms(message))} ago",
                int(history[0].get("deliveries", 0)) if history else None,
                None if error is None else clip(error, LONGEST_ERROR),
                spell_bytes(len(message.payload)),
                preview(message.payload, 32),
            )
        )
    if rows:
        headings = ("tag", "id", "from", "reason", "died", "deliveries", "error", "size", "payload")
        print_table(headings, rows)
    else:
        print(f"no messages in {arguments.queue}" + (" that match" if arguments.filter else ""))
    return 0


def _tell(message: Looked, form: str) -> None:
    payload = spell_payload(message.payload, form)
    print_fields(message)
    print()
    history = failure_history_of(message)
    if history:
        print_table(
            ("died", "reason", "in", "times", "deliveries", "error"),
            [
                (
                    spell_moment(death["time"]) if isinstance(death.get("time"), int) else None,
                    str(death.get("reason")),
                    _where(death),
                    _count(death, "count"),
                    _count(death, "deliveries"),
                    visible(str(death["error"])) if death.get("error") else None,
                )
                for death in history
            ],
        )
    else:
        print("it has no failure history: it was put here directly")
    print()
    print(bold("payload"))
    print(payload)
    print()


def _where(death: dict[str, Any]) -> str:
    """A queue; or a topic, with the subscription that failed at it."""
    place = visible(str(death.get("queue")))
    if "group" in death:
        place += f" {death.get('partition')}@{death.get('offset')}, group {visible(str(death['group']))}"
    return place


def _count(death: dict[str, Any], name: str) -> int | None:
    return death[name] if isinstance(death.get(name), int) else None
