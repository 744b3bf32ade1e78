"""`waystation consume`: messages of topics on standard output, alone or as a member of a group.

Without `--follow` it reads up to where the topics ended when it began, and stops. With `--group` an offset is committed
only after the messages before it were written out, so stopping it anywhere repeats at most, and never skips. With
`--follow` it outlives its connection: it waits until there is another one, and goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from waystation.cli.messages.template import DEFAULT, compile_template
from waystation.cli.terminal.arguments import add_server, examples, not_negative, positive
from waystation.cli.terminal.interrupt import Interrupt
from waystation.cli.terminal.native import open_client, topic_of
from waystation.cli.terminal.output import json_line, note
from waystation.cli.terminal.units import duration
from waystation.errors import ConnectionLost, Invalid, Unavailable

if TYPE_CHECKING:
    from waystation.client.records.offsets import TopicPartition
    from waystation.client.records.reading import IncomingRecord
    from waystation.client.sync.client import Client

WAIT_MS = 250
"""How long a read waits for the first message: also how soon a stop, a new assignment or the end is noticed."""

UNASSIGNED_S = 10.0
"""Without --follow and --timeout, how long a group member waits for the broker to give it a partition."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="+", help="the topics")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        default="earliest",
        help="earliest (default), latest (implies --follow), an offset, -N (the last N of each partition), "
        "a time like 2026-03-01T12:00, an age like 15m; in a group: where nothing is committed yet",
    )
    parser.add_argument(
        "--group", metavar="NAME", help="share the partitions with the group's other members, and commit"
    )
    parser.add_argument(
        "--partition", type=not_negative, metavar="N", action="append", help="only this one; may be repeated"
    )
    parser.add_argument("--follow", action="store_true", help="wait for more at the end")
    parser.add_argument("--count", type=positive, metavar="N", help="stop after N messages")
    parser.add_argument("--timeout", type=duration, metavar="TIME", help="stop when no message arrived for this time")
    parser.add_argument("--format", metavar="TEXT", help=r"default: {value}\n; fields in braces, see the examples")
    parser.add_argument("--uncommitted", action="store_true", help="also messages of open and aborted transactions")
    parser.add_argument("--expired", action="store_true", help="also messages whose time to live is over")
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation consume orders --from 15m --follow",
        "waystation consume orders --group billing --count 100",
        r"waystation consume orders --format '{time} {partition}/{offset} {key}: {value}\n'",
        "fields: topic partition offset timestamp time key value headers",
    )
    parser.set_defaults(run=_run)


class _Source(Protocol):
    """What both ways of reading have in common."""

    @property
    def positions(self) -> dict[TopicPartition, int]: ...

    @property
    def connected(self) -> bool: ...

    def resume(self) -> None:
        """After a lost connection, when there is another one."""

    def poll(self, wait_ms: int) -> Iterator[IncomingRecord]: ...


def _run(arguments: argparse.Namespace) -> int:
    spell = _speller(arguments)
    output = sys.stdout.buffer
    interrupt = Interrupt()
    with open_client(arguments) as mq:
        source, close = _source(arguments, mq, output.flush)
        stop = _Stop(arguments, mq, source)
        while not stop.reached() and not interrupt.came:
            try:
                for message in source.poll(WAIT_MS):
                    output.write(spell(message))
                    if stop.saw() or interrupt.came:
                        break
            except ConnectionLost:
                output.flush()
                if not stop.follow:
                    raise
                _come_back(source, lambda: interrupt.came or stop.reached())
            output.flush()
        try:
            close()
        except ConnectionLost:
            if not interrupt.came:
                raise
            note("not connected, so the last offsets are not committed: the group reads those messages again")
    if interrupt.came and not stop.follow:
        raise KeyboardInterrupt
    return 0


