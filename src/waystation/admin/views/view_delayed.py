"""Messages that wait for their time: delayed ones, and those that back off after a failure.

`delayed_view(broker, DelayedQuery) -> DelayedList`, `cancel_delayed(broker, topic, id)` for those that are delayed to
a topic; a queue's are cancelled by `broker.queues.cancel`.

Those of a queue come in the order of their times, a page at a time. A queue's timer_wheel is in order only as far as it
has to be, and a million may wait in one of its buckets: the bucket is gone through in slices, and only the few that are
on the page are ever sorted. What is cancelled or delivered meanwhile may be on a page all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import Conflict, Invalid, NotFound
from waystation.message import Message
from waystation.paging import STEP, Limit, Pace, Search, matching, page_of
from waystation.queues import delayed
from waystation.queues.inspection import entries_with_id, split_tag
from waystation.queues.ledger.ledger import Ledger
from waystation.queues.ledger.states import State
from waystation.queues.ledger.timer_wheel import Part
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

SLICE = 8_192
"""Rows that are looked at in one go: a few milliseconds, if all of them are candidates."""
SPARE = 64
"""Some rows are stale."""
ENTRY_BITS = 54
ENTRY_MASK = (1 << ENTRY_BITS) - 1
"""As many as a row of a timer wheel has."""
LOOKED_AT = 5_000
"""Messages to topics that are opened in one call, when those of one topic are asked for."""
AT_ONCE = 1_000
"""Of them, in one step: to find the next in the order of times is more work than to open them."""
MAX_WORK_S = 0.1
NUMBER_DIGITS = 20

DelayedPlace = tuple[int, int]
"""(when it is due, its tag): what the messages are ordered by."""
BEGINNING: DelayedPlace = (0, -1)


class DelayedQuery(msgspec.Struct):
    queue: Annotated[str, Meta(description="the messages that wait in this queue")] | None = None
    topic: Annotated[str, Meta(description="those that will be published to this topic")] | None = None
    topics: Annotated[bool, Meta(description="those that will be published to any topic")] = False
    prefix: Annotated[str, Meta(description="of the names of queues, where they are listed")] = ""
    topic_prefix: Annotated[str, Meta(description="with `topics`: of the names of the topics")] = ""
    search: Search = ""
    after: Annotated[str, Meta(description="`next` of the page before")] = ""
    limit: Limit = 100


class DelayedOut(msgspec.Struct, omit_defaults=True):
    """A message that waits."""

    id: str
    due_ms: int
    tag: int
    bytes: int
    taken_ms: int
    why: Annotated[str, Meta(description="`delayed`: by its sender; `retry`: it failed, or was requeued with a delay")]
    priority: int = 0
    deliveries: int = 0
    queue: str | None = None
    topic: str | None = None
    partition: int | None = None
    key: str | None = None
    type: str | None = None
    content_type: str | None = None


class DelayedQueue(msgspec.Struct):
    """A queue in which messages wait."""

    queue: str
    messages: int


class DelayedList(msgspec.Struct):
    """Messages in the order of their times; without `queue` and `topic`, the queues in which some wait."""

    messages: list[DelayedOut]
    queues: list[DelayedQueue]
    to_topics: Annotated[int | None, Meta(description="messages that will be published to topics; null: not known")]
    next: Annotated[str, Meta(description="`after` for the next page; null: this is the last")] | None
    total: Annotated[int, Meta(description="messages, or queues, in all; null: not known")] | None


async def delayed_view(broker: ManagedBroker, query: DelayedQuery, sight: Sight = EVERYTHING) -> DelayedList:
    """What waits in a queue, what waits for topics, or which queues have something that waits."""
    if query.queue is not None and (query.topic is not None or query.topics):
        raise Invalid("queue: ask for a queue's messages or for those to topics, not for both")
    if query.queue is not None:
        shard, queue = broker.queues.of_users(query.queue)
        return await _of_queue(broker, shard, queue, query)
    if query.topic is not None or query.topics:
        return await _to_topics(broker, query, sight)
    return await _queues(broker, query, sight)


def waiting_for_topics(broker: ManagedBroker) -> int:
    """How many messages will be published to topics when their time has come."""
    place = broker.queues.known(delayed.QUEUE)
    if place is None:
        return 0
    ledger = place[1].ledger
    return 0 if ledger is None else ledger.delayed


# -- which queues ------------------------------------------------------------------------------------------------------


async def _queues(broker: ManagedBroker, query: DelayedQuery, sight: Sight) -> DelayedList:
    waiting: dict[str, int] = {}
    names = await matching(await broker.queues.listed(query.prefix), query.search, sight.local_names("queue"))
    for at in range(0, len(names), STEP):
        for queue in broker.queues.those(names[at : at + STEP]):
            ledger = queue.ledger
            if ledger is not None and ledger.delayed:
                waiting[queue.name] = ledger.delayed
        await asyncio.sleep(0)
    page = await page_of(await sight.names("queue", list(waiting)), "", query.after or None, query.limit)
    found = [DelayedQueue(name, waiting[name]) for name in page.names]
    # How many wait for some of the topics, those of a namespace say, could be told by opening all of them alone.
    to_topics = None if query.prefix or not sight.sees_all("topic") else waiting_for_topics(broker)
    return DelayedList([], found, to_topics, page.next, page.total)


# -- the messages of a queue -------------------------------------------------------------------------------------------


async def _of_queue(broker: ManagedBroker, shard: Shard, queue: Queue, query: DelayedQuery) -> DelayedList:
    ledger = queue.ledger
    if ledger is None:
        return DelayedList([], [], None, None, 0)
    places = await first_delayed(ledger, _read_after(query.after), query.limit + 1)
    shown = await _opened(broker, shard, queue, places[: query.limit])
    for one in shown:
        one.queue = queue.name
    more = len(places) > query.limit
    return DelayedList(shown, [], None, _written(places[query.limit - 1]) if more else None, ledger.delayed)


async def first_delayed(ledger: Ledger, after: DelayedPlace, count: int) -> list[DelayedPlace]:
    """The first `count` that are delayed, behind a place, in order. In slices: others have their turn in between."""
    best: list[int] = []
    from_ms: int | None = after[0]
    enough = 2 * count + SPARE
    while from_ms is not None and len(best) < count:
        from_ms, parts = ledger.delayed_from(from_ms, enough)
        enough *= 2
        some: list[int] = []
        for part in parts:
            for at in range(0, len(part.rows), SLICE):
                some += _candidates(part, at, after, _place(best[-1]) if len(best) == count else None)
                if len(some) >= SLICE or len(part.rows) > SLICE:
                    best, some = _merged(ledger, best, some, count), []
                    await asyncio.sleep(0)
        best = _merged(ledger, best, some, count)
        await asyncio.sleep(0)
    return [_place(number) for number in best]


def _candidates(part: Part, at: int, after: DelayedPlace, before: DelayedPlace | None) -> list[int]:
    """A slice of a part, between two places: as numbers that are in the order of places, quicker to sort than those."""
    rows, low = part.rows[at : at + SLICE], part.number_of(*after)
    start, shift, mask = part.start_ms << ENTRY_BITS, part.shift, part.mask
    if before is None:
        return [start + (row >> shift << ENTRY_BITS) + (row & mask) for row in rows if low < row]
    high = part.number_of(*before)
    return [start + (row >> shift << ENTRY_BITS) + (row & mask) for row in rows if low < row < high]


def _merged(ledger: Ledger, best: list[int], some: list[int], count: int) -> list[int]:
    """The first of those that are known and of some others. Rows may be stale, and what was delayed again until the
    same time has two."""
    found: list[int] = []
    for number in sorted(set(some)):
        when_ms, entry = _place(number)
        if ledger.is_delayed_until(entry, when_ms):
            found.append(number)
            if len(found) == count:
                break
    return sorted({*best, *found})[:count] if found else best


def _place(number: int) -> DelayedPlace:
    return number >> ENTRY_BITS, number & ENTRY_MASK


async def _opened(
    broker: ManagedBroker, shard: Shard, queue: Queue, places: Sequence[DelayedPlace]
) -> list[DelayedOut]:
    """The messages at some places, in the order of the places; those that were deleted since, or that the disk does not
    give, are left out."""
    due = {entry: due_ms for due_ms, entry in places}
    ledger = queue.open_ledger()
    pace = Pace(broker.world.clock)
    found: dict[DelayedPlace, DelayedOut] = {}
    for entry, taken_ms, message in shard.look_at(queue, due):
        found[due[entry], entry] = _shown(queue.name, ledger, due[entry], entry, taken_ms, message)
        await pace.breathe()
    return [found[place] for place in places if place in found]


def _shown(queue: str, ledger: Ledger, due_ms: int, entry: int, taken_ms: int, message: Message) -> DelayedOut:
    target = target_of(message) or (None, None)
    return DelayedOut(
        id=message.id if message.id is not None else f"{queue}#{entry}",
        due_ms=due_ms,
        tag=entry,
        bytes=len(message.payload),
        taken_ms=taken_ms,
        why="delayed" if message.ready_at_ms(taken_ms) == due_ms else "retry",
        priority=message.priority,
        deliveries=ledger.deliveries_of(entry),
        topic=target[0] if queue == delayed.QUEUE else None,
        partition=target[1] if queue == delayed.QUEUE else None,
        key=None if message.key is None else message.key.decode(errors="replace"),
        type=message.type,
        content_type=message.content_type,
    )


# -- to topics ---------------------------------------------------------------------------------------------------------


async def _to_topics(broker: ManagedBroker, query: DelayedQuery, sight: Sight) -> DelayedList:
    """Those that wait in the broker's own queue. To find some topics', the messages are opened: some, then `next`.
    Whoever may not see all of them gets that under seal: the page may end at a message that is not shown."""
    sees_all = sight.sees_all("topic")
    all_of_them = sees_all and query.topic is None and not query.topic_prefix
    after = _read_after(query.after) if sees_all else _open_after(broker, query.after)
    waiting = waiting_for_topics(broker)
    known = waiting if all_of_them else None
    if not waiting:
        return DelayedList([], [], known, None, known)
    shard, queue = broker.queues.get(delayed.QUEUE)
    ledger = queue.open_ledger()
    pace = Pace(broker.world.clock)
    shown: list[DelayedOut] = []
    step = query.limit if all_of_them else max(query.limit, AT_ONCE)
    looked, more = 0, True
    while more and len(shown) < query.limit and looked < LOOKED_AT and pace.elapsed_s < MAX_WORK_S:
        places = await first_delayed(ledger, after, step + 1)
        more = len(places) > step
        opened = await _opened(broker, shard, queue, places[:step])
        wanted = [one for one in opened if _is_wanted(one.topic, query, sight)]
        room = query.limit - len(shown)
        shown += wanted[:room]
        if len(wanted) > room:
            more = True
            after = (shown[-1].due_ms, shown[-1].tag)
        elif places:
            after = places[:step][-1]
        looked += len(opened)
    if not more:
        return DelayedList(shown, [], known, None, known)
    return DelayedList(shown, [], known, _written(after) if sees_all else broker.sealed_places.sealed(after), known)


def _is_wanted(topic: str | None, query: DelayedQuery, sight: Sight) -> bool:
    if topic is None or query.topic not in (None, topic) or not topic.startswith(query.topic_prefix):
        return False
    return sight.sees("topic", topic)


def target_of(message: Message) -> tuple[str, int | None] | None:
    """The topic (and partition) that a message in the broker's own queue is for."""
    place = message.headers.get(delayed.TARGET)
    if not isinstance(place, list) or len(place) < 2 or not isinstance(place[0], str):
        return None
    return place[0], place[1] if isinstance(place[1], int) else None


