"""A cluster in one process under virtual time: whole brokers on simulated disks, a network and a store that misbehave.

Everything follows from a seed. `cluster_world.py` has nodes, clocks and the network, `cluster_faults.py` what breaks,
`cluster_clients.py` what clients do and remember (and `cluster_members.py`, `cluster_share.py`, and by their own bytes
`cluster_kafka.py` and `cluster_amqp.py`), `cluster_promises.py` what must hold all the time. A run has some kinds of
work and some kinds of faults, and at the end, when faults have stopped, raises Broken:

- if the cluster does not heal by itself within a bounded time: every replica in sync, every kind of work succeeds;
- if something acknowledged is not where it was, on every replica; if replicas differ below the high watermark;
- if a transaction is seen in part, or an offset that was committed points elsewhere;
- if a queue has lost a message, has it twice, or still has one whose ack was acknowledged;
- if a share group does not deliver what nobody has accepted;
- if a consumer of Kafka's protocol had other records than the committed ones, as far as it has come.

To repeat a failure: `ClusterMachine(SEED).run()`. `python -m tests.simulation.cluster_machine SEED` says what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import Any
from unittest.mock import patch

from tests.simulation.cluster_amqp import Amqp
from tests.simulation.cluster_clients import (
    MOVES,
    OWN,
    PARTITIONS,
    PROCESSORS,
    QUEUES,
    READERS,
    SOURCE,
    TARGET,
    TOPIC,
    WATCHED,
    Clients,
    committed,
    left_in,
    records,
    take_all,
)
from tests.simulation.cluster_faults import FAULTS, Disasters
from tests.simulation.cluster_kafka import Kafka
from tests.simulation.cluster_members import GROUP as MEMBERS
from tests.simulation.cluster_members import SETTINGS as MEMBERS_SETTINGS
from tests.simulation.cluster_members import Members
from tests.simulation.cluster_promises import audit_order
from tests.simulation.cluster_share import ShareConsumers
from tests.simulation.cluster_world import Life, Lost, Network, Node, NodeClock, PausingLoop, SimLinks
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import VirtualTime
from tests.simulation.offload import SimOffload
from tests.simulation.promises import Broken, expect
from tests.simulation.warm_check import ShardCheck
from tests.simulation.world import SimClock, SimRandom
from waystation.broker.broker import Broker
from waystation.cluster.decisions.state import Address
from waystation.cluster.memory_store import Fate, MemoryStore
from waystation.cluster.node import NodeOptions
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.errors import WaystationError
from waystation.message import Delivered
from waystation.queues.shard import checkpoint
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import World

NODES = (3, 3, 3, 3, 4, 5)
"""How many there are, in one run or another. A partition has three replicas."""
REPLICAS = 3
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "waystation.queue.shards": "1",
    "log.segment.bytes": "4096",
    "waystation.queue.segment.bytes": "4096",
    "waystation.checkpoint.interval.ms": "2000",
    **MEMBERS_SETTINGS,
}
OFTEN = patch.multiple(checkpoint, FIRST_BYTES=2_000, SLICE_QUEUES=2)
"""Snapshots of queues, so that logs of shards lose their beginnings, too."""
BESIDES_SHARE = 0.5
LEASE_S = 3.0
LIFE_S = 12.0
STOP_S = 10.0
HEAL_S = 90.0
"""Of virtual time, after the last fault."""

WORK: dict[str, Callable[[ClusterMachine], list[Coroutine[Any, Any, None]]]] = {
    "publish": lambda run: [run.clients.publish(index) for index in range(PARTITIONS)],
    "publish_idempotent": lambda run: [run.clients.publish_idempotent(SOURCE[1])],
    "process": lambda run: [run.clients.process(), run.clients.process()],
    "consume_group": lambda run: [run.clients.consume_group(), run.clients.look_at_offsets()],
    "queues": lambda run: [run.clients.put(), run.clients.take(), run.clients.take()],
    "move": lambda run: [run.clients.move()],
    "share": lambda run: [run.share.consume("a"), run.share.consume("b")],
    "members": lambda run: Members(run.clients).jobs(),
    "kafka": lambda run: run.kafka.jobs(),
    "amqp": lambda run: Amqp(run.clients).jobs(),
}
BESIDES = ("members", "kafka", "amqp")
"""Work that some runs have, one of them, by a chance of its own: a seed without it is what it was before."""
SUCCEEDS = {
    "members": ("members",),
    "kafka": ("kafka_produce", "kafka_fetch"),
    "amqp": ("amqp_put", "amqp_take"),
    "publish": ("publish",),
    "publish_idempotent": ("publish_idempotent",),
    "process": ("process",),
    "consume_group": ("consume_group",),
    "queues": ("put", "take"),
    "move": ("move",),
    "share": ("share",),
}
"""What has to succeed again after everything has healed."""


class ClusterMachine:
    """One run. `run` raises Broken, and whatever else went wrong."""

    def __init__(
        self,
        seed: int,
        *,
        faults: list[str] | None = None,
        work: list[str] | None = None,
        besides: bool = True,
        nodes: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.rng = random.Random(f"cluster {seed}")
        self.seed = seed
        self.verbose = verbose
        self.time = VirtualTime()
        self.loop = PausingLoop(self.time, turns_max=20_000_000)
        self.loop.set_exception_handler(self._complain)
        self.store = MemoryStore(SimClock(self.time))
        self.network = Network(self.rng)
        self.nodes = {
            node_id: Node(node_id, SimDisk(seed * 10 + node_id), self._clock(), self.loop)
            for node_id in range(1, 1 + (self.rng.choice(NODES) if nodes is None else nodes))
        }
        self.clients: Clients = Clients(self.rng, self.time, self.nodes)
        self.share: ShareConsumers = ShareConsumers(self.clients)
        self.kafka: Kafka = Kafka(self.clients)
        self.disasters = Disasters(self)
        self.faults = self._some(FAULTS, 7) if faults is None else faults
        self.work = self._work(besides=besides) if work is None else work
        self.complaints: list[str] = []
        self.compared = 0
        """How often what a new leader knew was compared with a replay of the log."""
        self._lives = itertools.count(1)
        self._healing = False
        self._ending = False

    def _clock(self) -> NodeClock:
        return NodeClock(self.time, self.rng.choice((1.0, 1.0, 0.97, 1.03)), self.rng.choice((0, 0, -2_000, 2_000)))

    def _some(self, names: Any, most: int) -> list[str]:
        return sorted(self.rng.sample(sorted(names), self.rng.randint(2, most)))

    def _work(self, *, besides: bool) -> list[str]:
        chosen = self._some([name for name in WORK if name not in BESIDES], 4)
        if "move" in chosen and "queues" not in chosen:
            chosen.append("queues")
        if not {"publish", "publish_idempotent"} & set(chosen):
            chosen.append("publish_idempotent")
        return self._with_another(chosen, random.Random(f"besides {self.seed}")) if besides else chosen

    @staticmethod
    def _with_another(chosen: list[str], chance: random.Random) -> list[str]:
        """In the place of one that others do not build on, so that a run costs about the same."""
        if chance.random() > BESIDES_SHARE:
            return chosen
        another = chance.choice([name for name in BESIDES if name != "amqp" or "queues" in chosen])
        replaceable = [name for name in chosen if name not in ("publish", "publish_idempotent", "queues")]
        if replaceable:
            chosen.remove(chance.choice(replaceable))
        return [*chosen, another]

    def run(self, seconds: float = LIFE_S) -> ClusterMachine:
        asyncio.set_event_loop(self.loop)
        try:
            with OFTEN:
                self.loop.run_until_complete(self._main(seconds))
        finally:
            self._end()
            asyncio.set_event_loop(None)
        expect(not self.complaints, f"seen by nobody who waits: {self.complaints[:3]}")
        return self

    def _end(self) -> None:
        self._ending = True
        for node in self.nodes.values():
            if node.life is not None:
                self.loop.resume(node.life)
        for _ in range(20):
            for node in self.nodes.values():
                if node.broker is not None:
                    node.broker.world.offload.close()
            left = self.loop.all_tasks()
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=60))
        self.loop.close()

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._ending or isinstance(error, PowerCut | WaystationError | OSError | Lost):
            return
        self.complaints.append(f"{context.get('message')}: {error!r} in {context.get('future')}")

    def _differs(self, what: str) -> None:
        self.complaints.append(what)
        self.say(what)

    def _compared(self) -> None:
        self.compared += 1

    def say(self, what: str) -> None:
        if self.verbose:
            print(f"{self.time.seconds:10.3f} {what}")

    # -- nodes --------------------------------------------------------------------------------------------------------

    def switch_on(self, node: Node) -> None:
        """It starts, in the background, and joins when it can."""
        life = (node.id, next(self._lives))
        context = node.begin(life)
        self.say(f"node {life} starts")
        self.loop.create_task(self._start(node, life, context), context=context)

    async def _start(self, node: Node, life: Life, context: contextvars.Context) -> None:
        rng = random.Random(f"{self.seed} {life}")
        world = World(node.clock, SimRandom(rng), node.disk, SimOffload(rng, node.disk, threads=0.0))
        node.offload = world.offload
        face = node.face = self.store.face()
        face.fate = self._fate
        options = NodeOptions(face, lambda view: SimLinks(self.network, view.node_id), lease_s=LEASE_S)
        settings = BrokerSettings({**SETTINGS, "node.id": str(node.id)})
        try:
            node.disk.make_folder("/data")
            broker = Broker(world, "/data", settings, face, node=options)
            await broker.start()
        except (WaystationError, OSError) as error:
            # The process says why and ends; whoever looks after it starts it again.
            self.say(f"node {life} does not start: {error!r}")
            self._restart_later(node, life)
            return
        if broker.member is None:
            raise TypeError("not a node of a cluster")
        broker.shards.watch(ShardCheck(self._differs, self._compared))
        broker.member.membership.on_fenced = lambda: self._fenced(node, life)
        self.network.answering[node.id] = (broker.member.peers, context)
        await broker.join({"kafka": Address("simulated", node.id)})
        if node.life == life:
            self.say(f"node {life} has joined")
            node.broker = broker

    def _restart(self, node: Node, life: Life) -> None:
        if node.life == life:
            self.loop.create_task(self._start_again(node, life))

    async def _start_again(self, node: Node, life: Life) -> None:
        if node.life == life:
            await self.switch_off(node, power=False)
            if node.life is None:
                self.switch_on(node)

    def _fenced(self, node: Node, life: Life) -> None:
        """The broker says that another process has its id. Here there is none."""
        if node.life == life:
            node.fenced = True
            self._restart_later(node, life)

    def _restart_later(self, node: Node, life: Life) -> None:
        """Not by the process itself, which is to end."""
        self.loop.call_later(0.5, self._restart, node, life, context=contextvars.Context())

    async def switch_off(self, node: Node, *, power: bool) -> None:
        """The process is killed; with `power`, the disk loses what was not synced."""
        life, node.life, node.broker = node.life, None, None
        self.network.answering.pop(node.id, None)
        if node.face is not None:
            node.face.cut()
        if life is None:
            return
        self.say(f"node {life} {'loses power' if power else 'is killed'}")
        node.disk.powered = False
        self.loop.resume(life)
        for _ in range(10):
            mine = self.loop.tasks_of(life)
            if not mine:
                break
            for task in mine:
                task.cancel()
            await asyncio.wait(mine, timeout=1.0)
        node.disk = node.disk.power_cut(self.rng) if power else node.disk.process_crash()
        if not power:  # else nobody is there who could end a connection
            await self.network.disconnect(life)

    async def stop(self, node: Node) -> None:
        """As by SIGTERM: clients are served until others lead what it led. Something starts it again a little later,
        and kills it if it has not come to its end."""
        broker, life = node.broker, node.life
        if broker is None or life is None:
            return
        self.say(f"node {life} is stopped")
        stopping = self.loop.create_task(self._stop(node, broker, life), context=node.context.copy())
        try:
            await asyncio.wait([stopping], timeout=STOP_S)
        finally:
            self._restart_later(node, life)

    async def _stop(self, node: Node, broker: Broker, life: Life) -> None:
        if broker.member is not None:
            await broker.member.hand_over()
        if node.life == life:
            node.broker = None
            self.network.answering.pop(node.id, None)
        with contextlib.suppress(WaystationError, OSError):
            await broker.stop()

    def _fate(self, call: str) -> Fate:
        if self._healing or self.rng.random() > 0.02:
            return Fate.ANSWERED
        return self.rng.choice((Fate.UNANSWERED, Fate.ANSWER_LOST, Fate.LATE))

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.broker is not None]

    # -- what happens -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """All nodes are there, and so are the topic and the queues. Nothing breaks yet."""
        self._healing = True
        for node in self.nodes.values():
            self.switch_on(node)
        await self.until(lambda: len(self.living()) == len(self.nodes), "the nodes start")
        await self.living()[0].ask(lambda broker: broker.topics.create(TOPIC, PARTITIONS))
        await self.until(self.whole, "the topic is created")
        if "queues" in self.work:
            await self.clients.declare_queues()
        if "share" in self.work:
            await self.share.declare()

    async def _main(self, seconds: float) -> None:
        await self.begin()
        self._healing = False
        self.say(f"work: {', '.join(self.work)}; faults: {', '.join(self.faults)}")
        jobs = [job for name in self.work for job in WORK[name](self)]
        jobs += [self.clients.read(), self.clients.watch(), self._expire_leases()]
        background = [self.loop.create_task(job) for job in jobs]
        breaking = self.loop.create_task(self.disasters.go_on(self.faults, self.rng.choice((0.7, 1.5))))
        try:
            await asyncio.wait(background, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            breaking.cancel()
            _raise_first(background)
            await asyncio.wait([breaking])
            await self._heal(background)
        finally:
            breaking.cancel()
            for task in background:
                task.cancel()
        await asyncio.wait(background)
        _raise_first(background)
        await self._audit()

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.store.expire()
            for node in self.nodes.values():
                if node.face is not None and node.face.late and self.rng.random() < 0.2:
                    node.face.deliver_late()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _heal(self, background: list[asyncio.Task[None]]) -> None:
        self.say("faults stop")
        self._healing = True
        self.network.heal()
        for node in self.nodes.values():
            node.disk.leave_room(None)
            for fault in node.disk._faults:
                fault.times = 0
            if node.life is not None:
                self.loop.resume(node.life)
                if node.face is not None:
                    node.face.restore()
                    node.face.resume_watches()
            else:
                self.switch_on(node)
        for node in self.nodes.values():
            await self.disasters.restart_if_failed(node)
        await self.until(self.whole, "everything heals", background)
        wanted = {kind: self.clients.done.get(kind, 0) for name in self.work for kind in SUCCEEDS[name]}

        def works() -> bool:
            return all(self.clients.done.get(kind, 0) > before for kind, before in wanted.items())

        def missing() -> str:
            return ", ".join(kind for kind, before in wanted.items() if self.clients.done.get(kind, 0) <= before)

        await self.until(works, "all work goes on", background, missing)

    def whole(self) -> bool:
        """Every partition has one leader, and all its replicas are in sync."""
        if len(self.living()) < len(self.nodes):
            return False
        view = self.living()[0].broker.view  # type: ignore[union-attr]
        for name in OWN:
            found: dict[int, list[ReplicatedPartition]] = {}
            for _, one in self.clients.replicas(name):
                found.setdefault(one.index, []).append(one)
            if not found or (name == TOPIC and len(found) < PARTITIONS):
                return False
            for index, own in found.items():
                known = view.partition(own[0].topic.id, index) if isinstance(view, StoreView) else None
                if known is None or known.state.adding or known.state.removing:
                    return False
                if not REPLICAS == len(known.state.in_sync) == len(known.state.replicas) == len(own):
                    return False
                if sum(one.leads for one in own) != 1:
                    return False
        return True

    async def until(
        self,
        condition: Callable[[], bool],
        what: str,
        background: list[asyncio.Task[None]] | None = None,
        missing: Callable[[], str] = str,
    ) -> None:
        give_up = self.time.seconds + HEAL_S
        while not condition():
            self.store.expire()
            _raise_first(background or [])
            if self.time.seconds > give_up:
                raise Broken(f"not within {HEAL_S:g} s: {what} {missing()}")
            await asyncio.sleep(0.05)

    async def _audit(self) -> None:
        await self.until(self.whole, "everything is there for the audit")
        self.clients.look_at_leaders()
        shown: dict[int, dict[int, bytes]] = {}
        for index in range(PARTITIONS):
            shown[index] = await self._audit_partition(index)
        if "process" in self.work:
            reached = await self._insist(lambda: self.clients._fetch_offset(PROCESSORS, SOURCE[1]))
            self.clients.promises.audit_transactions(shown[SOURCE[1]], shown[TARGET[1]], reached)
        for index in range(PARTITIONS):
            if "consume_group" in self.work:
                found = await self._insist(lambda index=index: self.clients._fetch_offset(READERS, index))  # type: ignore[misc]
                self._check_offset(READERS, index, found)
                found = await self._insist(lambda index=index: self.clients._fetch_offset(WATCHED, index))  # type: ignore[misc]
                self.clients.promises.offset_stays(WATCHED, index, found)
            if "members" in self.work:
                found = await self._insist(lambda index=index: self.clients._fetch_offset(MEMBERS, index))  # type: ignore[misc]
                self._check_offset(MEMBERS, index, found)
            if "kafka" in self.work:
                self.kafka.audit(index, shown[index])
        if "queues" in self.work:
            await self._audit_queues()
        if "share" in self.work:
            for index in range(PARTITIONS):
                await self._audit_share(index, shown[index])

    def _check_offset(self, group: str, index: int, found: int) -> None:
        self.clients.promises.offset_fetched(group, index, found)
        end = max(one.end_offset for _, one in self.clients.replicas() if one.index == index)
        expect(found <= end, f"{group}: the offset of partition {index} is {found}, and its log ends at {end}")

    async def _audit_partition(self, index: int) -> dict[int, bytes]:
        """What a reader of committed records gets in the end."""
        promises, place = self.clients.promises, (TOPIC, index)
        own = [one for _, one in self.clients.replicas() if one.index == index]
        leader = next(one for one in own if one.leads)
        await self.until(
            lambda: all(one.visible_offset == log_of(leader).end_offset for one in own), "the replicas have all of it"
        )
        truth = dict(records(leader, log_of(leader).end_offset))
        for offset, value in promises.acked.get(place, {}).items():
            expect(truth.get(offset) == value, f"{place}: {value!r} was at {offset}; there is {truth.get(offset)!r}")
        for offset, value in promises.shown.get(place, {}).items():
            expect(truth.get(offset) == value, f"{place}: {value!r} was seen at {offset}: {truth.get(offset)!r}")
        audit_order(value for _, value in sorted(truth.items()))
        content = _content(leader)
        for one in own:
            expect(_content(one) == content, f"{place}: replicas differ")
        await self.until(
            lambda: leader.stable_offset == leader.visible_offset or "process" not in self.work,
            "every transaction ends",
        )
        seen = committed(leader, 0)
        for offset, value, visible in seen:
            promises.show_committed(place, offset, value, visible=visible)
        return {offset: value for offset, value, visible in seen if visible}

    async def _audit_share(self, index: int, shown: Collection[int]) -> None:
        share = self.share
        give_up = self.time.seconds + HEAL_S
        while not await share.drain(index, shown):
            if self.time.seconds > give_up:
                raise Broken(share.missing(index, shown))
            await asyncio.sleep(0.5)

    async def _audit_queues(self) -> None:
        await asyncio.sleep(5.0)  # visibility timeouts run out, the dead are moved, transactions end
        left = {}
        for name in QUEUES:
            left[name] = await self._insist(
                lambda name=name: self.clients.leader(QUEUES_TOPIC).ask(lambda broker: left_in(broker, name))  # type: ignore[misc]
            )
        self.clients.promises.audit_queues(left, MOVES)
        for name in QUEUES:
            taken: list[Delivered] = await self._insist(
                lambda name=name: self.clients.leader(QUEUES_TOPIC).ask(lambda broker: take_all(broker, name))  # type: ignore[misc]
            )
            self.clients.promises.delivered_together(name, [one.message.priority for one in taken])

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        give_up = self.time.seconds + HEAL_S
        while True:
            try:
                return await ask()
            except (WaystationError, Lost) as error:
                if self.time.seconds > give_up:
                    raise Broken(f"still refused: {error!r}") from error
                await asyncio.sleep(0.2)


def _raise_first(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _content(partition: ReplicatedPartition) -> list[bytes]:
    return [bytes(data) for data, _ in partition.batches_from(partition.start_offset)]


def main(seeds: list[str]) -> int:
    import logging

    logging.basicConfig(level=logging.WARNING)
    for seed in seeds:
        machine = ClusterMachine(int(seed), verbose=True)
        try:
            machine.run()
        finally:
            print(f"seed {seed}: {machine.disasters.made}; {machine.clients.done}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
