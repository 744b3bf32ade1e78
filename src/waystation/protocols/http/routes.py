"""All routes of the door, in the order of the OpenAPI document."""

from __future__ import annotations

from waystation.protocols.http import (
    connections,
    dashboard_files,
    dead_letters,
    delayed,
    exchanges,
    groups,
    jobs,
    msgqueue,
    observing,
    pipelines,
    queues,
    requests,
    routing_view,
    searching,
    settings,
    settling,
    subscriptions,
    system,
    topic_settings,
    topics,
)
from waystation.protocols.http.calls import AnyRoute

ROUTES: tuple[AnyRoute, ...] = (
    *queues.ROUTES,
    *settling.ROUTES,
    *delayed.ROUTES,
    *dead_letters.ROUTES,
    *jobs.ROUTES,
    *topics.ROUTES,
    *searching.ROUTES,
    *topic_settings.ROUTES,
    *subscriptions.ROUTES,
    *exchanges.ROUTES,
    *routing_view.ROUTES,
    *requests.ROUTES,
    *groups.ROUTES,
    *connections.ROUTES,
    *pipelines.ROUTES,
    *settings.ROUTES,
    *system.ROUTES,
    *observing.ROUTES,
    *msgqueue.ROUTES,
    *dashboard_files.ROUTES,
)
