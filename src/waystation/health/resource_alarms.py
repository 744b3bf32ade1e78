"""Resource alarms: who has to stop publishing, since the disk, the memory or a namespace's share is nearly full.

Looked at once a second; that costs two system calls. What each namespace stores is summed up only while something is
short or a namespace has a limit in bytes, in slices that leave the loop free, and not sooner again than twenty times
as long as it took: a million queues do not make a short broker shorter.

Of several namespaces, those are blocked that store at least the average, and never all of them: whoever stores little
goes on publishing. `broker/access` asks `reason` before a publish, and refuses it; a protocol that can block
publishers subscribes instead, and stops reading from them.

On the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from waystation.observe.events import event_logger
from waystation.routing.namespace_names import DEFAULT, prefix_of

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

logger = event_logger("waystation.alarms")

INTERVAL_S = 1.0
RELIEF = 1.1
"""An alarm ends with a tenth more room than it began with, so that it does not come and go every second."""
SLICE = 2_000
"""Queues that are added up before the loop has its turn: about a millisecond."""
PAUSE_S = 5.0
REST = 20
"""After adding up, the pause is this many times as long as it took, and `PAUSE_S` at least."""

LOW_DISK = "low on disk"
LOW_MEMORY = "low on memory"

OnChange = Callable[[str, str | None], None]


class ResourceAlarms:
    """One per broker; started and stopped by it."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._reasons: dict[str, str] = {}
        self._subscribers: dict[object, OnChange] = {}
        self._short: str | None = None  # what the whole broker is short of
        self._stored: dict[str, int] = {}
        self._stored_by_all = False  # the sums are those of all namespaces
        self._timer: asyncio.TimerHandle | None = None
        self._adding_up: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def start(self) -> None:
        self.look()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._adding_up is not None:
            self._adding_up.cancel()
            await asyncio.gather(self._adding_up, return_exceptions=True)

    @property
    def on(self) -> bool:
        """Whether anybody has to wait."""
        return bool(self._reasons)

    def reason(self, namespace: str) -> str | None:
        """Why publishers of the namespace have to wait; None: they need not."""
        return self._reasons.get(namespace)

    def subscribe(self, callback: OnChange) -> Callable[[], None]:
        """`callback` gets a namespace and its reason (None: no more) whenever that changes. Returns how to end it."""
        token = object()
        self._subscribers[token] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Looks now, and again in a second."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self.look)
        was, self._short = self._short, self._shortage()
        if self._short is not None and was is None:
            self._stored_by_all, self._not_before = False, 0.0
        if self._must_add_up() and self._adding_up is None and loop.time() >= self._not_before:
            self._adding_up = loop.create_task(self._add_up(), name="resource-alarms")
        self._decide()

    def _shortage(self) -> str | None:
        """What the broker is short of, with some slack while it is."""
        settings, world = self._broker.settings, self._broker.world
        least_free = settings.integer("waystation.disk.free.min.bytes")
        if least_free:
            try:
                free = world.disk.free_bytes(self._broker.root)
            except OSError as error:
                logger.warning("disk.unreadable", "the free room of the disk cannot be read: {error}", error=error)
                free = least_free
            if free < least_free * (RELIEF if self._short == LOW_DISK else 1):
                return LOW_DISK
        most_used = settings.integer("waystation.memory.max.bytes")
        if most_used and world.memory.used_bytes() > most_used / (RELIEF if self._short == LOW_MEMORY else 1):
            return LOW_MEMORY
        return None

    def _must_add_up(self) -> bool:
        return (self._short is not None and len(self._broker.namespaces) > 1) or bool(
            self._broker.namespaces.byte_limits
        )

    def _decide(self) -> None:
        reasons: dict[str, str] = {}
        for name, limit in self._broker.namespaces.byte_limits.items():
            stored = self._stored.get(name, 0)
            if stored >= limit:
                reasons[name] = f"namespace '{name}' stores {stored} bytes, its limit is {limit}"
        if self._short is not None:
            reasons.update(dict.fromkeys(self._heaviest(), self._short))
        before, self._reasons = self._reasons, reasons
        for name in {**before, **reasons}:
            if before.get(name) != reasons.get(name):
                self._tell(name, reasons.get(name), was=before.get(name))

    def _heaviest(self) -> list[str]:
        """Those who store at least the average; never all of several, and none before it is known what they store."""
        names = self._broker.namespaces.names()
        if len(names) == 1:
            return names
        if not self._stored_by_all:
            return []
        sizes = {name: self._stored.get(name, 0) for name in names}
        average = sum(sizes.values()) / len(names)
        heavy = [name for name, size in sizes.items() if size >= average]
        return heavy if len(heavy) < len(names) else heavy[:-1]

    def _tell(self, namespace: str, reason: str | None, *, was: str | None) -> None:
        if (reason is None) is not (was is None):  # sums in reasons change all the time
            if reason is None:
                logger.info("publishers.unblocked", "publishers are unblocked", namespace=namespace, reason=was)
            else:
                logger.warning(
                    "publishers.blocked", "publishers are blocked: {reason}", namespace=namespace, reason=reason
                )
        for callback in list(self._subscribers.values()):
            callback(namespace, reason)

    # -- adding up --------------------------------------------------------------------------------------------------

    async def _add_up(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            everybody = self._short is not None
            namespaces = self._broker.namespaces
            self._stored = await self._sums(namespaces.names() if everybody else namespaces.byte_limits)
            self._stored_by_all = everybody
        finally:
            self._adding_up = None
            self._not_before = loop.time() + max(PAUSE_S, REST * (loop.time() - began))
        if self._short is not None and not self._stored_by_all:
            self._not_before = 0.0  # it has become short meanwhile
        self._decide()

    async def _sums(self, wanted: Iterable[str]) -> dict[str, int]:
        sums = dict.fromkeys(wanted, 0)
        if DEFAULT in sums:
            await self._add_all_queues(sums)
        else:
            for name in sums:
                await self._add_queues_of(name, sums)
        of_topic = self._broker.namespaces.of_topic
        for number, topic in enumerate(self._broker.topics):
            name = of_topic(topic.name)
            if name in sums and not topic.internal:
                sums[name] += sum(partition.size_bytes for partition in topic.partitions)
            if number % 100 == 99:
                await asyncio.sleep(0)
        return sums

    async def _add_all_queues(self, sums: dict[str, int]) -> None:
        """Shard by shard, in no order: `/` has what is in no other namespace."""
        of = self._broker.namespaces.of
        for shard in self._broker.shards:
            queues = iter(list(shard.queues.values()))
            while part := list(islice(queues, SLICE)):
                for queue in part:
                    if queue.bytes:
                        name = of(queue.name)
                        if name in sums:
                            sums[name] += queue.bytes
                await asyncio.sleep(0)

    async def _add_queues_of(self, namespace: str, sums: dict[str, int]) -> None:
        prefix, after, queues = prefix_of(namespace), "", self._broker.queues
        while names := list(islice(queues.names(prefix, after), SLICE)):
            sums[namespace] += sum(queues.get(name)[1].bytes for name in names)
            after = names[-1]
            await asyncio.sleep(0)
