"""What a simulated cluster stands on: nodes that die, pause and have clocks of their own, and a network between them.

Everything follows from a seed. A `Node` is a broker on a disk of its own. What runs for it, down to the last callback,
is known by the context that it runs in (`Life`), so that

- a killed process runs no further step,
- a paused one neither runs nor has timers, and goes on where it was (`PausingLoop`).

The `Network` delays questions and answers, loses them, delivers them twice or long after who asked has given up; links
are cut in one direction or both, or are slow. Clients are beside it: `Node.ask` is a client's request to a node, done
in the node's own context. Only the cluster's simulation uses this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from tests.simulation.disk import SimDisk
from tests.simulation.loop import SimLoop, VirtualTime
from tests.simulation.world import EPOCH_MS
from waystation.broker.broker import Broker
from waystation.cluster.links.link import LinkLost, PeerRefused
from waystation.cluster.links.peer import Answer, Request
from waystation.cluster.links.peers import Peers
from waystation.cluster.memory_store import MemoryFace
from waystation.world.offload import Offload

T = TypeVar("T")

Life = tuple[int, int]
"""A node's id, and which of all lives it is."""

current_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("simulated_life", default=None)
_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Lost(Exception):
    """A client had no answer: what it asked for may have been done or not."""


class PausingLoop(SimLoop):
    """Knows which task and which callback is of which life, and can hold all of them back."""

    def __init__(self, time: VirtualTime, *, turns_max: int) -> None:
        super().__init__(time, turns_max=turns_max)
        self._alive: dict[asyncio.Task[Any], Life | None] = {}
        self._held: dict[Life, list[asyncio.Handle]] = {}
        self.set_task_factory(self._make)

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Any, *, context: contextvars.Context | None = None, **named: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, context=context, **named)
        self._alive[task] = current_life.get() if context is None else context.get(current_life)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._alive.pop(task, None)

    def tasks_of(self, life: Life) -> list[asyncio.Task[Any]]:
        return [task for task, its_life in self._alive.items() if its_life == life]

    def all_tasks(self) -> list[asyncio.Task[Any]]:
        return list(self._alive)

    def pause(self, life: Life) -> None:
        """Not one callback of it runs until `resume`."""
        timers = self._timers
        held = self._held.setdefault(life, [])
        held += [timer for _, timer in timers if _life_of(timer) == life and not timer.cancelled()]
        timers[:] = [entry for entry in timers if _life_of(entry[1]) != life]
        heapq.heapify(timers)

    def resume(self, life: Life) -> None:
        for handle in self._held.pop(life, ()):
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._timers, (handle.when(), handle))
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def is_paused(self, life: Life | None) -> bool:
        return life in self._held

    def _run_once(self) -> None:
        if self._held:
            self._hold_back()
        super()._run_once()

    def _hold_back(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            handle = ready.popleft()
            held = self._held.get(_life_of(handle))  # type: ignore[arg-type]
            if held is None:
                ready.append(handle)
            else:
                held.append(handle)


def _life_of(handle: asyncio.Handle) -> Life | None:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(current_life)


class NodeClock:
    """A machine's clock: `monotonic` is a little fast or slow, and the wall clock jumps besides."""

    def __init__(self, time: VirtualTime, rate: float = 1.0, jump_ms: int = 0) -> None:
        self._time = time
        self.rate = rate
        self._jump_ms = jump_ms
        self._highest_ms = 0

    def jump(self, to_ms: int) -> None:
        """The wall clock is this much ahead of virtual time from now on."""
        self._highest_ms = self.highest_ms()
        self._jump_ms = to_ms

    def highest_ms(self) -> int:
        """The latest that the wall clock has ever shown."""
        return max(self._highest_ms, self.now_ms())

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic() * 1000) + self._jump_ms

    def monotonic(self) -> float:
        return self._time.seconds * self.rate


