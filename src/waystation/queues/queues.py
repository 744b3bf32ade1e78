"""Queues as protocols see them: by name, whatever shard they are on.

Known are the queues of the shards that this broker leads. Of another name it cannot say whether there is such a queue:
whoever asks is told NotLeader, never that there is none.
"""

from __future__ import annotations

import asyncio
import builtins
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from waystation.errors import Conflict, Invalid, NotAllowed, NotFound, StorageFailed
from waystation.message import Message, Run
from waystation.observe.events import event_logger
from waystation.protocol import Found, Peeked, PutAnswer, QueueInfo, RedriveAnswer
from waystation.queues.checks import check_declaration, difference
from waystation.queues.dead_letters import DeadLetters
from waystation.queues.feed import Deliver
from waystation.queues.inspection import PEEKED_BYTES, entries_with_id, found_at, info_of, peek, split_tag
from waystation.queues.ledger.runs import add_run
from waystation.queues.ledger.states import State
from waystation.queues.names import INTERNAL_PREFIX, QueueNames, QueuePlace, check_not_internal
from waystation.queues.putting import (
    put_each_several,
    put_or_refuse,
    put_same,
    put_several,
    put_with_patience,
    together,
)
from waystation.queues.redriving import MayGoTo, Progress, Redrive
from waystation.queues.settings import (
    QueueSettings,
    check_visibility_timeout,
    declared,
    kept_declared,
    undecided,
    with_changes,
)
from waystation.queues.shard.commands import count_of
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import Getter, OnEnd, QueueFeed
from waystation.queues.shard.queue_reader import QueueReader
from waystation.queues.shard.shard import PutEach, PutEachOutcome, PutOutcome, PutResult, Shard
from waystation.queues.shard.shards import Shards
from waystation.topics.partitions.durability import Durability
from waystation.topics.partitions.partition import Receipt

logger = event_logger("waystation.queues")

DEFAULTS = QueueSettings()
PURGED_AT_ONCE = 4_096
"""Messages that a purge takes out before the loop has its turn."""


