"""RabbitMQ's management API: the broker itself; that answers have RabbitMQ's shape; that every route answers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.kit import Answer, Http, name
from tests.protocols.management.kit import ORACLE, Api, api_of, basic, ours_only
from tests.support.names import unique
from tests.support.server import ROOT, Server
from tests.support.waiting import NotInTime, wait_for

DETAILS = {"rate": float}
MESSAGES: dict[str, Any] = {
    field: kind
    for one in ("messages", "messages_ready", "messages_unacknowledged")
    for field, kind in ((one, int), (f"{one}_details", DETAILS))
}
STATS: dict[str, Any] = {
    field: kind
    for one in ("publish", "deliver_get", "ack")
    for field, kind in ((one, int), (f"{one}_details", DETAILS))
}
NODE = {
    "name": str,
    "type": str,
    "running": bool,
    "partitions": list,
    "os_pid": str,
    "uptime": int,
    "processors": int,
    "rates_mode": str,
    "exchange_types": [{"name": str, "description": str, "enabled": bool}],
    "auth_mechanisms": [{"name": str, "description": str, "enabled": bool}],
    "applications": [{"name": str, "description": str, "version": str}],
    "db_dir": str,
    "disk_free": int,
    "disk_free_limit": int,
    "disk_free_alarm": bool,
    "mem_used": int,
    "mem_alarm": bool,
    "sockets_used": int,
}
OVERVIEW = {
    "management_version": str,
    "rates_mode": str,
    "exchange_types": [{"name": str, "description": str, "enabled": bool}],
    "product_version": str,
    "product_name": str,
    "rabbitmq_version": str,
    "cluster_name": str,
    "disable_stats": bool,
    "enable_queue_totals": bool,
    "message_stats": STATS,
    "queue_totals": MESSAGES,
    "object_totals": {"channels": int, "connections": int, "consumers": int, "exchanges": int, "queues": int},
    "node": str,
}
QUEUE = {
    "arguments": dict,
    "auto_delete": bool,
    "consumers": int,
    "durable": bool,
    "effective_policy_definition": dict,
    "exclusive": bool,
    "message_bytes": int,
    "message_stats": STATS,
    **MESSAGES,
    "name": str,
    "node": str,
    "operator_policy": type(None),
    "policy": type(None),
    "state": str,
    "type": str,
    "vhost": str,
}
CONSUMER = {
    "arguments": dict,
    "ack_required": bool,
    "channel_details": {
        "connection_name": str,
        "name": str,
        "node": str,
        "number": int,
        "peer_host": str,
        "peer_port": int,
        "user": str,
    },
    "consumer_tag": str,
    "exclusive": bool,
    "prefetch_count": int,
    "queue": {"name": str, "vhost": str},
}
EXCHANGE = {
    "arguments": dict,
    "auto_delete": bool,
    "durable": bool,
    "internal": bool,
    "name": str,
    "type": str,
    "vhost": str,
}
BINDING = {
    "source": str,
    "vhost": str,
    "destination": str,
    "destination_type": str,
    "routing_key": str,
    "arguments": dict,
    "properties_key": str,
}
CONNECTION = {
    "channel_max": int,
    "channels": int,
    "client_properties": dict,
    "connected_at": int,
    "frame_max": int,
    "host": str,
    "name": str,
    "node": str,
    "peer_host": str,
    "peer_port": int,
    "port": int,
    "protocol": str,
    "recv_oct": int,
    "recv_oct_details": DETAILS,
    "send_oct": int,
    "send_oct_details": DETAILS,
    "ssl": bool,
    "state": str,
    "timeout": int,
    "type": str,
    "user": str,
    "user_provided_name": str,
    "vhost": str,
}
CHANNEL = {
    "confirm": bool,
    "connection_details": {"name": str, "peer_host": str, "peer_port": int},
    "consumer_count": int,
    "global_prefetch_count": int,
    "message_stats": STATS,
    "messages_unacknowledged": int,
    "messages_unconfirmed": int,
    "name": str,
    "node": str,
    "number": int,
    "prefetch_count": int,
    "state": str,
    "transactional": bool,
    "user": str,
    "vhost": str,
}
VHOST = {
    "name": str,
    "description": str,
    "tags": list,
    "default_queue_type": str,
    "metadata": {"description": str, "tags": list},
    "tracing": bool,
    "cluster_state": dict,
    **MESSAGES,
    "message_stats": STATS,
}
POLICY = {"vhost": str, "name": str, "pattern": str, "apply-to": str, "definition": dict, "priority": int}
PERMISSION = {"user": str, "vhost": str, "configure": str, "write": str, "read": str}
USER = {"name": str, "tags": list, "limits": dict}
DEFINITIONS: dict[str, Any] = {
    "rabbit_version": str,
    "rabbitmq_version": str,
    "product_name": str,
    "product_version": str,
    "users": list,
    "vhosts": [{"name": str}],
    "permissions": list,
    "topic_permissions": list,
    "parameters": list,
    "global_parameters": list,
    "policies": [POLICY],
    "queues": [{"name": str, "vhost": str, "durable": bool, "auto_delete": bool, "arguments": dict}],
    "exchanges": [EXCHANGE],
    "bindings": [{field: kind for field, kind in BINDING.items() if field != "properties_key"}],
}
"""Field names and types as RabbitMQ 3.10 with its management plugin has them. It has more; everything here is there."""


def missing(shown: Any, shape: Any, where: str = "") -> list[str]:
    """What of the shape the answer does not have, or has otherwise."""
    if isinstance(shape, dict):
        if not isinstance(shown, dict):
            return [f"{where}: {type(shown).__name__}, not an object"]
        absent = [f"{where}.{field}" for field in shape if field not in shown]
        return absent + [
            fault
            for field, kind in shape.items()
            if field in shown
            for fault in missing(shown[field], kind, f"{where}.{field}")
        ]
    if isinstance(shape, list):
        if not isinstance(shown, list) or not shown:
            return [f"{where}: no list with something in it"]
        return [fault for one in shown for fault in missing(one, shape[0], f"{where}[]")]
    allowed = (int, float) if shape is float else (shape,)
    fits = isinstance(shown, allowed) and (shape is bool or not isinstance(shown, bool))
    return [] if fits else [f"{where}: {type(shown).__name__}, not {shape.__name__}"]


def beyond(shown: Any, shape: Any) -> set[str]:
    return set(shown) - set(shape)


def test_answers_have_rabbitmqs_fields_and_types(api: Api) -> None:
    """The same shapes hold at a RabbitMQ (see kit)."""
    title, queue, exchange = unique("client"), api.queue(), api.exchange("fanout")
    api("POST", f"/bindings/%2F/e/{exchange}/q/{queue}", {})
    policy = unique("p")
    api("PUT", f"/policies/%2F/{policy}", {"pattern": "^$", "definition": {"max-length": 1}, "apply-to": "all"})
    with api.connection(title=title) as connection:
        channel = connection.channel()
        channel.basic_consume(queue, lambda *_: channel.basic_ack(1))
        channel.basic_publish("", queue, b"x")

        def faults() -> list[str]:
            connection.process_data_events(0.05)
            mine = [one for one in api.get("/connections") if one.get("user_provided_name") == title]
            if not mine:
                return ["the connection is not there"]
            one_queue = api.get(f"/queues/%2F/{queue}")
            listed = next(one for one in api.get("/queues") if one["name"] == queue)
            channels = api.get(f"/connections/{name(mine[0]['name'])}/channels")
            looked = [
                missing(api.get("/overview"), OVERVIEW, "overview"),
                missing(api.get("/nodes"), [NODE], "nodes"),
                missing(one_queue, {**QUEUE, "consumer_details": [CONSUMER]}, "queue"),
                missing(listed, QUEUE, "listed"),
                missing(mine, [CONNECTION], "connections"),
                missing(channels, [CHANNEL], "channels"),
                missing(api.get("/consumers"), [CONSUMER], "consumers"),
                missing(api.get("/exchanges"), [EXCHANGE], "exchanges"),
                missing(api.get(f"/exchanges/%2F/{exchange}"), {**EXCHANGE, "incoming": list, "outgoing": list}, "one"),
                missing(api.get("/bindings"), [BINDING], "bindings"),
                missing(api.get("/vhosts/%2F"), VHOST, "vhost"),
                missing(api.get("/policies"), [POLICY], "policies"),
                missing(api.get("/permissions"), [PERMISSION], "permissions"),
                missing(api.get("/users"), [USER], "users"),
                missing(api.get("/definitions"), DEFINITIONS, "definitions"),
            ]
            return [fault for found in looked for fault in found]

        seen: list[str] = ["not looked at yet"]

        def complete() -> bool:
            seen[:] = faults()
            return not seen

        try:
            wait_for(complete, "every field is there", every_s=0.5)
        except NotInTime:
            assert seen == []
        if not ORACLE:
            assert not beyond(api.get("/overview"), OVERVIEW)
            assert not beyond(api.get("/nodes")[0], {**NODE, "mem_limit": int})
            assert not beyond(api.get(f"/queues/%2F/{queue}"), {**QUEUE, "consumer_details": 0, **EMPTY})
    api("DELETE", f"/policies/%2F/{policy}")


EMPTY = {"deliveries": list, "incoming": list}


def test_the_user_is_guest(api: Api) -> None:
    assert api.get("/whoami") == {"name": "guest", "tags": ["administrator"]}
    assert api.get("/users/guest")["name"] == "guest"
    assert api.refused("GET", "/users/none")[0] == 404
    wanted = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    assert api.get("/permissions/%2F/guest") == wanted
    assert wanted in api.get("/users/guest/permissions")


@pytest.mark.parametrize(
    "path",
    [
        "/healthchecks/node",
        "/aliveness-test/%2F",
        "/health/checks/alarms",
        "/health/checks/local-alarms",
        "/health/checks/protocol-listener/amqp",
        "/health/checks/virtual-hosts",
        "/health/checks/node-is-quorum-critical",
        "/health/checks/node-is-mirror-sync-critical",
    ],
)
def test_a_healthy_broker_says_so(api: Api, path: str) -> None:
    assert api.get(path)["status"] == "ok"


@ours_only  # a RabbitMQ of before 4.1 has none of these
@pytest.mark.parametrize("check", ["is-in-service", "ready-to-serve-clients", "below-node-connection-limit"])
def test_a_broker_that_serves_clients_says_so(api: Api, check: str) -> None:
    assert api.get(f"/health/checks/{check}")["status"] == "ok"


def test_a_port_is_listened_at_or_not(api: Api) -> None:
    assert api.get(f"/health/checks/port-listener/{api.amqp_port}") == {"status": "ok", "port": api.amqp_port}
    answer = api("GET", "/health/checks/port-listener/1", ok=False)
    assert answer.status == 503
    said = dict(answer.json)
    assert api.amqp_port in said.pop("ports")
    assert said == {"status": "failed", "reason": "No active listener", "missing": 1}
    for wrong in ("amqp", "0", "65536", "-1", "1" * 5000):
        assert api.refused("GET", f"/health/checks/port-listener/{wrong}") == (400, "Invalid port"), wrong


@ours_only
def test_a_node_without_amqp_is_not_ready_for_its_clients(tmp_path: Path) -> None:
    with Server(tmp_path, arguments=["--amqp", "off"]) as server:
        http = Http(server.addresses["http"])
        answer = http("GET", "/api/health/checks/ready-to-serve-clients", headers=basic(), ok=False)
        said = {"status": "failed", "reason": "no active listeners for AMQP/AMQPS"}
        assert (answer.status, answer.json) == (503, said)
        answer = http("GET", "/api/health/checks/protocol-listener/amqp", headers=basic(), ok=False)
        assert (answer.status, answer.json["reason"]) == (503, "No active listener")
        assert (answer.json["missing"], answer.json["protocols"]) == ("amqp", ["http", "kafka"])
        assert http("GET", "/api/health/checks/is-in-service", headers=basic()).json == {"status": "ok"}


@ours_only
def test_a_node_without_room_for_a_connection_is_not_ready(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"max.connections": 8}) as server, ExitStack() as opened:
        api = api_of(server)
        assert api.get("/health/checks/below-node-connection-limit")["limit"] == 8
        for _ in range(6):
            opened.enter_context(api.connection())
        for check in ("ready-to-serve-clients", "below-node-connection-limit"):
            answer = api("GET", f"/health/checks/{check}", ok=False)
            assert (answer.status, answer.json["reason"]) == (503, "node connection limit is reached"), check


def test_aliveness_leaves_no_message_behind(api: Api) -> None:
    for _ in range(3):
        api.get("/aliveness-test/%2F")
    assert api.take("aliveness-test", count=5) == []
    assert api.refused("GET", f"/aliveness-test/{unique('nowhere')}")[0] == 404


def test_columns_are_chosen(api: Api) -> None:
    assert set(api.get("/overview", columns="node,object_totals.queues")) == {"node", "object_totals"}
    assert set(api.get("/overview", columns="object_totals.queues")["object_totals"]) >= {"queues"}
    (node,) = api.get("/nodes", columns="name")
    assert api.get(f"/nodes/{name(node['name'])}")["name"] == node["name"]
    assert ORACLE or api.refused("GET", "/nodes/none")[0] == 404


@ours_only
def test_a_broker_that_is_short_of_disk_says_so(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"waystation.disk.free.min.bytes": 2**60}) as server:
        api = api_of(server)
        wait_for(lambda: api("GET", "/health/checks/alarms", ok=False).status == 503, "the alarm is on")
        answer = api("GET", "/healthchecks/node", ok=False)
        assert (answer.status, answer.json["status"]) == (503, "failed")
        assert api.get("/nodes")[0]["disk_free_alarm"] is True


@ours_only
def test_policies_and_virtual_hosts_survive_kill_9(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        api = api_of(server)
        api("PUT", "/vhosts/shop")
        api("PUT", "/policies/shop/p", {"pattern": "^jobs", "definition": {"max-length": 2, "message-ttl": 600_000}})
        api("PUT", "/queues/shop/jobs", {"durable": True, "arguments": {"x-max-length": 9}})
        for text in "abc":
            api.publish("amq.default", "jobs", text, vhost="shop", delivery_mode=2)
        server.kill()
        server.restart()
        shown = api.get("/queues/shop/jobs")
        assert (shown["policy"], shown["messages"], shown["arguments"]) == ("p", 2, {"x-max-length": 9})
        api("DELETE", "/policies/shop/p")
        shown = api.get("/queues/shop/jobs")
        assert (shown["policy"], shown["effective_policy_definition"]) == (None, {})


# -- the whole of it ---------------------------------------------------------------------------------------------------


USERS = ("/api/users/{user}", "/api/permissions/{vhost}/{user}", "/api/topic-permissions/{vhost}/{user}")
CLOSING = {
    ("POST", "/api/users/bulk-delete"),
    *((method, path) for path in (*USERS, "/api/user-limits/{user}/{limit}") for method in ("PUT", "DELETE")),
}
"""They need users, which would close this broker to the other tests: see tests/security/test_rabbitmq_users.py."""


class Tour:
    """Calls as a person with RabbitMQ's command line tool would make them, along every route."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.walked: set[tuple[str, str]] = set()

    def __call__(self, method: str, pattern: str, path: str, body: Any = None) -> Answer:
        answer = self.api(method, path, body, ok=False)
        assert answer.status < 400, (method, path, answer)
        self.walked.add((method, f"/api{pattern}"))
        return answer


