"""Queues as doors see them: by name, whatever shard they are on."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from crc32c import crc32c

from waystation.broker.dead_letters import DeadLetters
from waystation.broker.keeping import Keeping
from waystation.errors import Conflict, Full, Invalid, NotAllowed, NotFound, StorageFailed
from waystation.message import Delivered, Message
from waystation.protocol import Found, Peeked, PutAnswer, QueueInfo, RedriveAnswer
from waystation.queues.feed import Deliver, Receipt
from waystation.queues.queue import Queue
from waystation.queues.queue_feed import Getter, OnEnd, QueueFeed
from waystation.queues.settings import QueueSettings, check_queue_name, check_settings
from waystation.queues.shard import PutResult, Shard
from waystation.queues.states import State

logger = logging.getLogger("waystation.queues")

DEFAULTS = QueueSettings()
NEAR = 2000
INTERNAL_PREFIX = "__"
_STATES = {State.READY: "ready", State.PARKED: "parked", State.HELD: "held", State.LEAVING: "leaving"}


class Queues:
    """All queues of a broker. Names are looked up here; what happens to a queue happens on its shard."""

    def __init__(self, shards: Iterable[Shard], keeping: Keeping, dead_letters: DeadLetters) -> None:
        self._shards = tuple(shards)
        self._dead_letters = dead_letters
        self._keeping = keeping
        self._by_name: dict[str, tuple[Shard, Queue]] = {}
        self._sorted: builtins.list[str] | None = None
        self._owned: dict[str, set[str]] = {}
        self._serial = itertools.count(1)
        self._on_delete: builtins.list[Callable[[str, Receipt], None]] = []
        for shard in self._shards:
            shard.on_idle = self._expire
            for queue in shard.queues.values():
                self._by_name[queue.name] = (shard, queue)

    # -- finding ------------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> tuple[Shard, Queue]:
        found = self._by_name.get(name)
        if found is None:
            raise NotFound(self._not_found(name))
        return found

    def _not_found(self, name: str) -> str:
        from waystation.errors import near_matches

        return f"there is no queue {name!r}{near_matches(name, itertools.islice(self._by_name, NEAR))}"

    def names(self, prefix: str = "", after: str = "") -> Iterable[str]:
        """Names in order, behind `after`."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name)
        for i in range(bisect_left(self._sorted, max(prefix, after)), len(self._sorted)):
            name = self._sorted[i]
            if not name.startswith(prefix):
                return
            if name > after or not after:
                yield name

    def describe(self, name: str) -> QueueInfo:
        return _info(*self.get(name))

    def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> builtins.list[QueueInfo]:
        shown = (name for name in self.names(prefix, after) if not name.startswith(INTERNAL_PREFIX))
        return [self.describe(name) for name in itertools.islice(shown, max(0, limit))]

    def stats(self) -> dict[str, Any]:
        """Sums over all queues; `put`, `delivered` and `acked` since the start of the broker."""
        total = dict.fromkeys(("queues", "ready", "parked", "held", "consumers", "put", "delivered", "acked"), 0)
        total["queues"] = len(self._by_name)
        for _, queue in self._by_name.values():
            ledger = queue.ledger
            if queue.put or queue.delivered or queue.feeds:
                total["consumers"] += len(queue.feeds or ())
                total["put"] += queue.put
                total["delivered"] += queue.delivered
                total["acked"] += queue.acked
            if ledger is not None:
                total["ready"] += ledger.ready
                total["parked"] += ledger.parked
                total["held"] += ledger.held
        return total

    # -- coming and going ----------------------------------------------------------------------------------------------

    async def declare(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        passive: bool = False,
        alter: bool = False,
        owner: str | None = None,
    ) -> QueueInfo:
        """A queue of this name, made if it is not there. Settings that differ from the present ones are a Conflict."""
        receipt = None
        if name not in self._by_name:
            if passive:
                raise NotFound(self._not_found(name))
            receipt = self._create(name, settings or DEFAULTS, owner)
        shard, queue = self.get(name)
        self._check_owner(queue, owner)
        shard.touch(queue)
        if receipt is None and settings is not None and settings != queue.settings:
            if not alter:
                raise Conflict(_difference(queue, settings))
            receipt = shard.alter(queue, check_settings(settings))
        await self._keeping.kept(receipt)
        return _info(shard, queue)

    def ensure(self, name: str) -> None:
        """A queue of this name with the usual settings if there is none; what is put to it next is kept only with it."""
        if name not in self._by_name:
            self._create(name, DEFAULTS, None)

    def _create(self, name: str, settings: QueueSettings, owner: str | None) -> Receipt:
        check_queue_name(name)
        check_settings(settings)
        if settings.dead_letter == name:
            raise Invalid(f"dead_letter: queue {name!r} cannot be its own")
        shard = self._shard_of(name)
        queue, receipt = shard.declare(name, settings)
        self._by_name[name] = (shard, queue)
        if self._sorted is not None:
            insort(self._sorted, name)
        if settings.exclusive:
            queue.owner = owner
            if owner is not None:
                self._owned.setdefault(owner, set()).add(name)
        return receipt

    def _shard_of(self, name: str) -> Shard:
        return self._shards[crc32c(name.encode()) % len(self._shards)]

    @staticmethod
    def _check_owner(queue: Queue, owner: str | None) -> None:
        if queue.settings.exclusive and queue.owner is not None and queue.owner != owner:
            raise NotAllowed(f"queue {queue.name!r} is exclusive to another connection")

    async def delete(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Deletes a queue and what is in it; returns how many messages that was."""
        _, queue = self.get(name)
        if if_empty and len(queue):
            raise Conflict(f"queue {name!r} is not empty: it has {len(queue)} messages")
        if if_unused and queue.feeds:
            raise Conflict(f"queue {name!r} is in use: it has {len(queue.feeds)} consumers")
        count = len(queue)
        await self._keeping.kept(self._remove(name))
        return count

    def _remove(self, name: str) -> Receipt:
        shard, queue = self._by_name[name]
        receipt = shard.delete(queue)
        del self._by_name[name]
        if self._sorted is not None:
            i = bisect_left(self._sorted, name)
            del self._sorted[i]
        if queue.owner is not None:
            self._owned.get(queue.owner, set()).discard(name)
        gone = NotFound(f"queue {name!r} was deleted")
        for feed in tuple(queue.feeds or ()):
            feed.end(gone)
        queue.wake_publishers()
        for callback in self._on_delete:
            callback(name, receipt)
        return receipt

    def subscribe_deletions(self, callback: Callable[[str, Receipt], None]) -> None:
        """`callback` gets the name of each queue that is deleted, and what tells when the deletion is durable."""
        self._on_delete.append(callback)

    def release_owner(self, owner: str) -> None:
        """A connection is gone, and its exclusive queues with it."""
        for name in self._owned.pop(owner, ()):
            self._remove_quietly(name, "its connection is gone")

    def remove_left_over(self) -> None:
        """At the start: exclusive queues whose connections ended with the last run."""
        for name, (_, queue) in [*self._by_name.items()]:
            if queue.settings.exclusive:
                self._remove_quietly(name, "its connection ended with the last run")

    def _expire(self, queue: Queue) -> None:
        self._remove_quietly(queue.name, "nobody used it")

    def _remove_quietly(self, name: str, why: str) -> None:
        if name not in self._by_name:
            return
        try:
            self._remove(name)
            logger.info("queue deleted: name=%r reason=%s", name, why)
        except StorageFailed as error:
            logger.warning("queue not deleted, the disk refuses: name=%r: %s", name, error)

    async def purge(self, name: str) -> int:
        """Removes what nobody holds; returns how many messages that was."""
        shard, queue = self.get(name)
        if queue.ledger is None:
            return 0
        before = queue.ledger.ready + queue.ledger.parked
        runs = [(first, n) for state, first, n in queue.ledger.alive_runs() if state in (State.READY, State.PARKED)]
        await self._keeping.kept(shard.end(queue, runs))
        return before

    # -- messages in ---------------------------------------------------------------------------------------------------

    def put(self, name: str, messages: Sequence[Message], *, raw: bytes | None = None) -> PutResult:
        """Writes messages to a queue; they are kept when the receipt is. All of them (but duplicates), or none."""
        shard, queue = self.get(name)
        return shard.put(queue, messages)

    async def put_durable(self, name: str, messages: Sequence[Message], *, wait_ms: int = 0) -> PutAnswer:
        """As `put`, waits for room in a full queue, and returns when they are kept."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            try:
                result = self.put(name, messages)
                break
            except Full:
                left = deadline - loop.time()
                if left <= 0 or name not in self._by_name:
                    raise
                await asyncio.wait([self.get(name)[1].room()], timeout=left)
        await self._keeping.kept(result.receipt)
        return PutAnswer(result.first, result.count, result.duplicates)

    # -- messages out --------------------------------------------------------------------------------------------------

    def open_feed(
        self,
        name: str,
        consumer: str,
        deliver: Deliver,
        *,
        on_end: OnEnd,
        prefetch: int = 0,
        hold_ms: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        owner: str | None = None,
    ) -> QueueFeed:
        """A consumer of the queue; messages come with its first credit."""
        shard, queue = self.get(name)
        self._check_owner(queue, owner)
        self._check_exclusive(queue, exclusive)
        if prefetch < 0:
            raise Invalid(f"prefetch: {prefetch} is below zero")
        if hold_ms is not None and hold_ms <= 0:
            raise Invalid(f"hold_ms: {hold_ms} is not above zero")
        feed = QueueFeed(
            shard,
            queue,
            f"{consumer}/{next(self._serial)}",
            deliver,
            on_end,
            prefetch=prefetch,
            hold_ms=hold_ms,
            auto_ack=auto_ack,
            exclusive=exclusive,
        )
        feed.on_closed = self._closed
        return feed

    def getter(
        self, name: str, owner: str, hold_ms: int | None = None, auto_ack: bool = False, *, shared: bool = False
    ) -> Getter:
        """A consumer that asks for messages. `shared`: its name is the owner's alone, so that holds can be found."""
        shard, queue = self.get(name)
        self._check_owner(queue, owner)
        self._check_exclusive(queue, exclusive=False)
        if hold_ms is not None and hold_ms <= 0:
            raise Invalid(f"hold_ms: {hold_ms} is not above zero")
        getter = Getter(shard, queue, f"{owner}/{next(self._serial)}", hold_ms=hold_ms, auto_ack=auto_ack)
        getter.on_closed = self._closed
        return getter

    @staticmethod
    def _check_exclusive(queue: Queue, exclusive: bool) -> None:
        feeds = queue.feeds or []
        if any(feed.exclusive for feed in feeds):
            raise Conflict(f"queue {queue.name!r} has an exclusive consumer")
        if exclusive and feeds:
            raise Conflict(f"queue {queue.name!r} has {len(feeds)} consumers; it cannot be consumed exclusively")

    def _closed(self, feed: QueueFeed) -> None:
        queue = feed.queue
        if queue.settings.auto_delete and not queue.feeds:
            known = self._by_name.get(queue.name)
            if known is not None and known[1] is queue:
                self._remove_quietly(queue.name, "its last consumer is gone")

    # -- looking -------------------------------------------------------------------------------------------------------

    def peek(self, name: str, count: int, after: int = -1, state: str = "any") -> builtins.list[Peeked]:
        """Messages as they are, oldest first."""
        shard, queue = self.get(name)
        found: builtins.list[Peeked] = []
        if queue.ledger is None:
            return found
        for run_state, first, length in queue.ledger.alive_runs(after=after):
            if state not in ("any", _STATES[run_state]):
                continue
            for entry in range(max(first, after + 1), first + length):
                if len(found) >= count:
                    return found
                found.append(_peeked(shard, queue, entry, run_state))
        return found

    def find(self, message_id: str, queue: str | None = None) -> Found | None:
        """A living message by its id: its own, or QUEUE#TAG."""
        name, _, tag = message_id.rpartition("#")
        if name and (queue is None or queue == name) and name in self._by_name and tag.isdecimal():
            shard, known = self._by_name[name]
            if known.ledger is not None and known.ledger.state_of(int(tag)):
                return _found(shard, known, int(tag))
        places = [self.get(queue)] if queue is not None else [*self._by_name.values()]
        for shard, known in places:
            for entry in known.entries_like(message_id):
                if shard.message_at(known, entry)[1].id == message_id:
                    return _found(shard, known, entry)
        return None

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        filter: str | None = None,
        rate: float = 0.0,
        limit: int = 0,
        dry_run: bool = False,
        message_ids: Sequence[str] = (),
        progress: Callable[[RedriveAnswer], None] | None = None,
    ) -> RedriveAnswer:
        """Sends dead letters back (see `dead_letters.py`)."""
        return await self._dead_letters.redrive(
            queue,
            to=to,
            filter=filter,
            rate=rate,
            limit=limit,
            dry_run=dry_run,
            message_ids=message_ids,
            progress=progress,
        )

    async def cancel(self, name: str, message_id: str) -> bool:
        """Takes out a message that nobody holds; False if there is none."""
        shard, queue = self.get(name)
        found = self.find(message_id, name)
        if found is None or found.state not in ("ready", "parked"):
            return False
        await self._keeping.kept(shard.end(queue, [(found.delivered.tag, 1)]))
        return True