class Network:
    """Questions take their time both ways, are lost, and arrive though their sender has died or given up."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.cut: dict[tuple[int, int], int] = {}  # from, to → by how many faults
        self.slow: dict[tuple[int, int], float] = {}
        self.lossy = 0.0
        self.twice = 0.0
        self.delay_s = 0.002
        self.answering: dict[int, tuple[Peers, contextvars.Context]] = {}

    async def ask(self, source: int, target: int, request: Request, timeout_s: float) -> Answer:
        sent = msgspec.msgpack.encode(request)
        work = asyncio.ensure_future(self._deliver(source, target, sent))
        if self.twice and self._rng.random() < self.twice:
            again = asyncio.ensure_future(self._deliver_again(source, target, sent))
            again.add_done_callback(_quiet)
        if not await ended(work, timeout_s):
            if self._rng.random() < 0.5:
                work.cancel()
            work.add_done_callback(_quiet)
            raise LinkLost("no answer in time")
        return _answer.decode(work.result())

    async def _deliver_again(self, source: int, target: int, sent: bytes) -> None:
        """The same question by another connection, perhaps much later."""
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 0.15, 0.3)))
        await self._deliver(source, target, sent)

    async def _deliver(self, source: int, target: int, sent: bytes) -> bytes:
        await self._travel(source, target)
        if target not in self.answering:
            await self._travel(target, source)
            raise PeerRefused("connection refused")
        peers, context = self.answering[target]
        loop = asyncio.get_running_loop()
        asked = peers.answer(_request.decode(sent), _connection(current_life.get()))
        there = loop.create_task(asked, context=context.copy())
        await ended(there)
        if there.cancelled() or there.exception() is not None:
            raise LinkLost("the other node died")
        await self._travel(target, source)
        return msgspec.msgpack.encode(there.result())

    async def _travel(self, source: int, target: int) -> None:
        mean_s = self.slow.get((source, target), self.delay_s) if self.slow else self.delay_s
        await asyncio.sleep(self._rng.expovariate(1 / mean_s))
        if (source, target) in self.cut or (self.lossy and self._rng.random() < self.lossy):
            raise LinkLost("lost on the way")

    async def disconnect(self, life: Life) -> None:
        """Its connections end, as when its process does: the others see that, unless they are cut off from it."""
        for target in [one for one in self.answering if one != life[0]]:
            with contextlib.suppress(LinkLost):
                await self._travel(life[0], target)
                if target in self.answering:
                    peers, context = self.answering[target]
                    loop = asyncio.get_running_loop()
                    loop.call_soon(peers.disconnected, _connection(life), context=context.copy())

    def sever(self, pairs: set[tuple[int, int]]) -> None:
        for pair in sorted(pairs):
            self.cut[pair] = self.cut.get(pair, 0) + 1

    def repair(self, pairs: set[tuple[int, int]]) -> None:
        for pair in sorted(pairs):
            left = self.cut.pop(pair, 0) - 1
            if left > 0:
                self.cut[pair] = left

    def heal(self) -> None:
        self.cut.clear()
        self.slow.clear()
        self.lossy = self.twice = 0.0


def _connection(life: Life | None) -> str:
    """By which a process asks any other."""
    return f"from {life}"


async def ended(task: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
    """`asyncio.wait` for one task, without the sets: every question that a node asks takes two of them."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = None if timeout_s is None else loop.call_later(timeout_s, _release, waiter)

    def completed(_: asyncio.Future[Any]) -> None:
        if timer is not None:
            timer.cancel()
        _release(waiter)

    task.add_done_callback(completed)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        task.remove_done_callback(completed)
    return task.done()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _quiet(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


class SimLinks:
    """`waystation.cluster.links.link.Links`."""

    def __init__(self, network: Network, node_id: int) -> None:
        self.network, self.node_id = network, node_id

    def to(self, node_id: int) -> _SimLink:
        return _SimLink(self, node_id)

    async def close(self) -> None:
        pass


class _SimLink:
    def __init__(self, links: SimLinks, target: int) -> None:
        self._links, self._target = links, target

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        return await self._links.network.ask(self._links.node_id, self._target, request, timeout_s)


class Node:
    """One machine: its disk and clock stay, its process comes and goes."""

    def __init__(self, node_id: int, disk: SimDisk, clock: NodeClock, loop: PausingLoop) -> None:
        self.id = node_id
        self.disk = disk
        self.clock = clock
        self.loop = loop
        self.broker: Broker | None = None  # when it has joined
        self.life: Life | None = None
        self.context = contextvars.Context()
        self.face: MemoryFace | None = None
        self.offload: Offload | None = None
        self.fenced = False
        """It was told that another process has its id: it is about to end itself."""

    @property
    def reachable(self) -> bool:
        """Clients get answers from it."""
        return self.broker is not None and not self.loop.is_paused(self.life)

    def begin(self, life: Life) -> contextvars.Context:
        self.life = life
        self.fenced = False
        self.context = contextvars.copy_context()
        self.context.run(current_life.set, life)
        return self.context

    async def ask(self, work: Callable[[Broker], Coroutine[Any, Any, T]], timeout_s: float = 5.0) -> T:
        """A client's request. Lost: no answer."""
        broker = self.broker
        if broker is None:
            raise Lost("connection refused")
        task = self.loop.create_task(work(broker), context=self.context.copy())
        if not await ended(task, timeout_s):
            task.add_done_callback(_quiet)
            task.cancel()
            raise Lost("no answer in time")
        if task.cancelled():
            raise Lost("connection closed")
        return task.result()

    def copy_of_disk(self) -> SimDisk:
        """A backup, made while the process does not run."""
        after = SimDisk(0)
        after._root, after._journal, after._used = copy.deepcopy((self.disk._root, self.disk._journal, self.disk._used))
        after._boot, after._volume = self.disk._boot, self.disk._volume
        return after
