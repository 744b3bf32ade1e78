"""The broker looks at itself: a point of the history every five seconds, the rates since the last, the loop's delay.

Started by whoever opens a broker for real work (`open_broker`); a simulation may leave it out, or start it: all time is
the loop's and the world's clock. Whoever shows figures calls `fold` first, and they are those of this moment.

Bounded: the history has a fixed size, rates are kept for what was used since the last point only. A sample takes a few
tenths of a millisecond, more where thousands of queues are busy, and then in slices that leave the loop free.
On the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from waystation.health.census import Census, Counts, busy_queue, busy_topic
from waystation.observe.events import event_logger
from waystation.observe.histogram import Mean
from waystation.observe.history import INTERVAL_MS, SeriesHistory
from waystation.observe.rates import Grown, ProtocolRates, per_second

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

logger = event_logger("waystation.sampling")

INTERVAL_S = INTERVAL_MS / 1000
PROBE_S = 0.5
"""How often the loop is asked how late it is."""

SEVERAL = 3
"""Points in a row: what is slow in one of them is slow once; in all of them, somebody should look."""

DEAD_LETTER_POINTS = 61
"""Five minutes of points, in which dead letters are recent."""

OnPoint = Callable[["Point"], None]


class Point(msgspec.Struct, frozen=True):
    """One point of the history."""

    time_ms: int
    values: dict[str, float]


class Sampling:
    """One per broker."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self.census = Census(broker)
        self.history = SeriesHistory()
        self.fsync_ms = self.loop_delay_ms = self.cpu_share = 0.0
        self.fsyncs_ms: deque[float] = deque(maxlen=SEVERAL)
        self.loop_delays_ms: deque[float] = deque(maxlen=SEVERAL)
        self.recent_dead_letters = 0
        """Messages that became dead letters within the last minutes."""
        self.point: Point | None = None
        self._task: asyncio.Task[None] | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._worst_s = 0.0  # the loop's longest delay since the last point
        self._folding = asyncio.Lock()
        self._topics, self._queues = _Window(), _Window()
        self._sampled_s = 0.0
        self._counts: list[int] = []
        self._dead_letters: deque[int] = deque(maxlen=DEAD_LETTER_POINTS)
        self._cpu_s = 0.0
        self._fsync = Mean()
        self._listeners: dict[object, OnPoint] = {}

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """After the broker has."""
        if self._task is not None:
            return
        self._sampled_s = self._now_s()
        self._topics.begin(self._sampled_s)
        self._queues.begin(self._sampled_s)
        self._counts = self._protocol_counts()
        self._dead_letters.append(sum(self._broker.meters.deaths.kept.values()))
        self._cpu_s = time.process_time()
        self.census.start()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name="sampling")
        self._ask_loop()

    async def stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self.census.stop()

    def subscribe(self, callback: OnPoint) -> Callable[[], None]:
        """`callback` gets every new point. Returns how to end it."""
        token = object()
        self._listeners[token] = callback
        return lambda: self._listeners.pop(token, None) and None

    def _now_s(self) -> float:
        return self._broker.world.clock.monotonic()

    # -- the loop's delay -------------------------------------------------------------------------------------------

    def _ask_loop(self) -> None:
        self._due_s = self._now_s() + PROBE_S
        self._probe = asyncio.get_running_loop().call_later(PROBE_S, self._heard)

    def _heard(self) -> None:
        late_s = max(0.0, self._now_s() - self._due_s)
        self._worst_s = max(self._worst_s, late_s)
        self._broker.meters.loop_delay.add(late_s)
        self._ask_loop()

    # -- looking ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self.fold()  # so that whoever looks at once sees what there is
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.sample()
            except Exception:
                logger.exception("sampling.failed", "could not sample the broker's figures, will try again")

    async def fold(self) -> None:
        """Brings the counters and sums of topics and queues up to this moment."""
        if self._task is None:
            return
        async with self._folding:
            broker, meters = self._broker, self._broker.meters
            meters.topics.keep(broker.topics.__contains__)
            meters.queues.keep(broker.queues.has_here)
            topics = await self.census.fold_topics()
            self._topics.add(topics)
            meters.topics.note(topics, self._topics.lap(self._now_s()), busy_topic)
            queues = await self.census.fold_queues()
            if queues is not None:
                self._queues.add(queues)
                meters.queues.note(queues, self._queues.lap(self._now_s()), busy_queue)

    async def sample(self) -> None:
        """A point of the history, and the rates since the last one."""
        await self.fold()
        now_s = self._now_s()
        elapsed_s = now_s - self._sampled_s
        if elapsed_s <= 0:
            return
        self._sampled_s = now_s
        self._rate(elapsed_s)
        self._measure(elapsed_s)
        self._add_point()

    def _rate(self, elapsed_s: float) -> None:
        meters, rates = self._broker.meters, self._broker.meters.rates
        counts = self._protocol_counts()
        rates.protocols = ProtocolRates(
            *[per_second(a - b, elapsed_s) for a, b in zip(counts, self._counts, strict=True)]
        )
        self._counts = counts
        self._dead_letters.append(sum(meters.deaths.kept.values()))
        self.recent_dead_letters = self._dead_letters[-1] - self._dead_letters[0]
        rates.topics = self._topics.take(busy_topic) or rates.topics
        rates.queues = self._queues.take(busy_queue) or rates.queues

    def _protocol_counts(self) -> list[int]:
        """In the order of `ProtocolRates`."""
        meters = list(self._broker.meters.protocols)
        return [
            sum(meter.published for meter in meters),
            sum(meter.delivered for meter in meters),
            sum(meter.acked for meter in meters),
            sum(meter.published_bytes for meter in meters),
            sum(meter.delivered_bytes for meter in meters),
            sum(meter.requests for meter in meters),
            sum(meter.failures for meter in meters),
        ]

    def _measure(self, elapsed_s: float) -> None:
        cpu_s = time.process_time()
        self.cpu_share = round((cpu_s - self._cpu_s) / elapsed_s, 4)
        self._cpu_s = cpu_s
        self.fsync_ms = round(1000 * self._fsync.since(self._broker.meters.commit.seconds), 3)
        self.loop_delay_ms = round(1000 * self._worst_s, 3)
        self.fsyncs_ms.append(self.fsync_ms)
        self.loop_delays_ms.append(self.loop_delay_ms)
        self._worst_s = 0.0

    def _add_point(self) -> None:
        broker, rates = self._broker, self._broker.meters.rates.protocols
        values = {
            "publish": rates.publish,
            "deliver": rates.deliver,
            "ack": rates.ack,
            "publish_bytes": rates.publish_bytes,
            "deliver_bytes": rates.deliver_bytes,
            "connections": float(len(broker.connections)),
            "memory_bytes": float(broker.world.memory.used_bytes()),
            "data_bytes": float(self.census.data_bytes),
            "messages_ready": float(self.census.ready),
            "loop_delay_ms": self.loop_delay_ms,
            "fsync_ms": self.fsync_ms,
            "cpu_share": self.cpu_share,
        }
        self.point = Point(broker.world.clock.now_ms(), values)
        self.history.add(self.point.time_ms, values)
        for listener in list(self._listeners.values()):
            listener(self.point)


class _Window:
    """What was folded since the last sample, and how long that took."""

    def __init__(self) -> None:
        self._counts: Counts = {}
        self._began_s = self._folded_s = 0.0
        self._fresh = False

    def begin(self, now_s: float) -> None:
        self._began_s = self._folded_s = now_s

    def add(self, grown: Counts) -> None:
        self._fresh = True
        if not self._counts:
            self._counts = dict(grown)
            return
        for name, counts in grown.items():
            known = self._counts.get(name)
            self._counts[name] = counts if known is None else list(map(operator.add, known, counts))

    def lap(self, now_s: float) -> float:
        """Seconds since the last fold."""
        elapsed_s, self._folded_s = now_s - self._folded_s, now_s
        return elapsed_s

    def take(self, busy: Callable[[Sequence[int]], int]) -> Grown | None:
        """None if there was no fold since the last time, or none that took any time."""
        elapsed_s = self._folded_s - self._began_s
        if not self._fresh or elapsed_s <= 0:
            return None
        counts, self._counts = self._counts, {}
        self._began_s, self._fresh = self._folded_s, False
        return Grown(counts, elapsed_s, busy)
