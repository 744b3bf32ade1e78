"""`waystation export`: the messages of a topic or a queue into a file, byte for byte.

Nothing is taken: a topic is read up to where it ended, a queue is looked at. With `--drain` a queue's messages are
taken out, and acknowledged only after they are safe in the file: stopping it anywhere repeats at most, and never loses.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import add_server, examples, not_negative, positive
from waystation.cli.terminal.interrupt import Interrupt
from waystation.cli.terminal.native import open_client, peek_on, queue_of, topic_hint
from waystation.cli.terminal.output import note, print_json, spell_bytes, spell_count
from waystation.cli.terminal.progress import Progress, add_progress
from waystation.cli.transfer.row_files import FORMATS, PARQUET, RowWriter, format_of, open_writer
from waystation.cli.transfer.rows import QueueRow, Row, TopicRow
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.consuming.looked import Looked
    from waystation.client.records.offsets import TopicPartition
    from waystation.client.sync.client import Client
    from waystation.client.sync.message import Message
    from waystation.client.sync.queue import Queue

AT_ONCE = 1_000
WAIT_MS = 250
DRAIN_AT_ONCE = 500


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", help="the topic; or --queue")
    parser.add_argument(
        "--queue", metavar="QUEUE", help="export a queue instead: all its messages, also delayed and in flight"
    )
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of FILE: .parquet, else JSON lines")
    parser.add_argument("--overwrite", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--from", dest="start", metavar="POSITION", help="of a topic: as for `consume` (default: earliest)"
    )
    parser.add_argument("--to", dest="end", metavar="POSITION", help="of a topic: up to there (default: latest)")
    parser.add_argument(
        "--partition",
        type=not_negative,
        metavar="N",
        action="append",
        help="of a topic: only this one; may be repeated",
    )
    parser.add_argument("--count", type=positive, metavar="N", help="maximum number of messages")
    parser.add_argument("--drain", action="store_true", help="take the messages out of the queue; needs --out")
    add_progress(parser)
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation export orders --out orders.jsonl",
        "waystation export orders --from 1d --out orders.parquet",
        "waystation export --queue jobs.dead --drain --out dead.jsonl",
        "waystation import orders.jsonl --to copy --keep-timestamps",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    form = format_of(arguments.out, arguments.format)
    if arguments.drain and form == PARQUET:
        raise Invalid("--drain writes JSON lines: a Parquet file is safe only when it is complete")
    interrupt = Interrupt()
    if arguments.queue is None:
        count = _export_topic(arguments, form, interrupt)
    elif arguments.drain:
        count = _drain(arguments, interrupt)
    else:
        count = _export_queue(arguments, form, interrupt)
    if interrupt.came:
        raise KeyboardInterrupt
    _report(arguments, form, count)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.topic is None) == (arguments.queue is None):
        raise Invalid("give a topic or --queue QUEUE")
    if arguments.queue is None and arguments.drain:
        raise Invalid("--drain is for queues: messages of a topic stay until its retention removes them")
    if arguments.queue is not None and (arguments.start or arguments.end or arguments.partition):
        raise Invalid("--from, --to and --partition are for topics; a queue has --count")
    if arguments.drain and arguments.out is None:
        raise Invalid("--drain needs --out FILE: messages are acknowledged only when they are safe in a file")
    if arguments.drain and arguments.overwrite:
        raise Invalid("--drain never writes over a file: an earlier one may be all that is left of its messages")


def _report(arguments: argparse.Namespace, form: str, count: int) -> None:
    what = arguments.queue or arguments.topic
    if arguments.out is None:
        return
    size = os.path.getsize(arguments.out)
    if arguments.json:
        kind = "topic" if arguments.queue is None else "queue"
        print_json({kind: what, "file": arguments.out, "format": form, "count": count, "bytes": size})
    else:
        print(f"exported {spell_count(count, 'message')} of {what} to {arguments.out} ({spell_bytes(size)})")


def _progress(arguments: argparse.Namespace, what: str, total: int) -> Progress:
    """None where the messages themselves go to the terminal."""
    mixed = arguments.out is None and sys.stdout.isatty()
    return Progress(what, total, quiet=arguments.quiet or mixed, lines=arguments.progress)


def _save(rows: Iterator[Row], writer: RowWriter, progress: Progress, interrupt: Interrupt) -> int:
    """Writes all of them; a file that could not be finished is deleted again."""
    count = 0
    try:
        while not interrupt.came:
            block = list(islice(rows, AT_ONCE))
            if not block:
                break
            writer.write(block)
            count += len(block)
            progress.advance(len(block))
    except BaseException:
        writer.give_up()
        raise
    if interrupt.came:
        writer.give_up()
    else:
        writer.finish()
    return count


# -- a topic -----------------------------------------------------------------------------------------------------------


def _export_topic(arguments: argparse.Namespace, form: str, interrupt: Interrupt) -> int:
    with open_client(arguments) as mq:
        starts, ends = _span(arguments, mq)
        total = sum(ends[place] - start for place, start in starts.items())
        total = total if arguments.count is None else min(total, arguments.count)
        writer = open_writer(arguments.out, form, TopicRow, overwrite=arguments.overwrite, keep=False)
        rows = islice(_records(mq, starts, ends, interrupt), arguments.count)
        with _progress(arguments, arguments.topic, total) as progress:
            return _save(rows, writer, progress, interrupt)


def _span(arguments: argparse.Namespace, mq: Client) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """From which offset on, and up to which, in each partition that has something."""
    from waystation.client.records.offsets import EARLIEST, LATEST, offsets_at

    topic: str = arguments.topic
    with topic_hint(topic):
        starts, ends = (offsets_at(mq, topic, at) for at in (arguments.start or EARLIEST, arguments.end or LATEST))
    strange = [number for number in arguments.partition or () if number not in starts]
    if strange:
        raise Invalid(f"topic {topic!r} has no partition {strange[0]}: it has {len(starts)}, counted from 0")
    numbers = sorted(set(arguments.partition or starts))
    # What is behind an open transaction cannot be read yet.
    last = {(topic, number): min(ends[number].offset, ends[number].stable) for number in numbers}
    first = {(topic, number): starts[number].offset for number in numbers}
    return {place: offset for place, offset in first.items() if offset < last[place]}, last


def _records(
    mq: Client, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], interrupt: Interrupt
) -> Iterator[TopicRow]:
    from waystation.client.records.reading import RecordReader

    reader = RecordReader(mq)
    reader.assign(starts)
    while reader.positions and not interrupt.came:
        for message in reader.poll(WAIT_MS):
            record = message.record
            if record.offset < ends[message.topic, message.partition]:
                yield TopicRow(
                    topic=message.topic,
                    partition=message.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
        reader.assign({place: offset for place, offset in reader.positions.items() if offset < ends[place]})


# -- a queue -----------------------------------------------------------------------------------------------------------


def _export_queue(arguments: argparse.Namespace, form: str, interrupt: Interrupt) -> int:
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        total = len(queue) if arguments.count is None else min(len(queue), arguments.count)
        writer = open_writer(arguments.out, form, QueueRow, overwrite=arguments.overwrite, keep=False)
        rows = (_looked_row(queue, message) for message in peek_on(queue, arguments.count))
        with _progress(arguments, arguments.queue, total) as progress:
            return _save(rows, writer, progress, interrupt)


def _drain(arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)
        ready = queue.describe().ready
        wanted = sys.maxsize if arguments.count is None else arguments.count
        form = format_of(arguments.out, arguments.format)
        writer = open_writer(arguments.out, form, QueueRow, overwrite=False, keep=True)
        count = 0
        try:
            with _progress(arguments, arguments.queue, min(ready, wanted)) as progress:
                while count < wanted and not interrupt.came:
                    messages = queue.get_many(min(DRAIN_AT_ONCE, wanted - count), 0)
                    if not messages:
                        break
                    writer.write([_taken_row(queue, message) for message in messages])
                    queue.ack_many(messages)
                    count += len(messages)
                    progress.set(count)
        finally:
            writer.finish()
        left = queue.describe()
    if interrupt.came:
        note(f"stopped: {spell_count(count, 'message')} are in {arguments.out}, the others in the queue")
    elif left.parked or left.held:
        note(f"left in the queue: {left.parked} delayed (not due yet), {left.held} in flight")
    return count


def _looked_row(queue: Queue, message: Looked) -> QueueRow:
    ready_at = message.ready_at
    return QueueRow(
        queue=queue.name,
        message=message.delivered.message,
        tag=message.tag,
        taken_ms=message.delivered.taken_ms,
        deliveries=message.deliveries,
        state=message.state,
        ready_at_ms=None if ready_at is None else round(ready_at.timestamp() * 1000),
    )


def _taken_row(queue: Queue, message: Message) -> QueueRow:
    delivered = message.delivered
    return QueueRow(
        queue=queue.name,
        message=delivered.message,
        tag=delivered.tag,
        taken_ms=delivered.taken_ms,
        deliveries=delivered.deliveries,
    )
