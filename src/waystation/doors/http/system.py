"""The API of the broker itself: health, what there is in figures, and the description of this API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker import overview
from waystation.doors.http.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.doors.http.replies import Reply
from waystation.errors import Unavailable
from waystation.version import __version__

if TYPE_CHECKING:
    from waystation.doors.http.desk import Desk

TAG = "broker"


class Health(msgspec.Struct):
    status: str
    version: str


class Index(msgspec.Struct):
    product: str
    version: str
    openapi: str


async def index(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return Index("waystation", __version__, "/openapi.json")


async def healthy(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return Health("ok", __version__)


async def ready(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    """The door opens when all is recovered, so being asked is being ready, but for a disk that refuses."""
    for _, log in desk.broker.topics.logs():
        if log.failure is not None:
            raise Unavailable("a log of this broker takes no more writes; its own log file says why")
    return Health("ready", __version__)


async def stats(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return overview.stats(desk.broker)


async def openapi(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    if desk.openapi is None:
        from waystation.doors.http.openapi import document
        from waystation.doors.http.replies import encode_json
        from waystation.doors.http.routes import ROUTES

        desk.openapi = encode_json(document(ROUTES))
    return Reply(200, desk.openapi)


ROUTES: tuple[AnyRoute, ...] = (
    Route("GET", "/", index, "What this is", tag=TAG, answer=Index),
    Route("GET", "/healthz", healthy, "Whether the broker is alive", tag=TAG, answer=Health),
    Route("GET", "/readyz", ready, "Whether the broker can take messages", tag=TAG, answer=Health),
    Route("GET", "/v1/stats", stats, "What there is, in figures", tag=TAG, answer=dict[str, Any]),
    Route("GET", "/openapi.json", openapi, "This API, described (OpenAPI 3.1)", tag=TAG, answer=dict[str, Any]),
)
