"""`waystation completion`: scripts for shells, and the names that those scripts ask for.

Names are asked for while somebody waits for the Tab key: one line of JSON over a plain socket, no client library, a
second at most. Whatever goes wrong, there are no names, and not a word about it.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from typing import Any

from waystation.cli.completion.tree import NAMES
from waystation.cli.terminal.arguments import DEFAULT_SERVER, KAFKA_PORT, examples
from waystation.cli.terminal.output import print_json
from waystation.errors import Invalid, WaystationError

SHELLS = ("bash", "zsh", "fish")
WAIT_S = 1.0
MOST = 1_000
MOST_BYTES = 16 * 1024 * 1024

_WHERE = {
    "topics": ("topics", "topic"),
    "queues": ("queues", "queue"),
    "groups": ("groups", "group"),
    "exchanges": ("routing", "name"),
    "namespaces": ("namespaces", "namespace"),
    "policies": ("policies", "policy"),
    "pipelines": ("pipelines", "pipeline"),
}
"""The view that has such names, and the field."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS)
    parser.add_argument("--names", choices=NAMES, help="print names that the broker knows; what the scripts call")
    parser.add_argument("--search", metavar="TEXT", default="", help="with --names: only those that begin with this")
    parser.add_argument("--server", metavar="HOST:PORT", help="with --names: the broker's Kafka listener")
    parser.add_argument("--json", action="store_true", help="print the completions, or the names, as JSON")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        'eval "$(waystation completion bash)"     # in ~/.bashrc',
        "waystation completion fish > ~/.config/fish/completions/waystation.fish",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.names is not None:
        found = names(_server(arguments), arguments.names, arguments.search)
        if arguments.json:
            print_json({"name": name} for name in found)
        else:
            print("".join(f"{name}\n" for name in found), end="")
        return 0
    from waystation.cli.completion.scripts import script
    from waystation.cli.completion.tree import spots
    from waystation.cli.main import build_parser

    tree = list(spots(build_parser()))
    if arguments.json:
        import msgspec

        print_json(msgspec.to_builtins(tree))
    elif arguments.shell is None:
        raise Invalid(f"for which shell? Write `waystation completion {'|'.join(SHELLS)}`")
    else:
        print(script(arguments.shell, tree), end="")
    return 0


def _server(arguments: argparse.Namespace) -> str:
    from waystation.cli.contexts import choose_server

    try:
        return choose_server(arguments).server
    except (OSError, WaystationError):
        return DEFAULT_SERVER


def names(server: str, what: str, begins: str) -> list[str]:
    """What the broker has, as far as it says so within a second. Names that no line can show are left out."""
    view, field = _WHERE[what]
    try:
        query = {} if what == "pipelines" else {"search": begins, "limit": MOST}
        answer = _ask(server, {"action": "view", "what": view, "query": query})
        rows = answer["value"][what]
        found = sorted(str(row.get(field) or "") for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Invalid):
        return []
    return [name for name in found if name.startswith(begins) and name and name.isprintable()]


def _ask(server: str, question: dict[str, object]) -> Any:
    from waystation.client.links.address import parse_address

    address = parse_address(server.partition(",")[0], default_port=KAFKA_PORT)
    deadline = time.monotonic() + WAIT_S
    with socket.create_connection((address.host, address.port), timeout=WAIT_S) as connection:
        connection.sendall(json.dumps(question).encode() + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n") and len(answer) < MOST_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            more = connection.recv(65536)
            if not more:
                break
            answer += more
    return json.loads(answer)
