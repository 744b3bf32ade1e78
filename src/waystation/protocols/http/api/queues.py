"""The API of queues: declare and delete, put and take, look and find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import QueueQuery
from waystation.broker.access.types import PEEKED_BYTES, QueueSettings
from waystation.errors import Conflict, Invalid, NotFound
from waystation.message_json import to_json_object
from waystation.protocol import Found, Peeked
from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.http.deliveries.consuming import HttpConsumer
from waystation.protocols.http.transport.bodies import Count, MessageList, MessageOut, QueueOut, Stored
from waystation.protocols.http.transport.calls import (
    NEEDS_VOUCHER,
    STEP_BYTES,
    AnyRoute,
    Call,
    Messages,
    Nothing,
    Outcome,
    Route,
    Stream,
    read_json,
)
from waystation.protocols.http.transport.replies import json_reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "queues"
MAX_COUNT = 1000
MAX_WAIT_MS = 300_000

Wait = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)]
VisibilityTimeout = Annotated[int, Meta(ge=1)] | None


class DeclareQuery(msgspec.Struct):
    alter: Annotated[bool, Meta(description="change the settings in the body of a queue that is there")] = False


class DeleteQuery(msgspec.Struct):
    if_empty: bool = False
    if_unused: bool = False


class PutQuery(msgspec.Struct):
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS, description="how long to wait for room in a full queue")] = 0
    raw: Annotated[bool, Meta(description="the body is the payload, even if it is JSON")] = False


class TakeQuery(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS, description="how long to wait for the first message")] = 0
    hold_ms: Annotated[int, Meta(ge=1, description="visibility timeout, instead of the queue's own")] | None = None
    auto_ack: Annotated[bool, Meta(description="acknowledged before it is answered: at most once")] = False


class PeekQuery(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 10
    after: Annotated[int, Meta(description="tag to continue after")] = -1
    state: Literal["any", "ready", "parked", "held"] = "any"


class StreamQuery(msgspec.Struct):
    prefetch: Annotated[int, Meta(ge=0, le=100_000, description="maximum number in flight; 0: no limit")] = 100
    credit: (
        Annotated[int, Meta(ge=0, description="maximum number to deliver, until the client gives more (WebSocket)")]
        | None
    ) = None
    hold_ms: VisibilityTimeout = None
    auto_ack: bool = False
    exclusive: bool = False


# -- the queue itself --------------------------------------------------------------------------------------------------


async def declare(dispatcher: RequestDispatcher, call: Call[DeclareQuery, QueueSettings]) -> Outcome:
    name = call.path["queue"]
    if call.body is not None and call.body.exclusive:
        raise Invalid("exclusive: such a queue is deleted with its connection, and a request by HTTP has none")
    there = dispatcher.access.queue_exists(name)
    only = list(read_json(call.request.body)) if call.query.alter and call.body is not None else None
    await dispatcher.access.declare_queue(name, call.body, alter=call.query.alter, only=only)
    return json_reply(await dispatcher.access.views.view("queue", QueueQuery(name)), 200 if there else 201)


async def delete(dispatcher: RequestDispatcher, call: Call[DeleteQuery, Nothing]) -> Outcome:
    asked = call.query
    count = await dispatcher.access.delete_queue(call.path["queue"], if_empty=asked.if_empty, if_unused=asked.if_unused)
    return Count(count)


async def purge(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    return Count(await dispatcher.access.purge_queue(call.path["queue"]))


# -- messages ----------------------------------------------------------------------------------------------------------


async def put(dispatcher: RequestDispatcher, call: Call[PutQuery, Messages]) -> Outcome:
    queue, messages = call.path["queue"], call.body.messages
    answer = await dispatcher.access.put_durable(queue, messages, wait_ms=call.query.wait_ms)
    left_out = set(answer.duplicates)
    ids: list[str | None] = []
    tag = answer.first
    for i in range(len(messages)):
        if i in left_out:
            ids.append(None)
            continue
        ids.append(messages[i].id if messages[i].id is not None else f"{queue}#{tag}")
        tag += 1
    return json_reply(Stored(ids, answer.count, answer.duplicates), 201 if answer.count else 200)


async def take(dispatcher: RequestDispatcher, call: Call[TakeQuery, Nothing]) -> Outcome:
    asked = call.query
    taken = await dispatcher.takers.take(
        call.path["queue"],
        call.peer,
        count=asked.count,
        wait_ms=asked.wait_ms,
        visibility_timeout_ms=asked.hold_ms,
        auto_ack=asked.auto_ack,
    )
    dispatcher.delivered([delivered for delivered, _ in taken], acked=asked.auto_ack)
    return {"messages": [shown for _, shown in taken]}


async def peek(dispatcher: RequestDispatcher, call: Call[PeekQuery, Nothing]) -> Outcome:
    asked = call.query
    queue = call.path["queue"]
    shown: list[dict[str, Any]] = []
    after, size = asked.after, 0
    most = min(PEEKED_BYTES, call.peer.answer_bytes)
    while len(shown) < asked.count and size < most:
        found = dispatcher.access.peek(
            queue, asked.count - len(shown), after, asked.state, min(STEP_BYTES, most - size)
        )
        if not found:
            break
        shown += [peeked_out(one, queue) for one in found]
        step = sum(len(one.delivered.message.payload) for one in found)
        after, size = found[-1].delivered.tag, size + step
        if step > FREE_BYTES:
            await call.peer.rest(size)
            if call.peer.disconnected:
                break
    return {"messages": shown}


def peeked_out(one: Peeked, queue: str) -> dict[str, Any]:
    shown = to_json_object(one.delivered, queue)
    shown["state"] = one.state
    if one.ready_at_ms is not None:
        shown["ready_at_ms"] = one.ready_at_ms
    return shown


def found_out(found: Found) -> dict[str, Any]:
    """A message that was found, and where."""
    kind, _, name = found.place.partition(":")
    shown = to_json_object(found.delivered, name if kind == "queue" else "")
    shown["state"], shown["place"] = found.state, found.place
    if found.ready_at_ms is not None:
        shown["ready_at_ms"] = found.ready_at_ms
    return shown


async def find(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    queue, message_id = call.path["queue"], call.path["id"]
    found = dispatcher.access.find_queued(message_id, queue)
    if found is None:
        raise NotFound(f"queue {queue!r} has no message {message_id!r}")
    return found_out(found)


async def cancel(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    queue, message_id = call.path["queue"], call.path["id"]
    if await dispatcher.access.cancel(queue, message_id):
        return None
    if dispatcher.access.find_queued(message_id, queue) is not None:
        raise Conflict(f"message {message_id!r} is in flight and cannot be cancelled now")
    raise NotFound(f"queue {queue!r} has no message {message_id!r}")


async def stream(dispatcher: RequestDispatcher, call: Call[StreamQuery, Nothing]) -> Outcome:
    queue, asked = call.path["queue"], call.query
    consumer = HttpConsumer(dispatcher, queue, acks=not asked.auto_ack, credit=asked.credit)
    feed = dispatcher.access.consume(
        queue,
        call.peer.name,
        consumer.deliver,
        on_end=consumer.ceased,
        prefetch=asked.prefetch,
        visibility_timeout_ms=asked.hold_ms,
        auto_ack=asked.auto_ack,
        exclusive=asked.exclusive,
    )
    visibility_timeout_ms = asked.hold_ms or dispatcher.access.describe_queue(queue).settings.hold_ms
    consumer.attach(feed, f"queue:{queue}", visibility_timeout_ms)
    return Stream(consumer)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "PUT",
        "/v1/queues/{queue}",
        declare,
        "Declare a queue",
        tag=TAG,
        description="Created if it does not exist (201). Settings that differ from the present ones are a conflict,"
        " unless `alter`: then those in the body are changed, and the others stay. Without a body any settings are"
        " fine.",
        query=DeclareQuery,
        body=QueueSettings,
        optional_body=True,
        creates=True,
        answer=QueueOut,
    ),
    Route(
        "DELETE",
        "/v1/queues/{queue}",
        delete,
        "Delete a queue and its messages",
        tag=TAG,
        query=DeleteQuery,
        answer=Count,
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/messages",
        put,
        "Put messages into a queue",
        tag=TAG,
        description="Answered when they are durable. All of them or none, but for duplicates, which are left out.",
        query=PutQuery,
        body=Messages,
        answer=Stored,
        creates=True,
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/take",
        take,
        "Take messages from a queue",
        tag=TAG,
        description="They are in flight until they are settled by their `ack_id`, or until the visibility"
        " timeout ends.",
        query=TakeQuery,
        answer=MessageList,
        waits=True,
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/messages",
        take,
        "Take messages from a queue: the older form of POST /v1/queues/{queue}/take",
        tag=TAG,
        description=NEEDS_VOUCHER,
        query=TakeQuery,
        answer=MessageList,
        changes=True,
        instead="POST /v1/queues/{queue}/take",
        waits=True,
    ),
    Route(
        "DELETE",
        "/v1/queues/{queue}/messages",
        purge,
        "Delete all messages that are not in flight",
        tag=TAG,
        answer=Count,
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/messages/{id}",
        find,
        "Find a message by its id",
        tag=TAG,
        answer=MessageOut,
    ),
    Route(
        "DELETE",
        "/v1/queues/{queue}/messages/{id}",
        cancel,
        "Cancel a message that is not in flight",
        tag=TAG,
        status=204,
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/peek",
        peek,
        "Look at messages without taking them",
        tag=TAG,
        query=PeekQuery,
        answer=MessageList,
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/stream",
        stream,
        "Consume a queue by WebSocket or server-sent events",
        tag=TAG,
        description=NEEDS_VOUCHER,
        query=StreamQuery,
        streams=True,
        changes=True,
        instead="POST /v1/queues/{queue}/stream",
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/stream",
        stream,
        "Consume a queue by server-sent events",
        tag=TAG,
        query=StreamQuery,
        streams=True,
    ),
)
