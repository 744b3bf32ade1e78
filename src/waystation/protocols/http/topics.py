"""The API of topics: create, alter and delete; publish; read by place or time; the latest; find by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin.view_topics import (
    AlterTopic,
    DeletedRecords,
    DeleteRecords,
    RecordsToDelete,
    StartQuery,
    TopicChange,
    TopicList,
    TopicOffsets,
    TopicOffsetsQuery,
    TopicOut,
    TopicsQuery,
    alter_topic,
    delete_records,
    topic_offsets,
    topic_view,
    topics_page,
)
from waystation.admin.view_topics import found as topic_of
from waystation.errors import AlreadyExists, Conflict, Invalid, NotFound
from waystation.message import Delivered, size_of
from waystation.message_json import to_json_object
from waystation.observe.spans import TracedPlace as TracedPlace
from waystation.protocols.http.bodies import MessageList, MessageOut
from waystation.protocols.http.calls import AnyRoute, Call, Messages, Nothing, Outcome, Route
from waystation.protocols.http.queues import MAX_COUNT, Wait, found_out
from waystation.protocols.http.replies import json_reply
from waystation.topics.batch_reading import grown
from waystation.topics.partition import Partition
from waystation.topics.reading import read_away

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.protocols.http.desk import Desk

TAG = "topics"
ANSWER_BYTES = 8 * 1024 * 1024


class TopicIn(msgspec.Struct, omit_defaults=True):
    """What the topic shall be."""

    partitions: Annotated[int, Meta(ge=1)] | None = None
    settings: dict[str, str] = {}


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


async def list_topics(desk: Desk, call: Call[TopicsQuery, Nothing]) -> Outcome:
    return await topics_page(desk.broker, call.query)


async def create(desk: Desk, call: Call[Nothing, TopicIn]) -> Outcome:
    name, wanted = call.path["topic"], call.body or TopicIn()
    status = 201
    try:
        await desk.access.create_topic(name, wanted.partitions or None, wanted.settings)
    except AlreadyExists:
        there = desk.broker.topics.get(name)
        if there.internal or (wanted.partitions or len(there.partitions)) != len(there.partitions):
            raise Conflict(
                f"topic {name!r} is there with {len(there.partitions)} partitions; PATCH changes it"
            ) from None
        if any(there.overrides.get(key) != value for key, value in wanted.settings.items()):
            raise Conflict(f"topic {name!r} is there with other settings; PATCH changes them") from None
        status = 200
    return json_reply(topic_view(desk.broker, name), status)


async def describe(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return topic_view(desk.broker, call.path["topic"])


async def alter(desk: Desk, call: Call[Nothing, TopicChange]) -> Outcome:
    asked = call.body
    wanted = AlterTopic(topic=call.path["topic"], partitions=asked.partitions, settings=asked.settings)
    return await alter_topic(desk.broker, wanted)


async def offsets(desk: Desk, call: Call[StartQuery, Nothing]) -> Outcome:
    return await topic_offsets(desk.broker, TopicOffsetsQuery(topic=call.path["topic"], at=call.query.at))


async def delete(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    topic_of(desk.broker, call.path["topic"])  # NotFound with near matches
    await desk.access.delete_topic(call.path["topic"])
    return None


async def delete_before(desk: Desk, call: Call[Nothing, RecordsToDelete]) -> Outcome:
    asked = call.body
    return await delete_records(
        desk.broker, DeleteRecords(asked.before_offset, asked.partition, topic=call.path["topic"])
    )


# -- messages ----------------------------------------------------------------------------------------------------------


async def publish(desk: Desk, call: Call[PublishQuery, Messages]) -> Outcome:
    return await publish_to(desk, call.path["topic"], call.body, call.query.partition)


async def publish_to(desk: Desk, topic: str, messages: Messages, partition: int | None = None) -> Published:
    """Publishes and waits until it is durable."""
    await desk.access.topic_to_publish(topic)
    published = desk.access.publish_each(topic, messages.messages, partition, promised=True)
    desk.access.count(len(messages.messages), sum(len(message.payload) for message in messages.messages))
    await desk.access.durable(*published.receipts)
    subscribers = desk.broker.subscriptions.counts().get(topic, 0)
    return Published([Place(*place) for place in published.places], [], subscribers)


async def read(desk: Desk, call: Call[ReadQuery, Nothing]) -> Outcome:
    asked = call.query
    partition = topic_of(desk.broker, call.path["topic"]).partition(asked.partition)
    if asked.offset is not None and asked.time_ms is not None:
        raise Invalid("offset: give an offset or a time_ms, not both")
    offset = asked.offset if asked.offset is not None else partition.start_offset
    if asked.time_ms is not None:
        found = partition.find_time(asked.time_ms)
        offset = partition.stable_offset if found is None else found[0]
    messages, following = await _read(desk.broker, partition, offset, asked.count)
    if not messages and asked.wait_ms:
        await grown([(partition, following)], asked.wait_ms)
        messages, following = await _read(desk.broker, partition, following, asked.count)
    if desk.broker.tracing is not None:
        desk.broker.tracing.delivered(TracedPlace("topic", call.path["topic"], "http", call.peer.name), messages)
    shown = [to_json_object(delivered) for delivered in messages]
    return {"messages": shown, "next_offset": following, "end_offset": partition.stable_offset}


async def _read(broker: Broker, partition: Partition, offset: int, count: int) -> tuple[list[Delivered], int]:
    """Up to `count` messages from `offset` on, and where to read on."""
    messages: list[Delivered] = []
    size = 0
    while len(messages) < count and size < ANSWER_BYTES:
        chunk = await read_away(broker.world.offload, partition, offset, most=count - len(messages))
        if chunk.next == offset:
            break
        offset = chunk.next
        for delivered in chunk.messages:
            messages.append(delivered)
            size += size_of(delivered.message)
            if len(messages) == count or size >= ANSWER_BYTES:
                return messages, delivered.offset + 1
    return messages, offset


async def history(desk: Desk, call: Call[HistoryQuery, Nothing]) -> Outcome:
    latest = await desk.broker.messages.history_away(call.path["topic"], call.query.count)
    return {"messages": [to_json_object(delivered) for delivered in latest]}


async def find(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    found = await desk.broker.messages.find(call.path["id"], call.path["topic"])
    if found is None:
        raise NotFound(f"topic {call.path['topic']!r} has no message {call.path['id']!r} that can be found")
    return found_out(found)


async def find_anywhere(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    message_id = call.path["id"]
    found = desk.access.find_queued(message_id) or await desk.access.find_stored(message_id)
    if found is None:
        raise NotFound(f"there is no message {message_id!r}; one with an id of its own in a topic is found there alone")
    return found_out(found)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/topics",
        list_topics,
        "List topics in the order of their names",
        query=TopicsQuery,
        answer=TopicList,
        tag=TAG,
    ),
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
    Route("GET", "/v1/topics/{topic}", describe, "Describe a topic", answer=TopicOut, tag=TAG),
    Route("PATCH", "/v1/topics/{topic}", alter, "Alter a topic", body=TopicChange, answer=TopicOut, tag=TAG),
    Route("DELETE", "/v1/topics/{topic}", delete, "Delete a topic and its data", status=204, tag=TAG),
    Route(
        "GET",
        "/v1/topics/{topic}/offsets",
        offsets,
        "Where a start position is in each partition of a topic",
        query=StartQuery,
        answer=TopicOffsets,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/delete-records",
        delete_before,
        "Delete the messages of a partition that are before an offset",
        body=RecordsToDelete,
        answer=DeletedRecords,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/messages",
        publish,
        "Publish messages to a topic",
        description="Answered when they are durable. The topic is made if the broker makes topics by itself.",
        query=PublishQuery,
        body=Messages,
        answer=Published,
        status=201,
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
