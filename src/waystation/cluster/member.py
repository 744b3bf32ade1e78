"""A broker as a node of a cluster: its parts that others are not, started and stopped in their order.

`begin` before the broker reads its catalog, `load` before its topics are opened, `claim` when they are, `start` when
all of it follows the store, and `join` when its listeners are bound. Called by the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from waystation.cluster import internal_topics
from waystation.cluster.decisions.state import Address, partition_key
from waystation.cluster.deletions import LOOK_S, Deletions
from waystation.cluster.internal_topics import InternalTopic
from waystation.cluster.leadership import Leadership
from waystation.cluster.links.link import Links
from waystation.cluster.links.peers import Peers
from waystation.cluster.links.spread_markers import SpreadMarkers
from waystation.cluster.membership import RETRY_S, ClusterMembership
from waystation.cluster.node import NodeOptions
from waystation.cluster.replication.high_watermarks import HighWatermarks
from waystation.cluster.replication.led import history
from waystation.cluster.store_view import StoreView
from waystation.errors import StoreUnavailable, WaystationError
from waystation.observe.events import event_logger
from waystation.topics.markers import Markers
from waystation.topics.topics import Topics
from waystation.world import World

logger = event_logger("waystation.cluster")

CHECKPOINT_S = 5.0
"""How often high watermarks are written down."""
HAND_OVER_S = 5.0
"""How long a stop waits for others to lead what this node leads."""


class ClusterMember:
    def __init__(
        self,
        world: World,
        node: NodeOptions,
        view: StoreView,
        membership: ClusterMembership,
        leadership: Leadership,
        links: Links,
        peers: Peers,
        topics: Topics,
        high_watermarks: HighWatermarks,
        deletions: Deletions,
    ) -> None:
        self._world = world
        self._node = node
        self._topics = topics
        self._high_watermarks = high_watermarks
        self._links = links
        self.view = view
        self.membership = membership
        self.leadership = leadership
        self.peers = peers
        self.deletions = deletions
        self._checkpointing: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None

    def spread_markers(self, markers: Markers) -> SpreadMarkers:
        return SpreadMarkers(markers, self._topics, self.view, self._links)

    async def begin(self, own_topics: Sequence[InternalTopic]) -> None:
        """This node is who it says, by its disk; and the broker's own topics are there."""
        await self.membership.begin()
        store, node_id, rack = self._node.store, self.membership.node_id, self._node.rack
        while True:
            try:
                await self._world.offload_store(internal_topics.ensure, store, self._world, node_id, rack, own_topics)
                return
            except StoreUnavailable as error:
                logger.warning("store.away", "waiting for the cluster's store: {error}", error=error)
                await asyncio.sleep(RETRY_S)

    def load(self) -> None:
        """Blocks; the follower has begun."""
        self.view.load(self._node.store)
        self._high_watermarks.load()

    async def claim(self) -> None:
        """The logs are open."""
        epochs = {
            partition_key(topic.id, partition.index): history(partition).last_epoch
            for topic in self._topics
            for partition in topic.partitions
        }
        await self.membership.claim(epochs)

    def start(self) -> None:
        self.leadership.start()
        self._checkpointing = asyncio.get_running_loop().create_task(self._checkpoint_forever())
        self._tidying = asyncio.get_running_loop().create_task(self._tidy_forever())

    async def join(self, listeners: Mapping[str, Address]) -> None:
        await self.membership.join(listeners)

    async def hand_over(self) -> None:
        """Others lead what this node leads, as far as they can; before a clean stop."""
        await self.leadership.hand_over_all(HAND_OVER_S)

    def step_down(self) -> None:
        """Nothing is led any more."""
        self.leadership.step_down()

    async def stop(self) -> None:
        for task in (self._checkpointing, self._tidying):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.leadership.stop()
        with contextlib.suppress(OSError):
            await self._checkpoint()
        await self.membership.leave()
        await self._links.close()

    async def _checkpoint_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            try:
                await self._checkpoint()
            except (WaystationError, OSError) as error:
                logger.warning("high_watermarks.not_saved", "high watermarks cannot be written: {error}", error=error)

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.deletions.look()
            except (WaystationError, OSError) as error:
                logger.warning(
                    "deletions.put_off", "files of deleted topics cannot be removed now: {error}", error=error
                )
            except Exception:  # a mistake of ours: else deletions would be remembered forever
                logger.exception("deletions.failed", "looking after deletions failed")

    async def _checkpoint(self) -> None:
        if self._high_watermarks.note(self.leadership.high_watermarks()):
            await self._world.offload(self._high_watermarks.save)
