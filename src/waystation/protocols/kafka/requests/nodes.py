"""Nodes of a cluster as Kafka's clients are told of them: their ids, racks and addresses, and who leads a partition.

Invariant: a client is sent only where it can connect to. A node whose entry has no address of the listener's name is
left out, unless it is this one: the client has reached that. A broker alone is told as the address that the client has
reached. What is told is the view of this node at that moment, and may be old: the node that a client is sent to checks
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from waystation.errors import NotLeader, WaystationError

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import ClusterView, KnownNode, PartitionReplicas
    from waystation.protocols.kafka.requests.registry import Call, Listener

NO_NODE = -1


class Endpoint(NamedTuple):
    """A node that clients can connect to."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Leader(NamedTuple):
    """Who leads a partition now, for a client that asked another node (KIP-951)."""

    node_id: int  # NO_NODE: nobody, or nobody that can be reached
    epoch: int
    endpoint: Endpoint | None


def endpoint_of(view: ClusterView, node: KnownNode, listener: Listener) -> Endpoint | None:
    """`listener`: what the client has reached here, and is sent to there. None: that node has none of its name."""
    rack = node.rack or None
    address = node.listeners.get(listener.name)
    if address is not None:
        return Endpoint(node.id, address.host, address.port, rack)
    return Endpoint(node.id, listener.host, listener.port, rack) if node.id == view.node_id else None


def endpoints(view: ClusterView, listener: Listener) -> list[Endpoint]:
    """All nodes that clients can connect to, in the order of their ids."""
    found = (endpoint_of(view, node, listener) for node in view.nodes())
    return [endpoint for endpoint in found if endpoint is not None]


def endpoint_with_id(view: ClusterView, node_id: int, listener: Listener) -> Endpoint | None:
    node = view.node(node_id)
    return None if node is None else endpoint_of(view, node, listener)


def leader_of(access: Access, topic: str | UUID, index: int, listener: Listener) -> Leader | None:
    """None: there is no such partition, or nothing is known of it."""
    topics = access.topics
    topic_id = topics.id_of(topic) if isinstance(topic, str) else topic
    placed = None if topic_id is None else access.view.placed(topic_id, index)
    return None if placed is None else leader(access.view, placed, listener)


def leader(view: ClusterView, placed: PartitionReplicas, listener: Listener) -> Leader:
    endpoint = endpoint_with_id(view, placed.leader, listener) if placed.has_leader else None
    return Leader(NO_NODE if endpoint is None else endpoint.node_id, placed.epoch, endpoint)


def distinct(leaders: Iterable[Leader]) -> list[Endpoint]:
    """The nodes among these, each once."""
    return list({one.endpoint.node_id: one.endpoint for one in leaders if one.endpoint is not None}.values())


# -- in share groups' answers ------------------------------------------------------------------------------------------


def leader_asked(call: Call, topic_id: UUID, index: int, error: WaystationError | None) -> Leader:
    """Who leads a partition that a share consumer has asked this node for: this one, unless that was the error."""
    found = leader_of(call.access, topic_id, index, call.listener) if isinstance(error, NotLeader) else None
    return Leader(call.broker.node_id, 0, None) if found is None else found


def endpoint_entities(call: Call, leaders: Iterable[Leader]) -> tuple[object, ...]:
    return tuple(
        call.make("NodeEndpoint", node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in distinct(leaders)
    )
