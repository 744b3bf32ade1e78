"""The API of the broker itself: health, what there is in figures, changing its settings, ending connections, and the
description of this API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import Given, Reason, SettingsOut, SettingsQuery
from waystation.errors import Unavailable
from waystation.protocols.http.auth.token import has_password
from waystation.protocols.http.transport.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.protocols.http.transport.replies import Reply
from waystation.version import __version__

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "broker"
PAGE_TYPE = "text/html; charset=utf-8"


class Alive(msgspec.Struct):
    status: Annotated[str, Meta(description="ok, warning or failing: the worst of the reasons")]
    version: str
    reasons: list[Reason]


class Ready(msgspec.Struct):
    status: str
    version: str
    reasons: list[Reason]


class EndQuery(msgspec.Struct):
    reason: Annotated[str, Meta(description="what the client is told, as far as its protocol can")] = ""


class Index(msgspec.Struct):
    product: str
    version: str
    openapi: str


async def index(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    """The dashboard for whoever asks for a page, as browsers do; a few words for programs."""
    if "text/html" in call.request.headers.get("accept", ""):
        return dispatcher.files.reply("index.html", call.request.headers.get("if-none-match"))
    return Index("waystation", __version__, "/openapi.json")


async def healthy(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    health = dispatcher.access.views.health()
    return Alive(health.status, __version__, health.reasons if _may_know(dispatcher, call) else [])


async def ready(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    """The listener opens when all is recovered, so being asked is being ready, but for a disk that refuses."""
    views, told = dispatcher.access.views, _may_know(dispatcher, call)
    readiness = views.readiness()
    if readiness.status != "ok":
        reasons = [f"{reason.what} {reason.advice}" for reason in readiness.reasons if told]
        raise Unavailable(reasons[0] if reasons else "a log of this broker takes no more writes")
    return Ready("ready", __version__, views.health().reasons if told else [])


def _may_know(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> bool:
    """Whether the reasons may be told, which name things: anybody may ask how the broker is, token or not."""
    if not dispatcher.principal.anonymous:
        return True
    token = dispatcher.broker.settings.text("waystation.http.token")
    return not dispatcher.entrance.required and (not token or has_password(token, call.request.headers))


class LoginBody(msgspec.Struct):
    user: str
    password: str


class Whoami(msgspec.Struct):
    user: Annotated[str, Meta(description="empty: nobody")]
    superuser: bool
    required: Annotated[bool, Meta(description="whether every client has to log in")]


async def log_in(dispatcher: RequestDispatcher, call: Call[Nothing, LoginBody]) -> Outcome:
    peer = call.peer
    cookie = await dispatcher.login.log_in(call.body.user, call.body.password, peer.login_peer, secure=peer.secure)
    return Reply(204, headers={"set-cookie": cookie})


async def log_out(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    return Reply(204, headers={"set-cookie": dispatcher.login.log_out(call.request.headers)})


async def whoami(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    who = dispatcher.principal
    required = dispatcher.entrance.required
    return (
        Whoami("", superuser=not dispatcher.broker.authenticator.required, required=required)
        if who.anonymous
        else Whoami(who.name, who.superuser, required)
    )


async def stats(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    return dispatcher.access.views.stats()


async def alter_settings(dispatcher: RequestDispatcher, call: Call[Nothing, dict[str, Given]]) -> Outcome:
    views = dispatcher.access.views
    await views.alter_settings(call.body)
    shown: SettingsOut = await views.view("settings", SettingsQuery())
    return shown


async def end_connection(dispatcher: RequestDispatcher, call: Call[EndQuery, Nothing]) -> Outcome:
    dispatcher.access.views.end_connection(call.path["connection"], call.query.reason)
    return None


async def openapi(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    if dispatcher.openapi is None:
        from waystation.protocols.http.api.openapi import document
        from waystation.protocols.http.api.routes import ROUTES
        from waystation.protocols.http.transport.replies import END, encode_json

        dispatcher.openapi = encode_json(document(ROUTES)) + END
    return Reply(200, dispatcher.openapi)


ROUTES: tuple[AnyRoute, ...] = (
    Route("GET", "/", index, "The dashboard, or what this is", tag=TAG, answer=Index, media=(PAGE_TYPE,)),
    Route("GET", "/healthz", healthy, "Whether the broker is alive, and well", tag=TAG, answer=Alive),
    Route("GET", "/readyz", ready, "Whether the broker can take messages", tag=TAG, answer=Ready),
    Route("GET", "/v1/stats", stats, "What there is, in figures", tag=TAG, answer=dict[str, Any]),
    Route(
        "PATCH",
        "/v1/settings",
        alter_settings,
        "Change settings while the broker runs",
        tag="settings",
        description="The body has settings by name; null takes one back. All of them are changed or none. They survive"
        " a restart.",
        body=dict[str, Given],
        answer=SettingsOut,
    ),
    Route(
        "DELETE",
        "/v1/connections/{connection}",
        end_connection,
        "Close a connection",
        tag="connections",
        query=EndQuery,
        status=204,
    ),
    Route("GET", "/v1/whoami", whoami, "Who sends this request", tag="users", answer=Whoami),
    Route(
        "POST",
        "/v1/login",
        log_in,
        "Log in with a password, and get a cookie: for browsers",
        tag="users",
        body=LoginBody,
        status=204,
    ),
    Route("POST", "/v1/logout", log_out, "End the session that the cookie names", tag="users", status=204),
    Route("GET", "/openapi.json", openapi, "This API, described (OpenAPI 3.1)", tag=TAG, answer=dict[str, Any]),
)
