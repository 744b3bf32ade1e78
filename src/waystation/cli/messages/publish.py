"""`waystation publish`: messages from the command line, a file or standard input into a topic."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import add_server, examples, not_negative, parse_pairs
from waystation.cli.terminal.native import open_client, topic_hint
from waystation.cli.terminal.output import note, print_json, spell_count
from waystation.errors import Invalid, WaystationError

if TYPE_CHECKING:
    from waystation.client.records.publishing import BatchLocation, OutgoingRecord, RecordPublisher


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="the topic")
    parser.add_argument("message", nargs="*", help="without any, each line of standard input is a message")
    parser.add_argument("--key", help="the key of all messages")
    parser.add_argument("--key-separator", metavar="TEXT", help="lines are KEY TEXT VALUE")
    parser.add_argument("--header", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    parser.add_argument("--partition", type=not_negative, metavar="N", help="default: by key, or in turn")
    parser.add_argument("--file", metavar="FILE", help="read lines from this file (-: standard input)")
    parser.add_argument("--input", choices=("lines", "json"), default="lines", help="json: as `consume --json` prints")
    parser.add_argument("--tombstone", action="store_true", help="a message without a value, which deletes --key")
    parser.add_argument("--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none")
    parser.add_argument("--acks", choices=("all", "1", "0"), default="all", help="default: all (stored safely)")
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation publish orders 'one message' 'another'",
        "waystation publish orders --key customer-7 --header source=web < order.txt",
        "waystation consume orders --json | waystation publish copy --input json",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from waystation.client.records.publishing import RecordPublisher

    _check(arguments)
    ranges = _Ranges()
    with open_client(arguments) as mq, topic_hint(arguments.topic, create=True):
        publisher = RecordPublisher(
            mq,
            arguments.topic,
            create=True,
            compression=arguments.compression,
            wait=arguments.acks != "0",
            on_placed=ranges.add,
        )
        try:
            _send_all(publisher, _messages(arguments))
        except (WaystationError, KeyboardInterrupt):
            note(f"{spell_count(publisher.acknowledged, 'message')} acknowledged before this")
            raise
    _report(arguments, publisher.acknowledged, ranges)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.message and arguments.file:
        raise Invalid("give messages or --file, not both")
    if arguments.tombstone and (arguments.message or arguments.file or arguments.key is None):
        raise Invalid("--tombstone needs --key and takes no message")
    if arguments.key_separator == "":
        raise Invalid("--key-separator cannot be empty")
    if arguments.key_separator and arguments.key is not None:
        raise Invalid("give --key or --key-separator, not both")


def _send_all(publisher: RecordPublisher, messages: Iterator[OutgoingRecord | None]) -> None:
    for message in messages:
        if message is None:
            publisher.flush()
        else:
            publisher.publish(message)
    publisher.flush()


def _messages(arguments: argparse.Namespace) -> Iterator[OutgoingRecord | None]:
    """What to send, in order; None is a pause in the input."""
    from waystation.cli.messages.lines import lines_from
    from waystation.cli.messages.message_json import from_json
    from waystation.client.records.publishing import OutgoingRecord

    headers = tuple((name, value.encode()) for name, value in parse_pairs(arguments.header, "--header"))
    key = None if arguments.key is None else os.fsencode(arguments.key)
    separator = None if arguments.key_separator is None else os.fsencode(arguments.key_separator)

    def plain(line: bytes) -> OutgoingRecord:
        if separator is None:
            return OutgoingRecord(line, key, headers, arguments.partition)
        own_key, found, value = line.partition(separator)
        if not found:
            raise Invalid(f"a line has no {arguments.key_separator!r} (--key-separator) in it")
        return OutgoingRecord(value, own_key, headers, arguments.partition)

    def from_line(line: bytes) -> OutgoingRecord:
        return from_json(line, arguments.partition)

    make: Callable[[bytes], OutgoingRecord] = from_line if arguments.input == "json" else plain
    if arguments.tombstone:
        yield OutgoingRecord(None, key, headers, arguments.partition)
    elif arguments.message:
        yield from (make(os.fsencode(text)) for text in arguments.message)
    else:
        yield from (None if line is None else make(line) for line in lines_from(arguments.file))


class _Ranges:
    """Where messages went, with neighbouring batches joined so that a million of them print as a few lines."""

    def __init__(self) -> None:
        self.all: list[list[int]] = []
        self._last: dict[int, list[int]] = {}

    def add(self, placed: BatchLocation) -> None:
        last = self._last.get(placed.partition)
        if last is not None and last[1] + last[2] == placed.base_offset:
            last[2] += placed.count
            return
        self._last[placed.partition] = entry = [placed.partition, placed.base_offset, placed.count]
        self.all.append(entry)


def _report(arguments: argparse.Namespace, count: int, ranges: _Ranges) -> None:
    if arguments.json:
        places = [{"partition": p, "first_offset": base, "last_offset": base + n - 1} for p, base, n in ranges.all]
        print_json({"topic": arguments.topic, "count": count, "offsets": places})
        return
    spelled = [f"partition {p} offset {base}" + (f"–{base + n - 1}" if n > 1 else "") for p, base, n in ranges.all]
    shown = ", ".join(spelled[:4]) + (", …" if len(spelled) > 4 else "")
    print(f"published {spell_count(count, 'message')} to {arguments.topic}" + (f": {shown}" if shown else ""))
