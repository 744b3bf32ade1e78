"""Queues and their consumers as every protocol shows them, in pages.

`queues_page(broker, QueuesQuery) -> QueuePage`, `queue_view(broker, name) -> QueueView`,
`consumers_page(broker, ConsumersQuery) -> ConsumerPage`. Nothing here changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import Invalid
from waystation.observe.connections import ConnectionInfo, ConsumerInfo
from waystation.observe.rates import QueueRates
from waystation.paging import After, Limit, Next, Pace, Search, Total, page_of
from waystation.queues.inspection import info_of
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.queues.shard.shard import Shard

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

FIELDS = QueueSettings.__struct_fields__


class QueueView(msgspec.Struct):
    """A queue and what is in it; all its settings, also those that have their defaults."""

    queue: str
    settings: dict[str, Any]
    ready: int
    parked: int
    held: int
    bytes: int
    consumers: int
    oldest_ms: int | None
    put: int
    delivered: int
    acked: int
    dead: int
    age_ms: int | None
    rates: QueueRates | None


class QueuePage(msgspec.Struct):
    queues: list[QueueView]
    next: str | None
    total: int


class QueuesQuery(msgspec.Struct):
    prefix: Annotated[str, Meta(description="how names begin")] = ""
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class ConsumerOut(msgspec.Struct):
    """Someone who takes messages of a queue, or has some in flight."""

    consumer: Annotated[str, Meta(description="what the queue knows it by")]
    tag: Annotated[str, Meta(description="what its client calls it")]
    connection: Annotated[str, Meta(description="its name in `/v1/connections`")] | None
    protocol: str | None = msgspec.field(name="door")
    prefetch: Annotated[int, Meta(description="maximum number in flight; 0: no limit")]
    held: int
    hold_ms: int
    auto_ack: bool
    exclusive: bool
    priority: int
    active: Annotated[
        bool, Meta(description="false: it waits for its turn (`single_active`), or only has messages in flight")
    ]
    since_ms: Annotated[int, Meta(description="when its connection was opened")] | None


class ConsumerPage(msgspec.Struct):
    consumers: list[ConsumerOut]
    next: Next
    total: Total


class ConsumersTerms(msgspec.Struct):
    after: Annotated[str, Meta(description="those behind this `consumer`: `next` of the page before")] = ""
    limit: Limit = 100


class ConsumersQuery(ConsumersTerms, kw_only=True):
    queue: str


async def queues_page(broker: ManagedBroker, query: QueuesQuery, sight: Sight = EVERYTHING) -> QueuePage:
    """The queues that match, in the order of their names; the broker's own are never among them."""
    names = await sight.names("queue", await broker.queues.listed(query.prefix), query.search)
    page = await page_of(names, "", query.after or None, query.limit)
    pace = Pace(broker.world.clock)
    views = _Views(broker)
    shown: list[QueueView] = []
    for name in page.names:
        if (place := broker.queues.known(name)) is not None:  # it may have been deleted a moment ago
            shown.append(views.of(*place))
        await pace.breathe()
    return QueuePage(shown, page.next, page.total)


def queue_view(broker: ManagedBroker, name: str) -> QueueView:
    """NotFound names those that are nearly it."""
    return _Views(broker).of(*broker.queues.get(name))


class _Views:
    """Queues that were declared alike share their settings, and share them here."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._now_ms = broker.world.clock.now_ms()
        self._settings: dict[int, dict[str, Any]] = {}

    def of(self, shard: Shard, queue: Queue) -> QueueView:
        info = info_of(shard, queue)
        settings = self._settings.get(id(info.settings))
        if settings is None:
            settings = self._settings[id(info.settings)] = {name: getattr(info.settings, name) for name in FIELDS}
        oldest = info.oldest_ms
        return QueueView(
            info.queue,
            settings,
            info.ready,
            info.parked,
            info.held,
            info.bytes,
            info.consumers,
            oldest,
            info.put,
            info.delivered,
            info.acked,
            info.dead,
            None if oldest is None else max(0, self._now_ms - oldest),
            self._broker.meters.rates.queue(info.queue),
        )


# -- consumers ---------------------------------------------------------------------------------------------------------


async def consumers_page(broker: ManagedBroker, query: ConsumersQuery) -> ConsumerPage:
    """Who consumes a queue, or has messages of it in flight: in the order in which they have their turns."""
    _, queue = broker.queues.get(query.queue)
    feeds = [*(queue.feeds or ()), *(queue.beside or ())]
    at = 0
    if query.after:
        at = next((i for i, feed in enumerate(feeds, 1) if feed.consumer == query.after), -1)
        if at < 0:
            raise Invalid(
                f"after: queue {query.queue!r} has no consumer {query.after[:100]!r} now; start again without `after`"
            )
    pace = Pace(broker.world.clock)
    connections: dict[str, ConnectionInfo | None] = {}
    shown: list[ConsumerOut] = []
    for feed in feeds[at : at + query.limit]:
        shown.append(_consumer(broker, queue, feed, connections))
        await pace.breathe()
    more = at + query.limit < len(feeds)
    return ConsumerPage(shown, shown[-1].consumer if more else None, len(feeds))


def _consumer(
    broker: ManagedBroker, queue: Queue, feed: QueueFeed, connections: dict[str, ConnectionInfo | None]
) -> ConsumerOut:
    ledger = queue.open_ledger()
    who, _, _ = feed.consumer.rpartition("/")  # without the number that makes it unique
    connection = _connection(broker, who, connections)
    rest = who if connection is None else who[len(connection.name) + 1 :]
    tagged = None if connection is None else _tagged(connection, rest)
    prefetch = ledger.prefetch_of(feed.consumer)
    return ConsumerOut(
        consumer=feed.consumer,
        tag=tagged.tag if tagged is not None else rest or who,
        connection=None if connection is None else connection.name,
        protocol=None if connection is None else connection.protocol,
        prefetch=tagged.prefetch if tagged is not None and not prefetch else prefetch,
        held=ledger.unacked_of(feed.consumer) + feed.claimed,
        hold_ms=feed.visibility_timeout_ms if feed.visibility_timeout_ms is not None else queue.settings.hold_ms,
        auto_ack=feed.auto_ack,
        exclusive=feed.exclusive,
        priority=feed.priority,
        active=not feed.silent and (not ledger.single_active or ledger.active == feed.consumer),
        since_ms=None if connection is None else connection.since_ms,
    )


def _connection(broker: ManagedBroker, who: str, known: dict[str, ConnectionInfo | None]) -> ConnectionInfo | None:
    """The connection whose name a consumer's begins with: protocols put it first."""
    name = who
    while name:
        if name not in known:
            there = broker.connections.get(name)
            known[name] = None if there is None else there.info()
        if known[name] is not None:
            return known[name]
        name, _, _ = name.rpartition("/")
    return None


def _tagged(connection: ConnectionInfo, rest: str) -> ConsumerInfo | None:
    """What the connection says of its consumer: CHANNEL/TAG where there are channels."""
    number, _, tag = rest.partition("/")
    for channel in connection.channels:
        if str(channel.number) == number:
            return next((consumer for consumer in channel.consumers if consumer.tag in (tag, rest)), None)
    return None
