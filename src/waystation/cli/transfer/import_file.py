"""`waystation import`: messages of a file that `export` wrote into a topic or a queue.

They go in blocks, in the order of the file, and the next block begins when all of the one before is durable. So after a
failure the number of messages that are surely stored is a beginning of the file, and `--skip` goes on behind it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import add_server, examples, not_negative
from waystation.cli.terminal.native import open_client, queue_of, topic_hint
from waystation.cli.terminal.output import note, print_json, spell_count
from waystation.cli.terminal.progress import Progress, add_progress
from waystation.cli.terminal.units import rate
from waystation.cli.transfer.row_files import FORMATS, RowReader
from waystation.errors import Invalid, WaystationError

if TYPE_CHECKING:
    from waystation.cli.transfer.rows import Row

BLOCK_ROWS = 1_000
BLOCK_BYTES = 4 * 1024 * 1024
PACE_S = 0.25
"""With --rate a block is what goes in this time."""

Store = Callable[[list["Row"]], "StoredBlock"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="as `export` wrote it; -: JSON lines from standard input")
    parser.add_argument("--to", metavar="TOPIC", help="the topic")
    parser.add_argument("--queue", metavar="QUEUE", help="a queue instead")
    parser.add_argument("--format", choices=FORMATS, help="default: by the file's content")
    parser.add_argument(
        "--keep-timestamps",
        action="store_true",
        help="topics: each message's own time; queues: due when it was due, ends when it would have ended",
    )
    parser.add_argument("--keep-partitions", action="store_true", help="each to the partition that it was in")
    parser.add_argument("--skip", type=not_negative, metavar="N", default=0, help="leave out the first N messages")
    parser.add_argument("--rate", type=rate, metavar="N", help="maximum number of messages per second")
    add_progress(parser)
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation import orders.jsonl --to copy --keep-timestamps --keep-partitions",
        "waystation import dead.jsonl --queue jobs --rate 50",
    )
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """What became of a block."""

    count: int
    duplicates: int = 0
    expired: int = 0


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    reader = RowReader(arguments.file, arguments.format)
    work = _Import(arguments, reader)
    with _into_topic(arguments) if arguments.queue is None else _into_queue(arguments) as store:
        work.run(store)
    _report(arguments, work)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.to is None) == (arguments.queue is None):
        raise Invalid("say where to: --to TOPIC or --queue QUEUE")
    if arguments.queue is not None and arguments.keep_partitions:
        raise Invalid("--keep-partitions is for topics: a queue has none")


class _Import:
    """The way from the file to the store, block by block."""

    def __init__(self, arguments: argparse.Namespace, reader: RowReader) -> None:
        self._arguments = arguments
        self._reader = reader
        self.read = 0  # rows of the file that are done with, those that were skipped not counted
        self.stored = 0
        self.duplicates = 0
        self.expired = 0

    def run(self, store: Store) -> None:
        arguments = self._arguments
        wrong: Invalid | None = None
        rows = self._reader.rows(arguments.skip)
        began = time.monotonic()
        with Progress.of(arguments, arguments.queue or arguments.to) as progress:
            while wrong is None:
                block, wrong = self._next(rows)
                if not block:
                    break
                self._store(store, block)
                progress.advance(len(block), self._reader.share)
                if arguments.rate:
                    time.sleep(max(0.0, began + self.read / arguments.rate - time.monotonic()))
        if wrong is not None:
            self._say_how_far("")
            raise wrong

    def _next(self, rows: Iterator[Row]) -> tuple[list[Row], Invalid | None]:
        try:
            return _block(rows, self._arguments.rate)
        except KeyboardInterrupt:
            self._say_how_far("")
            raise

    def _store(self, store: Store, block: list[Row]) -> None:
        try:
            done = store(block)
        except (WaystationError, OSError, KeyboardInterrupt):
            self._say_how_far(f", and of the next {len(block)} perhaps some")
            raise
        self.read += len(block)
        self.stored += done.count
        self.duplicates += done.duplicates
        self.expired += done.expired

    def _say_how_far(self, besides: str) -> None:
        behind = self._arguments.skip + self.read
        note(f"{spell_count(self.stored, 'message')} stored{besides}; --skip {behind} continues after them")


def _block(rows: Iterator[Row], per_s: float | None) -> tuple[list[Row], Invalid | None]:
    """The next rows; and the reason if the one behind them is wrong."""
    most = BLOCK_ROWS if per_s is None else max(1, min(BLOCK_ROWS, int(per_s * PACE_S)))
    block: list[Row] = []
    size = 0
    try:
        for row in rows:
            block.append(row)
            size += _size_of(row)
            if len(block) >= most or size >= BLOCK_BYTES:
                break
    except Invalid as error:
        return block, error
    return block, None


def _size_of(row: Row) -> int:
    from waystation.cli.transfer.rows import TopicRow

    return len(row.value or b"") if isinstance(row, TopicRow) else len(row.message.payload)


@contextmanager
def _into_topic(arguments: argparse.Namespace) -> Iterator[Store]:
    from waystation.client.records.publishing import RecordPublisher

    keep, where = arguments.keep_timestamps, arguments.keep_partitions
    with open_client(arguments) as mq:
        with topic_hint(arguments.to, create=True):
            # Made on the spot it would have as many partitions as the broker likes, not as many as the file has.
            publisher = RecordPublisher(mq, arguments.to, create=not where)

        def store(block: list[Row]) -> StoredBlock:
            for row in block:
                publisher.publish(row.as_record(keep_timestamp=keep, keep_partition=where))
            publisher.flush()
            return StoredBlock(len(block))

        yield store


@contextmanager
def _into_queue(arguments: argparse.Namespace) -> Iterator[Store]:
    with open_client(arguments) as mq:
        queue = queue_of(mq, arguments.queue)

        def store(block: list[Row]) -> StoredBlock:
            now_ms = time.time_ns() // 1_000_000
            made = [row.as_message(now_ms, keep_times=arguments.keep_timestamps) for row in block]
            alive = [message for message in made if message is not None]
            stored = queue.put_many(alive) if alive else None
            kept, twice = (0, 0) if stored is None else (len(stored), len(stored.duplicates))
            return StoredBlock(kept, twice, len(made) - len(alive))

        yield store


def _report(arguments: argparse.Namespace, work: _Import) -> None:
    where = arguments.queue or arguments.to
    if arguments.json:
        kind = "topic" if arguments.queue is None else "queue"
        counts = {"count": work.stored, "duplicates": work.duplicates, "expired": work.expired}
        print_json({"file": arguments.file, kind: where, "skipped": arguments.skip, **counts})
        return
    print(f"imported {spell_count(work.stored, 'message')} of {arguments.file} into {where}")
    if work.duplicates:
        note(f"{spell_count(work.duplicates, 'message')} left out: their ids were used within the queue's dedup-window")
    if work.expired:
        note(f"{spell_count(work.expired, 'message')} left out: their time was over (--keep-timestamps)")
