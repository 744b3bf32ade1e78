"""All routes of the door, in the order of the OpenAPI document."""

from __future__ import annotations

from waystation.doors.http import (
    dead_letters,
    exchanges,
    msgqueue,
    queues,
    requests,
    settling,
    subscriptions,
    system,
    topics,
)
from waystation.doors.http.calls import AnyRoute

ROUTES: tuple[AnyRoute, ...] = (
    *queues.ROUTES,
    *settling.ROUTES,
    *dead_letters.ROUTES,
    *topics.ROUTES,
    *subscriptions.ROUTES,
    *exchanges.ROUTES,
    *requests.ROUTES,
    *system.ROUTES,
    *msgqueue.ROUTES,
)