class Queues:
    """All queues of a broker. Names are looked up here; what happens to a queue happens on its shard."""

    def __init__(self, shards: Shards, durability: Durability, dead_letters: DeadLetters) -> None:
        self._shards = shards
        self._dead_letters = dead_letters
        self._durability = durability
        self._names = QueueNames()
        self._owned: dict[str, dict[str, None]] = {}  # the names in the order of their declaration
        self.effective: Callable[[str, QueueSettings], QueueSettings] = lambda name, settings: settings
        """What the policies make of declared settings."""
        self._serial = itertools.count(1)
        self.admit: Callable[[str], None] = lambda name: None
        """Raises Full where there is no room for a queue of this name."""
        self._on_create: builtins.list[Callable[[str], None]] = []
        self._on_delete: builtins.list[Callable[[str, Receipt], None]] = []
        self._on_lead: builtins.list[Callable[[], None]] = []
        self._own = 0
        shards.watch(self)

    # -- shards that are led and dropped (`LeadWatcher`) --------------------------------------------------------------

    def led(self, shard: Shard) -> None:
        shard.on_idle = self._expire
        for queue in shard.queues.values():
            self._names.add(queue.name, (shard, queue))
            self._own += queue.name.startswith(INTERNAL_PREFIX)

    def began(self, shard: Shard) -> None:
        self.remove_left_over(shard)
        self._tell_led()

    def dropped(self, shard: Shard) -> None:
        for queue in shard.queues.values():
            self._names.discard(queue.name)
            self._own -= queue.name.startswith(INTERNAL_PREFIX)
            if queue.owner is not None:
                self._owned.get(queue.owner, {}).pop(queue.name, None)
        self._dead_letters.forget(shard)
        self._tell_led()

    def subscribe_leads(self, callback: Callable[[], None]) -> None:
        """`callback` runs when the queues of a whole shard have come or gone: it is led, or not any more."""
        self._on_lead.append(callback)

    def _tell_led(self) -> None:
        for callback in self._on_lead:
            callback()

    # -- finding ------------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        """Raises NotLeader where this broker cannot know."""
        if name in self._names:
            return True
        if isinstance(name, str):
            self._shards.of(name)
        return False

    def has_here(self, name: str) -> bool:
        """Whether it is on this broker. No queue is on a broker that does not lead its shard."""
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def count_shown(self) -> int:
        """How many there are that are not the broker's own."""
        return len(self._names) - self._own

    def get(self, name: str) -> tuple[Shard, Queue]:
        """Whatever queue it is; what protocols want to use or change goes by `of_users`."""
        found = self._names.get(name)
        if found is None:
            self._shards.of(name)  # raises NotLeader where this broker cannot know
            raise NotFound(f"there is no queue {name[:300]!r}", "queue", name)
        return found

    def known(self, name: str) -> QueuePlace | None:
        """The same without an error: None if there is none, or another broker has it."""
        return self._names.get(name)

    def of_users(self, name: str) -> tuple[Shard, Queue]:
        """A queue that is not the broker's own."""
        check_not_internal(name)
        return self.get(name)

    def names(self, prefix: str = "", after: str = "") -> Iterable[str]:
        """Names in order, behind `after`."""
        return self._names.ordered(prefix, after)

    def unordered_names(self) -> Iterator[str]:
        """Of all queues, in no order, for who does not look at all of them: to order them takes a while."""
        return iter(self._names)

    async def listed(self, prefix: str = "") -> builtins.list[str]:
        """The same without the broker's own, all of them, in a list that is the caller's; a page is cut from it."""
        return await self._names.listed(prefix)

    def those(self, names: Iterable[str]) -> Iterator[Queue]:
        """The queues of these names, but for those that have gone."""
        find = self._names.get
        return (place[1] for name in names if (place := find(name)) is not None)

    def describe(self, name: str) -> QueueInfo:
        return info_of(*self.get(name))

    def list(
        self, prefix: str = "", after: str = "", limit: int = 1000, shows: Callable[[str], bool] | None = None
    ) -> builtins.list[QueueInfo]:
        """Those of users that `shows` lets through; None: all of them."""
        shown = (
            name
            for name in self.names(prefix, after)
            if not name.startswith(INTERNAL_PREFIX) and (shows is None or shows(name))
        )
        return [self.describe(name) for name in itertools.islice(shown, max(0, limit))]

    def stats(self) -> dict[str, Any]:
        """Sums over all queues of users; `put`, `delivered` and `acked` since the start of the broker."""
        total = dict.fromkeys(("queues", "ready", "parked", "held", "consumers", "put", "delivered", "acked"), 0)
        total["queues"] = self.count_shown()
        for _, queue in self._names.values():
            if queue.name.startswith(INTERNAL_PREFIX):
                continue
            ledger = queue.ledger
            if queue.put or queue.delivered or queue.feeds:
                total["consumers"] += len(queue.feeds or ())
                total["put"] += queue.put
                total["delivered"] += queue.delivered
                total["acked"] += queue.acked
            if ledger is not None:
                total["ready"] += ledger.ready
                total["parked"] += ledger.delayed
                total["held"] += ledger.in_flight
        return total

    # -- coming and going ----------------------------------------------------------------------------------------------

    async def declare(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        passive: bool = False,
        alter: bool = False,
        only: Collection[str] | None = None,
        owner: str | None = None,
    ) -> QueueInfo:
        """A queue of this name, made if it is not there. Settings that differ from the present ones are a Conflict, or
        change (`alter`): those whose fields are in `only`, and None is all of them."""
        check_not_internal(name)
        if name not in self._names and not passive:
            self._shards.of(name)  # raises NotLeader
            self.admit(name)
            self._create(name, self.effective(name, undecided(settings or DEFAULTS)), owner)
        shard, queue = self.get(name)
        self._check_owner(queue, owner)
        shard.touch(queue)
        receipt = Receipt(shard.log.partition, queue.id + 1)  # it may have come into being a moment ago
        if alter and only is not None:
            wanted = with_changes(declared(queue.settings), settings or DEFAULTS, only)
            settings = self.effective(name, wanted)
            if settings != queue.settings:
                receipt = self._alter(shard, queue, settings)
        elif settings not in (None, queue.settings) and undecided(settings) != declared(queue.settings):
            if not alter:
                raise Conflict(difference(queue, undecided(settings)))
            wanted = kept_declared(queue.settings, settings)
            receipt = self._alter(shard, queue, self.effective(name, wanted))
        await self._durability.wait(receipt)
        return info_of(shard, queue)

    def _alter(self, shard: Shard, queue: Queue, settings: QueueSettings) -> Receipt:
        check_declaration(queue.name, settings)
        if settings.exclusive != queue.settings.exclusive:
            raise Conflict(f"exclusive: queue {queue.name!r} cannot change whose it is; delete it and declare it again")
        receipt = shard.alter(queue, settings)
        shard.touch(queue)
        return receipt

    def govern(self, name: str) -> Receipt | None:
        """Brings a queue under the policy that matches it now; None if that changes nothing."""
        shard, queue = self.get(name)
        settings = self.effective(name, declared(queue.settings))
        return None if settings == queue.settings else self._alter(shard, queue, settings)

    def ensure_own(self, name: str) -> tuple[Shard, Queue]:
        """A queue of the broker's own. What is put to it is kept only with it: nobody need wait for the declaration."""
        if name not in self._names:
            self._create(name, DEFAULTS, None)
        return self.get(name)

    def _create(self, name: str, settings: QueueSettings, owner: str | None) -> None:
        check_declaration(name, settings)
        shard = self._shards.of(name)
        queue, _ = shard.declare(name, settings)
        self._names.add(name, (shard, queue))
        self._own += name.startswith(INTERNAL_PREFIX)
        if settings.exclusive:
            queue.owner = owner
            if owner is not None:
                self._owned.setdefault(owner, {})[name] = None
        for callback in self._on_create:
            callback(name)

    def subscribe_creations(self, callback: Callable[[str], None]) -> None:
        """`callback` gets the name of each queue that is made."""
        self._on_create.append(callback)

    @staticmethod
    def _check_owner(queue: Queue, owner: str | None) -> None:
        if queue.settings.exclusive and queue.owner is not None and queue.owner != owner:
            raise NotAllowed(f"queue {queue.name!r} is exclusive to another connection")

    async def delete(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Deletes a queue and what is in it; returns how many messages that was."""
        _, queue = self.of_users(name)
        if if_empty and len(queue):
            raise Conflict(f"queue {name!r} is not empty: it has {len(queue)} messages")
        if if_unused and queue.feeds:
            raise Conflict(f"queue {name!r} is in use: it has {len(queue.feeds)} consumers")
        count = len(queue)
        await self._durability.wait(self._remove(name))
        return count

    def _remove(self, name: str) -> Receipt:
        shard, queue = self._names[name]
        receipt = shard.delete(queue)
        self._names.discard(name)
        self._own -= name.startswith(INTERNAL_PREFIX)
        if queue.owner is not None:
            self._owned.get(queue.owner, {}).pop(name, None)
        gone = NotFound(f"queue {name!r} was deleted")
        for feed in (*(queue.feeds or ()), *(queue.beside or ())):
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
            self._remove_quietly(name, "its connection is closed")

    def remove_left_over(self, shard: Shard) -> None:
        """Queues that were to go with whoever led the shard before, or with connections to that broker."""
        for queue in [*shard.queues.values()]:
            if queue.settings.exclusive:
                self._remove_quietly(queue.name, "its connection ended with the last run")
            elif not queue.settings.durable:
                self._remove_quietly(queue.name, "it is not durable, and the last run ended")

    def _expire(self, queue: Queue) -> None:
        self._remove_quietly(queue.name, "nobody used it")

    def _remove_quietly(self, name: str, why: str) -> None:
        if name not in self._names:
            return
        try:
            self._remove(name)
            logger.info("queue.deleted", "queue {queue} is deleted: {reason}", queue=name, reason=why)
        except StorageFailed as error:
            logger.warning(
                "queue.not_deleted", "queue {queue} not deleted, the disk refuses: {error}", queue=name, error=error
            )

    async def purge(self, name: str) -> int:
        """Removes what is not in flight; returns how many messages that was."""
        shard, queue = self.of_users(name)
        last, seen, count = queue.newest, -1, 0
        receipt: Receipt | None = None
        while seen < last and shard.queues.get(queue.id) is queue:
            runs, seen = _waiting(queue, seen, last)
            if runs:
                receipt = shard.end(queue, runs)
                count += count_of(runs)
            await asyncio.sleep(0)
        shard.log.check_led()  # else some may be left
        await self._durability.wait(receipt)
        return count

    # -- messages in ---------------------------------------------------------------------------------------------------

    def put(self, name: str, messages: Sequence[Message], *, raw: bytes | None = None) -> PutResult:
        """Writes messages to a queue; they are kept when the receipt is. All of them (but duplicates), or none."""
        return put_or_refuse(self.of_users(name), messages)

    def put_each(self, name: str, messages: Sequence[Message]) -> PutEach:
        """As if they were put one by one: a full queue refuses single messages, and says which."""
        shard, queue = self.of_users(name)
        return shard.put_each(queue, messages)

    def put_several(self, puts: Sequence[tuple[str, Sequence[Message]]]) -> Iterator[Mapping[int, PutOutcome]]:
        """Puts to several queues that come together, step by step: one batch for many on a shard. Gives after each step
        what became of which, by index. One that is refused harms no other; what a full queue refuses is no dead letter
        yet, since it may be put again by itself."""
        return put_several(self.of_users, puts)

    def put_each_several(self, puts: Sequence[tuple[str, Sequence[Message]]]) -> Iterator[Mapping[int, PutEachOutcome]]:
        """The same as if the messages were put one by one: a full queue refuses single messages, and says which."""
        return put_each_several(self.of_users, puts)

    def put_same(self, names: Iterable[str], messages: Sequence[Message]) -> Iterator[tuple[Sequence[str], Receipt]]:
        """The same messages to several queues, step by step; gives after each which queues have taken them, and the
        receipt. The others have not: put to each of those by itself, and it says why."""
        return put_same(self._names, names, messages)

    def together(self, names: Iterable[str]) -> Iterator[Sequence[str]]:
        """Which of these queues may share what is put to them, some at a time: those on one shard."""
        return together(self._names, names)

    async def put_when_room(self, name: str, messages: Sequence[Message], *, wait_ms: int = 0) -> PutResult:
        """As `put`, and waits for room in a full queue."""
        return await put_with_patience(partial(self.of_users, name), messages, wait_ms / 1000)

    async def put_durable(self, name: str, messages: Sequence[Message], *, wait_ms: int = 0) -> PutAnswer:
        """The same, and returns when they are kept."""
        result = await self.put_when_room(name, messages, wait_ms=wait_ms)
        await self._durability.wait(result.receipt)
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
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        owner: str | None = None,
        priority: int = 0,
    ) -> QueueFeed:
        """A consumer of the queue; messages come with its first credit. While consumers of a higher `priority` have
        credit, those of a lower one get nothing."""
        shard, queue = self.of_users(name)
        self._check_owner(queue, owner)
        self._check_exclusive(queue, exclusive)
        if prefetch < 0:
            raise Invalid(f"prefetch: {prefetch} is below zero")
        check_visibility_timeout(visibility_timeout_ms)
        feed = QueueFeed(
            shard,
            queue,
            f"{consumer}/{next(self._serial)}",
            deliver,
            on_end,
            prefetch=prefetch,
            visibility_timeout_ms=visibility_timeout_ms,
            auto_ack=auto_ack,
            exclusive=exclusive,
            priority=priority,
        )
        feed.on_closed = self._closed
        return feed

    def getter(
        self,
        name: str,
        owner: str,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        *,
        silent: bool = False,
    ) -> Getter:
        """A consumer that asks for messages. `silent`: it is no consumer to anybody else, and does not wait."""
        shard, queue = self.of_users(name)
        self._check_owner(queue, owner)
        if not silent:
            self._check_exclusive(queue, exclusive=False)
        check_visibility_timeout(visibility_timeout_ms)
        consumer = f"{owner}/{next(self._serial)}"
        getter = Getter(
            shard, queue, consumer, visibility_timeout_ms=visibility_timeout_ms, auto_ack=auto_ack, silent=silent
        )
        getter.on_closed = self._closed
        return getter

    def open_reader(self, name: str, consumer: str, *, on_end: OnEnd, owner: str | None = None) -> QueueReader:
        """Who reads the queue alone and by entry numbers (see `queue_reader.py`)."""
        shard, queue = self.of_users(name)
        self._check_owner(queue, owner)
        self._check_exclusive(queue, exclusive=True)
        reader = QueueReader(shard, queue, f"{consumer}/{next(self._serial)}", on_end)
        reader.on_closed = self._closed
        return reader

    @staticmethod
    def _check_exclusive(queue: Queue, exclusive: bool) -> None:
        feeds = queue.feeds or []
        if feeds and feeds[0].exclusive:  # then it is the only one
            raise Conflict(f"queue {queue.name!r} has an exclusive consumer")
        if exclusive and feeds:
            raise Conflict(f"queue {queue.name!r} has {len(feeds)} consumers; it cannot be consumed exclusively")

    def _closed(self, feed: QueueFeed) -> None:
        queue = feed.queue
        if queue.settings.auto_delete and not queue.feeds:
            known = self._names.get(queue.name)
            if known is not None and known[1] is queue:
                self._remove_quietly(queue.name, "its last consumer was cancelled")

    # -- looking -------------------------------------------------------------------------------------------------------

    def peek(
        self, name: str, count: int, after: int = -1, state: str = "any", max_bytes: int = PEEKED_BYTES
    ) -> builtins.list[Peeked]:
        """Messages as they are, oldest first: as many as have `max_bytes`, or one."""
        return peek(*self.get(name), count, after, state, max_bytes)

    def find(self, message_id: str, queue: str | None = None, prefix: str = "") -> Found | None:
        """A living message by its id: its own, or QUEUE#TAG. If no queue is named, in one whose name begins so."""
        places = self._with_id(message_id, queue, prefix)
        return next((found for place in places if (found := found_at(*place)) is not None), None)

    def _with_id(self, message_id: str, queue: str | None, prefix: str = "") -> Iterator[tuple[Shard, Queue, int]]:
        tag = split_tag(message_id)
        named = tag is not None and (queue == tag[0] if queue is not None else tag[0].startswith(prefix))
        if tag is not None and named and tag[0] in self._names:
            shard, known = self._names[tag[0]]
            if known.ledger is not None and known.ledger.state_of(tag[1]):
                yield shard, known, tag[1]
        if queue is not None:
            places = [self.get(queue)]
        else:
            places = [known for name, known in self._names.items() if name.startswith(prefix)]
        yield from entries_with_id(places, message_id)

    async def cancel(self, name: str, message_id: str) -> bool:
        """Takes out a message that is not in flight; False if there is none."""
        check_not_internal(name)
        for shard, queue, entry in self._with_id(message_id, name):
            if queue.open_ledger().state_of(entry) in (State.READY, State.DELAYED):
                await self._durability.wait(shard.end(queue, [(entry, 1)]))
                return True
        return False

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
        progress: Progress | None = None,
        may_go_to: MayGoTo = lambda _: True,
    ) -> RedriveAnswer:
        """Sends dead letters back (see `redriving.py`)."""
        asked = Redrive(to, filter, list(message_ids), rate, limit, dry_run)
        return await self._dead_letters.redrive(queue, asked, may_go_to, progress)


def _waiting(queue: Queue, seen: int, last: int) -> tuple[list[Run], int]:
    """The next messages behind `seen` that are not in flight, and how far was looked."""
    runs: list[Run] = []
    for state, first, count in queue.open_ledger().alive_runs(after=seen):
        if first > last:
            break
        count = min(count, last + 1 - first)
        if state in (State.READY, State.DELAYED):
            add_run(runs, first, count)
        seen = first + count - 1
        if count_of(runs) >= PURGED_AT_ONCE:
            return runs, seen
    return runs, last
