"""`waystation cluster status`: the nodes of a cluster, and who has and leads which partition.

One node is asked for what all nodes agree on. Offsets are a leader's own, so each leader is asked for those, side by
side; one that does not answer soon is shown without them, since this is what operators look at when something hangs.
A node that answers and does not lead what the cluster's store says it leads (the store was put back from a backup, and
knows less than the logs) is not shown as the leader.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from waystation.cli.cluster.other_nodes import OtherNodes
from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.native import CLIENT_NAME, all_of, open_client
from waystation.cli.terminal.output import Cell, bold, note, print_json, print_table, spell_count
from waystation.errors import WaystationError

UNHEALTHY = 1
_SIDE_BY_SIDE = 16
_ANSWER_S = 3.0
"""For so long a leader is waited for."""

Partition = dict[str, Any]
PartitionName = tuple[str, int]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="NAME", default="", help="partitions of this topic only")
    parser.add_argument(
        "--which",
        choices=("all", "under-replicated", "offline", "moving"),
        default="all",
        help="under-replicated: not all replicas are in sync; offline: no leader; moving: being reassigned",
    )
    add_server(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        cluster = mq.view("cluster")
        # Which ones have no leader is known when those have answered that are named as leaders.
        query = {"topic": arguments.topic, "which": "all" if arguments.which == "offline" else arguments.which}
        partitions: list[Partition] = all_of(mq, "partitions", **query)
    query["which"] = "all"  # of a leader: what is under-replicated here need not be so there
    leaders = {one["leader"] for one in partitions} - {cluster["node"], None}
    others = [node for node in cluster["nodes"] if node["id"] in leaders and node["alive"]]
    reach = OtherNodes(arguments.server, cluster["nodes"])
    silent, not_led = _ask_leaders(partitions, cluster["node"], others, query, reach)
    cluster["offline"] += not_led
    if arguments.which == "offline":
        dead = {node["id"] for node in cluster["nodes"] if not node["alive"]}
        partitions = [one for one in partitions if one["leader"] is None or one["leader"] in dead]
    for node in cluster["nodes"]:
        node["answers"] = node["alive"] and node["id"] not in silent
    if arguments.json:
        print_json({**cluster, "partition_count": cluster["partitions"], "partitions": partitions})
    else:
        _print(cluster, partitions, reach.listener)
    return UNHEALTHY if cluster["offline"] else 0


# -- offsets of leaders -----------------------------------------------------------------------------------------------


def _ask_leaders(
    partitions: Sequence[Partition],
    asked: int,
    others: Sequence[dict[str, Any]],
    query: dict[str, Any],
    reach: OtherNodes,
) -> tuple[set[int], int]:
    """Puts the leaders' offsets in; where there is no leader, those of the node that was asked stay. Returns who
    did not answer, and how many partitions are not led by the one who is said to lead them."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        answers = list(pool.map(lambda node: _led_by(reach.address(node), query), others))
    silent = {node["id"] for node, answer in zip(others, answers, strict=True) if answer is None}
    known: dict[PartitionName, Partition] = {}
    for answer in answers:
        known |= answer or {}
    answered = {node["id"] for node in others} - silent
    not_led = 0
    for one in partitions:
        if one["leader"] == asked:
            continue
        led = known.get((one["topic"], one["partition"]))
        if led is not None:
            one["high_watermark"], one["log_end"] = led["high_watermark"], led["log_end"]
        elif one["leader"] in answered:
            one["leader"] = None
            not_led += 1
        elif one["leader"] is not None:
            one["high_watermark"] = one["log_end"] = None
    return silent, not_led


def _led_by(address: str | None, query: dict[str, Any]) -> dict[PartitionName, Partition] | None:
    """None: it did not answer."""
    import waystation

    if address is None:
        return None
    try:
        with waystation.connect(address, name=CLIENT_NAME, timeout=_ANSWER_S) as mq:
            found = all_of(mq, "partitions", **query, led=True)
    except (WaystationError, OSError):
        return None
    return {(one["topic"], one["partition"]): one for one in found}


# -- tables -----------------------------------------------------------------------------------------------------------


def _print(cluster: dict[str, Any], partitions: Sequence[Partition], listener: str) -> None:
    print(f"{bold('cluster')} {cluster['cluster_id']}, as node {cluster['node']} knows it\n")
    nodes: list[tuple[Cell, ...]] = [
        (
            node["id"],
            "yes" if node["answers"] else "no answer" if node["alive"] else "no",
            node["version"],
            node["rack"],
            node["leads"],
            node["follows"],
            node["listeners"].get(listener, ""),
        )
        for node in cluster["nodes"]
    ]
    print_table(("node", "alive", "version", "rack", "leads", "follows", listener), nodes)
    if partitions:
        print()
        headings = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "high watermark", "log end")
        print_table(headings, [_row(one) for one in partitions])
    if cluster["offline"]:
        note(f"{spell_count(cluster['offline'], 'partition')} without a leader: nothing can be read or written there")
    if cluster["under_replicated"]:
        note(f"{spell_count(cluster['under_replicated'], 'partition')} with replicas that are not in sync")


def _row(one: Partition) -> tuple[Cell, ...]:
    moving = "".join(
        f", {word} {_ids(one[name])}" for name, word in (("adding", "adding"), ("removing", "removing")) if one[name]
    )
    return (
        one["topic"],
        one["partition"],
        "none" if one["leader"] is None else one["leader"],
        one["epoch"],
        _ids(one["replicas"]) + moving,
        _ids(one["isr"]),
        one["high_watermark"],
        one["log_end"],
    )


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"