@ours_only
def test_every_route_answers(api: Api) -> None:
    from waystation.protocols.management.api import ROUTES

    tour, vhost = Tour(api), unique("tour")
    tour("PUT", "/vhosts/{vhost}", f"/vhosts/{vhost}")
    tour("PUT", "/queues/{vhost}/{queue}", f"/queues/{vhost}/q", {"durable": True})
    tour("PUT", "/exchanges/{vhost}/{exchange}", f"/exchanges/{vhost}/e", {"type": "direct"})
    between = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
    tour("POST", between, f"/bindings/{vhost}/e/e/q/q", {"routing_key": "k"})
    tour("PUT", "/policies/{vhost}/{policy}", f"/policies/{vhost}/p", {"pattern": "q", "definition": {"expires": 9**9}})
    tour("PUT", "/vhost-limits/{vhost}/{limit}", f"/vhost-limits/{vhost}/max-queues", {"value": 9})
    sent = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
    tour("POST", "/exchanges/{vhost}/{exchange}/publish", f"/exchanges/{vhost}/e/publish", sent)
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    tour("POST", "/queues/{vhost}/{queue}/get", f"/queues/{vhost}/q/get", got)
    definitions = tour("GET", "/definitions/{vhost}", f"/definitions/{vhost}").json
    tour("POST", "/definitions/{vhost}", f"/definitions/{vhost}", definitions)
    tour("POST", "/definitions", "/definitions", {"vhosts": [{"name": vhost}]})
    with api.connection(vhost) as connection:
        connection.channel()
        (shown,) = tour("GET", "/vhosts/{vhost}/connections", f"/vhosts/{vhost}/connections").json
        one = f"/connections/{name(shown['name'])}"
        tour("GET", "/connections/{connection}", one)
        (channel,) = tour("GET", "/connections/{connection}/channels", f"{one}/channels").json
        tour("GET", "/channels/{channel}", f"/channels/{name(channel['name'])}")
        tour("DELETE", "/connections/{connection}", one)
    node = api.get("/nodes")[0]["name"]
    filled = {"{vhost}": vhost, "{queue}": "q", "{exchange}": "e", "{source}": "e", "{kind}": "q", "{destination}": "q"}
    filled |= {"{port}": str(api.amqp_port), "{protocol}": "amqp"}
    filled |= {"{properties}": "k", "{policy}": "p", "{user}": "guest", "{node}": name(node), "{limit}": "max-queues"}
    for methods in (("GET",), ("DELETE",)):
        for route in sorted(ROUTES, key=lambda route: -route.path.count("/")):
            if route.method in methods and (route.method, route.path) not in {*tour.walked, *CLOSING}:
                path = route.path.removeprefix("/api")
                for part, value in filled.items():
                    path = path.replace(part, value)
                tour(route.method, route.path.removeprefix("/api"), path)
    assert tour.walked == {(route.method, route.path) for route in ROUTES} - CLOSING


def test_the_reference_page_lists_every_route() -> None:
    from waystation.protocols.management.api import ROUTES

    text = (ROOT / "docs" / "reference" / "management-api.md").read_text()
    absent = [
        f"{route.method} {route.path}"
        for route in ROUTES
        if not any(route.path in line and route.method in line for line in text.splitlines())
    ]
    assert not absent


LOADED = """
import sys
from urllib.request import urlopen

import waystation

API = "waystation.protocols.management.api"
with waystation.open(sys.argv[1], kafka="off", http="127.0.0.1:0") as broker:
    urlopen(f"http://{broker.http}/v1/queues").read()
    before = API in sys.modules
    urlopen(f"http://{broker.http}/api/overview").read()
    print(before, API in sys.modules, any(name.startswith("waystation.protocols.amqp") for name in sys.modules))
"""


@ours_only
def test_it_is_loaded_at_its_first_request_and_needs_no_amqp(tmp_path: Path) -> None:
    """A first call of HTTP's own API is not to wait for RabbitMQ's, and a broker without AMQP does not pay for it."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
