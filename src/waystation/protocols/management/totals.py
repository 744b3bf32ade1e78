"""Sums over all queues, for RabbitMQ's management API: by virtual host, made in slices, and remembered for a moment.

A million queues take a second to add up; the loop has its turn in between, and whoever asks within `FRESH_S` gets the
sums of the last time.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import QueueFigures
    from waystation.world.clock import Clock

FRESH_S = 1.0
AT_ONCE = 1_000


class Total:
    """What the queues of a virtual host have together."""

    __slots__ = ("acked", "consumers", "delayed", "delivered", "in_flight", "put", "queues", "ready")

    def __init__(self) -> None:
        self.queues = self.consumers = self.ready = self.delayed = self.in_flight = 0
        self.put = self.delivered = self.acked = 0

    def add(self, other: Total) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, queue: QueueFigures) -> None:
        self.queues += 1
        self.put += queue.put
        self.delivered += queue.delivered
        self.acked += queue.acked
        self.consumers += queue.consumers
        self.ready += queue.ready
        self.delayed += queue.delayed
        self.in_flight += queue.in_flight

    @property
    def messages(self) -> dict[str, int]:
        return {
            "messages": self.ready + self.delayed + self.in_flight,
            "messages_ready": self.ready,
            "messages_unacknowledged": self.in_flight,
        }

    @property
    def stats(self) -> dict[str, int]:
        return {"publish": self.put, "deliver_get": self.delivered, "ack": self.acked}


class Totals:
    """One per management API."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._known: dict[str, Total] = {}
        self._at_s = float("-inf")
        self._under_way: asyncio.Task[None] | None = None

    async def by_vhost(self) -> dict[str, Total]:
        if self._clock.monotonic() - self._at_s >= FRESH_S:
            if self._under_way is None:
                self._under_way = asyncio.ensure_future(self._add_up())
            await asyncio.shield(self._under_way)
        return self._known

    async def all(self) -> Total:
        total = Total()
        for one in (await self.by_vhost()).values():
            total.add(one)
        return total

    async def _add_up(self) -> None:
        try:
            known: dict[str, Total] = {}
            figures, namespace_of = self._access.queue_figures, self._access.namespace_of
            after = ""
            while page := list(islice(figures.names(after=after), AT_ONCE)):
                for name in page:
                    found = figures.find(name)
                    if found is not None:
                        known.setdefault(namespace_of(name), Total()).count(found)
                after = page[-1]
                await asyncio.sleep(0)
            self._known = known
            self._at_s = self._clock.monotonic()
        finally:
            self._under_way = None
