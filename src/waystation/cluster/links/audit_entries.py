"""Audit entries of a node that leads no partition of `__audit`: a node that leads one writes them. On the loop."""

from __future__ import annotations

from collections.abc import Sequence

from waystation.cluster.links.link import Links
from waystation.cluster.links.peer import PeerRefusal, WriteAudit
from waystation.cluster.links.peer_errors import error_of
from waystation.cluster.view import ClusterView
from waystation.errors import NotLeader
from waystation.topics.topics import Topic

ANSWER_S = 5.0


async def send(links: Links, view: ClusterView, topic: Topic, records: Sequence[tuple[bytes, bytes]]) -> None:
    """Returns when another node has written them. What raises may have been done all the same."""
    for index in range(len(topic.partitions)):
        placed = view.placed(topic.id, index)
        if placed is not None and placed.has_leader and placed.leader != view.node_id:
            answer = await links.to(placed.leader).ask(WriteAudit(tuple(records)), ANSWER_S)
            if isinstance(answer, PeerRefusal):
                raise error_of(answer)
            return
    raise NotLeader(f"no partition of {topic.name!r} has a leader now")
