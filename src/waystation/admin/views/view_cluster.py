"""The nodes of a cluster and where partitions are, as the node knows it that is asked; offsets are of its own replicas.

`cluster_view(broker) -> ClusterOut`, `partitions_page(broker, PartitionsQuery) -> PlacedPage`. Whoever wants the
offsets of leaders asks each leader for its own (`led`), and puts them together: a node that does not answer is not
waited for here. A broker alone is a cluster of one.

The store names a leader; whether it leads is known to that node alone. One that may not (its log has a later epoch than
a store that was put back from a backup, or its disk has failed) says of itself that the partition has no leader.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.cluster.decisions.state import NOBODY
from waystation.cluster.view import KnownNode
from waystation.paging import After, Limit, Next, Pace, Search, Total, page_of
from waystation.version import __version__

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.cluster.view import PartitionReplicas
    from waystation.topics.topics import Topic

Which = Literal["all", "under-replicated", "offline", "moving"]


class ClusterNode(msgspec.Struct):
    id: int
    alive: Annotated[bool, Meta(description="it keeps its lease alive")]
    version: Annotated[str, Meta(description="empty: not known, it does not live")]
    rack: str
    draining: Annotated[bool, Meta(description="it hands its leaderships over, and gets no new ones")]
    leads: Annotated[int, Meta(description="partitions")]
    follows: Annotated[int, Meta(description="partitions of which it has a replica and is not the leader")]
    listeners: Annotated[dict[str, str], Meta(description="addresses by protocol; empty: that of this connection")]


class ClusterOut(msgspec.Struct):
    cluster_id: str
    node: Annotated[int, Meta(description="the one that answers")]
    nodes: list[ClusterNode]
    partitions: int
    under_replicated: Annotated[int, Meta(description="partitions with replicas that are not in sync")]
    offline: Annotated[int, Meta(description="partitions without a leader that lives")]


class PlacedOut(msgspec.Struct):
    """Where a partition is."""

    topic: str
    partition: int
    leader: Annotated[int | None, Meta(description="null: it has none")]
    epoch: Annotated[int, Meta(description="of the leader: one more with each")]
    replicas: Annotated[list[int], Meta(description="in the order of preference")]
    isr: Annotated[list[int], Meta(description="in-sync replicas: all of these have what was acknowledged, on disk")]
    offline: Annotated[list[int], Meta(description="replicas whose nodes do not live")]
    adding: Annotated[list[int], Meta(description="new replicas of a reassignment that is going on")]
    removing: Annotated[list[int], Meta(description="replicas that leave when it is done")]
    high_watermark: Annotated[int | None, Meta(description="as this node knows it; null: it has no replica")]
    log_end: Annotated[int | None, Meta(description="of this node's replica; null: it has none")]


class PlacedPage(msgspec.Struct):
    partitions: list[PlacedOut]
    next: Next
    total: Total


class PartitionsQuery(msgspec.Struct):
    topic: Annotated[str, Meta(description="of this topic only; empty: of all, the broker's own too")] = ""
    which: Annotated[Which, Meta(description="moving: a reassignment is going on")] = "all"
    led: Annotated[bool, Meta(description="only those that the node that answers leads")] = False
    search: Search = ""
    after: After = ""
    limit: Limit = 100


async def cluster_view(broker: ManagedBroker, _: msgspec.Struct | None = None) -> ClusterOut:
    view, pace = broker.view, Pace(broker.world.clock)
    leads: Counter[int] = Counter()
    follows: Counter[int] = Counter()
    total = under = offline = 0
    for topic in list(broker.topics):
        for index in range(len(topic.partitions)):
            placed = view.placed(topic.id, index)
            if placed is None:
                continue
            total += 1
            under += _is(placed, "under-replicated")
            led = _is_led(broker, topic, index, placed)
            offline += not led
            leads[placed.leader] += led or placed.leader != view.node_id
            follows.update(one for one in placed.replicas if one != placed.leader)
        await pace.breathe()
    nodes = []
    for node_id in view.known():
        node = view.node(node_id) or KnownNode(node_id)
        nodes.append(
            ClusterNode(
                node_id,
                view.node(node_id) is not None,
                node.version or (__version__ if node_id == view.node_id else ""),
                node.rack,
                node.draining,
                leads[node_id],
                follows[node_id],
                {name: f"{at.host}:{at.port}" for name, at in node.listeners.items()},
            )
        )
    return ClusterOut(broker.cluster_id, view.node_id, nodes, total, under, offline)


async def partitions_page(broker: ManagedBroker, query: PartitionsQuery) -> PlacedPage:
    """In the order of topics and numbers."""
    pace = Pace(broker.world.clock)
    names: list[str] = []
    for topic in list(broker.topics):
        if query.topic in ("", topic.name):
            names += [name for name in _names(topic) if _wanted(broker, topic, name, query)]
        await pace.breathe()
    page = await page_of(sorted(names), query.search, query.after or None, query.limit)
    shown = []
    for name in page.names:
        one = _shown(broker, name)
        if one is not None:  # it may have been deleted a moment ago
            shown.append(one)
        await pace.breathe()
    return PlacedPage(shown, page.next, page.total)


def _names(topic: Topic) -> list[str]:
    """Of its partitions; their order is that of topics and numbers. A topic's name has no slash."""
    return [f"{topic.name}/{index:06}" for index in range(len(topic.partitions))]


def _wanted(broker: ManagedBroker, topic: Topic, name: str, query: PartitionsQuery) -> bool:
    if query.which == "all" and not query.led:
        return True
    index = int(name.rpartition("/")[2])
    placed = broker.view.placed(topic.id, index)
    if placed is None:
        return False
    led = _is_led(broker, topic, index, placed)
    if query.led and not (led and placed.leader == broker.view.node_id):
        return False
    if query.which == "offline":
        return not led
    return query.which == "all" or _is(placed, query.which)


def _is_led(broker: ManagedBroker, topic: Topic, index: int, placed: PartitionReplicas) -> bool:
    """As far as this node can say."""
    if placed.leader == broker.view.node_id and not topic.partitions[index].leads:
        return False
    return placed.has_leader


def _is(placed: PartitionReplicas, which: Which) -> bool:
    if which == "moving":
        return bool(placed.adding or placed.removing)
    return not set(placed.replicas) <= set(placed.in_sync)


def _shown(broker: ManagedBroker, name: str) -> PlacedOut | None:
    topic_name, _, number = name.rpartition("/")
    index = int(number)
    topic = broker.topics.find(topic_name)
    placed = None if topic is None else broker.view.placed(topic.id, index)
    if topic is None or placed is None or index >= len(topic.partitions):
        return None
    partition = topic.partitions[index] if broker.view.node_id in placed.replicas else None
    led = _is_led(broker, topic, index, placed)
    return PlacedOut(
        topic.name,
        index,
        None if placed.leader == NOBODY or (placed.leader == broker.view.node_id and not led) else placed.leader,
        placed.epoch,
        list(placed.replicas),
        list(placed.in_sync),
        list(placed.offline),
        list(placed.adding),
        list(placed.removing),
        None if partition is None else partition.visible_offset,
        None if partition is None else partition.end_offset,
    )
