"""The API of watching the broker: how it is, its last hour, a live feed, and the figures for Prometheus.

The heart of it is in the broker (`admin/view_overview.py`, `health/health.py`, `health/sampling.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waystation.admin.view_overview import HistoryOut, HistoryQuery, Overview, history_view, overview_view
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route, Stream
from waystation.protocols.http.replies import Reply

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "watching"
PROMETHEUS = "waystation.protocols.http.prometheus"
FORMATS = ("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8")


async def overview(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return overview_view(desk.broker)


async def history(desk: Desk, call: Call[HistoryQuery, Nothing]) -> Outcome:
    return history_view(desk.broker, call.query)


async def live(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return Stream(desk.live.viewer())


async def metrics(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    # Imported on a thread, once: prometheus-client and what it imports take a tenth of a second.
    prometheus: Any = await desk.broker.world.offload(import_module, PROMETHEUS)
    text, content_type = await prometheus.scrape(desk.broker, call.request.headers.get("accept", ""))
    return Reply(200, text, content_type)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/overview",
        overview,
        "The broker at a glance",
        tag=TAG,
        description="Health with reasons, totals, connections, rates, resources, the busiest topics and queues. Rates"
        " and sums are those of the last sample, at most five seconds ago.",
        answer=Overview,
    ),
    Route(
        "GET",
        "/v1/history",
        history,
        "The last hour, in points of five seconds",
        tag=TAG,
        query=HistoryQuery,
        answer=HistoryOut,
    ),
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
