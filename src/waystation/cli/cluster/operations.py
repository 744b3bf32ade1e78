"""`waystation cluster reassign | elect | drain | remove`: what operators do to a cluster, through any node of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.cluster.other_nodes import OtherNodes
from waystation.cli.terminal.arguments import add_server, not_negative, positive
from waystation.cli.terminal.native import CLIENT_NAME, all_of, open_client
from waystation.cli.terminal.output import confirmed, note, print_json, print_table, spell_count
from waystation.errors import Conflict, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from waystation.client.sync.client import Client

_LOOK_S = 0.2
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


# -- reassign ---------------------------------------------------------------------------------------------------------


def configure_reassign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*", help="default: all, the broker's own too")
    parser.add_argument("--partition", type=not_negative, metavar="N", help="of the topic; default: all of them")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--replicas", metavar="IDS", help="exactly these nodes, the preferred leader first, like 2,3,1")
    how.add_argument(
        "--replication-factor",
        type=positive,
        metavar="N",
        help="this number of replicas, spread evenly; replicas stay where they are as far as possible",
    )
    how.add_argument("--away-from", metavar="IDS", help="move replicas from these nodes to others")
    how.add_argument("--cancel", action="store_true", help="partitions that are being moved stay where they were")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument(
        "--throttle",
        type=positive,
        metavar="BYTES",
        help="copy at most this many bytes per second on each node, now and until it is changed; with --wait until"
        " it is done (sets leader.replication.throttled.rate and follower.replication.throttled.rate)",
    )
    _add_waiting(parser)
    add_server(parser)
    parser.set_defaults(run=_reassign)


def _reassign(arguments: argparse.Namespace) -> int:
    query: dict[str, Any] = {"topics": arguments.topic, "dry_run": arguments.dry_run}
    if arguments.partition is not None:
        query["partition"] = arguments.partition
    if arguments.replicas is not None:
        if not arguments.topic:
            raise Invalid("--replicas puts partitions on the same nodes: name the topics that are meant")
        query["replicas"] = _ids(arguments.replicas, "--replicas")
    elif arguments.replication_factor is not None:
        query["replication_factor"] = arguments.replication_factor
    elif arguments.away_from is not None:
        query["away_from"] = _ids(arguments.away_from, "--away-from")
    else:
        query["cancel"] = True
    with open_client(arguments) as mq:
        if arguments.throttle is not None and not arguments.dry_run:
            mq.alter_settings(dict.fromkeys(THROTTLES, str(arguments.throttle)))
        done = _act(mq, "reassign", **query)["partitions"]
        if arguments.wait and not arguments.dry_run:
            _wait(arguments, lambda: not _moving(mq), "reassignments are not done")
            if arguments.throttle is not None:
                mq.alter_settings(dict.fromkeys(THROTTLES))
    if arguments.json:
        print_json(done)
    elif not done:
        print(
            "nothing is being moved" if arguments.cancel else "nothing to move: all replicas are where they should be"
        )
    else:
        rows = [(one["topic"], one["partition"], ",".join(map(str, one["replicas"]))) for one in done]
        print_table(("topic", "partition", "replicas"), rows)
        if not arguments.wait and not arguments.dry_run and not arguments.cancel:
            note("`waystation cluster status --which moving` shows what is not done yet")
            if arguments.throttle is not None:
                note(f"`waystation config set --unset {THROTTLES[0]} --unset {THROTTLES[1]}` ends the throttle")
    return 0


def _moving(mq: Client) -> list[Any]:
    return all_of(mq, "partitions", which="moving")


# -- elect ------------------------------------------------------------------------------------------------------------


def configure_elect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*", help="default: all, the broker's own too")
    parser.add_argument("--partition", type=not_negative, metavar="N", help="of the topic; default: all of them")
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="make a replica the leader that is not in sync: acknowledged messages that it lacks are lost",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_server(parser)
    parser.set_defaults(run=_elect)


def _elect(arguments: argparse.Namespace) -> int:
    query: dict[str, Any] = {"topics": arguments.topic, "unclean": arguments.unclean}
    if arguments.partition is not None:
        query["partition"] = arguments.partition
    if arguments.unclean:
        if len(arguments.topic) != 1 or arguments.partition is None:
            raise Invalid("--unclean loses messages: name one topic and one --partition")
        question = (
            f"make a replica of {arguments.topic[0]} partition {arguments.partition} the leader that may lack"
            " acknowledged messages? Those are lost for good, and so are committed offsets and transactions in them"
        )
        if not confirmed(question, yes=arguments.yes):
            return 1
    with open_client(arguments) as mq:
        done = _act(mq, "elect-leaders", **query)["partitions"]
    if arguments.json:
        print_json(done)
    elif not done:
        print("nothing to elect: preferred leaders lead already")
    else:
        print_table(("topic", "partition"), [(one["topic"], one["partition"]) for one in done])
    return 0


# -- drain ------------------------------------------------------------------------------------------------------------


def configure_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=not_negative, help="its id")
    parser.add_argument("--undo", action="store_true", help="it may lead again, and get new replicas")
    _add_waiting(parser, default=True)
    add_server(parser)
    parser.set_defaults(run=_drain)


def _drain(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        node = _node(mq, arguments.node)
        _drain_node(arguments.server, mq, node, draining=not arguments.undo)
        if arguments.wait and not arguments.undo:
            _wait(arguments, lambda: not _could_lead_elsewhere(mq, arguments.node), f"node {node['id']} leads still")
        node = _node(mq, arguments.node)
    if arguments.json:
        print_json({"node": node["id"], "draining": not arguments.undo, "leads": node["leads"]})
    elif arguments.undo:
        print(f"node {node['id']} may lead again")
    elif node["leads"]:
        left = spell_count(node["leads"], "partition")
        print(f"node {node['id']} leads {left} that no other node has: away while it is stopped")
    else:
        print(f"node {node['id']} leads nothing; it can be stopped")
    return 0


def _drain_node(server: str, mq: Client, node: dict[str, Any], *, draining: bool) -> None:
    """The node's own entry says it, so it is asked itself."""
    import waystation

    if not node["alive"]:
        raise Conflict(f"node {node['id']} does not run: it leads nothing")
    address = OtherNodes(server, mq.view("cluster")["nodes"]).address(node)
    if address is None:
        raise Conflict("this broker is alone: there is no node that could lead in its place")
    with waystation.connect(address, name=CLIENT_NAME) as there:
        there.act("drain-node", node=node["id"], draining=draining)


