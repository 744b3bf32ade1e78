"""The API of watching the broker: a live feed, and the figures for Prometheus."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waystation.protocols.http.transport.calls import AnyRoute, Call, Nothing, Outcome, Route, Stream
from waystation.protocols.http.transport.replies import Reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "watching"
PROMETHEUS = "waystation.protocols.http.api.prometheus"
FORMATS = ("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8")


async def live(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    dispatcher.access.cluster.check_describe()  # a stream that has begun cannot be refused any more
    return Stream(dispatcher.live.viewer())


async def metrics(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    # Imported on a thread, once: prometheus-client and what it imports take a tenth of a second.
    prometheus: Any = await dispatcher.broker.world.offload(import_module, PROMETHEUS)
    text, content_type = await prometheus.scrape(
        dispatcher.broker, dispatcher.access.views, call.request.headers.get("accept", "")
    )
    return Reply(200, text, content_type)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/live",
        live,
        "Watch the broker (WebSocket, or server-sent events)",
        tag=TAG,
        description="An event `overview` every two seconds, with what /v1/overview answers, and an event `sample` with"
        ' every new point of the history. On a WebSocket: `{"kind": "overview", "data": …}`.',
        streams=True,
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        "Everything that is counted, for Prometheus",
        tag=TAG,
        description="Prometheus' text format, or OpenMetrics if the header `Accept` asks for it.",
        media=FORMATS,
    ),
)
