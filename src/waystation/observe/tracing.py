"""What becomes of single messages, as spans: taken in, durable, handed out, settled. For messages that ask for it.

A message asks by a W3C `traceparent` header with the sampled flag. Its spans are children of the span named there:

    publish DEST    from the arrival of the request until it is answered
      fsync         from the append until it is durable
    deliver DEST    from the hand-out to a consumer until its verdict; where there is no verdict, the hand-out alone
      ack           (or reject, release, kill) from the verdict until it is durable

Nothing is kept with a message for this, so a delivery after a restart belongs to the same trace. The heart and the
protocols call this on the loop's thread, and only where `broker.tracing` is not None: that check, once a batch, frame
or call, is all that a broker without tracing pays. How much is traced is bounded, in all and at once (`MOST_…`): what
is above is left out, and counted. Times come from the broker's clock. Knows neither the broker nor OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from waystation.message import Delivered, Message, Run
from waystation.observe.events import event_logger
from waystation.observe.spans import Attributes, DurableLog, Span, Spans, Traced, TracedPlace, about, describe
from waystation.observe.traceparent import HEADER, parent_of
from waystation.world.clock import Clock

logger = event_logger("waystation.tracing")

MOST_AT_ONCE = 64
"""Messages of one batch or hand-out: each costs tens of microseconds, during which nobody else has a turn."""
MOST_PER_S = 1_000
"""Messages that are traced in a second, taken in or handed out."""
MOST_OPEN = 10_000
"""Deliveries that wait for their verdict, and writes that wait for the disk."""
GIVE_UP_S = 60.0
"""After so long, nobody waits any more for a log to become durable: its topic may be deleted."""
WARN_EVERY_S = 60.0
DRIFT_MS = 20

BROKER = "broker"
"""The protocol of what the broker does by itself."""
ACKED = ("ack", "release", "auto-ack")
"""Outcomes that are no failure."""

Deliver = Callable[[list[Delivered]], None]


class _Arrival(NamedTuple):
    protocol: str
    at_ns: int
    waits: bool  # the answer waits for the disk


class _Sync(NamedTuple):
    log: DurableLog
    offset: int
    began_ns: int
    spans: Sequence[Span]


class _Delivery(NamedTuple):
    span: Span
    consumer: str


class Tracing:
    """One per broker that traces. `waits`, `syncs`: whether answers wait for the disk, and whether it is synced."""

    def __init__(self, clock: Clock, spans: Spans) -> None:
        self._clock = clock
        self._spans = spans
        self.waits: Callable[[], bool] = lambda: True
        self.syncs: Callable[[], bool] = lambda: True
        self._arrival: ContextVar[_Arrival | None] = ContextVar("waystation_arrival", default=None)
        self._anchor = (clock.now_ms(), clock.monotonic())
        self._syncing: list[_Sync] = []
        self._open: dict[object, dict[int, _Delivery]] = {}
        self._open_count = 0
        self._second = 0
        self._left = MOST_PER_S
        self._left_out = 0
        self._warned = -WARN_EVERY_S

    @property
    def protocol(self) -> str:
        """By which the request came that is being handled."""
        arrival = self._arrival.get()
        return BROKER if arrival is None else arrival.protocol

    def arrived(self, protocol: str, waits: bool = True) -> None:
        """A protocol begins to handle what has come; `waits`: its answer waits until what it writes is durable.

        It holds for the present context: for this connection's callback, and for the tasks that it makes.
        """
        self._arrival.set(_Arrival(protocol, self.now_ns(), waits))

    def close(self) -> None:
        """Ends what is open and sends it. Blocks: for a thread, when nothing else calls any more."""
        now = self.now_ns()
        for mine in self._open.values():
            for delivery in mine.values():
                self._end(delivery.span, "broker-stopped", now)
        self._open.clear()
        for sync in self._syncing:
            for span in sync.spans:
                span.end(now)
        self._syncing.clear()
        self._spans.close()

    # -- messages in ------------------------------------------------------------------------------------------------

    def put(
        self, queue: str, messages: Sequence[Message], first: int, log: DurableLog, offset: int, *, own: bool
    ) -> None:
        """Messages were written to a queue. `own`: by the broker itself, from another one."""
        found = [
            Traced(parent, message.id, len(message.payload), -1 if first < 0 else first + i)
            for i, message in enumerate(messages)
            if message.headers and HEADER in message.headers and (parent := parent_of(message.headers)) is not None
        ]
        if found:
            self._published("queue", queue, found, log, offset, own=own)

    def published(self, topic: str, partition: int, found: Sequence[Traced], log: DurableLog, offset: int) -> None:
        """Messages were appended to a partition."""
        self._published("topic", topic, found, log, offset, partition=partition)

    def _published(
        self,
        kind: str,
        name: str,
        found: Sequence[Traced],
        log: DurableLog,
        offset: int,
        *,
        own: bool = False,
        partition: int = -1,
    ) -> None:
        now = self.now_ns()
        arrival = None if own else self._arrival.get()
        protocol, began = (BROKER, now) if arrival is None else (arrival.protocol, arrival.at_ns)
        answered: list[Span] = []
        synced: list[Span] = []
        for one in found[: self._allowed(len(found))]:
            known = about("publish", "send", kind, name, protocol)
            describe(known, one, partition)
            span = self._spans.begin(f"publish {name}", one.parent, began, known, serves=True)
            answered.append(span)
            if self.syncs():
                synced.append(self._spans.begin("fsync", span, now, {}, serves=False))
        if (arrival is None or arrival.waits) and self.waits():
            self._when_durable(log, offset, now, [*synced, *answered])
            return
        for span in answered:
            span.end(now)
        self._when_durable(log, offset, now, synced)

    # -- messages out -----------------------------------------------------------------------------------------------

    def watching(self, deliver: Deliver, kind: str, name: str, consumer: str = "", group: str = "") -> Deliver:
        """`deliver` for a consumer without verdicts; the present request opens it."""
        place = TracedPlace(kind, name, self.protocol, consumer, group)

        def traced(messages: list[Delivered]) -> None:
            self.delivered(place, messages)
            deliver(messages)

        return traced

    def delivered(
        self, place: TracedPlace, messages: Iterable[Delivered], owner: object = None, outcome: str = ""
    ) -> None:
        """A consumer gets these. `owner`: what it will settle them with, if it has to; else they have an `outcome`."""
        found = [
            (Traced(parent, one.message.id, len(one.message.payload), one.offset), one)
            for one in messages
            if one.message.headers
            and HEADER in one.message.headers
            and (parent := parent_of(one.message.headers)) is not None
        ]
        if not found:
            return
        now = self.now_ns()
        for traced, one in found[: self._allowed(len(found))]:
            span = self._begin_delivery(place, traced, now, one.source, one.partition, one.deliveries)
            if owner is not None and self._open_count < MOST_OPEN:
                mine = self._open.setdefault(owner, {})
                self._forget(mine.pop(one.tag, None), now)
                mine[one.tag] = _Delivery(span, place.consumer)
                self._open_count += 1
            else:
                self._end(span, outcome, self.now_ns())

    def fetched(self, place: TracedPlace, partition: int, found: Sequence[Traced]) -> None:
        """A consumer gets these records as they are stored."""
        now = self.now_ns()
        for traced in found[: self._allowed(len(found))]:
            self._begin_delivery(place, traced, now, "", partition, 0).end(self.now_ns())

    def _begin_delivery(
        self, place: TracedPlace, traced: Traced, now: int, source: str, partition: int, deliveries: int
    ) -> Span:
        name = source or place.name
        known = about("deliver", "receive", place.kind, name, place.protocol)
        describe(known, traced, partition)
        if place.consumer:
            known["waystation.consumer"] = place.consumer
        if place.group:
            known["messaging.consumer.group.name"] = place.group
        if deliveries:
            known["waystation.deliveries"] = deliveries
        return self._spans.begin(f"deliver {name}", traced.parent, now, known, serves=True)

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def settled(
        self,
        owner: object,
        outcome: str,
        runs: Iterable[Run],
        log: DurableLog | None,
        offset: int,
        *,
        consumer: str | None = None,
        unknown: Iterable[Run] = (),
    ) -> None:
        """A verdict on what was handed out, but for what is unknown; durable when the log is (None: nothing to wait
        for). With a `consumer`, only what that one was given."""
        mine = self._open.get(owner)
        if mine is None:
            return
        lost = set(_tags(mine, unknown))
        now = self.now_ns()
        synced: list[Span] = []
        for tag in _tags(mine, runs):
            delivery = mine[tag]
            if tag in lost or (consumer is not None and delivery.consumer != consumer):
                continue
            self._take_out(owner, mine, tag)
            known: Attributes = {"messaging.operation.name": outcome, "messaging.operation.type": "settle"}
            verdict = self._spans.begin(outcome, delivery.span, now, known, serves=False)
            self._end(delivery.span, outcome, now)
            if log is None:
                verdict.end(now)
            else:
                synced.append(verdict)
        if log is not None and synced:
            self._when_durable(log, offset, now, synced)

    def lost(self, owner: object, outcome: str, runs: Iterable[Run]) -> None:
        """These are not their consumer's any more, without any word of it."""
        mine = self._open.get(owner)
        if mine is not None:
            self._end_all(owner, mine, _tags(mine, runs), outcome)

    def lapsed(self, owner: object, in_flight: Callable[[int], bool]) -> None:
        """Time has passed: what is not in flight any more was in flight for too long."""
        mine = self._open.get(owner)
        if mine is not None:
            self._end_all(owner, mine, [tag for tag in mine if not in_flight(tag)], "expired-hold")

    def gone(self, owner: object, outcome: str, consumer: str | None = None) -> None:
        """A consumer, or with None whatever they came from, is no more."""
        mine = self._open.get(owner)
        if mine is not None:
            tags = [tag for tag, delivery in mine.items() if consumer is None or delivery.consumer == consumer]
            self._end_all(owner, mine, tags, outcome)

    def _end_all(self, owner: object, mine: dict[int, _Delivery], tags: Iterable[int], outcome: str) -> None:
        now = self.now_ns()
        for tag in tags:
            self._end(self._take_out(owner, mine, tag).span, outcome, now)

    def _take_out(self, owner: object, mine: dict[int, _Delivery], tag: int) -> _Delivery:
        delivery = mine.pop(tag)
        self._open_count -= 1
        if not mine:
            self._open.pop(owner, None)
        return delivery

    def _forget(self, before: _Delivery | None, now: int) -> None:
        """The same tag is handed out again: whatever became of it the last time, it is over."""
        if before is not None:
            self._open_count -= 1
            self._end(before.span, "returned", now)

    @staticmethod
    def _end(span: Span, outcome: str, now: int) -> None:
        if outcome:
            span.add({"waystation.outcome": outcome})
        span.end(now, "" if not outcome or outcome in ACKED else outcome)

    # -- durable ----------------------------------------------------------------------------------------------------

    def _when_durable(self, log: DurableLog, offset: int, began_ns: int, spans: Sequence[Span]) -> None:
        """Ends spans when the log is durable so far. Looks on, and asks nobody to sync."""
        if not spans:
            return
        if log.durable_offset >= offset or not self.syncs() or len(self._syncing) >= MOST_OPEN:
            now = self.now_ns()
            for span in spans:
                span.end(now)
        else:
            self._syncing.append(_Sync(log, offset, began_ns, spans))

    def synced(self) -> None:
        """Something was synced, or could not be: called after every round of the group commit."""
        if not self._syncing:
            return
        now = self.now_ns()
        left: list[_Sync] = []
        for sync in self._syncing:
            failure = ""
            if sync.log.durable_offset < sync.offset:
                if sync.log.failure is not None:
                    failure = "the log has failed"
                elif now - sync.began_ns < GIVE_UP_S * 1e9:
                    left.append(sync)
                    continue
                else:
                    failure = f"not durable after {GIVE_UP_S:.0f} s"
            for span in sync.spans:
                span.end(now, failure)
        self._syncing = left

    # -- parts ------------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """The broker's wall clock, as fine as its monotonic one is."""
        wall_ms, then_s = self._anchor
        passed = self._clock.monotonic() - then_s
        actual_ms = self._clock.now_ms()
        if abs(actual_ms - wall_ms - passed * 1000) > DRIFT_MS:  # somebody has set the clock
            self._anchor = (actual_ms, then_s + passed)
            return actual_ms * 1_000_000
        return wall_ms * 1_000_000 + round(passed * 1e9)

    def _allowed(self, count: int) -> int:
        """How many of so many messages may be traced now."""
        now_s = self._clock.monotonic()
        if int(now_s) != self._second:
            self._second, self._left = int(now_s), MOST_PER_S
        allowed = min(count, self._left, MOST_AT_ONCE)
        self._left -= allowed
        if allowed < count:
            self._left_out += count - allowed
            if now_s - self._warned >= WARN_EVERY_S:
                self._warned = now_s
                logger.warning(
                    "tracing.left_out",
                    "more messages ask to be traced than the broker traces ({most_per_s} a second, {most_at_once} at"
                    " once): left out {left_out} so far; let the senders sample fewer",
                    most_per_s=MOST_PER_S,
                    most_at_once=MOST_AT_ONCE,
                    left_out=self._left_out,
                )
        return allowed


def _tags(mine: dict[int, _Delivery], runs: Iterable[Run]) -> list[int]:
    """Those of `mine` that are in the runs."""
    found: list[int] = []
    for first, count in runs:
        if count <= len(mine):
            found += [tag for tag in range(first, first + count) if tag in mine]
        else:
            found += [tag for tag in mine if first <= tag < first + count]
    return found