# -- remove -----------------------------------------------------------------------------------------------------------


def configure_remove(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=not_negative, help="its id")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add_waiting(parser, default=True)
    add_server(parser)
    parser.set_defaults(run=_remove)


def _remove(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        node = _node(mq, arguments.node)
        count = node["leads"] + node["follows"]
        if count:
            if not confirmed(
                f"move {spell_count(count, 'replica')} of node {node['id']} to other nodes?", yes=arguments.yes
            ):
                return 1
            if node["alive"]:
                _drain_node(arguments.server, mq, node, draining=True)  # so that it gets nothing new meanwhile
            _act(mq, "reassign", away_from=[node["id"]])
            _wait(arguments, lambda: not _replicas(_node(mq, arguments.node)), f"node {node['id']} has replicas still")
        if _node(mq, arguments.node)["alive"]:
            raise Conflict(
                f"node {node['id']} has no replicas any more, but runs: stop it, then repeat `waystation cluster remove"
                f" {node['id']}`"
            )
        _act(mq, "remove-node", node=node["id"])
    if arguments.json:
        print_json({"node": node["id"]})
    else:
        print(f"removed node {node['id']}")
    return 0


def _could_lead_elsewhere(mq: Client, node_id: int) -> bool:
    """Whether the node leads a partition still that another one has, too. What only it has stays with it."""
    if not _node(mq, node_id)["leads"]:
        return False
    return any(one["leader"] == node_id and len(one["replicas"]) > 1 for one in all_of(mq, "partitions"))


def _replicas(node: dict[str, Any]) -> int:
    return int(node["leads"] + node["follows"])


# -- what they share --------------------------------------------------------------------------------------------------


def _add_waiting(parser: argparse.ArgumentParser, *, default: bool = False) -> None:
    if not default:
        parser.add_argument("--wait", action="store_true", help="return when it is done")
    else:
        parser.set_defaults(wait=True)
    parser.add_argument("--timeout", type=positive, default=600, metavar="SECONDS", help="to wait (default: 600)")


def _wait(arguments: argparse.Namespace, done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + arguments.timeout
    while not done():
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{otherwise} after {arguments.timeout} s; it goes on. `waystation cluster status` shows how far it is"
            )
        time.sleep(_LOOK_S)


def _node(mq: Client, node_id: int) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = mq.view("cluster")["nodes"]
    for node in nodes:
        if node["id"] == node_id:
            return node
    raise NotFound(
        f"there is no node {node_id} in this cluster; there are {', '.join(str(one['id']) for one in nodes)}"
    )


def _act(mq: Client, what: str, **query: Any) -> dict[str, Any]:
    return mq.act(what, **query) or {}


def _ids(text: str, option: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise Invalid(f"{option} {text!r}: write ids of nodes with commas between them, like 2,3,1")
    return [int(word) for word in words]
