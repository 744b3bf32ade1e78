"""`waystation cluster VERB`: the table of verbs. Each file that a row names adds the arguments and runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from waystation.cli.cluster import adopt, operations, status, up

VERBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "up": ("start a whole cluster on this machine, to try it", up.configure_up),
    "start-node": ("bring back a node of such a cluster", up.configure_start_node),
    "status": ("show nodes and partitions", status.configure),
    "drain": ("let other nodes lead what a node leads, before it is stopped", operations.configure_drain),
    "remove": ("move everything away from a node, and forget it once it has stopped", operations.configure_remove),
    "reassign": ("move replicas to other nodes, or change how many there are", operations.configure_reassign),
    "elect": ("make preferred replicas leaders; or, by name, one that is not in sync", operations.configure_elect),
    "adopt": ("make the data folder of a broker that was alone the first node of a cluster", adopt.configure),
}


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (help_text, configure_verb) in VERBS.items():
        configure_verb(verbs.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."))
