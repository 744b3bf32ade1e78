"""`waystation bench`: how fast this broker is from here, with this client: in, out, and one message at a time.

It makes a topic and a queue of its own on a running broker and deletes them in the end. The figures are of the Python
client and the machine as much as of the broker; `make bench` in the repository measures the broker beside its peers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from waystation.cli.terminal.arguments import add_server, positive
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import print_json, print_table
from waystation.cli.terminal.progress import Progress, add_progress
from waystation.errors import NotFound, RequestTimeout

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.client.sync.queue import Queue

PARTITIONS = 2
SLICE = 5_000
SINGLE = 500
"""How many messages are timed one by one."""
SILENT_S = 30.0


class Figure(msgspec.Struct, frozen=True):
    """One thing that was measured."""

    work: str
    messages: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0


def configure(parser: argparse.ArgumentParser) -> None:
    # Python 3.11 looks for the empty list among the choices when nothing is given; no help and no shell shows it.
    parser.add_argument("what", nargs="*", choices=("topic", "queue", []), metavar="topic|queue", help="default: both")
    parser.add_argument("--count", type=positive, metavar="N", default=100_000, help="messages (default: 100000)")
    parser.add_argument("--size", type=positive, metavar="BYTES", default=100, help="of a message (default: 100)")
    add_progress(parser)
    add_server(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    wanted = arguments.what or ["topic", "queue"]
    name = f"waystation-bench-{os.getpid()}"
    figures: list[Figure] = []
    if "topic" in wanted:
        figures += _topic(arguments, f"{name}-topic")
    if "queue" in wanted:
        figures += _queue(arguments, f"{name}-queue")
    if arguments.json:
        print_json([{**msgspec.to_builtins(figure), "per_s": round(figure.per_s, 1)} for figure in figures])
        return 0
    rows = [
        (one.work, one.messages, f"{one.per_s:,.0f}/s", _bytes(one, arguments.size), _ms(one.p50_ms), _ms(one.p99_ms))
        for one in figures
    ]
    print_table(["work", "messages", "rate", "bytes", "p50", "p99"], rows)
    return 0


def _bytes(figure: Figure, size: int) -> str:
    return f"{figure.per_s * size / 1e6:,.1f} MB/s"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} ms"


def _slices(count: int) -> Iterator[int]:
    for start in range(0, count, SLICE):
        yield min(SLICE, count - start)


def _timed(arguments: argparse.Namespace, work: str, count: int, run: Callable[[Progress], None]) -> Figure:
    with Progress.of(arguments, work, count) as progress:
        began = time.perf_counter()
        run(progress)
        return Figure(work, count, time.perf_counter() - began)


def _one_by_one(arguments: argparse.Namespace, work: str, run: Callable[[], object]) -> Figure:
    delays: list[float] = []
    with Progress.of(arguments, work, SINGLE) as progress:
        for _ in range(SINGLE):
            began = time.perf_counter()
            run()
            delays.append(time.perf_counter() - began)
            progress.advance()
    ordered = sorted(delay * 1000 for delay in delays)
    return Figure(work, SINGLE, sum(delays), statistics.median(ordered), ordered[int(len(ordered) * 0.99) - 1])


# -- a topic -----------------------------------------------------------------------------------------------------------


def _topic(arguments: argparse.Namespace, name: str) -> list[Figure]:
    from waystation.client.records.publishing import OutgoingRecord, RecordPublisher
    from waystation.client.records.reading import RecordReader

    with open_client(arguments) as mq:
        mq.create_topic(name, PARTITIONS)
        try:
            publisher = RecordPublisher(mq, name)
            record = OutgoingRecord(os.urandom(arguments.size))

            def publish(progress: Progress) -> None:
                for share in _slices(arguments.count):
                    for _ in range(share):
                        publisher.publish(record)
                    publisher.flush()
                    progress.advance(share)

            def one() -> None:
                publisher.publish(record)
                publisher.flush()

            def read(progress: Progress) -> None:
                reader = RecordReader(mq)
                reader.assign({(name, partition): 0 for partition in range(PARTITIONS)})
                heard_s = time.monotonic()
                while progress.done < arguments.count:
                    before = progress.done
                    progress.advance(sum(1 for _ in reader.poll(1000)))
                    heard_s = _still_heard(heard_s, progress.done > before)

            return [
                _timed(arguments, "publish to a topic", arguments.count, publish),
                _timed(arguments, "read it", arguments.count, read),
                _one_by_one(arguments, "publish one by one", one),
            ]
        finally:
            mq.delete_topic(name)


def _still_heard(heard_s: float, heard: bool) -> float:
    now = time.monotonic()
    if not heard and now - heard_s > SILENT_S:
        raise RequestTimeout(f"no message came for {SILENT_S:g} s; is the broker healthy? `waystation top` shows it")
    return now if heard else heard_s


# -- a queue -----------------------------------------------------------------------------------------------------------


def _queue(arguments: argparse.Namespace, name: str) -> list[Figure]:
    payload = os.urandom(arguments.size)
    with open_client(arguments) as mq, _own_queue(mq, name) as queue:

        def put(progress: Progress) -> None:
            for share in _slices(arguments.count):
                queue.put_many([payload] * share)
                progress.advance(share)

        def take(progress: Progress) -> None:
            heard_s = time.monotonic()
            while progress.done < arguments.count:
                taken = queue.get_many(1000, 1)
                queue.ack_many(taken)
                progress.advance(len(taken))
                heard_s = _still_heard(heard_s, bool(taken))

        return [
            _timed(arguments, "put into a queue", arguments.count, put),
            _timed(arguments, "take and ack", arguments.count, take),
            _one_by_one(arguments, "put one by one", lambda: queue.put(payload)),
        ]


@contextmanager
def _own_queue(mq: Client, name: str) -> Iterator[Queue]:
    queue = mq.queue(name)
    try:
        yield queue
    finally:
        try:
            queue.delete()
        except NotFound:
            pass
