"""RabbitMQ's management API: whether the broker works, as load balancers and monitoring ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Verdict
from waystation.errors import StorageFailed
from waystation.message import Message
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply, json_reply
from waystation.protocols.management import declaring
from waystation.protocols.management.calls import ApiCall, Refused, bad_request, route, vhost_of
from waystation.protocols.management.shapes import Shown, node_name

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management

ALIVENESS_QUEUE = "aliveness-test"
AMQP, AMQPS = "amqp", "amqp/ssl"
PROTOCOLS = {"amqp091": AMQP, "amqps": AMQPS, "https": "http/ssl"}
"""Other names that RabbitMQ has for protocols of listeners."""
LARGEST_PORT = 65_535
VISIBILITY_TIMEOUT_MS = 60_000


def _failed(reason: str, **more: Any) -> Reply:
    return json_reply({"status": "failed", "reason": reason, **more}, 503)


async def node_health(api: Management, call: ApiCall) -> Reply | Shown:
    return _out_of_service(api) or await alarms(api, call)


def _out_of_service(api: Management) -> Reply | None:
    if api.access.views.readiness().status != "ok":
        return _failed("a log of this broker takes no more writes; its own log file says why")
    return None


async def in_service(api: Management, call: ApiCall) -> Reply | Shown:
    api.access.cluster.check_describe()
    return _out_of_service(api) or {"status": "ok"}


async def port_listener(api: Management, call: ApiCall) -> Reply | Shown:
    """Whether anything of this node listens there."""
    api.access.cluster.check_describe()
    said = call.path["port"]
    if not said.isdecimal() or not 0 < int(said[:10]) <= LARGEST_PORT:
        raise bad_request("Invalid port")
    port = int(said)
    ports = sorted({port for _, port in api.listening()})
    if port in ports:
        return {"status": "ok", "port": port}
    return _failed("No active listener", missing=port, ports=ports)


async def protocol_listener(api: Management, call: ApiCall) -> Reply | Shown:
    """Whether any listener of this node speaks that."""
    api.access.cluster.check_describe()
    protocol = call.path["protocol"].lower()
    protocols = sorted({protocol for protocol, _ in api.listening()})
    if PROTOCOLS.get(protocol, protocol) in protocols:
        return {"status": "ok", "protocol": protocol}
    return _failed("No active listener", missing=protocol[:100], protocols=protocols)


async def below_connection_limit(api: Management, call: ApiCall) -> Reply | Shown:
    api.access.cluster.check_describe()
    return _full(api) or {"status": "ok", "limit": api.node.admission.most, "connections": api.node.admission.count}


def _full(api: Management) -> Reply | None:
    """Set where no AMQP client could connect any more."""
    admission = api.node.admission
    if admission.count < admission.most and admission.at(AMQP) < admission.most_at_one:
        return None
    return _failed("node connection limit is reached", limit=admission.most, connections=admission.count)


async def ready_to_serve(api: Management, call: ApiCall) -> Reply | Shown:
    """All that an AMQP client needs: the node is in service, listens, and has room for a connection."""
    api.access.cluster.check_describe()
    refused = _out_of_service(api)
    if refused is None and not {AMQP, AMQPS} & {protocol for protocol, _ in api.listening()}:
        refused = _failed("no active listeners for AMQP/AMQPS")
    return refused or _full(api) or {"status": "ok"}


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
    route("GET", "/health/checks/is-in-service", in_service, "Whether all logs of the node take writes"),
    route(
        "GET", "/health/checks/ready-to-serve-clients", ready_to_serve, "Whether AMQP clients can connect and publish"
    ),
    route("GET", "/health/checks/below-node-connection-limit", below_connection_limit, "Whether clients can connect"),
    route("GET", "/health/checks/port-listener/{port}", port_listener, "Whether the node listens at a port"),
    route(
        "GET", "/health/checks/protocol-listener/{protocol}", protocol_listener, "Whether the node speaks a protocol"
    ),
    route("GET", "/health/checks/virtual-hosts", healthy, "Whether all virtual hosts run"),
    route(
        "GET",
        "/health/checks/node-is-quorum-critical",
        healthy,
        "Whether the node may be shut down: it is the only one",
    ),
    route("GET", "/health/checks/node-is-mirror-sync-critical", healthy, "The same"),
)
