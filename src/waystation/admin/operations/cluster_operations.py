"""What operators do to a cluster: move replicas, elect leaders, remove nodes; for every protocol.

Here is decided which partitions are meant; each is then one compared write (`cluster/operations.py`). What was written
before one is refused stays: an answer has what was done, an error says where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.cluster.decisions.moving import PartitionId, ReplicaMove, moves
from waystation.errors import Conflict, ElectionNotNeeded, Invalid, NoReassignment, NotFound, UnknownTopic
from waystation.paging import Pace

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic


class Reassign(msgspec.Struct, kw_only=True):
    """One of `replicas`, `replication_factor`, `away_from` and `cancel`."""

    topics: Annotated[list[str], Meta(description="empty: all, the broker's own too")] = []
    partition: Annotated[int, Meta(ge=0, description="null: all of the topic's")] | None = None
    replicas: Annotated[list[int], Meta(description="the nodes, the preferred leader first")] | None = None
    replication_factor: Annotated[int, Meta(ge=1, description="replicas stay where they are as far as possible")] | (
        None
    ) = None
    away_from: Annotated[list[int], Meta(description="nodes that shall have no replicas")] = []
    cancel: Annotated[bool, Meta(description="partitions that are being moved stay where they were")] = False
    dry_run: Annotated[bool, Meta(description="only say what would be done")] = False


class Reassigned(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class ReassignOut(msgspec.Struct):
    partitions: Annotated[list[Reassigned], Meta(description="those that are moved now, or not any more (`cancel`)")]


class Elect(msgspec.Struct, kw_only=True):
    topics: Annotated[list[str], Meta(description="empty: all, the broker's own too")] = []
    partition: Annotated[int, Meta(ge=0, description="null: all of the topic's")] | None = None
    unclean: Annotated[
        bool,
        Meta(description="a replica that is not in sync leads, and what it lacks is lost; for one partition, by name"),
    ] = False


class Elected(msgspec.Struct):
    topic: str
    partition: int


class ElectOut(msgspec.Struct):
    partitions: Annotated[list[Elected], Meta(description="those that have another leader now")]


class RemoveNode(msgspec.Struct):
    node: int


class Draining(msgspec.Struct, kw_only=True):
    draining: Annotated[bool, Meta(description="false: it may lead again")] = True


class DrainNode(Draining, kw_only=True):
    node: Annotated[int, Meta(description="the one that is asked")]


# -- moving -----------------------------------------------------------------------------------------------------------


async def reassign(broker: ManagedBroker, asked: Reassign) -> ReassignOut:
    """Begins; the view `partitions` shows how far it is."""
    ways = [asked.replicas is not None, asked.replication_factor is not None, bool(asked.away_from), asked.cancel]
    if ways.count(True) != 1:
        raise Invalid("give one of replicas, replication_factor, away_from and cancel")
    if asked.cancel:
        return await _cancel(broker, asked)
    wanted = _meant(broker, asked.topics, asked.partition)
    if asked.replicas is not None:
        found = [ReplicaMove(topic.id, index, tuple(asked.replicas)) for topic, index in wanted]
    else:
        found = await _planned(broker, asked, wanted)
    names = {topic.id: topic.name for topic, _ in wanted}
    done = []
    for move in found:
        if not asked.dry_run:
            await broker.operations.reassign(move.topic_id, move.index, move.replicas)
        done.append(Reassigned(names[move.topic_id], move.index, list(move.replicas)))
    return ReassignOut(done)


async def _planned(broker: ManagedBroker, asked: Reassign, wanted: list[tuple[Topic, int]]) -> list[ReplicaMove]:
    pace = Pace(broker.world.clock)
    replicas: dict[PartitionId, tuple[int, ...]] = {}
    for topic in list(broker.topics):
        for index in range(len(topic.partitions)):
            placed = broker.view.placed(topic.id, index)
            if placed is not None:
                stay = tuple(one for one in placed.replicas if one not in placed.removing)
                replicas[topic.id, index] = stay
        await pace.breathe()
    for node in asked.away_from:
        if node not in broker.view.known():
            raise NotFound(f"there is no node {node}; there are {', '.join(map(str, broker.view.known()))}")
    racks = {node.id: node.rack for node in broker.view.nodes() if not node.draining}
    meant = [(topic.id, index) for topic, index in wanted if (topic.id, index) in replicas]
    return moves(meant, replicas, racks, factor=asked.replication_factor, leaving=asked.away_from)


async def _cancel(broker: ManagedBroker, asked: Reassign) -> ReassignOut:
    done = []
    for topic, index in _meant(broker, asked.topics, asked.partition):
        placed = broker.view.placed(topic.id, index)
        if placed is None or not (placed.adding or placed.removing):
            continue
        if not asked.dry_run:
            try:
                await broker.operations.cancel_reassignment(topic.id, index)
            except NoReassignment:  # it was done a moment ago
                continue
        stay = [one for one in placed.replicas if one not in placed.adding]
        done.append(Reassigned(topic.name, index, stay))
    return ReassignOut(done)


# -- leaders and nodes ------------------------------------------------------------------------------------------------


async def elect(broker: ManagedBroker, asked: Elect) -> ElectOut:
    """Preferred leaders, where they do not lead already. One that cannot lead now is an error."""
    wanted = _meant(broker, asked.topics, asked.partition)
    if asked.unclean:
        if len(asked.topics) != 1 or asked.partition is None:
            raise Invalid("an unclean election loses records: name one topic and one partition")
        topic, index = wanted[0]
        await broker.operations.elect_unclean(topic.id, index)
        return ElectOut([Elected(topic.name, index)])
    done = []
    for topic, index in wanted:
        try:
            await broker.operations.elect_preferred(topic.id, index)
        except ElectionNotNeeded:
            continue
        done.append(Elected(topic.name, index))
    return ElectOut(done)


async def drain_node(broker: ManagedBroker, asked: DrainNode) -> None:
    """It hands over what it leads, and gets nothing new, until its process ends or this is taken back."""
    if broker.member is None:
        raise Conflict("this broker is alone: there is no other node that could lead in its place")
    if asked.node != broker.view.node_id:
        raise Conflict(f"this is node {broker.view.node_id}: ask node {asked.node} itself")
    await broker.member.membership.drain(asked.draining)


async def remove_node(broker: ManagedBroker, asked: RemoveNode) -> None:
    """It has stopped, and has no replicas; the cluster forgets it."""
    await broker.operations.unregister(asked.node)


def _meant(broker: ManagedBroker, topics: list[str], partition: int | None) -> list[tuple[Topic, int]]:
    """Partitions by name; those of all topics if none is named."""
    if partition is not None and len(topics) != 1:
        raise Invalid("a partition is one of a topic: name one topic")
    chosen = [] if topics else sorted(broker.topics, key=lambda topic: topic.name)
    for name in topics:
        topic = broker.topics.find(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}", "topic", name)
        chosen.append(topic)
    if partition is None:
        return [(topic, index) for topic in chosen for index in range(len(topic.partitions))]
    if partition >= len(chosen[0].partitions):
        raise UnknownTopic(f"topic {topics[0]!r} has {len(chosen[0].partitions)} partitions, and no {partition}")
    return [(chosen[0], partition)]
