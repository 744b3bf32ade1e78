"""A cluster in one process under virtual time: whole brokers on simulated disks, a network and a store that misbehave.

Everything follows from a seed. A node is a broker on a disk of its own; it dies by losing power or by a killed process,
and starts again on what its disk has. Links between nodes are slow, lose questions or answers, and are cut; the store
gives no answers, loses them after the write, makes writes late, tells news late, and lets leases run out.

Clients publish numbered values, each once, and remember what was acknowledged; readers look at any replica all the time
and remember what they were shown. `Checker` raises Broken:

- when an epoch of a partition has two leaders, or two lives of one;
- when a reader is shown another record where one was before, or sees a value twice;
- at the end, when faults have stopped: if the cluster does not heal within a bounded time; if something acknowledged is
  not where it was, on every replica; if replicas differ below the high watermark.

A paused process is not simulated: a node that hears neither the others nor the store for a while comes near it.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import SimLoop, VirtualTime
from tests.simulation.offload import SimOffload
from tests.simulation.promises import Broken
from tests.simulation.world import SimClock, SimRandom
from waystation.broker.broker import Broker
from waystation.cluster.link import LinkLost, PeerRefused
from waystation.cluster.memory_store import Fate, MemoryFace, MemoryStore
from waystation.cluster.node import NodeOptions
from waystation.cluster.peer import Answer, Request
from waystation.cluster.state import Address
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.errors import WaystationError
from waystation.log import batch as batches
from waystation.message import Message
from waystation.topics.partition import log_of
from waystation.topics.replicated_partition import ReplicatedPartition
from waystation.world import World

TOPIC = "t"
PARTITIONS = 2
NODES = (1, 2, 3)
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "waystation.queue.shards": "1",
    "log.segment.bytes": "4096",
    "waystation.checkpoint.interval.ms": "2000",
}
LEASE_S = 3.0
HEAL_S = 120.0
"""Of virtual time, after the last fault."""
PUBLISH_S = 5.0

Life = tuple[int, int]
_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("simulated_life", default=None)
_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Tasks:
    """Which task is of which life of which node: what is made by a task is of the same."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._of: WeakKeyDictionary[asyncio.Task[Any], Life | None] = WeakKeyDictionary()
        self._made: dict[asyncio.Task[Any], None] = {}
        loop.set_task_factory(self._make)

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Any, *, context: contextvars.Context | None = None, **named: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, context=context, **named)
        self._of[task] = _life.get() if context is None else context.get(_life)
        self._made[task] = None
        task.add_done_callback(lambda done: self._made.pop(done, None))
        return task

    def of(self, life: Life) -> list[asyncio.Task[Any]]:
        return [task for task in self._made if self._of.get(task) == life]

    def all(self) -> list[asyncio.Task[Any]]:
        return list(self._made)