def _info(shard: Shard, queue: Queue) -> QueueInfo:
    info = QueueInfo(queue.name, queue.settings, put=queue.put, delivered=queue.delivered, acked=queue.acked)
    info.dead = queue.dead
    info.consumers = len(queue.feeds or ())
    ledger = queue.ledger
    if ledger is not None:
        info.ready, info.parked, info.held, info.bytes = ledger.ready, ledger.parked, ledger.held, queue.bytes
        for _, first, _ in ledger.alive_runs():
            info.oldest_ms = shard.message_at(queue, first)[0]
            break
    return info


def _difference(queue: Queue, settings: QueueSettings) -> str:
    fields = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(queue.settings, name)]
    shown = ", ".join(
        f"{name} is {getattr(queue.settings, name)!r}, not {getattr(settings, name)!r}" for name in fields
    )
    return f"queue {queue.name!r} exists with other settings: {shown}; declare it alike, or alter it"


def _peeked(shard: Shard, queue: Queue, entry: int, state: State) -> Peeked:
    ledger = queue.open_ledger()
    taken_ms, message = shard.message_at(queue, entry)
    delivered = Delivered(entry, ledger.deliveries_of(entry), taken_ms, message, queue.name)
    return Peeked(_STATES[state], ledger.ready_at(entry) if state is State.PARKED else None, delivered)


def _found(shard: Shard, queue: Queue, entry: int) -> Found:
    peeked = _peeked(shard, queue, entry, queue.open_ledger().state_of(entry))
    return Found(f"queue:{queue.name}", peeked.state, peeked.delivered, peeked.ready_at_ms)