def _come_back(source: _Source, given_up: Callable[[], bool]) -> None:
    """Returns when the source can be read again, or nobody wants to. The client itself looks for the broker, and has
    said on standard error that it does."""
    while not given_up():
        if source.connected:
            try:
                source.resume()
            except Unavailable:  # it was lost again, or the broker is not ready for groups yet
                pass
            else:
                note("connected again")
                return
        time.sleep(WAIT_MS / 1000)


def _speller(arguments: argparse.Namespace) -> Callable[[IncomingRecord], bytes]:
    if not arguments.json:
        return compile_template(DEFAULT if arguments.format is None else arguments.format)
    if arguments.format is not None:
        raise Invalid("give --format or --json, not both")
    from waystation.cli.messages.message_json import to_json

    return lambda message: json_line(to_json(message)).encode() + b"\n"


def _source(arguments: argparse.Namespace, mq: Client, flush: Callable[[], None]) -> tuple[_Source, Callable[[], None]]:
    """Where messages come from, and what to do at the end."""
    from waystation.client.records.group_reading import GroupReader
    from waystation.client.records.offsets import resolve, spelled
    from waystation.client.records.reading import RecordReader
    from waystation.topics.partitions.start_position import parse_start

    start = spelled(arguments.start, parse_start(arguments.start, time.time_ns() // 1_000_000))
    topics = list(dict.fromkeys(arguments.topic))
    if arguments.group is not None:
        if arguments.partition:
            raise Invalid("--partition cannot be used with --group: in a group the broker says who reads which")
        for name in topics:
            topic_of(mq, name, create=True)
        which = {"uncommitted": arguments.uncommitted, "expired": arguments.expired}
        member = GroupReader(mq, arguments.group, topics, start, **which, before_commit=flush)
        return member, member.close
    places = [
        (name, number)
        for name in topics
        for number in _wanted(name, range(len(topic_of(mq, name, create=True).partitions)), arguments.partition)
    ]
    reader = RecordReader(mq, uncommitted=arguments.uncommitted, expired=arguments.expired, resend=False)
    reader.assign(resolve(mq, start, places))
    return reader, lambda: None


def _wanted(topic: str, there: Iterable[int], asked: list[int] | None) -> list[int]:
    numbers = list(there)
    strange = [number for number in asked or () if number not in numbers]
    if strange:
        raise Invalid(f"topic {topic!r} has no partition {strange[0]}: it has {len(numbers)}, counted from 0")
    return sorted(set(asked)) if asked else numbers


class _Stop:
    """When enough was read: N messages, silence for too long, or the end as it was when reading began."""

    def __init__(self, arguments: argparse.Namespace, mq: Client, source: _Source) -> None:
        self.follow: bool = arguments.follow or arguments.start in ("latest", "end")
        self._left: int | None = arguments.count
        self._committed = not arguments.uncommitted
        self._timeout_s: float | None = arguments.timeout
        self._mq = mq
        self._source = source
        self._ends: dict[TopicPartition, int] = {}
        self._quiet_since = time.monotonic()

    def saw(self) -> bool:
        """Counts a message; True if it was the last one wanted."""
        self._quiet_since = time.monotonic()
        if self._left is not None:
            self._left -= 1
        return self._left == 0

    def reached(self) -> bool:
        if self._left == 0:
            return True
        quiet_s = time.monotonic() - self._quiet_since
        if self._timeout_s is not None and quiet_s >= self._timeout_s:
            return True
        return not self.follow and self._at_end(quiet_s)

    def _at_end(self, quiet_s: float) -> bool:
        from waystation.client.records.offsets import offsets_at

        positions = self._source.positions
        if not positions:
            return self._timeout_s is None and quiet_s >= UNASSIGNED_S
        new = positions.keys() - self._ends.keys()
        for topic in sorted({topic for topic, _ in new}):
            for index, bounds in offsets_at(self._mq, topic).items():
                if (topic, index) in new:
                    self._ends[topic, index] = bounds.stable if self._committed else bounds.end
        return all(position >= self._ends[place] for place, position in positions.items())
