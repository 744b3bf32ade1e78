"""The token: who has it may do everything, who has not may see the dashboard's files and whether the broker lives."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import waystation
from tests.protocols.http.kit import Answer, Http
from tests.support.server import Server
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.http.auth.token import FREE, check_token, has_password

TOKEN = "s3cret-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def settings(pause_ms: int) -> dict[str, str | int | bool]:
    return {"waystation.http.token": TOKEN, "connection.failed.authentication.delay.ms": pause_ms}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings: dict[str, str | int | bool] = {
        "waystation.http.token": TOKEN,
        "connection.failed.authentication.delay.ms": 1,
    }
    with Server(tmp_path_factory.mktemp("locked"), settings=settings) as server:
        yield server


@pytest.fixture
def closed(locked: Server) -> Http:
    return Http(locked.addresses["http"])


def path_of(route: Any) -> str:
    return str(route.path).replace("{", "").replace("}", "")


def test_every_route_but_the_free_ones_asks_for_the_token(closed: Http) -> None:
    for route in ROUTES:
        path = path_of(route)
        answer = closed(route.method, path, ok=False)
        if path.split("/")[1] in FREE or path in ("/v1/whoami", "/v1/login"):  # the latter answers 401 by itself
            if path == "/v1/login":
                continue
            assert answer.status != 401, path
        else:
            assert (answer.status, answer.error) == (401, "Unauthorized"), (route.method, path)
            assert answer.headers["www-authenticate"] == "Bearer"


def test_with_the_token_everything_is_as_without_one(closed: Http) -> None:
    assert closed("GET", "/v1/queues", headers=BEARER).status == 200
    assert closed("PUT", "/v1/queues/locked", headers=BEARER).status == 201
    assert closed("GET", "/v1/queues/none", headers=BEARER, ok=False).status == 404


@pytest.mark.parametrize(
    "said",
    ["Bearer wrong", "Bearer ", "Bearer", "Basic s3cret", "s3cret", "bearer s3cr\xc3\xa9t-token2", "Bearer \xff"],
)
def test_a_wrong_token_is_refused(closed: Http, said: str) -> None:
    answer = closed("GET", "/v1/queues", headers={"authorization": said}, ok=False)
    assert (answer.status, answer.error) == (401, "Unauthorized")
    assert TOKEN not in answer.body.decode()


def test_a_wrong_token_costs_a_pause_and_the_right_one_none(tmp_path: Path) -> None:
    """By our own API, RabbitMQ's, and a path that is free but tells those more who have the token."""
    settings: dict[str, str | int | bool] = {
        "waystation.http.token": TOKEN,
        "connection.failed.authentication.delay.ms": 200,
    }
    with Server(tmp_path, settings=settings) as server:
        http = Http(server.addresses["http"])
        for number, path in enumerate(("/v1/queues", "/api/overview", "/readyz")):
            began_s = time.monotonic()
            http("GET", path, headers={"authorization": "Bearer wrong"}, ok=False)
            assert time.monotonic() - began_s >= 0.2 * 2**number, path
        assert "login.refused" in server.log.read_text()
        assert http("GET", "/v1/queues", headers=BEARER).status == 200


def test_a_path_that_does_not_exist_tells_nothing_without_the_token(closed: Http) -> None:
    assert closed("GET", "/v1/nonsense", ok=False).status == 401
    assert closed("GET", "/healthz/more", ok=False).status == 401


def test_a_web_socket_needs_the_header(closed: Http) -> None:
    closed("PUT", "/v1/queues/stream", headers=BEARER)
    address = f"ws://{closed.address}/v1/queues/stream/stream"
    with pytest.raises(InvalidStatus) as refused, connect(address):
        pass
    assert refused.value.response.status_code == 401
    with connect(address, additional_headers=BEARER) as socket:
        assert socket.response is not None


def test_the_token_is_shown_nowhere(locked: Server, closed: Http) -> None:
    rows = closed("GET", "/v1/settings", search="http.token", headers=BEARER).json["settings"]
    assert [(row["name"], row["value"], row["source"]) for row in rows] == [("waystation.http.token", "(set)", "flag")]
    with waystation.connect(f"waystation://{locked.bootstrap}") as mq:
        (row,) = mq.view("settings", search="http.token")["settings"]
        assert row["value"] == "(set)"
    admin = AdminClient({"bootstrap.servers": locked.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    (future,) = admin.describe_configs([resource]).values()
    entry = future.result(30)["waystation.http.token"]
    assert entry.value is None
    assert entry.is_sensitive
    assert TOKEN not in locked.log.read_text()


def test_the_token_cannot_be_changed_while_the_broker_runs(closed: Http) -> None:
    answer = closed("PATCH", "/v1/settings", {"waystation.http.token": "other"}, headers=BEARER, ok=False)
    assert answer.status == 400
    assert "other" not in answer.json["detail"]


def test_tools_for_rabbitmq_send_it_as_their_password(closed: Http) -> None:
    def asked(headers: dict[str, str]) -> Answer:
        return closed("GET", "/api/overview", headers=headers, ok=False)

    def basic(text: str) -> dict[str, str]:
        return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

    assert asked(basic(f"anybody:{TOKEN}")).status == 200
    assert asked(BEARER).status == 200
    for headers in ({}, basic("guest:guest"), basic(TOKEN), {"authorization": "Basic !!"}):
        answer = asked(headers)
        assert (answer.status, answer.json["error"]) == (401, "not_authorized")
        assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("sent", ["schlüssel".encode(), "schlüssel".encode("latin-1")])
def test_a_token_beyond_ascii_is_known_however_it_was_sent(sent: bytes) -> None:
    check_token("schlüssel", {"authorization": f"Bearer {sent.decode('latin-1')}"}, ["v1", "queues"])


def test_without_the_setting_nobody_is_asked() -> None:
    check_token("", {}, ["v1", "queues"])
    assert not has_password("x", {})
    assert has_password("a:b", {"authorization": f"Basic {base64.b64encode(b'u:a:b').decode()}"})
