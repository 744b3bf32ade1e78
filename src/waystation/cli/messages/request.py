"""`waystation request`: sends a request to a name, and prints the reply."""

from __future__ import annotations

import argparse
import os
import sys

from waystation.cli.messages.message_options import add_content, message_options, payload_of
from waystation.cli.messages.received import as_json
from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import note, print_json
from waystation.cli.terminal.units import duration
from waystation.errors import Invalid, NotFound

TIMEOUT_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the name that responders answer to: the queue of their requests")
    parser.add_argument("payload", nargs="?", help="the request; default: all of standard input")
    parser.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        default=TIMEOUT_S,
        help="how long to wait for the reply (default: 10s)",
    )
    parser.add_argument("--topic", action="store_true", help="NAME is a topic: the first reply is printed")
    add_content(parser)
    add_server(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation request sum '[1, 2, 3]' --timeout 2s", "waystation request convert < photo.png"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.timeout:
        raise Invalid("--timeout 0: a reply takes time; write 10s")
    data = os.fsencode(arguments.payload) if arguments.payload is not None else _standard_input()
    options = message_options(arguments)
    value = payload_of(data, arguments)
    with open_client(arguments) as mq:
        try:
            reply = mq.request(arguments.name, value, timeout=arguments.timeout, topic=arguments.topic, **options)
        except NotFound as error:
            raise NotFound(str(error)) from None
    if arguments.json:
        print_json(as_json(reply))
        return 0
    sys.stdout.buffer.write(reply.payload)
    if not reply.payload.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    return 0


def _standard_input() -> bytes:
    if sys.stdin.isatty():
        note("the request is what you type; Ctrl-D ends")
    return sys.stdin.buffer.read()
