"""Every GET of the API, sent as an `<img>` of a foreign page: nothing changes. The tables of routes say which."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.kit import Http, name
from tests.support.server import Server
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.management.api import ROUTES as MANAGEMENT_ROUTES

AN_IMAGE = {
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36",
    "accept": "image/avif,image/webp,image/*,*/*;q=0.8",
    "accept-language": "en",
}
"""What a browser sends for an `<img>` on a page that hides its referrer, to a plain HTTP address of another machine."""

READS = [route for route in (*ROUTES, *MANAGEMENT_ROUTES) if route.method == "GET"]
NAMES = {
    "queue": "q",
    "topic": "t",
    "exchange": "e",
    "id": "m0",
    "vhost": "%2F",
    "namespace": "%2F",
    "group": "g",
    "name": "app.js",
    "user": "guest",
    "source": "e",
    "destination": "q",
    "policy": "p",
}
QUERIES = {
    "/v1/queues/{queue}/messages": "count=9&auto_ack=true",
    "/v1/queues/{queue}/stream": "auto_ack=true",
    "/v1/subscriptions/stream": "topic=t&mode=shared&group=g&auto_ack=true&start=earliest",
    "/queue/dequeue": "queue=q",
    "/v1/topics/{topic}/search": "text=x",
}
TAKING = {
    "/v1/queues/{queue}/messages",
    "/v1/queues/{queue}/stream",
    "/v1/subscriptions/stream",
    "/queue/dequeue",
    "/api/aliveness-test/{vhost}",
}
"""Those that change something, if they are asked by somebody who may."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pipelines: Path = tmp_path_factory.mktemp("pipelines")
    with Server(tmp_path_factory.mktemp("reads"), arguments=["--pipelines", str(pipelines)]) as server:
        http = Http(server.addresses["http"])
        http("PUT", "/v1/queues/q")
        http("PUT", "/v1/topics/t", {"partitions": 2})
        http("PUT", "/v1/exchanges/e", {"kind": "fanout"})
        http("POST", "/v1/exchanges/e/bindings", {"target": "queue:q"})
        http.put("q", *({"payload": str(each), "id": f"m{each}"} for each in range(5)))
        http("POST", "/v1/topics/t/messages", [{"payload": "x"}, {"payload": "y", "delay_ms": 3_600_000}])
        yield server


def state(http: Http) -> dict[str, Any]:
    """All that the broker keeps, without what time changes."""
    queue = http("GET", "/v1/queues/q").json
    return {
        "definitions": http("GET", "/api/definitions").json,
        "queue": [queue[field] for field in ("ready", "held", "parked", "consumers")],
        "messages": http("GET", "/v1/queues/q/peek", count=10).json,
        "queues": [row["queue"] for row in http("GET", "/v1/queues").json["queues"]],
        "topics": [row["topic"] for row in http("GET", "/v1/topics").json["topics"]],
        "topic": http("GET", "/v1/topics/t").json["partitions"],
        "groups": [row["group"] for row in http("GET", "/v1/groups").json["groups"]],
        "settings": http("GET", "/v1/settings").json,
        "delayed": len(http("GET", "/v1/delayed").json["messages"]),
        "jobs": http("GET", "/v1/jobs").json,
    }


def filled(route: AnyRoute) -> str:
    parts = [NAMES.get(part[1:-1], "x") if part.startswith("{") else part for part in route.path.split("/")]
    query = QUERIES.get(route.path)
    return "/".join(parts) + (f"?{query}" if query else "")


def status(address: str, path: str, headers: dict[str, str]) -> int:
    """The status of a GET, whose answer may go on for ever."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("route", READS, ids=lambda route: route.path)
def test_a_read_that_any_page_can_cause_changes_nothing(server: Server, route: AnyRoute) -> None:
    http = Http(server.addresses["http"])
    before = state(http)
    got = status(server.addresses["http"], filled(route), AN_IMAGE)
    refused = 401 if route.path.startswith("/api/") else 403  # as RabbitMQ says that something is not allowed
    assert (got == refused) == (route.path in TAKING), got
    assert got < 500 or got == 503
    assert state(http) == before


def test_programs_take_by_post_or_by_the_older_get_with_the_header(server: Server) -> None:
    http = Http(server.addresses["http"])
    (taken,) = http("POST", "/v1/queues/q/take", count=1).json["messages"]
    http("POST", "/v1/release", {"ack_ids": [taken["ack_id"]]})
    answer = http("GET", "/v1/queues/q/messages", ok=False)
    assert answer.status == 403
    assert "POST /v1/queues/{queue}/take" in answer.json["detail"]
    assert "X-Requested-With" in answer.json["detail"]
    (taken,) = http("GET", "/v1/queues/q/messages", headers={"x-requested-with": "curl"}).json["messages"]
    http("POST", "/v1/release", {"ack_ids": [taken["ack_id"]]})
    events = http.events("/v1/queues/q/stream", "POST", prefetch=1)
    events.close()


def test_programs_written_for_others_need_no_header(server: Server) -> None:
    http = Http(server.addresses["http"])
    taken = http("GET", "/queue/dequeue", queue="q", headers={"user-agent": "Python/3.12 aiohttp/3.9.1"}).json
    http("POST", "/v1/release", {"ack_ids": [taken["ack_id"]]})
    assert http("GET", f"/api/aliveness-test/{name('/')}").json == {"status": "ok"}
