"""Messages taken by request: one getter of the heart per queue, for all clients that take from it by HTTP.

A client that takes and never comes back loses its messages after the queue's visibility timeout, like any consumer
that falls silent. A getter with nothing in flight and without callers is closed after a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Verdict
from waystation.message import Delivered, size_of
from waystation.message_json import to_json_object
from waystation.protocols.http.deliveries.ack_ids import AckIds, AckIdSource, runs_of
from waystation.protocols.http.transport.calls import Peer
from waystation.world.clock import monotonic_ms

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import Getter
    from waystation.world.clock import Clock

OWNER = "http"
TAKEN_AT_ONCE = 16
PORTION_BYTES = 1024 * 1024
"""Payload that is taken at once, or one message that is larger."""
ANSWER_BYTES = 8 * 1024 * 1024
"""Payload after which an answer is full, whatever the count that was asked for."""


class Takers:
    """One per listener."""

    def __init__(self, access: Access, clock: Clock, ack_ids: AckIds) -> None:
        self._access = access
        self._clock = clock
        self._ack_ids = ack_ids
        self._by_queue: dict[str, tuple[Getter, AckIdSource]] = {}

    async def take(
        self,
        queue: str,
        peer: Peer,
        *,
        count: int,
        wait_ms: int,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
    ) -> list[tuple[Delivered, dict[str, Any]]]:
        """Messages and their JSON, with ack ids unless `auto_ack`; none if none came in time."""
        getter, source = self._of(queue)
        source.users += 1
        try:
            taken = await self._get(getter, count, wait_ms)
        finally:
            source.users -= 1
        runs = runs_of(delivered.tag for delivered in taken)
        if taken and peer.disconnected:
            getter.settle(Verdict.RELEASE, runs)
            return []
        if taken and auto_ack:
            await self._access.durable(getter.settle(Verdict.ACK, runs).receipt)
            return [(delivered, to_json_object(delivered, queue)) for delivered in taken]
        if taken and visibility_timeout_ms is not None:
            getter.touch(runs, visibility_timeout_ms)
        now_ms = monotonic_ms(self._clock)
        shown = []
        for delivered in taken:
            found = to_json_object(delivered, queue)
            found["ack_id"] = self._ack_ids.give(source, delivered, now_ms, visibility_timeout_ms)
            shown.append((delivered, found))
        return shown

    async def _get(self, getter: Getter, count: int, wait_ms: int) -> list[Delivered]:
        """What is there, until there are `count` or as many as one answer should carry; else waits for the first."""
        taken = await getter.get(min(count, TAKEN_AT_ONCE), wait_ms)
        size = sum(size_of(delivered.message) for delivered in taken)
        while taken and len(taken) < count and size < ANSWER_BYTES and not getter.closed:
            more = await getter.get(min(count - len(taken), TAKEN_AT_ONCE), 0)
            if not more:
                break
            taken += more
            size += sum(size_of(delivered.message) for delivered in more)
        return taken

    def _of(self, queue: str) -> tuple[Getter, AckIdSource]:
        known = self._by_queue.get(queue)
        if known is not None and not known[0].closed:
            return known
        if known is not None:
            self._ack_ids.drop(known[1])
        getter = self._access.getter(queue, OWNER)
        getter.portion_bytes = PORTION_BYTES
        source = self._ack_ids.add(f"queue:{queue}", getter, self._access.describe_queue(queue).settings.hold_ms)
        self._by_queue[queue] = (getter, source)
        return getter, source

    def sweep(self) -> None:
        """Closes getters that nobody needs."""
        empty = set(self._ack_ids.sweep(monotonic_ms(self._clock)))
        for queue, (getter, source) in list(self._by_queue.items()):
            if getter.closed or (source in empty and not source.users):
                self._ack_ids.drop(source)
                del self._by_queue[queue]
