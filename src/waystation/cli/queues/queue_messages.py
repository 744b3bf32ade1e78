"""`waystation queues put|get|peek|find|cancel`: the messages of queues.

`get` settles messages after they were written out, so stopping it anywhere repeats at most, and never loses.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.message_options import add_content, add_delivery, message_options, payload_of
from waystation.cli.messages.received import (
    add_format,
    looked_json,
    preview,
    print_fields,
    spell_payload,
    spell_state,
    speller,
    taken_ms,
    wait_of,
)
from waystation.cli.terminal.arguments import examples, positive
from waystation.cli.terminal.interrupt import Interrupt
from waystation.cli.terminal.native import State, open_client, peek_on, queue_of
from waystation.cli.terminal.output import note, print_json, print_table, spell_bytes, spell_count
from waystation.cli.terminal.units import duration, spell_age
from waystation.errors import Invalid, NotFound, WaystationError

if TYPE_CHECKING:
    from waystation.client.sync.message import Message
    from waystation.client.sync.queue import Queue
    from waystation.message import Message as Outgoing

Action = Callable[[argparse.Namespace], int]

PUT_AT_ONCE = 1_000
GET_AT_ONCE = 100
WAIT_S = 0.25
"""How long a get waits for the first message: also how soon a stop is noticed."""
STATES: dict[str, State] = {"any": "any", "ready": "ready", "delayed": "parked", "in-flight": "held"}
"""What `--state` takes, and what the broker calls it."""
SETTLEMENTS = ("ack", "release", "reject", "dead-letter")


def configure(verbs: Any) -> list[tuple[argparse.ArgumentParser, Action]]:
    put = verbs.add_parser("put", help="put messages into a queue")
    put.add_argument("queue")
    put.add_argument("message", nargs="*", help="without any, each line of standard input is a message")
    put.add_argument("--file", metavar="FILE", help="read lines from this file (-: standard input)")
    put.add_argument("--input", choices=("lines", "json"), default="lines", help="json: as `queues get --json` prints")
    put.add_argument("--wait", type=duration, metavar="TIME", default=0, help="for room in a full queue (default: 0)")
    add_content(put)
    add_delivery(put)
    put.formatter_class = argparse.RawDescriptionHelpFormatter
    put.epilog = examples(
        'waystation queues put jobs \'{"resize": "a.png"}\' --content-type application/json --priority 9',
        "waystation queues put jobs 'remind me' --delay 2h --id reminder-7",
        "waystation queues get jobs --count 1000 --json | waystation queues put others --input json",
    )

    get = verbs.add_parser("get", help="receive messages from a queue, and acknowledge them")
    get.add_argument("queue")
    get.add_argument("--count", type=positive, metavar="N", default=None, help="how many at most (default: 1)")
    get.add_argument(
        "--timeout", type=duration, metavar="TIME", default=0.0, help="how long to wait for one (default: 0)"
    )
    get.add_argument("--follow", action="store_true", help="continue until Ctrl-C, or --count")
    get.add_argument(
        "--visibility-timeout",
        dest="hold",
        type=duration,
        metavar="TIME",
        help="redelivered if not settled within this time (default: the queue's)",
    )
    get.add_argument("--hold", dest="hold", type=duration, help=argparse.SUPPRESS)
    get.add_argument(
        "--then",
        type=_settlement,
        choices=SETTLEMENTS,
        default="ack",
        help="acknowledge (default), requeue, reject (retried with backoff), or dead-letter now",
    )
    get.add_argument(
        "--error", metavar="TEXT", help="with --then reject or dead-letter: why; part of the failure history"
    )
    add_format(get)

    peek = verbs.add_parser("peek", help="show messages without receiving them")
    peek.add_argument("queue")
    peek.add_argument("--count", type=positive, metavar="N", default=10, help="how many (default: 10)")
    peek.add_argument("--after", type=int, metavar="TAG", default=-1, help="continue after this one")
    peek.add_argument("--state", type=_state, choices=STATES, default="any")

    find = verbs.add_parser("find", help="find messages by id: queue, state and position")
    find.add_argument("id")
    find.add_argument("--queue", help="only in this queue")
    find.add_argument("--payload", choices=("auto", "json", "text", "hex"), default="auto", help="how it is shown")

    cancel = verbs.add_parser("cancel", help="delete single messages by id, usually delayed ones")
    cancel.add_argument("queue")
    cancel.add_argument("id", nargs="+")

    return [(put, _put), (get, _get), (peek, _peek), (find, _find), (cancel, _cancel)]


def _state(text: str) -> str:
    """What the broker calls it is accepted too, for scripts that say so."""
    return {"parked": "delayed", "held": "in-flight"}.get(text, text)


def _settlement(text: str) -> str:
    return "dead-letter" if text == "kill" else text


# -- put ---------------------------------------------------------------------------------------------------------------


def _put(arguments: argparse.Namespace) -> int:
    _check_put(arguments)
    stored = _Stored()
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        try:
            _put_all(queue, arguments, stored)
        except (WaystationError, KeyboardInterrupt):
            if stored.count or not arguments.message:
                note(f"{spell_count(stored.count, 'message')} stored before this")
            raise
    if arguments.json:
        print_json(
            {"queue": arguments.queue, "count": stored.count, "duplicates": stored.duplicates, "ids": stored.ids}
        )
        return 0
    one = f": {stored.ids[0]}" if len(stored.ids) == 1 else ""
    print(f"put {spell_count(stored.count, 'message')} into {arguments.queue}{one}")
    if stored.duplicates:
        note(
            f"{spell_count(stored.duplicates, 'message')} left out: their ids were used within the queue's dedup-window"
        )
    return 0


class _Stored:
    """What the queue took so far; ids only as long as there are few of them."""

    MOST_IDS = 1_000

    def __init__(self) -> None:
        self.count = 0
        self.duplicates = 0
        self.ids: list[str] = []

    def add(self, queue: Queue, messages: list[Any], arguments: argparse.Namespace, options: Any) -> None:
        stored = queue.put_many(messages, wait=arguments.wait, **options)
        self.count += len(stored)
        self.duplicates += len(stored.duplicates)
        self.ids = (self.ids + stored.ids)[: self.MOST_IDS]


def _check_put(arguments: argparse.Namespace) -> None:
    if arguments.message and arguments.file:
        raise Invalid("give messages or --file, not both")
    if arguments.id is not None and len(arguments.message) != 1:
        raise Invalid("--id is the id of one message: give that message, not lines or several")
    if arguments.delay is not None and arguments.deliver_at is not None:
        raise Invalid("give --delay or --deliver-at, not both")
    if arguments.input == "json" and message_options(arguments) != {"priority": 0}:
        raise Invalid(
            "--input json: each line says itself what its message is; leave out --key, --header, --priority, …"
        )


def _put_all(queue: Queue, arguments: argparse.Namespace, stored: _Stored) -> None:
    options: Any = {} if arguments.input == "json" else message_options(arguments)
    if arguments.id is not None:  # alone, so that an id that was used is an error and no footnote
        value = payload_of(os.fsencode(arguments.message[0]), arguments)
        stored.ids = [queue.put(value, wait=arguments.wait, **options)]
        stored.count = 1
        return
    gathered: list[Any] = []
    for line in _given(arguments):
        if line is not None:
            gathered.append(_from_json(line) if arguments.input == "json" else payload_of(line, arguments))
        if gathered and (line is None or len(gathered) >= PUT_AT_ONCE):
            stored.add(queue, gathered, arguments, options)
            gathered = []
    if gathered:
        stored.add(queue, gathered, arguments, options)


def _given(arguments: argparse.Namespace) -> Iterator[bytes | None]:
    """What to send, in order; None is a pause in the input."""
    if arguments.message:
        yield from (os.fsencode(text) for text in arguments.message)
        return
    from waystation.cli.messages.lines import lines_from

    yield from lines_from(arguments.file)


def _from_json(line: bytes) -> Outgoing:
    import json

    from waystation.message_json import from_sender

    try:
        return from_sender(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"a line is not a message in JSON ({error}); see `waystation queues get --json`") from None


# -- get ---------------------------------------------------------------------------------------------------------------


def _get(arguments: argparse.Namespace) -> int:
    if arguments.error is not None and arguments.then not in ("reject", "dead-letter"):
        raise Invalid("--error needs --then reject or --then dead-letter")
    spell = speller(arguments)
    left = arguments.count or (sys.maxsize if arguments.follow else 1)
    interrupt = Interrupt()
    kept: list[Message] = []
    taken, quiet_since = 0, time.monotonic()
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        while taken < left and not interrupt.came:
            wait_s = WAIT_S if arguments.follow else quiet_since + arguments.timeout - time.monotonic()
            wait_s = max(0.0, min(WAIT_S, wait_s))
            messages = queue.get_many(min(GET_AT_ONCE, left - taken), wait_s, hold=arguments.hold)
            if not messages and not arguments.follow and time.monotonic() - quiet_since >= arguments.timeout:
                break
            if messages:
                sys.stdout.buffer.write(b"".join([spell(message) for message in messages]))
                sys.stdout.buffer.flush()
                taken += len(messages)
                quiet_since = time.monotonic()
                kept += messages
            if arguments.then == "ack":  # the others might come again at once, so they have to wait
                _settle(kept, arguments)
        _settle(kept, arguments)
    if not taken and not arguments.follow:
        if interrupt.came:
            raise KeyboardInterrupt
        note(f"no message is ready in queue {arguments.queue}")
        return 1
    return 0


def _settle(messages: list[Message], arguments: argparse.Namespace) -> None:
    from waystation.client.sync.message import settle_many

    settle_many(messages, "kill" if arguments.then == "dead-letter" else arguments.then, arguments.error)
    messages.clear()


# -- looking -----------------------------------------------------------------------------------------------------------


def _peek(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        found = peek_on(queue, arguments.count, arguments.after, STATES[arguments.state])
        if arguments.json:
            for message in found:
                print_json(looked_json(message))
            return 0
        rows = [
            (
                message.tag,
                message.id,
                spell_state(message.state),
                wait_of(message),
                message.priority,
                message.deliveries,
                spell_age(taken_ms(message)),
                spell_bytes(len(message.payload)),
                preview(message.payload),
            )
            for message in found
        ]
    if rows:
        print_table(("tag", "id", "state", "ready in", "priority", "deliveries", "age", "size", "payload"), rows)
    else:
        state = "" if arguments.state == "any" else f"{spell_state(STATES[arguments.state])} "
        print(
            f"no {state}messages in {arguments.queue}" + (f" after {arguments.after}" if arguments.after >= 0 else "")
        )
    return 0


def _find(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        if arguments.queue is not None:
            found = queue_of(mq, arguments.queue).find(arguments.id)
        else:
            found = mq.find(arguments.id)
    if found is None:
        where = f"queue {arguments.queue!r} has no message" if arguments.queue else "there is no message"
        raise NotFound(
            f"{where} with the id {arguments.id!r}; it may have been acknowledged or deleted, or have expired, or it"
            " never existed"
        )
    if arguments.json:
        print_json(looked_json(found))
        return 0
    payload = spell_payload(found.payload, arguments.payload)
    print_fields(found)
    print(payload)
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    failed = 0
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        for message_id in arguments.id:
            cancelled = queue.cancel(message_id)
            failed += not cancelled
            if arguments.json:
                print_json({"queue": arguments.queue, "id": message_id, "cancelled": cancelled})
            elif cancelled:
                print(f"cancelled {message_id}")
            if not cancelled:
                held = queue.find(message_id) is not None
                why = "it is in flight" if held else f"it is not in queue {arguments.queue}"
                note(f"{message_id} was not cancelled: {why}")
    return 1 if failed else 0
