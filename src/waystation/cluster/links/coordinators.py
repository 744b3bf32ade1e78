"""To the coordinators of transactions on other nodes (`transactions.writers.CoordinatorLink`), over the link.

What the other node refuses is raised here as what it was there, so that a client hears the same wherever it asks. On
the loop.
"""

from __future__ import annotations

from waystation.cluster.links.link import Links
from waystation.cluster.links.peer import JoinTransaction, PeerRefusal
from waystation.cluster.links.peer_errors import error_of
from waystation.cluster.view import ClusterView
from waystation.topics.topics import TRANSACTIONS_TOPIC, Topics
from waystation.transactions.errors import CoordinatorAway
from waystation.transactions.records import partition_for

ANSWER_S = 10.0
"""The coordinator has to write down that the partition joins: a replicated write."""


class LinkedCoordinators:
    """One per node."""

    def __init__(self, view: ClusterView, topics: Topics, links: Links) -> None:
        self._view = view
        self._topics = topics
        self._links = links

    def home_of(self, transactional_id: str) -> int | None:
        topic = self._topics.get(TRANSACTIONS_TOPIC)
        index = partition_for(transactional_id, len(topic.partitions))
        placed = self._view.placed(topic.id, index)
        if placed is None or not placed.has_leader:
            raise CoordinatorAway(f"nobody coordinates {transactional_id!r} now; ask again in a moment")
        return None if placed.leader == self._view.node_id else placed.leader

    async def join(self, node_id: int, asked: JoinTransaction) -> None:
        answer = await self._links.to(node_id).ask(asked, ANSWER_S)
        if isinstance(answer, PeerRefusal):
            raise error_of(answer)
