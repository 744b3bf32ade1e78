"""`waystation COMMAND …`: finds the command, loads its file, runs it, and turns errors into one sentence.

Only the chosen command's file is imported, since a broker that starts fast cannot pay for the others. A command
file has `configure(parser)`, which adds its arguments and sets `run`, a function from the parsed arguments to the exit
code: 0 done, 1 it could not be done, 2 it was asked wrongly.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from waystation.cli.terminal.parser import Parser, options_behind
from waystation.errors import WaystationError
from waystation.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("waystation.cli.server.serve", "start a broker"),
    "topics": ("waystation.cli.topics", "create, list, describe, alter and delete topics"),
    "groups": ("waystation.cli.groups", "list, describe, reset and delete consumer groups and share groups"),
    "publish": ("waystation.cli.messages.publish", "send messages to a topic"),
    "consume": ("waystation.cli.messages.consume", "read messages from topics"),
    "queues": (
        "waystation.cli.queues.queues",
        "create, list, describe, alter and delete queues; put, get and find messages",
    ),
    "dead-letters": ("waystation.cli.queues.dead_letters", "list, show, redrive and delete dead letters"),
    "subscribe": ("waystation.cli.messages.subscribe", "print messages of topics as they arrive, by pattern"),
    "request": ("waystation.cli.messages.request", "send a request to a name, and print the reply"),
    "pipeline": ("waystation.cli.pipelines.pipeline", "run, check, watch, stop and delete pipelines on Spark"),
    "status": ("waystation.cli.monitoring.status", "show whether the broker is up and healthy, and what it stores"),
    "top": ("waystation.cli.monitoring.top", "show rates, topics and queues live in the terminal"),
    "connections": ("waystation.cli.monitoring.connections", "list, describe and close client connections"),
    "delayed": ("waystation.cli.queues.delayed", "list, describe and cancel messages that are not due yet"),
    "bench": ("waystation.cli.monitoring.bench", "measure the throughput and latency of a running broker"),
    "demo": ("waystation.cli.server.demo", "start a broker with a small demo shop running on it"),
    "exchanges": ("waystation.cli.exchanges", "create, list, describe and bind exchanges"),
    "namespaces": ("waystation.cli.namespaces", "create, list, describe, alter and delete namespaces (virtual hosts)"),
    "policies": ("waystation.cli.policies", "set, list, describe and delete policies of queues and exchanges"),
    "export": ("waystation.cli.transfer.export", "write the messages of a topic or a queue to a file"),
    "import": ("waystation.cli.transfer.import_file", "write the messages of an exported file into a topic or a queue"),
    "config": ("waystation.cli.server.config", "show, check and change the configuration of a broker"),
    "context": ("waystation.cli.context", "name brokers, and choose the one that commands connect to"),
    "cluster": ("waystation.cli.cluster.command", "start a trial cluster; watch and operate a cluster"),
    "doctor": ("waystation.cli.doctor.command", "check whether this machine is ready to run a broker"),
    "tls": ("waystation.cli.security.tls", "create certificates for trying out TLS"),
    "encryption": (
        "waystation.cli.security.encryption",
        "create, rotate and show the keys of an encrypted data folder",
    ),
    "acls": ("waystation.cli.security.acls", "add, list and remove permissions (ACLs)"),
    "audit": ("waystation.cli.security.audit", "show the audit log: logins, refusals and changes"),
    "quotas": ("waystation.cli.security.quotas", "limit the rates of users, clients, addresses and namespaces"),
    "keys": ("waystation.cli.security.keys", "add, list and remove API keys"),
    "users": ("waystation.cli.security.users", "add, list and remove users, and change their passwords"),
    "completion": ("waystation.cli.completion.command", "print a script that completes commands in your shell"),
    "lost": ("waystation.cli.lost", "list, restore and delete topic folders that are not in the catalog"),
    "log": ("waystation.cli.log_files", "inspect and repair the log files of a stopped broker"),
}

FAILED = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and words[:1] == ["serve"]:
        # Nothing that a start makes is garbage, and looking for it takes a tenth of the time to the first message
        # (30 of 330 ms). `serve` turns it on again when it is ready.
        gc.disable()
    words = options_behind(words)
    arguments = build_parser(words).parse_args(words)
    try:
        if "context" in arguments:
            from waystation.cli.contexts import choose_server, note_ignored

            note_ignored(arguments)
            if "server" not in arguments:
                arguments.chosen_server = choose_server(arguments)
                arguments.server = arguments.chosen_server.server
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except WaystationError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (`| head`) has enough. Python would complain while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        return _fail(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error))


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the one command that `words` begin with: one for each of the others takes 6 ms, and nobody sees
    them. No words: the whole parser, with the arguments of all commands; other words: what says what there is."""
    chosen = words[0] if words and words[0] in COMMANDS else None
    parser = Parser(
        prog="waystation",
        description="A message broker for Python people.",
        epilog="`waystation COMMAND --help` says more. --server, --context and --json may come before COMMAND, too.",
    )
    parser.add_argument("--version", action="version", version=f"waystation {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, help_text) in COMMANDS.items():
        if chosen not in (None, name):
            continue
        command = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        if name == chosen or not words:
            import_module(module).configure(command)
    return parser


def _fail(sentence: str) -> int:
    sys.stdout.flush()
    print(f"waystation: {sentence}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
