"""All routes of HTTP, in the order of the OpenAPI document."""

from __future__ import annotations

from waystation.protocols.http.api import (
    dashboard_files,
    dead_letters,
    exchanges,
    msgqueue,
    observing,
    queues,
    requests,
    settling,
    subscriptions,
    system,
    topics,
    views,
)
from waystation.protocols.http.transport.calls import AnyRoute

ROUTES: tuple[AnyRoute, ...] = (
    *queues.ROUTES,
    *settling.ROUTES,
    *dead_letters.ROUTES,
    *topics.ROUTES,
    *subscriptions.ROUTES,
    *exchanges.ROUTES,
    *requests.ROUTES,
    *views.ROUTES,
    *system.ROUTES,
    *observing.ROUTES,
    *msgqueue.ROUTES,
    *dashboard_files.ROUTES,
)
