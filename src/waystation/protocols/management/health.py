"""RabbitMQ's management API: whether the broker works, as load balancers and monitoring ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Verdict
from waystation.errors import StorageFailed
from waystation.message import Message
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply, json_reply
from waystation.protocols.management import declaring
from waystation.protocols.management.calls import ApiCall, Refused, route, vhost_of
from waystation.protocols.management.shapes import Shown, node_name

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management

ALIVENESS_QUEUE = "aliveness-test"
VISIBILITY_TIMEOUT_MS = 60_000


def _failed(reason: str, **more: Any) -> Reply:
    return json_reply({"status": "failed", "reason": reason, **more}, 503)


async def node_health(api: Management, call: ApiCall) -> Reply | Shown:
    if api.access.views.readiness().status != "ok":
        return _failed("a log of this broker takes no more writes; its own log file says why")
    return await alarms(api, call)


async def alarms(api: Management, call: ApiCall) -> Reply | Shown:
    found = api.access.namespaces.alarms()
    if found:
        listed = [{"node": node_name(api.node), "vhost": name, "resource": why} for name, why in found.items()]
        return _failed("resource alarm(s) in effect", alarms=listed)
    return {"status": "ok"}


async def healthy(api: Management, call: ApiCall) -> Shown:
    return {"status": "ok"}


async def aliveness(api: Management, call: ApiCall) -> Shown:
    """Declares a queue, puts a message into it and takes it out again."""
    access = vhost_of(api, call)
    try:
        await _put_and_take(api, access)
    except StorageFailed as error:
        raise Refused(503, "failed", str(error)) from error
    return {"status": "ok"}


async def _put_and_take(api: Management, access: Access) -> None:
    full = access.names.full(ALIVENESS_QUEUE)
    access.admit_queue(full)
    access.check_consume(full)
    await declaring.declare_queue(api, access, ALIVENESS_QUEUE, {})
    message = Message(b"test_message", exchange="", routing_key=ALIVENESS_QUEUE)
    await access.durable(access.put_each(full, [message]).receipt)
    getter = access.getter(full, declaring.OWNER, VISIBILITY_TIMEOUT_MS, silent=True)
    try:
        if taken := getter.take(1):
            await access.durable(getter.settle(Verdict.ACK, [(taken[0].tag, 1)]).receipt)
    finally:
        getter.close()


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/healthchecks/node", node_health, "Whether the node works"),
    route(
        "GET",
        "/aliveness-test/{vhost}",
        aliveness,
        "Put a message into a queue and take it out",
        changes=True,
    ),
    route("GET", "/health/checks/alarms", alarms, "Whether publishers are blocked"),
    route("GET", "/health/checks/local-alarms", alarms, "Whether publishers are blocked"),
    route("GET", "/health/checks/virtual-hosts", healthy, "Whether all virtual hosts run"),
    route(
        "GET",
        "/health/checks/node-is-quorum-critical",
        healthy,
        "Whether the node may be shut down: it is the only one",
    ),
    route("GET", "/health/checks/node-is-mirror-sync-critical", healthy, "The same"),
)
