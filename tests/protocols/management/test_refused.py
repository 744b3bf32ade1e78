"""RabbitMQ's management API: every route that shows or changes something asks whether the caller may.

The routes are walked, not listed: one that goes around `Access` fails here.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.broker.queue_kit import Machine
from tests.simulation.world import Simulation
from tests.support.permissions import RefusesEverything
from waystation.broker.access.types import LoginPeer, Policy
from waystation.errors import NotAllowed
from waystation.protocols.http.transport.calls import AnyQuery, AnyRoute, Call, Nothing
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management.api import ROUTES, Management
from waystation.queues.settings import QueueSettings
from waystation.routing.namespaces import Limits

FOR_ANYBODY = {
    *("/api/whoami", "/api/cluster-name"),
    *("/api/health/checks/virtual-hosts", "/api/health/checks/node-is-quorum-critical"),  # always the same answer
    "/api/health/checks/node-is-mirror-sync-critical",
    *("/api/parameters", "/api/global-parameters", "/api/operator-policies"),  # always empty
    *("/api/feature-flags", "/api/extensions"),
    *("/api/connections", "/api/connections/{connection}/channels", "/api/channels", "/api/consumers"),
    *("/api/connections/{connection}", "/api/channels/{channel}"),  # a node's own list; ending one is asked
}

LISTS = {
    *("/api/vhosts", "/api/vhost-limits", "/api/queues", "/api/exchanges", "/api/bindings", "/api/policies"),
}
"""They leave out what the caller may not see."""

BODY = {
    "count": 1,
    "ackmode": "ack_requeue_true",
    "encoding": "auto",
    "properties": {},
    "routing_key": "jobs",
    "payload": "x",
    "payload_encoding": "string",
    "pattern": "^jobs",
    "definition": {"max-length": 1},
    "value": 1,
    "vhosts": [{"name": "shop"}],
    "users": ["guest"],
    "tags": "",
    "configure": ".*",
    "exchange": "events",
    "write": ".*",
    "read": ".*",
}


class Caller:
    name = "caller"
    disconnected = False
    secure = False
    answer_bytes = 1024 * 1024
    login_peer = LoginPeer("http", "127.0.0.1")

    async def rest(self, size: int) -> None: ...


def call_of(route: AnyRoute) -> Call[AnyQuery, Nothing]:
    values = {
        "vhost": "/",
        "kind": "q",
        "source": "events",
        "user": "guest",
        "node": "waystation@1",
        "limit": "max-queues",
    }
    path = {name: values.get(name, "jobs") for name in re.findall(r"\{(\w+)\}", route.path)}
    request = Request(route.method, route.path.encode(), {}, body=json.dumps(BODY).encode())
    return Call(path, AnyQuery({}), Nothing(), request, Caller())


ASKING = [
    route for route in ROUTES if route.path not in FOR_ANYBODY and not (route.path in LISTS and route.method == "GET")
]
LISTING = [route for route in ROUTES if route.path in LISTS and route.method == "GET"]


@pytest.mark.parametrize("route", ASKING, ids=[f"{route.method} {route.path}" for route in ASKING])
def test_a_route_is_refused_to_a_caller_who_may_nothing(route: AnyRoute) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        broker = await Machine(simulation).start()
        try:
            await broker.queues.declare("jobs", QueueSettings())
            await broker.routing.declare_exchange("events", "fanout")
            exchanges = broker.routing.exchange_names()
            broker.permissions = RefusesEverything()
            with pytest.raises(NotAllowed) as refused:
                await route.handler(Management(broker, list), call_of(route))
            assert Management.error_reply(refused.value).status == 401
            assert broker.namespaces.names() == ["/"]
            assert [info.queue for info in broker.queues.list()] == ["jobs"]
            assert broker.routing.exchange_names() == exchanges
            assert not broker.routing.bindings_to("queue:jobs")
            assert not broker.policies.listing()
        finally:
            await broker.stop()

    simulation.run(main())


@pytest.mark.parametrize("route", LISTING, ids=[f"{route.method} {route.path}" for route in LISTING])
@pytest.mark.parametrize("sees", [True, False], ids=["who may see it", "who may not"])
def test_a_list_has_nothing_for_a_caller_who_may_see_nothing(route: AnyRoute, sees: bool) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        broker = await Machine(simulation).start()
        try:
            await broker.queues.declare("jobs", QueueSettings())
            await broker.routing.declare_exchange("events", "fanout")
            await broker.routing.bind("events", "queue:jobs")
            await broker.namespaces.set_limits("/", Limits(max_queues=5))
            await broker.policies.set(Policy("/", "limits", "^jobs", {"max-length": 1}))
            if not sees:
                broker.permissions = RefusesEverything()
            shown = await route.handler(Management(broker, list), call_of(route))
            listed = json.loads(shown.body) if isinstance(shown, Reply) else shown
            assert bool(listed) == sees
        finally:
            await broker.stop()

    simulation.run(main())


def test_what_is_for_anybody_is_still_there() -> None:
    assert {route.path for route in ROUTES} >= FOR_ANYBODY
