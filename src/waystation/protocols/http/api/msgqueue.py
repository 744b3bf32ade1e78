"""The small API that message-queue tutorials use: `/queue/enqueue`, `/queue/dequeue`, `/pubsub/publish`, ….

Queues come into being with their first message; seconds instead of milliseconds; a message is any JSON value. What is
behind it is the same: a message put here is taken there, and the other way round.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker.access.types import DEFAULT_VISIBILITY_TIMEOUT_MS, Verdict
from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, Delivered, Message, check_message
from waystation.message_json import JSON_TYPE, to_json_object
from waystation.paging import After, Limit, Next, page_of
from waystation.protocol import Subscribe
from waystation.protocols.http.api.queues import MAX_COUNT
from waystation.protocols.http.api.topics import publish_to
from waystation.protocols.http.deliveries.ack_ids import check_any
from waystation.protocols.http.deliveries.consuming import HttpConsumer
from waystation.protocols.http.transport.calls import (
    LONGEST_WAIT_S,
    AnyRoute,
    Call,
    Messages,
    Nothing,
    Outcome,
    Route,
    Stream,
)
from waystation.protocols.http.transport.replies import encode_json

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "msgqueue"
MAX_TIMEOUT_S = 300
Seconds = Annotated[float, Meta(ge=0)]


class Enqueue(msgspec.Struct):
    """A message and when it is due, in seconds."""

    queue: str
    message: Any
    priority: Annotated[int, Meta(ge=0, le=HIGHEST_PRIORITY)] | None = None
    ttl: Annotated[float, Meta(gt=0)] | None = None
    delay: Seconds | None = None
    id: str | None = None
    headers: dict[str, Any] | None = None


class Enqueued(msgspec.Struct):
    status: str
    id: str | None
    queue: str
    duplicate: bool


class DequeueQuery(msgspec.Struct):
    queue: str
    timeout: Annotated[float, Meta(ge=0, le=MAX_TIMEOUT_S, description="seconds to wait")] = 0


class Dequeued(msgspec.Struct):
    """A message, in flight until it is acknowledged."""

    id: str
    queue_name: str
    body: Any
    priority: int
    ttl: float | None
    delay: float
    headers: dict[str, Any]
    created_at: str
    available_at: str
    acknowledged: bool
    retry_count: int
    ack_id: str


class Ack(msgspec.Struct):
    ack_id: str


class Acked(msgspec.Struct):
    acknowledged: bool


class RejectOne(msgspec.Struct):
    """A message that failed."""

    ack_id: str
    requeue: Annotated[bool, Meta(description="retry as the queue's settings say; false: dead-letter it now")] = True
    error: str | None = None


class Rejected(msgspec.Struct):
    rejected: bool


class PurgeOne(msgspec.Struct):
    queue: str


class Purged(msgspec.Struct):
    purged: Annotated[int, Meta(description="messages that were deleted; what is in flight stays")]


class QueueStats(msgspec.Struct):
    name: str
    total_messages: int
    pending: Annotated[int, Meta(description="in flight: delivered and not acknowledged")]
    available: int
    delayed: int


class Publish(msgspec.Struct):
    channel: str
    message: Any


class Delivery(msgspec.Struct):
    delivered: Annotated[int, Meta(description="how many subscribers the channel has")]


class SubscribeQuery(msgspec.Struct):
    channel: Annotated[str, Meta(description="a channel, or a pattern with `*` and `#`")]
    history: Annotated[int, Meta(ge=0, description="start with this many of the last messages")] = 0


class ChannelQuery(msgspec.Struct):
    channel: str
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNT, description="how many at most")] = 10


class ChannelMessage(msgspec.Struct):
    channel: str
    message: Any
    timestamp: str


class ChannelHistory(msgspec.Struct):
    """The latest messages of a channel, oldest first."""

    channel: str
    messages: list[ChannelMessage]


class StatsQuery(msgspec.Struct):
    after: After = ""
    limit: Limit = 1_000


class PubsubStats(msgspec.Struct):
    """Channels that somebody subscribes to."""

    total_channels: int
    total_subscriptions: Annotated[int, Meta(description="open ones, each once, whatever number of channels it gets")]
    channels: Annotated[dict[str, int], Meta(description="subscribers of each, in the order of names")]
    next: Next


async def enqueue(dispatcher: RequestDispatcher, call: Call[Nothing, Enqueue]) -> Outcome:
    said = call.body
    message = Message(
        encode_json(said.message),
        id=said.id,
        headers=said.headers or {},
        priority=said.priority or 0,
        delay_ms=_ms(said.delay),
        ttl_ms=None if said.ttl is None else max(1, _ms(said.ttl)),
        content_type=JSON_TYPE,
    )
    check_message(message)
    dispatcher.access.check_publish_quota(LONGEST_WAIT_S)
    dispatcher.access.admit_queue(said.queue)
    if not dispatcher.access.queue_exists(said.queue):
        await dispatcher.access.declare_queue(said.queue)
    answer = await dispatcher.access.put_durable(said.queue, [message])
    known = message.id if message.id is not None else f"{said.queue}#{answer.first}"
    return Enqueued("queued", known, said.queue, bool(answer.duplicates))


async def dequeue(dispatcher: RequestDispatcher, call: Call[DequeueQuery, Nothing]) -> Outcome:
    asked = call.query
    if not dispatcher.access.queue_exists(asked.queue):
        await dispatcher.access.declare_queue(asked.queue)  # whoever waits for the first message must not fail
    taken = await dispatcher.takers.take(asked.queue, call.peer, count=1, wait_ms=_ms(asked.timeout))
    dispatcher.delivered([delivered for delivered, _ in taken])
    if not taken:
        return None
    delivered, shown = taken[0]
    message = delivered.message
    return Dequeued(
        id=shown["id"],
        queue_name=asked.queue,
        body=_value(delivered),
        priority=message.priority,
        ttl=None if message.ttl_ms is None else message.ttl_ms / 1000,
        delay=message.delay_ms / 1000,
        headers=shown.get("headers", {}),
        created_at=_iso(delivered.taken_ms),
        available_at=_iso(message.ready_at_ms(delivered.taken_ms) or delivered.taken_ms),
        acknowledged=False,
        retry_count=delivered.deliveries - 1,
        ack_id=shown["ack_id"],
    )


async def ack(dispatcher: RequestDispatcher, call: Call[Nothing, Ack]) -> Outcome:
    settled = dispatcher.ack_ids.settle([call.body.ack_id], Verdict.ACK)
    await dispatcher.access.durable(*settled.receipts)
    check_any(settled)
    return Acked(True)


async def reject(dispatcher: RequestDispatcher, call: Call[Nothing, RejectOne]) -> Outcome:
    said = call.body
    settled = dispatcher.ack_ids.settle(
        [said.ack_id], Verdict.REJECT if said.requeue else Verdict.KILL, error=said.error
    )
    await dispatcher.access.durable(*settled.receipts)
    check_any(settled)
    return Rejected(True)


async def purge(dispatcher: RequestDispatcher, call: Call[Nothing, PurgeOne]) -> Outcome:
    return Purged(await dispatcher.access.purge_queue(call.body.queue))


async def stats(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    info = dispatcher.access.describe_queue(call.path["queue"])
    return QueueStats(info.queue, info.ready + info.parked + info.held, info.held, info.ready, info.parked)


async def publish(dispatcher: RequestDispatcher, call: Call[Nothing, Publish]) -> Outcome:
    said = call.body
    message = Message(encode_json(said.message), content_type=JSON_TYPE)
    dispatcher.access.check_publish_quota(LONGEST_WAIT_S)
    published = await publish_to(dispatcher, said.channel, Messages([message]))
    return Delivery(published.subscribers)


class _Channel(HttpConsumer):
    """A live subscription, with messages as this API shows them."""

    def _shown(self, delivered: Delivered) -> dict[str, Any]:
        spoken = self._dispatcher.spoken
        return msgspec.structs.asdict(_published(delivered if spoken is None else spoken.delivered(delivered)))


async def subscribe(dispatcher: RequestDispatcher, call: Call[SubscribeQuery, Nothing]) -> Outcome:
    if not call.request.websocket:
        raise Invalid("/pubsub/subscribe is a WebSocket; /v1/subscriptions/stream has server-sent events")
    consumer = _Channel(dispatcher, acks=False)
    command = Subscribe(consumer=0, topics=[call.query.channel], history=call.query.history)
    feed, _ = await dispatcher.access.subscriptions.open(command, call.peer.name, consumer.deliver, consumer.ceased)
    consumer.attach(feed, "subscription:", DEFAULT_VISIBILITY_TIMEOUT_MS)
    return Stream(consumer, single=True)


async def history(dispatcher: RequestDispatcher, call: Call[ChannelQuery, Nothing]) -> Outcome:
    asked = call.query
    there = dispatcher.access.reading.find(asked.channel) is not None  # a channel is there with its first message
    latest = await dispatcher.access.reading.history(asked.channel, asked.limit) if there else []
    return ChannelHistory(asked.channel, [_published(delivered) for delivered in latest])


async def pubsub_stats(dispatcher: RequestDispatcher, call: Call[StatsQuery, Nothing]) -> Outcome:
    counts = dispatcher.access.subscriptions.counts()
    page = await page_of(sorted(counts), "", call.query.after or None, call.query.limit)
    shown = {channel: counts[channel] for channel in page.names}
    return PubsubStats(page.total, dispatcher.access.subscriptions.total(), shown, page.next)


def _published(delivered: Delivered) -> ChannelMessage:
    return ChannelMessage(delivered.source, _value(delivered), _iso(delivered.taken_ms))


def _value(delivered: Delivered) -> Any:
    """A message's payload as JSON has it: what was sent here comes back as it was; else text, or base64."""
    message = delivered.message
    if (message.content_type or "").startswith(JSON_TYPE):
        try:
            return msgspec.json.decode(message.payload)
        except msgspec.DecodeError:
            pass
    return to_json_object(message)["payload"]


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1000)


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "POST",
        "/queue/enqueue",
        enqueue,
        "Put a message into a queue, which is made if it is not there",
        tag=TAG,
        body=Enqueue,
        answer=Enqueued,
    ),
    Route(
        "GET",
        "/queue/dequeue",
        dequeue,
        "Take a message from a queue",
        tag=TAG,
        description="A browser has to send the header `X-Requested-With`, with any value.",
        query=DequeueQuery,
        answer=Dequeued,
        empty="no message came in time",
        bare="queue",
        changes=True,
        instead="POST /queue/dequeue",
        lenient=True,
        waits=True,
    ),
    Route(
        "POST",
        "/queue/dequeue",
        dequeue,
        "Take a message from a queue",
        tag=TAG,
        query=DequeueQuery,
        answer=Dequeued,
        empty="no message came in time",
        bare="queue",
        waits=True,
    ),
    Route("POST", "/queue/ack", ack, "Acknowledge a message", tag=TAG, body=Ack, answer=Acked),
    Route(
        "POST",
        "/queue/reject",
        reject,
        "Reject a message: retry it as the queue's settings say, or dead-letter it now",
        tag=TAG,
        body=RejectOne,
        answer=Rejected,
    ),
    Route(
        "POST",
        "/queue/purge",
        purge,
        "Delete all messages of a queue that are not in flight",
        tag=TAG,
        body=PurgeOne,
        answer=Purged,
    ),
    Route("GET", "/queue/{queue}/stats", stats, "A queue in figures", tag=TAG, answer=QueueStats),
    Route("POST", "/pubsub/publish", publish, "Publish to a channel", tag=TAG, body=Publish, answer=Delivery),
    Route(
        "GET",
        "/pubsub/subscribe",
        subscribe,
        "Subscribe to a channel by WebSocket",
        tag=TAG,
        query=SubscribeQuery,
        streams=True,
        bare="channel",
    ),
    Route(
        "GET",
        "/pubsub/history",
        history,
        "The latest messages of a channel",
        tag=TAG,
        query=ChannelQuery,
        answer=ChannelHistory,
        bare="channel",
    ),
    Route(
        "GET",
        "/pubsub/stats",
        pubsub_stats,
        "Channels and their subscribers",
        tag=TAG,
        query=StatsQuery,
        answer=PubsubStats,
    ),
)
