"""What the broker has seen of pipelines: the last word of each, and a timeline of their batches.

Pipelines tell how they are doing on the compacted topic `waystation.pipelines`. This follows it like any reader, from
its beginning, as soon as somebody asks for the first time; who never asks pays nothing. After a restart, or when the
topic has been compacted, the timeline has what the topic still has and goes on from there.

Bounded: `MAX_PIPELINES` names (those not heard of for longest are forgotten), `MAX_POINTS` points of the timeline each.
On the loop's thread only; for whoever shows pipelines and for the metrics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import OffsetOutOfRange, WaystationError
from waystation.message import Delivered
from waystation.observe.events import event_logger
from waystation.observe.pipeline_state import CONTROL, TOPIC, PipelineState, SinkState
from waystation.topics.reading import ReadPosition
from waystation.topics.records.crossing import TOMBSTONE

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic

logger = event_logger("waystation.pipelines")

MAX_PIPELINES = 1_000
MAX_POINTS = 500
TAKE = 1_000
"""Records looked at before others have their turn."""


class TimelinePoint(msgspec.Struct, frozen=True):
    """What one sink had done when its pipeline said so. `rows`: since the point before, of the same run."""

    time_ms: int
    sink: str
    batch: int
    rows: int
    batch_ms: int
    rows_per_s: float
    lag: int | None


class _Seen:
    """One pipeline."""

    __slots__ = ("points", "sinks", "state")

    def __init__(self, state: PipelineState) -> None:
        self.state = state
        self.points: deque[TimelinePoint] = deque(maxlen=MAX_POINTS)
        self.sinks: dict[str, SinkState] = {}  # the last of each that made a point, of the run of `state`


class PipelinesSeen:
    """One per broker; starts by itself when it is first asked."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._seen: dict[str, _Seen] = {}  # the one heard of last comes last
        self._topic: Topic | None = None
        self._places: list[ReadPosition] = []
        self._started = False
        self._scheduled = False
        self._caught_up = asyncio.Event()
        self._decode = msgspec.json.Decoder(PipelineState).decode

    # -- asking -----------------------------------------------------------------------------------------------------

    async def states(self) -> list[PipelineState]:
        """The last word of every pipeline, in the order of names; all that the topic has is read first."""
        await self._read_all()
        return self.states_now()

    def states_now(self) -> list[PipelineState]:
        """As `states`, without waiting: what has been read so far. Starts the reading."""
        self._start()
        return [self._seen[name].state for name in sorted(self._seen)]

    async def state(self, name: str) -> PipelineState | None:
        """The last word of one; None if nothing is known of it."""
        await self._read_all()
        seen = self._seen.get(name)
        return None if seen is None else seen.state

    async def timeline(self, name: str) -> list[TimelinePoint]:
        """Its batches, the oldest first."""
        await self._read_all()
        seen = self._seen.get(name)
        return [] if seen is None else list(seen.points)

    # -- following --------------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        self._start()
        await self._caught_up.wait()

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self._broker.topics.subscribe_changes(self._look)
        self._look()

    def _look(self) -> None:
        """The topic may have been created, deleted or extended."""
        topic = self._broker.topics.find(TOPIC)
        if topic is not self._topic:
            for place in self._places:
                place.reader.unlisten(self._soon)
            self._places.clear()
            self._seen.clear()
            self._topic = topic
        if topic is not None:
            for partition in topic.partitions[len(self._places) :]:
                place = ReadPosition(self._broker.readers.of(partition), partition.start_offset)
                place.reader.listen(self._soon)
                self._places.append(place)
        self._soon()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """One chunk of each partition, and again until there is no more."""
        self._scheduled = False
        more = False
        for place in self._places:
            before = place.position
            try:
                for delivered in place.take(TAKE) if place.behind else ():
                    self._hear(delivered)
            except OffsetOutOfRange:
                place.back_in_range()
                more = True
                continue
            except WaystationError as error:  # being deleted, or its disk failed: what is known stays
                logger.warning("pipelines.unreadable", "cannot read {topic}: {error}", topic=TOPIC, error=error)
                continue
            more = more or (place.behind and place.position != before)
        if more:
            self._soon()
        else:
            self._caught_up.set()

    # -- hearing ----------------------------------------------------------------------------------------------------

    def _hear(self, delivered: Delivered) -> None:
        message = delivered.message
        name = (message.key or b"").decode(errors="replace")
        if name.endswith(CONTROL):
            return
        if message.type == TOMBSTONE:
            self._seen.pop(name, None)
            return
        try:
            state = self._decode(message.payload)
        except msgspec.DecodeError:
            return  # of another version, or no record of ours
        seen = self._seen.pop(name, None)
        if seen is None:
            seen = _Seen(state)
            if len(self._seen) >= MAX_PIPELINES:
                del self._seen[next(iter(self._seen))]
        elif seen.state.run != state.run:
            seen.sinks.clear()
        seen.state = state
        self._seen[name] = seen
        for sink in state.sinks:
            self._note(seen, sink)

    @staticmethod
    def _note(seen: _Seen, sink: SinkState) -> None:
        """A point of the timeline, if there was a batch."""
        before = seen.sinks.get(sink.sink)
        if sink.batch < 0 or (before is not None and (before.batch, before.rows) == (sink.batch, sink.rows)):
            return
        seen.sinks[sink.sink] = sink
        rows = sink.rows - (before.rows if before is not None else 0)
        seen.points.append(
            TimelinePoint(
                seen.state.updated_ms, sink.sink, sink.batch, max(0, rows), sink.batch_ms, sink.rows_per_s, sink.lag
            )
        )
