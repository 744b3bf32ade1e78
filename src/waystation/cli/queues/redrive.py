"""`waystation dead-letters redrive`: moves dead letters back to where they died, and says how far it is."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import examples, positive
from waystation.cli.terminal.native import dead_letters_in, open_client, queue_of
from waystation.cli.terminal.output import note, print_json, spell_count
from waystation.cli.terminal.progress import Progress, add_progress
from waystation.cli.terminal.units import rate
from waystation.errors import Invalid, NotFound

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.client.sync.queue import Queue
    from waystation.protocol import RedriveAnswer

EVERY_S = 0.25
TOPIC = "topic:"


def configure(verbs: Any) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    parser: argparse.ArgumentParser = verbs.add_parser(
        "redrive", help="move dead letters back to the queues and groups they died in"
    )
    parser.add_argument("queue", help="the dead-letter queue")
    parser.add_argument("--filter", metavar="EXPRESSION", help="only those that match")
    parser.add_argument("--id", metavar="ID", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--to", metavar="QUEUE", help="to this queue instead; topic:NAME is a topic")
    parser.add_argument("--limit", type=positive, metavar="N", help="maximum number of messages, the oldest first")
    parser.add_argument("--rate", type=rate, metavar="N", default=0.0, help="maximum number of messages per second")
    parser.add_argument("--dry-run", action="store_true", help="only say how many would be moved")
    add_progress(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation dead-letters redrive jobs.dead --dry-run",
        "waystation dead-letters redrive jobs.dead --filter \"headers.x-death[0].error like '%timeout%'\" --rate 50",
        "waystation dead-letters redrive jobs.dead --id resize-a --to jobs.careful",
    )
    return parser, _redrive


def _redrive(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        queue = dead_letters_in(mq, arguments.queue)
        _check_target(mq, arguments)
        wanted: dict[str, Any] = {
            "filter": arguments.filter,
            "ids": arguments.id,
            "limit": arguments.limit or 0,
        }
        if arguments.dry_run:
            answer = queue.redrive(arguments.to, dry_run=True, **wanted)
        else:
            answer = _send_back(queue, arguments, wanted)
    _report(arguments, answer)
    missing = min(len(set(arguments.id)), arguments.limit or sys.maxsize) - answer.matched
    if missing > 0 and not arguments.filter:
        raise NotFound(f"{missing} of the ids that --id names are not in queue {arguments.queue!r}, or are in flight")
    return 1 if answer.skipped else 0


def _check_target(mq: Client, arguments: argparse.Namespace) -> None:
    """A target that is not there would leave every dead letter where it is, and nothing would say why."""
    if arguments.to is None:
        return
    if arguments.to.startswith(TOPIC):
        mq.describe_topic(arguments.to.removeprefix(TOPIC))
    elif arguments.to == arguments.queue:
        raise Invalid(f"--to {arguments.to}: the dead letters are there already")
    else:
        queue_of(mq, arguments.to)


def _send_back(queue: Queue, arguments: argparse.Namespace, wanted: dict[str, Any]) -> RedriveAnswer:
    try:
        if Progress.of(arguments, queue.name).visible:
            return _with_progress(queue, arguments, wanted)
        return queue.redrive(arguments.to, rate=arguments.rate, **wanted)
    except KeyboardInterrupt:
        note("stopped: the messages that were redriven stay so, the others are still in the queue")
        raise


def _with_progress(queue: Queue, arguments: argparse.Namespace, wanted: dict[str, Any]) -> RedriveAnswer:
    """The redrive, and, for somebody who waits, a line that says how far it is."""
    total = queue.redrive(arguments.to, dry_run=True, **wanted).matched
    before = len(queue)
    with Progress.of(arguments, f"{queue.name}: redriven", total) as progress:
        work = _Work(lambda: queue.redrive(arguments.to, rate=arguments.rate, **wanted))
        while not work.done.wait(EVERY_S):
            # It goes by how many are left in the queue; others may put some in meanwhile.
            progress.set(max(0, min(total, before - len(queue))))
    return work.result()


class _Work:
    """A call on a thread of its own, which ends at the latest when the client is closed."""

    def __init__(self, call: Callable[[], RedriveAnswer]) -> None:
        self.done = threading.Event()
        self._call = call
        self._answer: RedriveAnswer | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="redrive", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self._error = error
        self.done.set()

    def result(self) -> RedriveAnswer:
        if self._answer is None:
            raise self._error or RuntimeError("the redrive ended without an answer")
        return self._answer


def _report(arguments: argparse.Namespace, answer: RedriveAnswer) -> None:
    if arguments.json:
        counts = {"matched": answer.matched, "moved": answer.moved, "skipped": answer.skipped}
        print_json({"queue": arguments.queue, "to": arguments.to, "dry_run": arguments.dry_run, **counts})
        return
    died = "it" if (answer.matched if arguments.dry_run else answer.moved) == 1 else "they"
    where = f"to {arguments.to}" if arguments.to else f"back to where {died} died"
    if arguments.dry_run:
        print(f"would move {spell_count(answer.matched, 'message')} of {arguments.queue} {where} (--dry-run)")
    elif not answer.matched:
        why = "has none that match" if arguments.filter or arguments.id else "is empty"
        print(f"nothing to redrive: {arguments.queue} {why}")
    else:
        print(f"moved {spell_count(answer.moved, 'message')} of {arguments.queue} {where}")
    if answer.skipped:
        note(
            f"{spell_count(answer.skipped, 'message')} stay in {arguments.queue}: they have no failure history, or the"
            " queue or group they died in was deleted, or only Kafka's share consumers use that group;"
            " --to QUEUE or --to topic:NAME moves them elsewhere"
        )
