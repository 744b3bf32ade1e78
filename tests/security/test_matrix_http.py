"""Every route of HTTP and of RabbitMQ's management API in the matrix of permissions (`matrix_kit.py`), by requests to
the listener. The tables of routes say which there are: one without a row fails."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.security.matrix_kit import PASSWORD, PATHS, SECRET, Row, Stage, Told, Walk, run
from tests.support.ports import split_address
from waystation.protocols.http.api.routes import ROUTES as HTTP_ROUTES
from waystation.protocols.http.transport.calls import AnyRoute, Route
from waystation.protocols.management.api import ROUTES as MANAGEMENT_ROUTES


class Sent(NamedTuple):
    """A body, and a query."""

    body: Any = None
    query: str = ""


MESSAGE = Sent([{"payload": "x"}])
ACKS = Sent({"ack_ids": ["AAAA"]})
RULE = {"principal": "User:secret-bob", "operation": "read", "resource": "topic", "name": "new"}
BINDING = {"target": "queue:secret-jobs", "key": "k"}
READ_Q, DESCRIBE_Q = "read queue jobs", "describe queue jobs"
LOOK, OPERATE = "describe cluster", "alter cluster"

HTTP: dict[str, Row] = {
    "PUT /v1/queues/{queue}": Row("create queue jobs; describe queue jobs", Sent({}, "alter=true")),
    "PUT /v1/queues/{queue} #with dead letters": Row(
        "create queue new; read queue new; write queue dead",
        Sent({"queue": "secret-new", "dead_letter": "secret-dead"}),
    ),
    "DELETE /v1/queues/{queue}": Row("delete queue jobs"),
    "POST /v1/queues/{queue}/messages": Row("write queue jobs", MESSAGE),
    "POST /v1/queues/{queue}/take": Row(READ_Q),
    "GET /v1/queues/{queue}/messages": Row(READ_Q),
    "DELETE /v1/queues/{queue}/messages": Row(READ_Q),
    "GET /v1/queues/{queue}/messages/{id}": Row(READ_Q),
    "DELETE /v1/queues/{queue}/messages/{id}": Row(READ_Q),
    "GET /v1/queues/{queue}/peek": Row(READ_Q),
    "GET /v1/queues/{queue}/stream": Row(READ_Q),
    "POST /v1/queues/{queue}/stream": Row(READ_Q),
    # What somebody has taken is its own to settle: an id that it was not given says nothing to it.
    **{f"POST /v1/{where}{verb}": Row("", ACKS, fails=True)
       for where in ("", "queues/{queue}/") for verb in ("ack", "reject", "release", "touch")},
    "POST /v1/dead-letters/{queue}/redrive": Row(
        "read queue dead; write queue jobs", Sent({"to": "secret-jobs", "queue": "secret-dead"})
    ),
    "POST /v1/queues/{queue}/redrive": Row(READ_Q, Sent({})),
    "POST /v1/dead-letters/{queue}/redrive #in the background": Row(
        "read queue dead; write queue jobs", Sent({"to": "secret-jobs", "queue": "secret-dead"}, "background=true")
    ),
    "PUT /v1/topics/{topic}": Row("create topic new; describe topic new", Sent({"topic": "secret-new"})),
    "DELETE /v1/topics/{topic}": Row("delete topic orders"),
    "POST /v1/topics/{topic}/messages": Row("write topic orders", MESSAGE, compare=False),
    "POST /v1/topics/{topic}/messages #a new one": Row(
        "write topic new; create topic new", Sent([{"payload": "x"}], "topic=secret-new")
    ),
    "GET /v1/topics/{topic}/messages": Row("read topic orders"),
    "GET /v1/topics/{topic}/messages/{id}": Row("read topic orders"),
    "GET /v1/topics/{topic}/history": Row("read topic orders"),
    "GET /v1/messages/{id}": Row("read queue *; read topic *", Sent({"id": "nothing"}), fails=True),
    "GET /v1/messages/{id} #of a queue": Row("read queue *"),
    "GET /v1/subscriptions": Row(),
    "GET /v1/subscriptions/stream": Row("read topic orders", Sent(None, "topic=secret-orders")),
    "POST /v1/subscriptions/stream": Row("read topic orders", Sent(None, "topic=secret-orders")),
    "POST /v1/subscriptions/stream #shared": Row(
        "read topic orders; read group share", Sent(None, "topic=secret-orders&mode=shared&group=secret-share")
    ),
    "POST /v1/subscriptions/stream #a pattern": Row(
        "read topic orders…", Sent(None, "topic=secret-orders.*")
    ),
    "PUT /v1/exchanges/{exchange}": Row(
        "create exchange new; describe exchange new", Sent({"exchange": "secret-new", "kind": "direct"})
    ),
    "GET /v1/exchanges/{exchange}": Row("describe exchange events"),
    "DELETE /v1/exchanges/{exchange}": Row("delete exchange events"),
    "POST /v1/exchanges/{exchange}/bindings": Row("read exchange events; write queue jobs", Sent(BINDING)),
    "DELETE /v1/exchanges/{exchange}/bindings": Row(
        "read exchange events; write queue jobs", Sent(None, "target=queue:secret-jobs&key=k")
    ),
    "POST /v1/exchanges/{exchange}/messages": Row("write exchange events", Sent([{"payload": "x"}], "routing_key=k")),
    "POST /v1/exchanges/{exchange}/route": Row("describe exchange events", Sent({"message": {"payload": "x"}})),
    "POST /v1/requests": Row(
        "write queue jobs", Sent([{"payload": "x"}], "queue=secret-jobs&timeout_ms=1"), fails=True
    ),
    "POST /v1/replies": Row("", Sent([{"payload": "x"}], "to=_inbox.nobody"), fails=True),
    "GET /v1/queues": Row(shows=DESCRIBE_Q),
    "GET /v1/queues/{queue}": Row(DESCRIBE_Q),
    "GET /v1/queues/{queue}/consumers": Row(DESCRIBE_Q),
    "GET /v1/delayed": Row("read queue *"),
    "DELETE /v1/delayed/topics/{topic}/{id}": Row("alter topic orders", fails=True),
    "GET /v1/dead-letters": Row(shows="describe queue dead"),
    "GET /v1/dead-letters/{queue}": Row(READ_Q),
    "GET /v1/dead-letters/{queue}/summary": Row(READ_Q),
    "GET /v1/cluster": Row(LOOK),
    "GET /v1/cluster/partitions": Row(LOOK),
    "POST /v1/cluster/reassign": Row(OPERATE, Sent({"replication_factor": 1})),
    "POST /v1/cluster/elect": Row(OPERATE, Sent({})),
    "POST /v1/cluster/nodes/{node}/drain": Row(OPERATE, Sent({"draining": True}), fails=True),
    "DELETE /v1/cluster/nodes/{node}": Row(OPERATE, fails=True),
    "GET /v1/jobs": Row(LOOK),
    "GET /v1/jobs/{job}": Row(LOOK, fails=True),
    "DELETE /v1/jobs/{job}": Row(OPERATE, fails=True),
    "GET /v1/topics": Row(shows="describe topic orders"),
    "GET /v1/topics/{topic}": Row("describe topic orders"),
    "PATCH /v1/topics/{topic}": Row("alter-configs topic orders", Sent({"settings": {"retention.ms": "100000"}})),
    "PATCH /v1/topics/{topic} #partitions": Row(
        "alter-configs topic orders; alter topic orders", Sent({"partitions": 1})
    ),
    "GET /v1/topics/{topic}/settings": Row("describe-configs topic orders"),
    "GET /v1/topics/{topic}/offsets": Row("describe topic orders", Sent(None, "at=earliest")),
    "POST /v1/topics/{topic}/delete-records": Row("delete topic orders", Sent({"before_offset": -1})),
    "GET /v1/topics/{topic}/search": Row("read topic orders", Sent(None, "text=x")),
    "GET /v1/exchanges": Row(shows="describe exchange events"),
    "GET /v1/exchanges/{exchange}/bindings": Row("describe exchange events", shows=DESCRIBE_Q),
    "GET /v1/routing": Row(shows="describe exchange events"),
    "GET /v1/groups": Row(shows="describe group group"),
    "GET /v1/groups/{group}": Row("describe group group"),
    "POST /v1/groups/{group}/reset": Row("alter group group", Sent({"to": "earliest", "topic": "secret-orders"})),
    "DELETE /v1/groups/{group}": Row("delete group group"),
    "GET /v1/namespaces": Row(shows="describe namespace shop"),
    "GET /v1/namespaces/{namespace}": Row("describe namespace shop"),
    "PUT /v1/namespaces/{namespace}": Row("create namespace shop", Sent({"max_queues": 9})),
    "DELETE /v1/namespaces/{namespace}": Row("delete namespace shop"),
    "GET /v1/policies": Row(shows="describe namespace shop"),
    "GET /v1/policies/{namespace}/{policy}": Row("describe namespace shop"),
    "PUT /v1/policies/{namespace}/{policy}": Row(
        "alter namespace shop", Sent({"pattern": "^never", "definition": {"max-length": 2}})
    ),
    "DELETE /v1/policies/{namespace}/{policy}": Row("alter namespace shop"),
    "GET /v1/users": Row(LOOK),
    "POST /v1/users": Row(OPERATE, Sent({"user": "secret-new", "password": "first"})),
    "PUT /v1/users/{user}/password": Row(OPERATE, Sent({"password": "second"})),
    "DELETE /v1/users/{user}": Row(OPERATE),
    "GET /v1/keys": Row(LOOK),
    "POST /v1/keys": Row(OPERATE, Sent({"user": "secret-bob"})),
    "DELETE /v1/keys/{key}": Row(OPERATE),
    "GET /v1/audit": Row("read topic =__audit"),
    "GET /v1/acls": Row(LOOK),
    "POST /v1/acls": Row(OPERATE, Sent({"acls": [RULE]})),
    "POST /v1/acls/remove": Row(OPERATE, Sent({"acls": [RULE]})),
    "GET /v1/quotas": Row("describe-configs cluster"),
    "PUT /v1/quotas": Row(
        "alter-configs cluster", Sent({"user": "secret-bob", "quotas": {"producer_byte_rate": 10**9}})
    ),
    "POST /v1/quotas/remove": Row("alter-configs cluster", Sent({"user": "secret-bob"})),
    "GET /v1/connections": Row(LOOK),
    "GET /v1/connections/{connection}": Row(LOOK, fails=True),
    "GET /v1/pipelines": Row(LOOK),
    "GET /v1/pipelines/{pipeline}": Row(LOOK, fails=True),
    "POST /v1/pipelines/{pipeline}/start": Row(OPERATE, fails=True),
    "POST /v1/pipelines/{pipeline}/stop": Row(OPERATE, fails=True),
    "GET /v1/settings": Row("describe-configs cluster"),
    "GET /v1/overview": Row(LOOK),
    "GET /v1/history": Row(LOOK),
    "GET /": Row(anybody=True),
    "GET /healthz": Row(anybody=True),
    "GET /readyz": Row(anybody=True),
    "GET /v1/stats": Row(LOOK),
    "PATCH /v1/settings": Row("alter-configs cluster", Sent({"log.cleaner.backoff.ms": 20_000})),
    "DELETE /v1/connections/{connection}": Row(OPERATE, fails=True),
    "GET /v1/whoami": Row(anybody=True),
    "POST /v1/login": Row("", Sent({"user": "alice", "password": PASSWORD}), anybody=True),
    "POST /v1/logout": Row(),
    "GET /openapi.json": Row(),
    "GET /v1/live": Row(LOOK),
    "GET /metrics": Row(LOOK),
    "POST /queue/enqueue": Row("write queue jobs", Sent({"queue": "secret-jobs", "message": 1})),
    "POST /queue/enqueue #a new one": Row(
        "create queue new; write queue new", Sent({"queue": "secret-new", "message": 1})
    ),
    "GET /queue/dequeue": Row(READ_Q, Sent(None, "queue=secret-jobs")),
    "POST /queue/dequeue": Row(READ_Q, Sent(None, "queue=secret-jobs")),
    "POST /queue/ack": Row("", Sent({"ack_id": "AAAA"}), fails=True),
    "POST /queue/reject": Row("", Sent({"ack_id": "AAAA"}), fails=True),
    "POST /queue/purge": Row(READ_Q, Sent({"queue": "secret-jobs"})),
    "GET /queue/{queue}/stats": Row(DESCRIBE_Q),
    "POST /pubsub/publish": Row("write topic orders", Sent({"channel": "secret-orders", "message": 1}), compare=False),
    "GET /pubsub/subscribe": Row("read topic orders", Sent(None, "channel=secret-orders")),
    "GET /pubsub/history": Row("read topic orders", Sent(None, "channel=secret-orders")),
    "GET /pubsub/stats": Row(LOOK),
    "GET /ui/{name}": Row("", Sent({"name": "app.js"}), anybody=True),
    "GET /ui/{name}/{file}": Row("", Sent({"name": "lib", "file": "dom.js"}), anybody=True),
}  # fmt: skip

VHOST = "describe namespace /"
NO_LIMIT = {"value": 5}
ENTER = "describe namespace /"
WHO_MAY = "describe cluster; describe namespace /"
MANAGEMENT: dict[str, Row] = {
    "GET /api/overview": Row(LOOK),
    "GET /api/cluster-name": Row(),
    "GET /api/nodes": Row(LOOK),
    "GET /api/nodes/{node}": Row(LOOK, Sent({"node": "waystation@1"})),
    **{f"GET /api/{name}": Row()  # always empty
       for name in ("parameters", "global-parameters", "operator-policies", "feature-flags", "extensions")},
    "GET /api/healthchecks/node": Row(LOOK),
    "GET /api/aliveness-test/{vhost}": Row(
        f"{ENTER}; create queue =aliveness-test; write queue =aliveness-test;"
        " read queue =aliveness-test"
    ),
    "GET /api/health/checks/alarms": Row(LOOK),
    "GET /api/health/checks/local-alarms": Row(LOOK),
    **{f"GET /api/health/checks/{name}": Row(LOOK)
       for name in ("is-in-service", "ready-to-serve-clients", "below-node-connection-limit")},
    "GET /api/health/checks/port-listener/{port}": Row(LOOK, Sent({"port": "1"}), fails=True),
    "GET /api/health/checks/protocol-listener/{protocol}": Row(LOOK, Sent({"protocol": "amqp"})),
    **{f"GET /api/health/checks/{name}": Row()  # always the same answer
       for name in ("virtual-hosts", "node-is-quorum-critical", "node-is-mirror-sync-critical")},
    "GET /api/whoami": Row(),
    "GET /api/users": Row(LOOK),
    "GET /api/users/without-permissions": Row(LOOK),
    "POST /api/users/bulk-delete": Row(OPERATE, Sent({"users": ["secret-bob"]})),
    "GET /api/users/{user}": Row(LOOK),
    "PUT /api/users/{user}": Row(OPERATE, Sent({"tags": ""})),
    "DELETE /api/users/{user}": Row(OPERATE),
    "GET /api/users/{user}/permissions": Row(LOOK),
    "GET /api/users/{user}/topic-permissions": Row(LOOK),
    "GET /api/permissions": Row(LOOK),
    "GET /api/permissions/{vhost}/{user}": Row(WHO_MAY),
    "PUT /api/permissions/{vhost}/{user}": Row(
        f"{OPERATE}; {ENTER}", Sent({"configure": ".*", "write": ".*", "read": ".*"})
    ),
    "DELETE /api/permissions/{vhost}/{user}": Row(f"{OPERATE}; {ENTER}"),
    "GET /api/vhosts/{vhost}/permissions": Row(WHO_MAY),
    "GET /api/vhosts/{vhost}/topic-permissions": Row(WHO_MAY),
    "GET /api/topic-permissions": Row(LOOK),
    "GET /api/topic-permissions/{vhost}/{user}": Row(WHO_MAY),
    "PUT /api/topic-permissions/{vhost}/{user}": Row(
        f"{OPERATE}; {ENTER}", Sent({"exchange": "secret-events", "write": "a", "read": "b"})
    ),
    "DELETE /api/topic-permissions/{vhost}/{user}": Row(f"{OPERATE}; {ENTER}"),
    "GET /api/user-limits": Row(LOOK),
    "GET /api/user-limits/{user}": Row(LOOK),
    "PUT /api/user-limits/{user}/{limit}": Row(OPERATE, Sent({"limit": "max-channels", "value": 5})),
    "DELETE /api/user-limits/{user}/{limit}": Row(OPERATE, Sent({"limit": "max-channels"})),
    "GET /api/vhosts": Row(shows="describe namespace shop"),
    "GET /api/vhosts/{vhost}": Row("describe namespace shop", Sent({"vhost": "secret-shop"})),
    "PUT /api/vhosts/{vhost}": Row("create namespace new", Sent({"vhost": "secret-new"})),
    "DELETE /api/vhosts/{vhost}": Row(
        "delete namespace shop", Sent({"vhost": "secret-shop"})
    ),
    "GET /api/vhost-limits": Row(shows="describe namespace shop"),
    "GET /api/vhost-limits/{vhost}": Row("describe namespace shop", Sent({"vhost": "secret-shop"})),
    "PUT /api/vhost-limits/{vhost}/{limit}": Row(
        "alter namespace shop", Sent({"vhost": "secret-shop", "value": 5})
    ),
    "DELETE /api/vhost-limits/{vhost}/{limit}": Row(
        "alter namespace shop", Sent({"vhost": "secret-shop"})
    ),
    "GET /api/connections": Row(),
    "GET /api/connections/{connection}": Row("", fails=True),
    "DELETE /api/connections/{connection}": Row("", fails=True),
    "GET /api/connections/{connection}/channels": Row("", fails=True),
    "GET /api/vhosts/{vhost}/connections": Row(ENTER),
    "GET /api/vhosts/{vhost}/channels": Row(ENTER),
    "GET /api/channels": Row(),
    "GET /api/channels/{channel}": Row("", fails=True),
    "GET /api/consumers": Row(),
    "GET /api/consumers/{vhost}": Row(ENTER),
    "GET /api/queues": Row(shows=f"{ENTER}; {DESCRIBE_Q}"),
    "GET /api/queues/{vhost}": Row(ENTER, shows=DESCRIBE_Q),
    "GET /api/queues/{vhost}/{queue}": Row(f"{ENTER}; {DESCRIBE_Q}"),
    "PUT /api/queues/{vhost}/{queue}": Row(
        f"{ENTER}; describe queue new; create queue new", Sent({"queue": "secret-new", "durable": True})
    ),
    "DELETE /api/queues/{vhost}/{queue}": Row(f"{ENTER}; delete queue jobs"),
    "DELETE /api/queues/{vhost}/{queue}/contents": Row(f"{ENTER}; {READ_Q}"),
    "POST /api/queues/{vhost}/{queue}/get": Row(
        f"{ENTER}; {READ_Q}", Sent({"ackmode": "ack_requeue_true", "encoding": "auto", "count": 1})
    ),
    "GET /api/queues/{vhost}/{queue}/bindings": Row(f"{ENTER}; {DESCRIBE_Q}", shows="describe exchange events"),
    "GET /api/exchanges": Row(shows=f"{ENTER}; describe exchange events"),
    "GET /api/exchanges/{vhost}": Row(ENTER, shows="describe exchange events"),
    "GET /api/exchanges/{vhost}/{exchange}": Row(f"{ENTER}; describe exchange events"),
    "PUT /api/exchanges/{vhost}/{exchange}": Row(
        f"{ENTER}; describe exchange new; create exchange new", Sent({"exchange": "secret-new", "type": "fanout"})
    ),
    "DELETE /api/exchanges/{vhost}/{exchange}": Row(f"{ENTER}; delete exchange events"),
    "POST /api/exchanges/{vhost}/{exchange}/publish": Row(
        f"{ENTER}; write exchange events",
        Sent({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}),
    ),
    "GET /api/exchanges/{vhost}/{exchange}/bindings/source": Row(
        f"{ENTER}; describe exchange events", shows=DESCRIBE_Q
    ),
    "GET /api/exchanges/{vhost}/{exchange}/bindings/destination": Row(f"{ENTER}; describe exchange events"),
    "GET /api/bindings": Row(shows=f"{ENTER}; describe exchange events; {DESCRIBE_Q}"),
    "GET /api/bindings/{vhost}": Row(ENTER, shows=f"describe exchange events; {DESCRIBE_Q}"),
    "GET /api/bindings/{vhost}/e/{source}/{kind}/{destination}": Row(
        f"{ENTER}; describe exchange events; {DESCRIBE_Q}"
    ),
    "POST /api/bindings/{vhost}/e/{source}/{kind}/{destination}": Row(
        f"{ENTER}; read exchange events; write queue jobs", Sent({"routing_key": "k"})
    ),
    "GET /api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}": Row(
        f"{ENTER}; describe exchange events; {DESCRIBE_Q}"
    ),
    "DELETE /api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}": Row(
        f"{ENTER}; read exchange events; write queue jobs"
    ),
    "GET /api/policies": Row(shows="describe namespace shop"),
    "GET /api/policies/{vhost}": Row("describe namespace shop", Sent({"vhost": "secret-shop"})),
    "GET /api/policies/{vhost}/{policy}": Row("describe namespace shop", Sent({"vhost": "secret-shop"})),
    "PUT /api/policies/{vhost}/{policy}": Row(
        "alter namespace shop",
        Sent({"vhost": "secret-shop", "pattern": "^never", "definition": {"max-length": 3}}),
    ),
    "DELETE /api/policies/{vhost}/{policy}": Row(
        "alter namespace shop", Sent({"vhost": "secret-shop"})
    ),
    "GET /api/definitions": Row(OPERATE, quiet=True),
    "POST /api/definitions": Row(
        "describe namespace new; create namespace new; alter cluster",
        Sent({"vhosts": [{"name": "secret-new"}], "users": [{"name": "secret-bob", "tags": ""}]}),
    ),
    "GET /api/definitions/{vhost}": Row(ENTER, shows=DESCRIBE_Q),
    "POST /api/definitions/{vhost}": Row(
        f"{ENTER}; describe queue new; create queue new", Sent({"queues": [{"name": "secret-new", "durable": True}]})
    ),
}  # fmt: skip


def verbs(routes: tuple[AnyRoute, ...]) -> set[str]:
    return {f"{route.method} {route.path}" for route in routes}


def path_of(path: str, sent: Sent, names: str) -> tuple[str, Sent]:
    """With names in it; a body may say what a name in the path is, where it has no field of that name."""
    body = sent.body
    given = dict(body) if isinstance(body, dict) else {}
    query = dict(part.split("=") for part in sent.query.split("&") if part)
    for name in re.findall(r"\{(\w+)\}", path):
        value = given.pop(name, None) or query.pop(name, None) or (SECRET + PATHS[name] if name in PATHS else None)
        value = value or {"vhost": "/", "node": "9", "kind": "q", "limit": "max-queues", "properties": "k"}[name]
        path = path.replace(f"{{{name}}}", quote(str(value).replace(SECRET, names), safe=""))
    rest = "&".join(f"{name}={value}" for name, value in query.items())
    found: Any = given if isinstance(body, dict) else body
    if path.startswith("/ui/") or (isinstance(body, dict) and body and not found):
        found = None
    text = None if found is None else json.dumps(found).replace(SECRET, names)
    return path + (f"?{rest.replace(SECRET, names)}" if rest else ""), Sent(text, "")


async def ask(stage: Stage, who: str | None, verb: str, row: Row, names: str) -> Told:
    method, path = verb.split(" ", 1)
    target, sent = path_of(path, row.request or Sent(), names)
    head = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", "connection: close", "x-requested-with: test"]
    if path == "/pubsub/subscribe":
        head = [*head[:2], "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
        head.append("sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")
    if "stream" in path or path == "/v1/live":
        head.append("accept: text/event-stream")
    if who is not None:
        head.append("authorization: Basic " + base64.b64encode(f"{who}:{PASSWORD}".encode()).decode())
    body = (sent.body or "").encode()
    if body:
        head += ["content-type: application/json", f"content-length: {len(body)}"]
    reader, writer = await asyncio.open_connection(*split_address(stage.addresses["http"]))
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
        text = ""
        if "text/event-stream" not in answer and " 101 " not in answer:
            text = (await asyncio.wait_for(reader.read(), 20)).decode()
    finally:
        writer.close()
    status = int(answer.split()[1])
    told = f"{status} {text}".replace(json.dumps(target)[1:-1], "TARGET")
    if status < 300:
        return Told("done", told)
    refused = status == 403 or (status == 401 and "may not" in text)
    return Told("refused" if refused else "nobody" if status == 401 else "failed", told)


def test_every_route_of_http() -> None:
    walk = Walk(ask, verbs(HTTP_ROUTES), HTTP)
    run(walk)
    print(f"{len(HTTP_ROUTES)} routes, {walk.cases} cases")
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.cases > 500


def test_every_route_of_the_management_api() -> None:
    walk = Walk(ask, verbs(MANAGEMENT_ROUTES), MANAGEMENT)
    run(walk)
    print(f"{len(MANAGEMENT_ROUTES)} routes, {walk.cases} cases")
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.cases > 300


async def _unasked(dispatcher: Any, call: Any) -> None:
    """A handler that asks nobody."""
    await dispatcher.broker.users.remove(call.path["user"])


def test_a_route_without_a_row_fails_and_so_does_one_that_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    new: AnyRoute = Route("DELETE", "/v1/forgotten/{user}", _unasked, "Forgets a user", tag="users")
    walk = Walk(ask, {*verbs((new,))}, {})
    run(walk)
    assert walk.wrong == ["DELETE /v1/forgotten/{user}: there is no row that says what it needs"]
    monkeypatch.setattr("waystation.protocols.http.request_dispatcher.ROUTES", (*HTTP_ROUTES, new))
    walk = Walk(ask, verbs((new,)), {"DELETE /v1/forgotten/{user}": Row(OPERATE)})
    run(walk)
    assert "DELETE /v1/forgotten/{user}, without a right: it was done" in walk.wrong
