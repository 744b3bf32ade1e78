"""What breaks in a simulated cluster, one coroutine for each kind of fault: it makes the fault, waits, and repairs it.

A run has some of the kinds (`FAULTS`), so that each combination is met by some seed. `Disasters` is given the machine
by what it may do to it (`Stage`). Bounds: a disk is replaced once in a run at most, since what is acknowledged is on
two disks at least, and not on three.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from tests.simulation.cluster_clients import OWN, REFUSED, TOPIC, Clients
from tests.simulation.cluster_world import Network, Node, PausingLoop
from tests.simulation.disk import Fault, SimDisk
from waystation.cluster.memory_store import MemoryStore

JUMPS_MS = (-3_600_000, -5_000, 0, 5_000, 3_600_000)
DISK_ERRORS = (
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("sync", errno.EIO),
    ("create", errno.ENOSPC),
    ("rename", errno.EIO),
    ("open", errno.EMFILE),
    ("read", errno.EIO),
    ("truncate", errno.EIO),
    ("sync_folder", errno.EIO),
)
DISK_PATHS = ("", ".log", "node.json", "high-watermarks", "/topics/", "__queues", "__transaction_state")


class Stage(Protocol):
    """What faults may do."""

    rng: random.Random
    loop: PausingLoop
    nodes: dict[int, Node]
    network: Network
    store: MemoryStore
    clients: Clients

    def switch_on(self, node: Node) -> None: ...

    async def switch_off(self, node: Node, *, power: bool) -> None: ...

    async def stop(self, node: Node) -> None: ...


class Disasters:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._rng = stage.rng
        self.made: dict[str, int] = {}
        self._disks_replaced = 0

    async def go_on(self, names: list[str], mean_s: float) -> None:
        """One after the other, and several at a time, until it is cancelled."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(self._rng.expovariate(1 / mean_s))
                name = self._rng.choice(names)
                self.made[name] = self.made.get(name, 0) + 1
                fault = self._stage.loop.create_task(_made(FAULTS[name], self))
                under_way.add(fault)
                fault.add_done_callback(under_way.discard)
        finally:
            for fault in under_way:
                fault.cancel()

    def _any_node(self) -> Node:
        return self._rng.choice(list(self._stage.nodes.values()))

    def _pairs_of(self, node: Node) -> set[tuple[int, int]]:
        others = [one for one in self._stage.nodes if one != node.id]
        return {pair for other in others for pair in ((node.id, other), (other, node.id))}

    def _switch_on_again(self, node: Node) -> None:
        if node.life is None:
            self._stage.switch_on(node)

    def _leader(self) -> Node | None:
        topic = self._rng.choice((TOPIC, TOPIC, *OWN))
        index = self._rng.randrange(2) if topic == TOPIC else 0
        found = self._stage.clients.replicas(topic)
        return next((node for node, one in found if one.index == index and one.leads), None)

    # -- processes and machines ---------------------------------------------------------------------------------------

    async def crash(self) -> None:
        stage, node = self._stage, self._any_node()
        running = sum(one.broker is not None for one in stage.nodes.values())
        if running == len(stage.nodes) or self._rng.random() < 0.3:  # two are needed to acknowledge anything
            await stage.switch_off(node, power=self._rng.random() < 0.6)
            await asyncio.sleep(self._rng.choice((0.1, 1.0, 5.0)))
            self._switch_on_again(node)

    async def crash_all(self) -> None:
        for node in self._stage.nodes.values():
            await self._stage.switch_off(node, power=True)
        await asyncio.sleep(self._rng.choice((0.5, 5.0)))
        for node in self._stage.nodes.values():
            self._switch_on_again(node)

    async def crash_leaders(self) -> None:
        """One after the other, each a moment after it began to lead: what followers did meanwhile has to be right."""
        stage, index = self._stage, self._rng.randrange(2)

        def leaders() -> list[Node]:
            return [node for node, one in stage.clients.replicas() if one.index == index and one.leads]

        for _ in range(3):
            leader = next(iter(leaders()), None)
            if leader is not None:
                await stage.switch_off(leader, power=self._rng.random() < 0.6)
                stage.loop.call_later(self._rng.choice((0.05, 0.3, 1.0)), self._switch_on_again, leader)
            for _ in range(300):
                if any(node is not leader for node in leaders()):
                    break
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._rng.expovariate(1 / 0.01))

    async def crash_leader(self) -> None:
        """The one of a partition, most often: of the topic's, or of what coordinators and queues keep."""
        node = self._leader()
        if node is not None:
            await self._stage.switch_off(node, power=self._rng.random() < 0.6)
            await asyncio.sleep(self._rng.choice((0.1, 1.0)))
            self._switch_on_again(node)

    async def stop(self) -> None:
        """Somebody restarts a node."""
        stage, node = self._stage, self._leader() if self._rng.random() < 0.5 else self._any_node()
        running = sum(one.broker is not None for one in stage.nodes.values())
        if node is not None and node.reachable and (running == len(stage.nodes) or self._rng.random() < 0.3):
            await stage.stop(node)

    async def pause(self) -> None:
        """A process stands still for a while (SIGSTOP, a slow disk, a busy machine), and goes on."""
        node = self._leader() if self._rng.random() < 0.5 else self._any_node()
        if node is None or node.life is None or self._stage.loop.is_paused(node.life):
            return
        life = node.life
        self._stage.loop.pause(life)
        try:
            await asyncio.sleep(self._rng.choice((0.3, 1.5, 4.0, 8.0)))
        finally:
            self._stage.loop.resume(life)

    async def move_replicas(self) -> None:
        """An operator moves a partition to other nodes, or changes which one is preferred; some time it is there."""
        stage = self._stage
        node = next((one for one in stage.nodes.values() if one.reachable), None)
        if node is None or node.broker is None:
            return
        topic = node.broker.topics.find(TOPIC)
        if topic is None:
            return
        index, replicas = self._rng.randrange(len(topic.partitions)), self._rng.sample(sorted(stage.nodes), 3)
        try:
            await node.ask(lambda broker: broker.operations.reassign(topic.id, index, replicas))
        except REFUSED:
            return

    async def jump_clock(self) -> None:
        self._any_node().clock.jump(self._rng.choice(JUMPS_MS))

    # -- the network --------------------------------------------------------------------------------------------------

    async def cut_link(self) -> None:
        """Between two nodes, in one direction or both."""
        source, target = self._rng.sample(sorted(self._stage.nodes), 2)
        pairs = {(source, target)} if self._rng.random() < 0.5 else {(source, target), (target, source)}
        await self._sever(pairs, (0.3, 2.0, 6.0))

    async def cut_off(self) -> None:
        """A node from the others, in one direction or both, and perhaps from the store."""
        node = self._any_node()
        pairs = self._pairs_of(node)
        if self._rng.random() < 0.3:
            heard = self._rng.random() < 0.5
            pairs = {pair for pair in pairs if (pair[0] == node.id) == heard}
        face = node.face if self._rng.random() < 0.5 else None
        if face is not None:
            face.cut()
        await self._sever(pairs, (0.5, 4.0, 8.0))
        if face is not None and node.face is face and node.life is not None:
            face.restore()

    async def _sever(self, pairs: set[tuple[int, int]], times_s: tuple[float, ...]) -> None:
        self._stage.network.sever(pairs)
        try:
            await asyncio.sleep(self._rng.choice(times_s))
        finally:
            self._stage.network.repair(pairs)

    async def leave_behind(self) -> None:
        """A node is cut off for so long that it is not in sync any more; then all others die. It may not lead."""
        stage, node = self._stage, self._any_node()
        pairs = self._pairs_of(node)
        stage.network.sever(pairs)
        await asyncio.sleep(7.0)
        for other in stage.nodes.values():
            if other is not node:
                await stage.switch_off(other, power=True)
        stage.network.repair(pairs)
        await asyncio.sleep(self._rng.choice((1.0, 5.0)))
        for other in stage.nodes.values():
            self._switch_on_again(other)

    async def slow_link(self) -> None:
        source, target = self._rng.sample(sorted(self._stage.nodes), 2)
        self._stage.network.slow[source, target] = self._rng.choice((0.05, 0.5, 3.0))
        await asyncio.sleep(self._rng.choice((1.0, 4.0)))
        self._stage.network.slow.pop((source, target), None)

    async def lose_messages(self) -> None:
        self._stage.network.lossy = self._rng.choice((0.05, 0.3))
        await asyncio.sleep(self._rng.choice((1.0, 4.0)))
        self._stage.network.lossy = 0.0

    async def disconnect(self) -> None:
        """Connections end though both sides live."""
        node = self._any_node()
        if node.life is not None:
            await self._stage.network.disconnect(node.life)

    async def connect_twice(self) -> None:
        """What was sent arrives once more by another connection, perhaps much later."""
        self._stage.network.twice = self._rng.choice((0.2, 0.8))
        await asyncio.sleep(self._rng.choice((1.0, 4.0)))
        self._stage.network.twice = 0.0

    # -- the store ----------------------------------------------------------------------------------------------------

    async def cut_store(self) -> None:
        faces = [(node, node.face) for node in self._stage.nodes.values() if node.life is not None]
        for _, face in faces:
            if face is not None:
                face.cut()
        await asyncio.sleep(self._rng.choice((0.5, 4.0)))
        for node, face in faces:
            if face is not None and node.face is face and node.life is not None:
                face.restore()

    async def late_watch(self) -> None:
        face = self._any_node().face
        if face is not None:
            face.pause_watches()
            await asyncio.sleep(self._rng.choice((0.5, 3.0)))
            face.resume_watches()

    async def compact(self) -> None:
        """The store forgets what was; who is late has to read everything again."""
        face = self._any_node().face
        if face is not None:
            face.pause_watches()
            await asyncio.sleep(self._rng.choice((0.2, 1.0)))
            self._stage.store.compact()
            face.resume_watches()

    async def lose_lease(self) -> None:
        node = self._any_node()
        if node.face is not None and node.life is not None:
            node.face.lose_leases()

    # -- disks --------------------------------------------------------------------------------------------------------

    async def fail_disk(self) -> None:
        """One operation fails. If a log cannot be used after that, somebody restarts the node."""
        node = self._any_node()
        kind, error = self._rng.choice(DISK_ERRORS)
        fault = Fault(kind, self._rng.choice(DISK_PATHS), error, after=self._rng.choice((0, 0, 3, 20)))
        node.disk.inject(fault)
        await asyncio.sleep(self._rng.choice((0.5, 3.0)))
        fault.times = 0
        await self.restart_if_failed(node)

    async def restart_if_failed(self, node: Node) -> bool:
        if node.broker is None or all(log.failure is None for _, log in node.broker.topics.logs()):
            return False
        await self._stage.switch_off(node, power=False)
        self._switch_on_again(node)
        return True

    async def fill_disk(self) -> None:
        node = self._any_node()
        node.disk.leave_room(self._rng.choice((0, 500, 20_000)))
        await asyncio.sleep(self._rng.choice((1.0, 5.0)))
        node.disk.leave_room(None)
        await self.restart_if_failed(node)

    async def replace_disk(self) -> None:
        """A node comes back with an empty disk, or with one from a backup."""
        node, stage = self._any_node(), self._stage
        if self._disks_replaced:
            return
        self._disks_replaced += 1
        if self._rng.random() < 0.5:
            await stage.switch_off(node, power=False)
            backup = node.copy_of_disk()
            self._switch_on_again(node)
            await asyncio.sleep(self._rng.choice((2.0, 5.0)))
            await stage.switch_off(node, power=False)
            node.disk = backup
        else:
            await stage.switch_off(node, power=True)
            node.disk = SimDisk(self._rng.getrandbits(32))
        await asyncio.sleep(self._rng.choice((0.1, 2.0)))
        self._switch_on_again(node)


FAULTS: dict[str, Callable[[Disasters], Awaitable[None]]] = {
    fault.__name__: fault
    for fault in (
        Disasters.crash,
        Disasters.crash_all,
        Disasters.crash_leader,
        Disasters.crash_leaders,
        Disasters.stop,
        Disasters.pause,
        Disasters.move_replicas,
        Disasters.jump_clock,
        Disasters.cut_link,
        Disasters.cut_off,
        Disasters.leave_behind,
        Disasters.slow_link,
        Disasters.lose_messages,
        Disasters.disconnect,
        Disasters.connect_twice,
        Disasters.cut_store,
        Disasters.late_watch,
        Disasters.compact,
        Disasters.lose_lease,
        Disasters.fail_disk,
        Disasters.fill_disk,
        Disasters.replace_disk,
    )
}


async def _made(fault: Callable[[Disasters], Awaitable[None]], disasters: Disasters) -> None:
    await fault(disasters)
