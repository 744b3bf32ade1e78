"""The API of routing: exchanges, bindings, publishing through them, and where a message would go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import Binding, BindingsQuery
from waystation.errors import Invalid, NotFound
from waystation.message_json import from_sender
from waystation.protocols.http.api.topics import Place, Published
from waystation.protocols.http.transport.bodies import MessageIn
from waystation.protocols.http.transport.calls import AnyRoute, Call, Messages, Nothing, Outcome, Route, read_json
from waystation.protocols.http.transport.replies import json_reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "routing"


class ExchangeIn(msgspec.Struct, omit_defaults=True):
    """What the exchange shall be."""

    kind: Annotated[
        str, Meta(description="direct, fanout, topic, headers, filter, x-consistent-hash, x-delayed-message")
    ] = "direct"
    alternate: Annotated[str, Meta(description="the exchange for what matches nothing")] | None = None
    arguments: Annotated[
        dict[str, Any], Meta(description="`x-delayed-type`, `hash-header`, `hash-property`, where the kind takes them")
    ] = {}


class ExchangeOut(msgspec.Struct):
    exchange: str
    kind: str
    alternate: str | None
    bindings: Annotated[list[Binding], Meta(description="the first thousand of them")]
    binding_count: int


class DeleteQuery(msgspec.Struct):
    if_unused: bool = False


class UnbindQuery(msgspec.Struct):
    target: str
    key: str = ""
    arguments: Annotated[str, Meta(description="the binding's arguments, as JSON")] = "{}"


class PublishQuery(msgspec.Struct):
    routing_key: str = ""
    mandatory: Annotated[bool, Meta(description="404, and nothing stored, if no binding matches")] = False
    raw: Annotated[bool, Meta(description="the body is the payload, even if it is JSON")] = False


class RouteIn(msgspec.Struct, omit_defaults=True):
    """A message that is not sent."""

    message: MessageIn = msgspec.field(default_factory=lambda: MessageIn(payload=""))
    routing_key: str = ""


class RouteOut(msgspec.Struct):
    targets: list[str]


async def _one(dispatcher: RequestDispatcher, name: str) -> ExchangeOut:
    settings = dispatcher.access.describe_exchange(name)
    found = await dispatcher.access.views.view("bindings", BindingsQuery(exchange=name))
    return ExchangeOut(name, settings.kind, settings.alternate, found.bindings, found.total)


async def declare(dispatcher: RequestDispatcher, call: Call[Nothing, ExchangeIn]) -> Outcome:
    name, wanted = call.path["exchange"], call.body or ExchangeIn()
    try:
        dispatcher.access.describe_exchange(name)
        status = 200
    except NotFound:
        status = 201
    await dispatcher.access.declare_exchange(name, wanted.kind, alternate=wanted.alternate, arguments=wanted.arguments)
    return json_reply(await _one(dispatcher, name), status)


async def describe(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    return await _one(dispatcher, call.path["exchange"])


async def delete(dispatcher: RequestDispatcher, call: Call[DeleteQuery, Nothing]) -> Outcome:
    await dispatcher.access.delete_exchange(call.path["exchange"], if_unused=call.query.if_unused)
    return None


async def bind(dispatcher: RequestDispatcher, call: Call[Nothing, Binding]) -> Outcome:
    said = call.body
    await dispatcher.access.bind(call.path["exchange"], said.target, said.key, said.arguments)
    return said


async def unbind(dispatcher: RequestDispatcher, call: Call[UnbindQuery, Nothing]) -> Outcome:
    asked = call.query
    arguments = read_json(asked.arguments.encode())
    if not isinstance(arguments, dict):
        raise Invalid("arguments: have to be a JSON object")
    name = call.path["exchange"]
    if await dispatcher.access.unbind(name, asked.target, asked.key, arguments) is False:
        raise NotFound(f"exchange {name!r} has no such binding to {asked.target!r}")
    return None


async def publish(dispatcher: RequestDispatcher, call: Call[PublishQuery, Messages]) -> Outcome:
    asked = call.query
    answer = await dispatcher.access.publish_through(
        call.path["exchange"], asked.routing_key, call.body.messages, mandatory=asked.mandatory
    )
    places = [Place(*place) for place in answer.places]
    published = Published(places, answer.queues, answer.subscribers, answer.unroutable)
    return json_reply(published, 200 if answer.unroutable == len(call.body.messages) else 201)


async def route(dispatcher: RequestDispatcher, call: Call[Nothing, RouteIn]) -> Outcome:
    given = read_json(call.request.body)
    message = from_sender(given.get("message", {"payload": ""}))
    return RouteOut(dispatcher.access.route(call.path["exchange"], message, call.body.routing_key))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "PUT",
        "/v1/exchanges/{exchange}",
        declare,
        "Declare an exchange",
        body=ExchangeIn,
        optional_body=True,
        creates=True,
        answer=ExchangeOut,
        tag=TAG,
    ),
    Route("GET", "/v1/exchanges/{exchange}", describe, "Describe an exchange", answer=ExchangeOut, tag=TAG),
    Route("DELETE", "/v1/exchanges/{exchange}", delete, "Delete an exchange", query=DeleteQuery, status=204, tag=TAG),
    Route(
        "POST",
        "/v1/exchanges/{exchange}/bindings",
        bind,
        "Bind a queue, a topic or an exchange",
        body=Binding,
        answer=Binding,
        status=201,
        tag=TAG,
    ),
    Route("DELETE", "/v1/exchanges/{exchange}/bindings", unbind, "Unbind", query=UnbindQuery, status=204, tag=TAG),
    Route(
        "POST",
        "/v1/exchanges/{exchange}/messages",
        publish,
        "Publish messages through an exchange",
        description="201 if a queue or a topic got one of them; 200 if nothing is bound that matches: then nobody did.",
        query=PublishQuery,
        body=Messages,
        answer=Published,
        creates=True,
        tag=TAG,
    ),
    Route(
        "POST",
        "/v1/exchanges/{exchange}/route",
        route,
        "Show where a message would be routed; nothing is sent",
        body=RouteIn,
        answer=RouteOut,
        tag=TAG,
    ),
)