class Network:
    """Questions take their time both ways, are lost, and arrive though their sender has died."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.cut: set[tuple[int, int]] = set()  # from, to
        self.lossy = 0.0
        self.slow_s = 0.002
        self.answering: dict[int, tuple[Callable[[Request], Awaitable[Answer]], contextvars.Context]] = {}

    async def ask(self, source: int, target: int, request: Request, timeout_s: float) -> Answer:
        sent = msgspec.msgpack.encode(request)
        work = asyncio.ensure_future(self._deliver(source, target, sent))
        done, _ = await asyncio.wait([work], timeout=timeout_s)
        if not done:
            work.cancel()
            raise LinkLost("no answer in time")
        return _answer.decode(work.result())

    async def _deliver(self, source: int, target: int, sent: bytes) -> bytes:
        await self._travel(source, target)
        if target not in self.answering:
            await self._travel(target, source)
            raise PeerRefused("connection refused")
        answer, context = self.answering[target]
        loop = asyncio.get_running_loop()
        there = loop.create_task(_run(answer(_request.decode(sent))), context=context.copy())
        await asyncio.wait([there])
        if there.cancelled() or there.exception() is not None:
            raise LinkLost("the other node died")
        await self._travel(target, source)
        return msgspec.msgpack.encode(there.result())

    async def _travel(self, source: int, target: int) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / self.slow_s))
        if (source, target) in self.cut or self._rng.random() < self.lossy:
            raise LinkLost("lost on the way")


async def _run(work: Awaitable[Answer]) -> Answer:
    return await work


async def _fault(fault: Callable[[], Awaitable[None]]) -> None:
    await fault()


class _Links:
    def __init__(self, network: Network, node_id: int) -> None:
        self.network, self.node_id = network, node_id

    def to(self, node_id: int) -> _Link:
        return _Link(self, node_id)

    async def close(self) -> None:
        pass


class _Link:
    def __init__(self, links: _Links, target: int) -> None:
        self._links, self._target = links, target

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        return await self._links.network.ask(self._links.node_id, self._target, request, timeout_s)


class Checker:
    """What the outside world was told."""

    def __init__(self) -> None:
        self.acked: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]  # offset → number
        self.shown: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.offset_of: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]  # number → offset
        self.leaders: dict[tuple[int, int], Life] = {}  # (partition, epoch)

    def leads(self, index: int, epoch: int, life: Life) -> None:
        other = self.leaders.setdefault((index, epoch), life)
        if other != life:
            raise Broken(f"partition {index}: epoch {epoch} is led by {other} and by {life}")

    def acknowledged(self, index: int, offset: int, number: int) -> None:
        self.acked[index][offset] = number
        self.show(index, offset, number)

    def show(self, index: int, offset: int, number: int) -> None:
        before = self.shown[index].setdefault(offset, number)
        if before != number:
            raise Broken(f"partition {index}: offset {offset} was {before}, and now is {number}")
        where = self.offset_of[index].setdefault(number, offset)
        if where != offset:
            raise Broken(f"partition {index}: {number} is at {where} and at {offset}")


class Node:
    def __init__(self, node_id: int, disk: SimDisk) -> None:
        self.id = node_id
        self.disk = disk
        self.broker: Broker | None = None  # when it has joined
        self.life: Life | None = None
        self.face: MemoryFace | None = None
        self.starting: asyncio.Task[None] | None = None


class ClusterMachine:
    """One run. `run` raises Broken, and whatever else went wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"cluster {seed}")
        self.seed = seed
        self.time = VirtualTime()
        self.loop = SimLoop(self.time, turns_max=20_000_000)
        self.tasks = Tasks(self.loop)
        self.clock = SimClock(self.time)
        self.store = MemoryStore(self.clock)
        self.network = Network(self.rng)
        self.nodes = {node_id: Node(node_id, SimDisk(seed * 10 + node_id)) for node_id in NODES}
        self.checker = Checker()
        self.broken: Broken | None = None
        self.faults = 0
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        self._healing = False

    def run(self, seconds: float = 20.0) -> ClusterMachine:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main(seconds))
        finally:
            self._end()
            asyncio.set_event_loop(None)
        return self

    def _end(self) -> None:
        for _ in range(20):
            for node in self.nodes.values():
                if node.broker is not None:
                    node.broker.world.offload.close()
            left = self.tasks.all()
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=60))
        self.loop.close()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def switch_on(self, node: Node) -> None:
        """It starts, in the background, and joins when it can."""
        node.life = (node.id, next(self._lives))
        context = contextvars.copy_context()
        context.run(_life.set, node.life)
        node.starting = self.loop.create_task(self._start(node, node.life, context), context=context)

    async def _start(self, node: Node, life: Life, context: contextvars.Context) -> None:
        rng = random.Random(f"{self.seed} {life}")
        world = World(self.clock, SimRandom(rng), node.disk, SimOffload(rng, node.disk, threads=0.0))
        face = node.face = self.store.face()
        face.fate = self._fate
        options = NodeOptions(face, lambda view: _Links(self.network, view.node_id), lease_s=LEASE_S)
        settings = BrokerSettings({**SETTINGS, "node.id": str(node.id)})
        while True:
            try:
                node.disk.make_folder("/data")
                broker = Broker(world, "/data", settings, face, node=options)
                await broker.start()
                break
            except WaystationError:  # the store gave no answer where a start does not wait for one
                await asyncio.sleep(0.5)
        assert broker.member is not None
        self.network.answering[node.id] = (broker.member.peers.answer, context)
        await broker.join({"kafka": Address("simulated", node.id)})
        if node.life == life:
            node.broker = broker

    async def switch_off(self, node: Node, *, power: bool) -> None:
        """The process is killed; with `power`, the disk loses what was not synced."""
        life, node.life, node.broker = node.life, None, None
        self.network.answering.pop(node.id, None)
        if node.face is not None:
            node.face.cut()
        if life is None:
            return
        node.disk.powered = False
        for _ in range(10):
            mine = self.tasks.of(life)
            if not mine:
                break
            for task in mine:
                task.cancel()
            await asyncio.wait(mine, timeout=1.0)
        node.disk = node.disk.power_cut(self.rng) if power else node.disk.process_crash()

    def _fate(self, call: str) -> Fate:
        if self._healing or self.rng.random() > 0.02:
            return Fate.ANSWERED
        return self.rng.choice((Fate.UNANSWERED, Fate.ANSWER_LOST, Fate.LATE))

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.broker is not None]

    def replicas(self) -> list[tuple[Node, Broker, ReplicatedPartition]]:
        found = []
        for node in self.living():
            broker = node.broker
            topic = None if broker is None else broker.topics.find(TOPIC)
            if broker is None or topic is None:
                continue
            found += [(node, broker, one) for one in topic.partitions if isinstance(one, ReplicatedPartition)]
        return found

    # -- what happens -------------------------------------------------------------------------------------------------

    async def _main(self, seconds: float) -> None:
        self._healing = True
        for node in self.nodes.values():
            self.switch_on(node)
        await self._until(lambda: len(self.living()) == len(NODES), "the nodes start")
        first = self.living()[0].broker
        assert first is not None
        await first.topics.create(TOPIC, PARTITIONS)
        await self._healed("the topic is created")
        self._healing = False
        jobs: list[Coroutine[Any, Any, None]] = [self._publish(index) for index in range(PARTITIONS)]
        jobs += [self._read(), self._watch_leaders(), self._expire_leases(), self._break_things()]
        background = [self.loop.create_task(job) for job in jobs]
        try:
            await asyncio.wait(background, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            background.pop().cancel()  # no more faults
            for task in background:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]
        await self._heal()
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        for task in background:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        self._audit()

    async def _publish(self, index: int) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 0.05))
            leaders = [(broker, one) for _, broker, one in self.replicas() if one.index == index and one.leads]
            if not leaders:
                continue
            broker, _ = self.rng.choice(leaders)
            number = next(self._numbers)
            try:
                published = broker.messages.publish(TOPIC, [Message(b"%d" % number)], index)
                async with asyncio.timeout(PUBLISH_S):
                    await broker.durable(*published.receipts)
            except (WaystationError, TimeoutError, PowerCut, OSError):
                continue
            self.checker.acknowledged(index, published.places[0][2], number)

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 0.03))
            found = self.replicas()
            if found:
                _, _, partition = self.rng.choice(found)
                try:
                    self._show(partition)
                except (WaystationError, PowerCut, OSError):
                    continue

    def _show(self, partition: ReplicatedPartition) -> None:
        end = partition.visible_offset
        begin = 0 if self.rng.random() < 0.02 else end - 20
        for offset, number in records(partition, end, begin):
            self.checker.show(partition.index, offset, number)

    async def _watch_leaders(self) -> None:
        while True:
            for node, _, partition in self.replicas():
                if partition.leads and node.life is not None:
                    self.checker.leads(partition.index, partition.epoch, node.life)
            await asyncio.sleep(0.02)

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.store.expire()
            for node in self.nodes.values():
                if node.face is not None and node.face.late and self.rng.random() < 0.2:
                    node.face.deliver_late()

    async def _break_things(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._crash,
            self._crash,
            self._crash_all,
            self._crash_leaders,
            self._cut_link,
            self._cut_off,
            self._cut_store,
            self._late_watch,
            self._lose_lease,
        ]
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(self.rng.expovariate(1 / 1.5))
                self.faults += 1
                fault = self.loop.create_task(_fault(self.rng.choice(faults)))
                under_way.add(fault)
                fault.add_done_callback(under_way.discard)
        finally:
            for fault in under_way:
                fault.cancel()

    async def _crash(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        if len(self.living()) == len(NODES) or self.rng.random() < 0.3:  # two are needed to acknowledge anything
            await self.switch_off(node, power=self.rng.random() < 0.6)
            await asyncio.sleep(self.rng.choice((0.1, 1.0, 5.0)))
            if node.life is None:
                self.switch_on(node)

    async def _crash_all(self) -> None:
        for node in self.nodes.values():
            await self.switch_off(node, power=True)
        await asyncio.sleep(self.rng.choice((0.5, 5.0)))
        for node in self.nodes.values():
            if node.life is None:
                self.switch_on(node)

    async def _crash_leaders(self) -> None:
        """One after the other, each a moment after it began to lead: what followers did meanwhile has to be right."""
        index = self.rng.randrange(PARTITIONS)
        for _ in range(3):
            leader = next((node for node, _, one in self.replicas() if one.index == index and one.leads), None)
            if leader is not None:
                await self.switch_off(leader, power=self.rng.random() < 0.6)
                self.loop.call_later(self.rng.choice((0.05, 0.3, 1.0)), self._switch_on_again, leader)
            for _ in range(600):
                if any(one.leads for node, _, one in self.replicas() if one.index == index and node is not leader):
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.rng.expovariate(1 / 0.01))

    def _switch_on_again(self, node: Node) -> None:
        if node.life is None:
            self.switch_on(node)

    async def _cut_link(self) -> None:
        source, target = self.rng.sample(NODES, 2)
        pairs = {(source, target)} if self.rng.random() < 0.5 else {(source, target), (target, source)}
        self.network.cut |= pairs
        await asyncio.sleep(self.rng.choice((0.3, 2.0, 6.0)))
        self.network.cut -= pairs

    async def _cut_off(self) -> None:
        """From the others, and perhaps from the store: what a paused process is to them."""
        node = self.rng.choice(list(self.nodes.values()))
        pairs = {pair for other in NODES for pair in ((node.id, other), (other, node.id))}
        self.network.cut |= pairs
        face = node.face if self.rng.random() < 0.5 else None
        if face is not None:
            face.cut()
        await asyncio.sleep(self.rng.choice((0.5, 4.0, 8.0)))
        self.network.cut -= pairs
        if face is not None and node.face is face and node.life is not None:
            face.restore()

    async def _cut_store(self) -> None:
        faces = [(node, node.face) for node in self.nodes.values() if node.face is not None and node.life is not None]
        for _, face in faces:
            face.cut()
        await asyncio.sleep(self.rng.choice((0.5, 4.0)))
        for node, face in faces:
            if node.face is face and node.life is not None:
                face.restore()

    async def _late_watch(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        face = node.face
        if face is not None:
            face.pause_watches()
            await asyncio.sleep(self.rng.choice((0.5, 3.0)))
            face.resume_watches()

    async def _lose_lease(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        if node.face is not None and node.life is not None:
            node.face.lose_leases()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        self._healing = True
        self.network.cut.clear()
        for node in self.nodes.values():
            if node.face is not None and node.life is not None:
                node.face.restore()
                node.face.resume_watches()
            if node.life is None:
                self.switch_on(node)
        await asyncio.sleep(6.0)  # whoever was about to be switched on is
        await self._healed("everything heals")

    async def _healed(self, what: str) -> None:
        def whole() -> bool:
            view = next((node.broker.view for node in self.living() if node.broker is not None), None)
            if len(self.living()) < len(NODES) or not isinstance(view, StoreView):
                return False
            replicas = self.replicas()
            if len(replicas) < len(NODES) * PARTITIONS:
                return False
            for index in range(PARTITIONS):
                own = [one for _, _, one in replicas if one.index == index]
                known = view.partition(own[0].topic.id, index)
                if known is None or len(known.state.in_sync) < len(NODES) or sum(one.leads for one in own) != 1:
                    return False
            return True

        await self._until(whole, what)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = self.time.seconds + HEAL_S
        while not condition():
            self.store.expire()
            if self.time.seconds > give_up:
                raise Broken(f"not within {HEAL_S:g} s: {what}")
            await asyncio.sleep(0.05)

    def _audit(self) -> None:
        for index in range(PARTITIONS):
            own = [(node, one) for node, _, one in self.replicas() if one.index == index]
            _, leader = next((node, one) for node, one in own if one.leads)
            truth = dict(records(leader, log_of(leader).end_offset))
            for offset, number in self.checker.acked[index].items():
                if truth.get(offset) != number:
                    raise Broken(
                        f"partition {index}: {number} was acknowledged at {offset}; there is {truth.get(offset)}"
                    )
            for node, one in own:
                for offset, number in records(one, one.visible_offset):
                    if truth.get(offset) != number:
                        raise Broken(f"partition {index}: node {node.id} has {number} at {offset}, the leader has not")


def records(partition: ReplicatedPartition, end: int, begin: int = 0) -> list[tuple[int, int]]:
    """(offset, number) of all records from `begin` to `end`."""
    found: list[tuple[int, int]] = []
    offset = max(begin, partition.start_offset)
    while offset < end:
        data = partition.read(offset, 1_000_000, end)
        if not data:
            break
        for position, header in batches.scan(data):
            whole = data[position : position + header.size]
            found += [(record.offset, int(record.value or b"0")) for record in batches.records_of(whole, header)]
            offset = header.last_offset + 1
    return [(at, number) for at, number in found if at < end]
