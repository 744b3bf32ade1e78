"""`waystation cluster adopt`: the data folder of a broker that was alone becomes the first node of a cluster."""

from __future__ import annotations

import argparse
import asyncio

from waystation.cli.terminal.arguments import not_negative
from waystation.cli.terminal.output import print_json, spell_count


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="DIR", help="the data folder; no broker may run on it")
    parser.add_argument("--node", required=True, type=not_negative, metavar="N", help="the id of the node")
    parser.add_argument("--cluster", required=True, metavar="URL", help="a new cluster: etcd://HOST:PORT/PREFIX")
    parser.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from waystation.broker.adopting import adopt
    from waystation.cluster.address import parse

    made = asyncio.run(adopt(arguments.data, arguments.node, parse(arguments.cluster)))
    if arguments.json:
        print_json(
            {
                "cluster_id": made.cluster_id,
                "node": arguments.node,
                "topics": made.topics,
                "partitions": made.partitions,
            }
        )
        return 0
    print(
        f"{arguments.data} is node {arguments.node} of the cluster {made.cluster_id} now, with"
        f" {spell_count(made.topics, 'topic')} and {spell_count(made.partitions, 'partition')}\n\n"
        f"start it:       waystation serve --data {arguments.data} --node {arguments.node} --cluster URL\n"
        "add nodes:      waystation serve --data DIR --node M --cluster URL\n"
        "copy to them:   waystation cluster reassign --replication-factor 3"
    )
    return 0
