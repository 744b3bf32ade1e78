"""Several brokers in one process: a store in memory, and a network without sockets that can be cut.

Questions between nodes are encoded and decoded as they are between processes. `kill` is what `kill -9` leaves: files as
they are, tasks gone, the lease running out.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from waystation.broker.broker import Broker
from waystation.cluster.decisions.state import Address, NodeState
from waystation.cluster.links.link import LinkLost, PeerRefused
from waystation.cluster.links.peer import Answer, Request
from waystation.cluster.memory_store import MemoryFace, MemoryStore
from waystation.cluster.node import NodeOptions
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.world import ThreadOffload, real_world

T = TypeVar("T")

_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "waystation.queue.shards": "3",
}
LEASE_S = 1.0
DEADLINE_S = 20.0
PORT = 9_000
"""Behind it come the ports that nodes say they have."""

life: contextvars.ContextVar[tuple[int, int] | None] = contextvars.ContextVar("life", default=None)
"""Of which life of which broker a task is: tasks that it makes are of the same."""


class Network:
    def __init__(self) -> None:
        self.answering: dict[int, Callable[[Request, str], Awaitable[Answer]]] = {}
        self.cut: set[frozenset[int]] = set()
        self.lives: dict[int, contextvars.Context] = {}

    async def answers(self, node: NodeState) -> bool:
        return node.listeners["kafka"].port - PORT in self.answering

    def links(self, node_id: int) -> NetworkLinks:
        return NetworkLinks(self, node_id)


class NetworkLinks:
    def __init__(self, network: Network, node_id: int) -> None:
        self.network = network
        self.node_id = node_id

    def to(self, node_id: int) -> NetworkLink:
        return NetworkLink(self.network, self.node_id, node_id)

    async def close(self) -> None:
        pass


class NetworkLink:
    def __init__(self, network: Network, source: int, target: int) -> None:
        self._network = network
        self._source = source
        self._pair = frozenset((source, target))
        self._target = target

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        self._check()
        sent = _request.decode(msgspec.msgpack.encode(request))
        # What the other broker does belongs to its life, not to the one that asks.
        context = self._network.lives[self._target].copy()
        answering = asyncio.get_running_loop().create_task(
            _answered(self._network.answering[self._target](sent, _connection(self._source))), context=context
        )
        done, _ = await asyncio.wait([answering], timeout=timeout_s)
        if not done or answering.cancelled():
            answering.cancel()
            raise LinkLost("no answer")
        self._check()
        return _answer.decode(msgspec.msgpack.encode(answering.result()))

    def _check(self) -> None:
        if self._pair in self._network.cut:
            raise LinkLost("the link is cut")
        if self._target not in self._network.answering:
            raise PeerRefused("connection refused")


def _connection(node_id: int) -> str:
    """By which a node asks any other."""
    return f"from-{node_id}"


async def _answered(work: Awaitable[Answer]) -> Answer:
    return await work


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore(real_world().clock)
        self.network = Network()
        self.brokers: dict[int, Broker] = {}
        self.faces: dict[int, MemoryFace] = {}
        self._lives = 0
        self._life_of: WeakKeyDictionary[asyncio.Task[Any], tuple[int, int] | None] = WeakKeyDictionary()
        asyncio.get_running_loop().set_task_factory(self._make_task)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, *, context: contextvars.Context | None = None, **named: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, context=context, **named)
        self._life_of[task] = life.get() if context is None else context.get(life)
        return task

    async def start(self, node_id: int, *, folder: str = "", rack: str = "") -> Broker:
        self._lives += 1
        context = contextvars.copy_context()
        context.run(life.set, (node_id, self._lives))
        self.network.lives[node_id] = context
        task = asyncio.get_running_loop().create_task(self._start(node_id, folder, rack), context=context)
        return await task

    async def _start(self, node_id: int, folder: str, rack: str) -> Broker:
        face = self.faces[node_id] = self.store.face()
        root = self.folder / (folder or str(node_id))
        root.mkdir(exist_ok=True)
        options = NodeOptions(
            face, lambda view: self.network.links(view.node_id), rack, lease_s=LEASE_S, answers=self.network.answers
        )
        settings = BrokerSettings({**SETTINGS, "node.id": str(node_id)})
        world = msgspec.structs.replace(real_world(), store_threads=ThreadOffload(name="store"))  # as `open_node` does
        broker = Broker(world, str(root), settings, face, node=options)
        await broker.start()
        assert broker.member is not None
        self.network.answering[node_id] = broker.member.peers.answer
        self.brokers[node_id] = broker
        await broker.join({"kafka": Address("127.0.0.1", PORT + node_id)})
        return broker

    async def stop(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        await broker.stop()
        del self.brokers[node_id]
        self.network.answering.pop(node_id, None)

    async def kill(self, node_id: int) -> None:
        """Its tasks end where they are, and its lease runs out by itself."""
        broker = self.brokers.pop(node_id)
        self.network.answering.pop(node_id, None)
        self.faces[node_id].cut()
        own = self.network.lives[node_id].get(life)
        mine = [task for task in asyncio.all_tasks() if self._life_of.get(task) == own]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        broker.world.offload.close()
        broker.world.offload_store.close()
        for _, log in broker.topics.logs():
            for segment in log.segments:
                segment.close()
        for other_id, other in self.brokers.items():
            assert other.member is not None
            self.network.lives[other_id].copy().run(other.member.peers.disconnected, _connection(node_id))

    async def stop_all(self) -> None:
        for node_id in list(self.brokers):
            await self.stop(node_id)

    def partition(self, node_id: int, topic: str, index: int = 0) -> ReplicatedPartition:
        found = self.brokers[node_id].topics.get(topic).partition(index)
        assert isinstance(found, ReplicatedPartition)
        return found

    async def leader(self, topic: str, index: int = 0) -> int:
        """The node that leads it, when there is one."""

        def leads() -> int | None:
            found = [
                one
                for one in self.brokers
                if self.brokers[one].topics.find(topic) is not None and self.partition(one, topic, index).leads
            ]
            return found[0] if len(found) == 1 else None

        return await until(leads)

    def view(self) -> StoreView:
        view = self.brokers[next(iter(self.brokers))].view
        assert isinstance(view, StoreView)
        return view

    async def in_sync(self, topic: str, nodes: set[int], index: int = 0) -> None:
        """Returns when the store says that these are in sync."""
        topic_id = self.brokers[next(iter(self.brokers))].topics.get(topic).id

        def so() -> bool:
            known = self.view().partition(topic_id, index)
            return known is not None and set(known.state.in_sync) == nodes

        await until(so)


async def until(condition: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    async with asyncio.timeout(deadline_s):
        while True:
            found = condition()
            if found:
                return found
            await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster_of(folder: Path, nodes: int = 3) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder)
    try:
        for node_id in range(1, nodes + 1):
            await cluster.start(node_id)
        yield cluster
    finally:
        await cluster.stop_all()
