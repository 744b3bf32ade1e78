"""The API of subscriptions: topics consumed by WebSocket or server-sent events, shared, in order, or live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.broker.access.types import DEFAULT_VISIBILITY_TIMEOUT_MS
from waystation.errors import Invalid
from waystation.protocol import Subscribe
from waystation.protocols.http.deliveries.consuming import HttpConsumer
from waystation.protocols.http.transport.calls import NEEDS_VOUCHER, AnyRoute, Call, Nothing, Outcome, Route, Stream

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "subscriptions"


class SubscribeQuery(msgspec.Struct):
    topic: Annotated[list[str], Meta(description="a topic or a pattern; may be repeated")]
    syntax: Literal["wildcard", "regex"] = "wildcard"
    mode: Annotated[
        Literal["shared", "stream", "live"],
        Meta(description="shared: acks per message, members compete. stream: in order, acks commit. live: no state"),
    ] = "live"
    group: Annotated[str, Meta(description="whose position it is; for shared and stream")] | None = None
    filter: str | None = None
    history: Annotated[int, Meta(ge=0, description="live: start with this many of the last messages")] = 0
    start: Annotated[Literal["earliest", "latest"], Meta(description="where a new group begins")] = "latest"
    start_ms: Annotated[int, Meta(ge=0, description="or at this time")] | None = None
    slow: Annotated[
        Literal["drop", "block"], Meta(description="live: what happens while the client does not keep up")
    ] = "block"
    prefetch: Annotated[int, Meta(ge=0, le=100_000, description="maximum number in flight; 0: no limit")] = 100
    credit: (
        Annotated[int, Meta(ge=0, description="maximum number to deliver, until the client gives more (WebSocket)")]
        | None
    ) = None
    hold_ms: Annotated[int, Meta(ge=1)] | None = None
    max_deliveries: (
        Annotated[int, Meta(ge=0, description="failures until a message is dead; 0: no limit; groups only")] | None
    ) = None
    dead_letter: (
        Annotated[
            str,
            Meta(description="queue or `topic:NAME` for dead messages; empty: drop them; default: `TOPIC.GROUP.dead`"),
        ]
        | None
    ) = None
    auto_ack: bool = False


class Counts(msgspec.Struct):
    """Subscribers by topic, live and durable together."""

    topics: dict[str, int]


async def counts(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    return Counts(dispatcher.access.subscriptions.counts())


async def subscribe(dispatcher: RequestDispatcher, call: Call[SubscribeQuery, Nothing]) -> Outcome:
    asked = call.query
    if asked.mode != "live" and not asked.group:
        raise Invalid(f"group: a {asked.mode} subscription needs one")
    acks = asked.mode != "live" and not asked.auto_ack
    consumer = HttpConsumer(dispatcher, acks=acks, credit=asked.credit)
    command = Subscribe(
        consumer=0,
        topics=asked.topic,
        **{name: getattr(asked, name) for name in asked.__struct_fields__ if name not in ("topic", "credit")},
    )
    feed, _ = await dispatcher.access.subscriptions.open(command, call.peer.name, consumer.deliver, consumer.ceased)
    consumer.attach(feed, f"subscription:{asked.group or ''}", asked.hold_ms or DEFAULT_VISIBILITY_TIMEOUT_MS)
    return Stream(consumer)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/subscriptions",
        counts,
        "How many subscribers each topic has",
        tag=TAG,
        answer=Counts,
    ),
    Route(
        "GET",
        "/v1/subscriptions/stream",
        subscribe,
        "Consume topics by WebSocket or server-sent events",
        tag=TAG,
        description="Patterns: `*` is one word, `#` any number of them, words between dots. Topics that are created"
        " later are picked up. Modes other than `live`: " + NEEDS_VOUCHER,
        query=SubscribeQuery,
        streams=True,
        changes=lambda query: query.mode != "live",
        instead="POST /v1/subscriptions/stream",
    ),
    Route(
        "POST",
        "/v1/subscriptions/stream",
        subscribe,
        "Consume topics by server-sent events",
        tag=TAG,
        query=SubscribeQuery,
        streams=True,
    ),
)
