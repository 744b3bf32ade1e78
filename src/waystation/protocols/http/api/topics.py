"""The API of topics: create, alter and delete; publish; read by place or time; the latest; find by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import TopicOut, TopicQuery
from waystation.broker.access.types import WantedReplicas
from waystation.errors import AlreadyExists, Conflict, Invalid, NotFound
from waystation.message_json import to_json_object
from waystation.observe.spans import TracedPlace as TracedPlace
from waystation.protocols.http.api.queues import MAX_COUNT, Wait, found_out
from waystation.protocols.http.transport.bodies import MessageList, MessageOut
from waystation.protocols.http.transport.calls import AnyRoute, Call, Messages, Nothing, Outcome, Route
from waystation.protocols.http.transport.replies import json_reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "topics"
MAX_SIZE = "waystation.retention.messages"
ANSWER_BYTES = 8 * 1024 * 1024


class TopicIn(msgspec.Struct, omit_defaults=True):
    """What the topic shall be."""

    partitions: Annotated[int, Meta(ge=1)] | None = None
    settings: dict[str, str] = {}
    max_size: (
        Annotated[
            int, Meta(ge=1, description="messages that a partition keeps, the newest: waystation.retention.messages")
        ]
        | None
    ) = None
    replication_factor: (
        Annotated[int, Meta(ge=1, description="in a cluster; if it is not said, three, or as many as there are nodes")]
        | None
    ) = None


class PublishQuery(msgspec.Struct):
    partition: Annotated[int, Meta(ge=0, description="else by the key, or one for the whole batch")] | None = None
    raw: Annotated[bool, Meta(description="the body is the payload, even if it is JSON")] = False


class Place(msgspec.Struct):
    """Where the first of the messages is that went to this partition."""

    topic: str
    partition: int
    offset: int


class Published(msgspec.Struct):
    places: list[Place]
    queues: list[str]
    subscribers: int
    unroutable: Annotated[
        int, Meta(description="messages that matched no binding of the exchange: nobody got them")
    ] = 0
    duplicates: Annotated[
        list[int], Meta(description="messages that the topic had by their ids and did not store again, by index")
    ] = []


class ReadQuery(msgspec.Struct):
    partition: Annotated[int, Meta(ge=0)] = 0
    offset: Annotated[int, Meta(ge=0, description="from here on; else from the beginning")] | None = None
    time_ms: Annotated[int, Meta(ge=0, description="from the first message that is not older on")] | None = None
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 100
    wait_ms: Wait = 0


class ReadOut(msgspec.Struct):
    messages: list[MessageOut]
    next_offset: Annotated[int, Meta(description="where to read on")]
    end_offset: int


class HistoryQuery(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 10


# -- the topic itself --------------------------------------------------------------------------------------------------


async def create(dispatcher: RequestDispatcher, call: Call[Nothing, TopicIn]) -> Outcome:
    name, wanted = call.path["topic"], call.body or TopicIn()
    settings = wanted.settings if wanted.max_size is None else {**wanted.settings, MAX_SIZE: str(wanted.max_size)}
    status = 201
    dispatcher.access.reading.find(name)  # refused before it is made: the answer describes it
    try:
        replicas = WantedReplicas(wanted.replication_factor)
        await dispatcher.access.create_topic(name, wanted.partitions or None, settings, replicas)
    except AlreadyExists:
        there = dispatcher.access.reading.get(name)
        if there.internal or (wanted.partitions or len(there.partitions)) != len(there.partitions):
            raise Conflict(
                f"topic {name!r} is there with {len(there.partitions)} partitions; PATCH changes it"
            ) from None
        if any(there.overrides.get(key) != value for key, value in settings.items()):
            raise Conflict(f"topic {name!r} is there with other settings; PATCH changes them") from None
        status = 200
    return json_reply(await dispatcher.access.views.view("topic", TopicQuery(name)), status)


async def delete(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    dispatcher.access.reading.get(call.path["topic"])  # NotFound with near matches
    await dispatcher.access.delete_topic(call.path["topic"])
    return None


# -- messages ----------------------------------------------------------------------------------------------------------


async def publish(dispatcher: RequestDispatcher, call: Call[PublishQuery, Messages]) -> Outcome:
    published = await publish_to(dispatcher, call.path["topic"], call.body, call.query.partition)
    return json_reply(published, 200 if len(published.duplicates) == len(call.body.messages) else 201)


async def publish_to(
    dispatcher: RequestDispatcher, topic: str, messages: Messages, partition: int | None = None
) -> Published:
    """Publishes and waits until it is durable."""
    await dispatcher.access.topic_to_publish(topic)
    published = dispatcher.access.publish_each(topic, messages.messages, partition, promised=True)
    stored = len(messages.messages) - len(published.duplicates)
    dispatcher.access.count(stored, sum(len(message.payload) for message in messages.messages))
    await dispatcher.access.durable(*published.receipts)
    subscribers = dispatcher.access.subscriptions.count(topic)
    places = [Place(*place) for place in published.places]
    return Published(places, [], subscribers, duplicates=list(published.duplicates))


async def read(dispatcher: RequestDispatcher, call: Call[ReadQuery, Nothing]) -> Outcome:
    asked = call.query
    if asked.offset is not None and asked.time_ms is not None:
        raise Invalid("offset: give an offset or a time_ms, not both")
    found = await dispatcher.access.reading.read(
        call.path["topic"],
        asked.partition,
        offset=asked.offset,
        time_ms=asked.time_ms,
        count=asked.count,
        max_bytes=ANSWER_BYTES,
        wait_ms=asked.wait_ms,
    )
    if dispatcher.broker.tracing is not None:
        dispatcher.broker.tracing.delivered(
            TracedPlace("topic", call.path["topic"], "http", call.peer.name), found.messages
        )
    shown = [to_json_object(delivered) for delivered in found.messages]
    return {"messages": shown, "next_offset": found.next_offset, "end_offset": found.end_offset}


async def history(dispatcher: RequestDispatcher, call: Call[HistoryQuery, Nothing]) -> Outcome:
    latest = await dispatcher.access.reading.history(call.path["topic"], call.query.count)
    return {"messages": [to_json_object(delivered) for delivered in latest]}


async def find(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    found = await dispatcher.access.find_stored(call.path["id"], call.path["topic"])
    if found is None:
        raise NotFound(f"topic {call.path['topic']!r} has no message {call.path['id']!r} that can be found")
    return found_out(found)


async def find_anywhere(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    message_id = call.path["id"]
    found = dispatcher.access.find_queued(message_id) or await dispatcher.access.find_stored(message_id)
    if found is None:
        raise NotFound(f"there is no message {message_id!r}, in no queue and in no topic")
    return found_out(found)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "PUT",
        "/v1/topics/{topic}",
        create,
        "Create a topic",
        description="201 if it was made; 200 if it was there just like this.",
        body=TopicIn,
        optional_body=True,
        creates=True,
        answer=TopicOut,
        tag=TAG,
    ),
    Route("DELETE", "/v1/topics/{topic}", delete, "Delete a topic and its data", status=204, tag=TAG),
    Route(
        "POST",
        "/v1/topics/{topic}/messages",
        publish,
        "Publish messages to a topic",
        description="Answered when they are durable. The topic is made if the broker makes topics by itself.",
        query=PublishQuery,
        body=Messages,
        answer=Published,
        creates=True,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/messages",
        read,
        "Read messages of a partition, from an offset or a time on",
        query=ReadQuery,
        answer=ReadOut,
        waits=True,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/messages/{id}",
        find,
        "Find a message in a topic by its id",
        answer=MessageOut,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}/history",
        history,
        "The latest messages",
        query=HistoryQuery,
        answer=MessageList,
        tag=TAG,
    ),
    Route(
        "GET",
        "/v1/messages/{id}",
        find_anywhere,
        "Find a message by its id, wherever it is",
        answer=MessageOut,
        tag=TAG,
    ),
)