async def cancel_delayed(broker: ManagedBroker, topic: str, message_id: str) -> None:
    """Takes out a message that was to be published to a topic later. NotFound, or Conflict if it is on its way."""
    leaving = False
    for shard, queue, entry in _with_id(broker, message_id):
        target = target_of(shard.message_at(queue, entry)[1])
        if target is None or target[0] != topic:
            continue
        if queue.open_ledger().state_of(entry) in (State.READY, State.DELAYED):
            await broker.durability.wait(shard.end(queue, [(entry, 1)]))
            return
        leaving = True
    if leaving:
        raise Conflict(f"message {message_id!r} is being published to topic {topic!r} and cannot be cancelled now")
    raise NotFound(f"no message {message_id[:300]!r} waits for topic {topic[:300]!r}; it may have been published")


def _with_id(broker: ManagedBroker, message_id: str) -> Iterator[tuple[Shard, Queue, int]]:
    if delayed.QUEUE not in broker.queues:
        return
    shard, queue = broker.queues.get(delayed.QUEUE)
    tag = split_tag(message_id)
    if tag is not None and tag[0] == delayed.QUEUE and queue.open_ledger().state_of(tag[1]):
        yield shard, queue, tag[1]
    yield from entries_with_id([(shard, queue)], message_id)


# -- places as text ----------------------------------------------------------------------------------------------------


def _written(place: DelayedPlace) -> str:
    return f"{place[0]}-{place[1]}"


def _read_after(text: str) -> DelayedPlace:
    if not text:
        return BEGINNING
    due, dash, tag = text.partition("-")
    if not (dash and _is_number(due) and _is_number(tag)):
        raise Invalid(f"after: {text[:60]!r} is no `next` of a page of delayed messages")
    return int(due), int(tag)


def _open_after(broker: ManagedBroker, text: str) -> DelayedPlace:
    place = broker.sealed_places.opened(text) if text else BEGINNING
    if place is None:
        raise Invalid(
            f"after: {text[:60]!r} is no `next` of a page of delayed messages since the broker was started; start again"
            " without `after`"
        )
    return place


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS
