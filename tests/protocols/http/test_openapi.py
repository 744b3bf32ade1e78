"""The OpenAPI document: valid, and true of every route that it lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from tests.protocols.http.kit import Answer, Http, name
from tests.protocols.http.operating_tour import operating
from tests.support.names import unique
from waystation.message_json import FIELDS
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.http.transport.bodies import MessageIn, MessageOut

VOUCHED = {"x-requested-with": "a test"}


@pytest.fixture(scope="module")
def document(http: Http) -> dict[str, Any]:
    return dict(http("GET", "/openapi.json").json)


def test_the_document_is_valid_and_lists_every_route(document: dict[str, Any]) -> None:
    validate(document)
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert not [schema for schema in document["components"]["schemas"] if "." in schema], "two types with one name"


def test_every_operation_in_a_namespace_has_the_header_that_names_it(document: dict[str, Any]) -> None:
    without = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if ("waystation-namespace", "header") not in [(one["name"], one["in"]) for one in operation["parameters"]]
    }
    assert {path for path in without if not path.startswith("/ui")} == {
        "/", "/healthz", "/readyz", "/v1/login", "/v1/whoami",
    }  # fmt: skip


def test_the_message_of_the_document_has_the_fields_that_messages_have() -> None:
    assert set(MessageIn.__struct_fields__) == FIELDS
    assert set(MessageOut.__struct_fields__) > FIELDS


class Tour:
    """A walk along every route, with what each of them needs to have something to answer."""

    def __init__(self, http: Http, pipelines: Path) -> None:
        self.http = http
        self.pipelines = pipelines
        self.queue, self.dead = unique("tour"), unique("tour-dead")
        self.topic, self.exchange = unique("tour"), unique("tour")

    def taken(self) -> dict[str, Any]:
        self.http.put(self.queue, "x")
        return self.http.one(self.queue)

    def reject_one(self, message: dict[str, Any]) -> Answer:
        self.http("POST", "/queue/enqueue", message)
        taken = self.http("POST", "/queue/dequeue", queue=self.queue).json
        return self.http("POST", "/queue/reject", {"ack_id": taken["ack_id"]})

    def users(self) -> Iterator[tuple[str, str, Callable[[], Answer]]]:
        http, user = self.http, unique("user")
        known = {"user": user, "password": "first"}
        yield "GET", "/v1/whoami", lambda: http("GET", "/v1/whoami")
        yield "POST", "/v1/users", lambda: http("POST", "/v1/users", known)
        yield "GET", "/v1/users", lambda: http("GET", "/v1/users")
        yield "POST", "/v1/login", lambda: http("POST", "/v1/login", known)
        yield "POST", "/v1/logout", lambda: http("POST", "/v1/logout")
        new = {"password": "second"}
        yield "PUT", "/v1/users/{user}/password", lambda: http("PUT", f"/v1/users/{user}/password", new)
        added: list[str] = []

        def add_key() -> Answer:
            answer = http("POST", "/v1/keys", {"user": user})
            added.append(answer.json["key"])
            return answer

        yield "POST", "/v1/keys", add_key
        yield "GET", "/v1/keys", lambda: http("GET", "/v1/keys")
        yield "DELETE", "/v1/keys/{key}", lambda: http("DELETE", f"/v1/keys/{added[0]}")
        yield "DELETE", "/v1/users/{user}", lambda: http("DELETE", f"/v1/users/{user}")
        rules = {"acls": [{"principal": f"User:{user}", "operation": "read", "resource": "topic", "name": "tour"}]}
        yield "POST", "/v1/acls", lambda: http("POST", "/v1/acls", rules)
        yield "GET", "/v1/audit", lambda: http("GET", "/v1/audit")
        yield "GET", "/v1/acls", lambda: http("GET", "/v1/acls")
        yield "POST", "/v1/acls/remove", lambda: http("POST", "/v1/acls/remove", rules)
        quota = {"user": user, "quotas": {"producer_byte_rate": 10**9}}
        yield "PUT", "/v1/quotas", lambda: http("PUT", "/v1/quotas", quota)
        yield "GET", "/v1/quotas", lambda: http("GET", "/v1/quotas")
        yield "POST", "/v1/quotas/remove", lambda: http("POST", "/v1/quotas/remove", {"user": user})

    def walk(self) -> Iterator[tuple[str, str, Callable[[], Answer]]]:
        """Method and path as the document has them, and a call that has to succeed."""
        http, queue, topic, exchange = self.http, self.queue, self.topic, self.exchange
        q, t, e = f"/v1/queues/{queue}", f"/v1/topics/{topic}", f"/v1/exchanges/{exchange}"
        binding = {"target": f"queue:{queue}", "key": "k", "arguments": {}}
        http("PUT", f"/v1/queues/{self.dead}")
        yield from self.users()
        yield "PUT", "/v1/queues/{queue}", lambda: http("PUT", q, {"dead_letter": self.dead})
        yield "GET", "/v1/queues", lambda: http("GET", "/v1/queues", prefix=queue)
        yield "GET", "/v1/queues/{queue}", lambda: http("GET", q)
        yield "GET", "/v1/queues/{queue}/consumers", lambda: http("GET", f"{q}/consumers")
        message = {"json": {"a": 1}, "headers": {"h": 1}, "priority": 2, "id": "one"}
        yield "POST", "/v1/queues/{queue}/messages", lambda: http("POST", f"{q}/messages", [message, {"payload": ""}])
        yield "GET", "/v1/queues/{queue}/peek", lambda: http("GET", f"{q}/peek")
        yield "GET", "/v1/queues/{queue}/messages/{id}", lambda: http("GET", f"{q}/messages/one")
        yield "GET", "/v1/messages/{id}", lambda: http("GET", "/v1/messages/one")
        yield "DELETE", "/v1/queues/{queue}/messages/{id}", lambda: http("DELETE", f"{q}/messages/one")
        yield "POST", "/v1/queues/{queue}/take", lambda: http("POST", f"{q}/take", count=1)
        yield "GET", "/v1/queues/{queue}/messages", lambda: http("GET", f"{q}/messages", count=5, headers=VOUCHED)
        for prefix, path in (("/v1/queues/{queue}", q), ("/v1", "/v1")):
            for verb in ("touch", "ack", "reject", "release"):
                yield "POST", f"{prefix}/{verb}", partial(self.settle, f"{path}/{verb}")
        yield "DELETE", "/v1/queues/{queue}/messages", lambda: http("DELETE", f"{q}/messages")
        yield "GET", "/v1/queues/{queue}/stream", lambda: self.stream(f"{q}/stream")
        yield "POST", "/v1/queues/{queue}/stream", lambda: self.events(f"{q}/stream")
        yield "GET", "/v1/dead-letters", lambda: http("GET", "/v1/dead-letters")
        self.http("POST", f"{q}/reject", {"ack_ids": [self.taken()["ack_id"]], "dead": True})
        http("POST", "/v1/release", {"ack_ids": [http.one(self.dead)["ack_id"]]})
        yield "GET", "/v1/dead-letters/{queue}", lambda: http("GET", f"/v1/dead-letters/{self.dead}")
        summary = f"/v1/dead-letters/{self.dead}/summary"
        yield "GET", "/v1/dead-letters/{queue}/summary", lambda: http("GET", summary)
        for path in ("dead-letters", "queues"):
            call = partial(http, "POST", f"/v1/{path}/{self.dead}/redrive", {})
            yield "POST", f"/v1/{path}/{{queue}}/redrive", call
        yield from self.jobs()
        late = {"payload": "late", "id": "late", "delay_ms": 3_600_000}
        http.put(queue, late)
        yield "GET", "/v1/delayed", lambda: http("GET", "/v1/delayed", queue=queue)
        yield "PUT", "/v1/topics/{topic}", lambda: http("PUT", t, {"partitions": 1})
        yield "GET", "/v1/topics", lambda: http("GET", "/v1/topics", pattern=topic)
        yield "GET", "/v1/topics/{topic}", lambda: http("GET", t)
        yield "PATCH", "/v1/topics/{topic}", lambda: http("PATCH", t, {"settings": {"retention.ms": "100000"}})
        yield "POST", "/v1/topics/{topic}/messages", lambda: http("POST", f"{t}/messages", {"payload": "x"})
        yield "GET", "/v1/topics/{topic}/messages", lambda: http("GET", f"{t}/messages")
        yield "GET", "/v1/topics/{topic}/messages/{id}", lambda: http("GET", f"{t}/messages/{name(f'{topic}-0@0')}")
        yield "GET", "/v1/topics/{topic}/history", lambda: http("GET", f"{t}/history")
        yield "GET", "/v1/topics/{topic}/search", lambda: http("GET", f"{t}/search", text="x")
        http("POST", f"{t}/messages", late)
        cancel = f"/v1/delayed/topics/{topic}/late"
        yield "DELETE", "/v1/delayed/topics/{topic}/{id}", lambda: http("DELETE", cancel)
        all_of_it = {"before_offset": -1}
        yield "POST", "/v1/topics/{topic}/delete-records", lambda: http("POST", f"{t}/delete-records", all_of_it)
        yield "GET", "/v1/subscriptions", lambda: http("GET", "/v1/subscriptions")
        yield "GET", "/v1/subscriptions/stream", lambda: self.stream("/v1/subscriptions/stream", topic=topic)
        yield "POST", "/v1/subscriptions/stream", lambda: self.events("/v1/subscriptions/stream", topic=topic)
        yield "PUT", "/v1/exchanges/{exchange}", lambda: http("PUT", e, {"kind": "direct"})
        yield "GET", "/v1/exchanges", lambda: http("GET", "/v1/exchanges")
        yield "GET", "/v1/exchanges/{exchange}", lambda: http("GET", e)
        yield "POST", "/v1/exchanges/{exchange}/bindings", lambda: http("POST", f"{e}/bindings", binding)
        yield "GET", "/v1/exchanges/{exchange}/bindings", lambda: http("GET", f"{e}/bindings")
        yield "GET", "/v1/routing", lambda: http("GET", "/v1/routing", search=exchange)
        message = {"payload": "routed"}
        yield (
            "POST",
            "/v1/exchanges/{exchange}/messages",
            lambda: http("POST", f"{e}/messages", message, routing_key="k"),
        )
        yield "POST", "/v1/exchanges/{exchange}/route", lambda: http("POST", f"{e}/route", {"message": message})
        bindings = f"{e}/bindings?target=queue:{queue}&key=k"
        yield "DELETE", "/v1/exchanges/{exchange}/bindings", lambda: http("DELETE", bindings)
        yield "DELETE", "/v1/exchanges/{exchange}", lambda: http("DELETE", e)
        yield "POST", "/v1/requests", self.request_and_reply
        yield "POST", "/v1/replies", lambda: self.reply
        yield "GET", "/v1/topics/{topic}/settings", lambda: http("GET", f"{t}/settings")
        yield "GET", "/v1/topics/{topic}/offsets", lambda: http("GET", f"{t}/offsets", at="earliest")
        yield "GET", "/v1/live", lambda: self.stream("/v1/live")
        yield "GET", "/ui/{name}", lambda: http("GET", "/ui/app.js")
        yield "GET", "/ui/{name}/{file}", lambda: http("GET", "/ui/lib/dom.js")
        for path in (
            "/",
            "/healthz",
            "/readyz",
            "/v1/stats",
            "/v1/overview",
            "/v1/history",
            "/metrics",
            "/openapi.json",
        ):
            yield "GET", path, partial(http, "GET", path)
        enqueue = {"queue": queue, "message": [1], "priority": 9, "ttl": 60, "delay": 0}
        yield "POST", "/queue/enqueue", lambda: http("POST", "/queue/enqueue", enqueue)
        yield "GET", "/queue/dequeue", lambda: self.remember(http("GET", "/queue/dequeue", queue=queue))
        yield "POST", "/queue/dequeue", lambda: http("POST", "/queue/dequeue", queue=queue)
        yield "POST", "/queue/ack", lambda: http("POST", "/queue/ack", {"ack_id": self.remembered["ack_id"]})
        again = {"queue": queue, "message": "again"}
        yield "POST", "/queue/reject", lambda: self.reject_one(again)
        yield "POST", "/queue/purge", lambda: http("POST", "/queue/purge", {"queue": queue})
        yield "GET", "/queue/{queue}/stats", lambda: http("GET", f"/queue/{queue}/stats")
        yield "POST", "/pubsub/publish", lambda: http("POST", "/pubsub/publish", {"channel": topic, "message": 1})
        yield "GET", "/pubsub/subscribe", lambda: self.socket("/pubsub/subscribe", channel=topic)
        yield "GET", "/pubsub/history", lambda: http("GET", "/pubsub/history", channel=topic)
        yield "GET", "/pubsub/stats", lambda: http("GET", "/pubsub/stats")
        yield from operating(http, topic, self.pipelines)
        yield "DELETE", "/v1/topics/{topic}", lambda: http("DELETE", t)
        yield "DELETE", "/v1/queues/{queue}", lambda: http("DELETE", q)

    def jobs(self) -> Iterator[tuple[str, str, Callable[[], Answer]]]:
        """One that takes long enough to be looked at and cancelled."""
        self.http.put(self.dead, *("slow" for _ in range(20)))
        redrive = f"/v1/dead-letters/{self.dead}/redrive?background=true"
        started = self.http("POST", redrive, {"rate": 0.01, "to": self.queue})
        yield "POST", "/v1/dead-letters/{queue}/redrive", lambda: started
        job = f"/v1/jobs/{started.json['job']}"
        yield "GET", "/v1/jobs", lambda: self.http("GET", "/v1/jobs")
        yield "GET", "/v1/jobs/{job}", lambda: self.http("GET", job)
        yield "DELETE", "/v1/jobs/{job}", lambda: self.http("DELETE", job)
        self.http("DELETE", f"/v1/queues/{self.dead}/messages")
        self.http("DELETE", f"/v1/queues/{self.queue}/messages")

    def settle(self, path: str) -> Answer:
        return self.http("POST", path, {"ack_ids": [self.taken()["ack_id"]]})

    def remember(self, answer: Answer) -> Answer:
        self.remembered = answer.json
        return answer

    def stream(self, path: str, **query: Any) -> Answer:
        """Both ways to read a stream."""
        self.socket(path, **query)
        self.http.events(path, **query).close()
        return Answer(200, {"content-type": "text/event-stream"}, b"")

    def events(self, path: str, **query: Any) -> Answer:
        self.http.events(path, "POST", **query).close()
        return Answer(200, {"content-type": "text/event-stream"}, b"")

    def socket(self, path: str, **query: Any) -> Answer:
        with self.http.socket(path, **query) as socket:
            assert socket.connection.response is not None
            assert socket.connection.response.status_code == 101
        return Answer(101, {}, b"")

    def request_and_reply(self) -> Answer:
        import threading

        def respond() -> None:
            request = self.http.one(self.dead)
            self.reply = self.http("POST", "/v1/replies", {"payload": "pong"}, to=request["reply_to"])

        responder = threading.Thread(target=respond)
        responder.start()
        self.http("DELETE", f"/v1/queues/{self.dead}/messages")
        answer = self.http("POST", "/v1/requests", {"payload": "ping"}, queue=self.dead, timeout_ms=30_000)
        responder.join()
        return answer


NEED_A_CLUSTER = (("POST", "/v1/cluster/nodes/{node}/drain"), ("DELETE", "/v1/cluster/nodes/{node}"))
"""A broker alone refuses them."""


def test_every_route_answers_as_the_document_says(http: Http, pipelines: Path, document: dict[str, Any]) -> None:
    walked = set()
    for method, path, call in Tour(http, pipelines).walk():
        answer = call()
        walked.add((method, path))
        responses = document["paths"][path][method.lower()]["responses"]
        assert str(answer.status) in responses or (method, path) in NEED_A_CLUSTER, (method, path, answer)
        described = responses.get(str(answer.status), responses["default"]).get("content", {})
        if answer.body or described:
            assert answer.headers["content-type"] in described, (method, path)
        if "application/json" in described:
            schema = described["application/json"]["schema"]
            OAS31Validator({**schema, "components": document["components"]}).validate(answer.json)
    assert walked == {(route.method, route.path) for route in ROUTES}


def test_a_problem_is_as_the_document_says(http: Http, document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Problem", "components": document["components"]}
    for path in ("/nowhere", "/v1/queues?limit=x", "/v1/queues/none"):
        OAS31Validator(schema).validate(http("GET", path, ok=False).json)


def test_the_reference_page_lists_every_route() -> None:
    from tests.support.server import ROOT

    text = (ROOT / "docs" / "reference" / "http.md").read_text()
    listed = set(re.findall(r"`(GET|PUT|POST|PATCH|DELETE) (/[^`?\s]*)", text))
    assert {(route.method, route.path) for route in ROUTES} <= listed
