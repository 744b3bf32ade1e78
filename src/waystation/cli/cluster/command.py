"""`waystation cluster VERB`: the table of verbs. Each file that a row names adds the arguments and runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from waystation.cli.cluster import adopt, operations, status, up

VERBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "up": ("start a trial cluster on this machine", up.configure_up),
    "start-node": ("restart a node of a trial cluster", up.configure_start_node),
    "status": ("show nodes and partitions", status.configure),
    "drain": ("move leadership away from a node, before you stop it", operations.configure_drain),
    "remove": ("move all replicas away from a node, and remove it once it has stopped", operations.configure_remove),
    "reassign": ("move replicas to other nodes, or change how many there are", operations.configure_reassign),
    "elect": (
        "elect preferred leaders; or, for one partition, a replica that is not in sync",
        operations.configure_elect,
    ),
    "adopt": ("turn the data folder of a single broker into the first node of a cluster", adopt.configure),
}


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (help_text, configure_verb) in VERBS.items():
        configure_verb(verbs.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."))
