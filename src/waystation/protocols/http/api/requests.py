"""The API of request and reply: ask and wait for the answer; answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import Invalid, NotFound
from waystation.message import Delivered, Message
from waystation.message_json import to_json_object
from waystation.protocols.http.api.queues import MAX_WAIT_MS
from waystation.protocols.http.transport.bodies import MessageOut
from waystation.protocols.http.transport.calls import AnyRoute, Call, Messages, Outcome, Route
from waystation.protocols.http.transport.problems import TimedOut

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "request and reply"


class RequestQuery(msgspec.Struct):
    topic: Annotated[str, Meta(description="where to ask; or `queue`")] | None = None
    queue: str | None = None
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_WAIT_MS)] = 5_000
    raw: Annotated[bool, Meta(description="the body is the payload, even if it is JSON")] = False


class ReplyQuery(msgspec.Struct):
    to: Annotated[str, Meta(description="the request's `reply_to`")]
    raw: Annotated[bool, Meta(description="the body is the payload, even if it is JSON")] = False


async def ask(dispatcher: RequestDispatcher, call: Call[RequestQuery, Messages]) -> Outcome:
    asked = call.query
    if (asked.topic is None) == (asked.queue is None):
        raise Invalid("topic: give a topic or a queue, not both and not neither")
    answer: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()

    def deliver(replies: list[Delivered]) -> None:
        if not answer.done():
            answer.set_result(replies[0])

    inboxes = dispatcher.access.inboxes
    inbox = inboxes.open(deliver)
    try:
        message = msgspec.structs.replace(_one(call.body), reply_to=inbox)
        if message.correlation_id is None:
            message = msgspec.structs.replace(message, correlation_id=dispatcher.broker.world.random.uuid().hex)
        async with asyncio.timeout(asked.timeout_ms / 1000):
            await _send(dispatcher, asked, message)
            return to_json_object(await answer)
    except TimeoutError:
        raise TimedOut(f"no reply came within {asked.timeout_ms} ms") from None
    finally:
        inboxes.close(inbox)


async def _send(dispatcher: RequestDispatcher, asked: RequestQuery, message: Message) -> None:
    if asked.queue is not None:
        await dispatcher.access.put_durable(asked.queue, [message])
    elif asked.topic is not None:
        await dispatcher.access.topic_to_publish(asked.topic)
        dispatcher.access.publish_each(asked.topic, [message], promised=False)
        dispatcher.access.count(1, len(message.payload))


async def reply(dispatcher: RequestDispatcher, call: Call[ReplyQuery, Messages]) -> Outcome:
    if not dispatcher.access.inboxes.reply(call.query.to, _one(call.body)):
        raise NotFound(f"nobody waits for a reply at {call.query.to[:100]!r} any more")
    return None


def _one(body: Messages) -> Message:
    if len(body.messages) != 1:
        raise Invalid(f"messages: one at a time, not {len(body.messages)}")
    return body.messages[0]


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "POST",
        "/v1/requests",
        ask,
        "Send a request and wait for its reply",
        tag=TAG,
        description="504 if none comes in time. The responder uses the message's `reply_to` and `correlation_id`.",
        query=RequestQuery,
        body=Messages,
        answer=MessageOut,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/replies",
        reply,
        "Reply to a request",
        tag=TAG,
        query=ReplyQuery,
        body=Messages,
        status=204,
    ),
)
