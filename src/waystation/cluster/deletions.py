"""Deletions of topics in the cluster's store: remembered until every node has removed its files, and not forever.

A node that was away when a topic was deleted removes its files when it is back, because the store says at a revision
that the topic was deleted; never because it is not mentioned. So each deletion lists the nodes that have nothing left
of the topic (`DeletedTopic.removed`), and is forgotten when that is every node of the cluster. A node that is away
keeps deletions from being forgotten, up to `MOST`: beyond that the oldest are. Such a node finds files of topics that
nobody knows, and sets them aside (`topics/folders.py`): nothing is lost by forgetting too early, but disk space.

The entries of a topic's partitions are deleted after its own, by whoever deletes it. Some are left if that node dies
in between, or if partitions that were being added had entries already. While the deletion is remembered these are
removed, and it is not forgotten before. Nothing is removed because no topic has it: one may just be being created.

Each node looks now and then. Its own mark is put by a compared write; one node, that which clients take for the
controller, removes entries and forgets. On the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from waystation.catalog import ABSENT, rows
from waystation.catalog.catalog import CatalogEntry
from waystation.catalog.follower import CatalogFollower
from waystation.cluster.decisions.state import PartitionState
from waystation.cluster.decisions.writes import StoreEntry
from waystation.cluster.store import MOST_CHANGES, Store
from waystation.cluster.store_view import StoreView
from waystation.errors import RevisionConflict, StoreUnavailable
from waystation.observe.events import event_logger
from waystation.topics.topics import Topics
from waystation.world import World

logger = event_logger("waystation.cluster")

LOOK_S = 30.0
MOST = 10_000
"""Deletions that wait for nodes that are away: a megabyte or two in the store."""
AT_ONCE = 50
"""Marks that are put in one look, and deletions that are forgotten in one write."""


class Deletions:
    """Of one node."""

    def __init__(self, world: World, store: Store, view: StoreView, follower: CatalogFollower, topics: Topics) -> None:
        self._world = world
        self._store = store
        self._view = view
        self._follower = follower
        self._topics = topics

    async def look(self) -> None:
        """Puts this node's marks, and forgets what all nodes have marked. What is refused is done the next time."""
        try:
            await self._mark(await self._read())
            if self._view.controller() == self._view.node_id:
                found = await self._read()
                left = self._left(found)
                await self._remove(found, left)
                await self._forget({key: entry for key, entry in found.items() if key not in left})
        except (RevisionConflict, StoreUnavailable):
            pass
        except OSError as error:  # it would end the looking for good
            logger.warning(
                "deletions.put_off", "deleted topics cannot be tidied up now, it is tried again: {error}", error=error
            )

    async def _read(self) -> dict[str, CatalogEntry]:
        return (await self._world.offload_store(self._store.read, rows.DELETED_TOPICS)).entries

    async def _mark(self, found: dict[str, CatalogEntry]) -> None:
        marked = 0
        for key, entry in found.items():
            deleted = rows.read_deleted_topic(entry.value)
            if self._view.node_id in deleted.removed or marked >= AT_ONCE:
                continue
            # What the store says may be ahead of what this node was told: a topic that is deleted may yet be made here.
            if entry.revision > self._follower.revision or not self._topics.is_deleted(deleted.id):
                continue
            if await self._world.offload(self._topics.folders.clear, deleted):
                removed = tuple(sorted({*deleted.removed, self._view.node_id}))
                value = rows.encode(replace(deleted, removed=removed))
                await self._world.offload_store(self._store.write, {key: value}, {key: entry.revision})
                marked += 1

    def _left(self, found: Mapping[str, CatalogEntry]) -> dict[str, list[StoreEntry[PartitionState]]]:
        """By the key of a deletion: what there is of the topic's partitions, or may be as far as this node was told."""
        left: dict[str, list[StoreEntry[PartitionState]]] = {
            key: [] for key, entry in found.items() if entry.revision > self._follower.revision
        }
        for (topic_id, _), known in self._view.partitions():
            key = rows.deleted_topic_key(topic_id)
            if key in found:
                left.setdefault(key, []).append(known)
        return left

    async def _remove(
        self, found: Mapping[str, CatalogEntry], left: Mapping[str, list[StoreEntry[PartitionState]]]
    ) -> None:
        """As long as the topic is deleted, and what was seen of the entries is so."""
        for key, entries in left.items():
            deleted = rows.read_deleted_topic(found[key].value)
            still = {key: found[key].revision, rows.topic_key(deleted.id): ABSENT}
            for at in range(0, len(entries), MOST_CHANGES - len(still)):
                some = {one.key: one.revision for one in entries[at : at + MOST_CHANGES - len(still)]}
                try:
                    await self._world.offload_store(self._store.write, dict.fromkeys(some), still | some)
                except RevisionConflict:
                    continue  # who deletes it does that just now, or it is there
                logger.info(
                    "deletions.entries_removed",
                    "{count} entries of partitions of topic {topic!r}, which was deleted, were left in the store",
                    count=len(some),
                    topic=deleted.name,
                )

    async def _forget(self, found: dict[str, CatalogEntry]) -> None:
        nodes = set(self._view.known())
        oldest = sorted(found, key=lambda key: found[key].revision)
        over = set(oldest[: max(0, len(oldest) - MOST)])
        finished = [
            key for key in oldest if key in over or nodes <= set(rows.read_deleted_topic(found[key].value).removed)
        ]
        for at in range(0, len(finished), AT_ONCE):
            some = finished[at : at + AT_ONCE]
            await self._world.offload_store(
                self._store.write, dict.fromkeys(some), {key: found[key].revision for key in some}
            )
