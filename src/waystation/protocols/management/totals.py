"""Sums over all queues, for RabbitMQ's management API: by virtual host, made in slices, and remembered for a moment.

A million queues take a second to add up; the loop has its turn in between, and whoever asks within `FRESH_S` gets the
sums of the last time.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from waystation.queues.names import INTERNAL_PREFIX

if TYPE_CHECKING:
    from waystation.broker.broker import Broker

FRESH_S = 1.0
AT_ONCE = 1_000


class Total:
    """What the queues of a virtual host have together."""

    __slots__ = ("acked", "consumers", "delivered", "held", "parked", "put", "queues", "ready")

    def __init__(self) -> None:
        self.queues = self.ready = self.parked = self.held = self.consumers = self.put = self.delivered = self.acked = 0

    def add(self, other: Total) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def messages(self) -> dict[str, int]:
        return {
            "messages": self.ready + self.parked + self.held,
            "messages_ready": self.ready,
            "messages_unacknowledged": self.held,
        }

    @property
    def stats(self) -> dict[str, int]:
        return {"publish": self.put, "deliver_get": self.delivered, "ack": self.acked}


class Totals:
    """One per management API."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, Total] = {}
        self._at_s = float("-inf")
        self._under_way: asyncio.Task[None] | None = None

    async def by_vhost(self) -> dict[str, Total]:
        if self._broker.world.clock.monotonic() - self._at_s >= FRESH_S:
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
            after = ""
            while page := list(islice(self._broker.queues.names(after=after), AT_ONCE)):
                for name in page:
                    if not name.startswith(INTERNAL_PREFIX) and name in self._broker.queues:
                        self._add(known.setdefault(self._broker.namespaces.of(name), Total()), name)
                after = page[-1]
                await asyncio.sleep(0)
            self._known = known
            self._at_s = self._broker.world.clock.monotonic()
        finally:
            self._under_way = None

    def _add(self, total: Total, name: str) -> None:
        queue = self._broker.queues.get(name)[1]
        total.queues += 1
        total.put += queue.put
        total.delivered += queue.delivered
        total.acked += queue.acked
        total.consumers += sum(not feed.silent for feed in queue.feeds or ())
        ledger = queue.ledger
        if ledger is not None:
            total.ready += ledger.ready
            total.parked += ledger.parked
            total.held += ledger.held
