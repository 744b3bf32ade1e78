"""Connections: what HTTP itself asks of the broker, and what bad clients get."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse
from io import BufferedReader

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocols.http.kit import Answer, Http, answer_of
from tests.support.ports import split_address
from tests.support.waiting import DEADLINE_S
from waystation.protocols.http.transport.engine import MAX_BODY_BYTES


class Raw:
    """A client that sends what it likes."""

    def __init__(self, http: Http) -> None:
        self.socket = socket.create_connection(split_address(http.address), timeout=DEADLINE_S)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def makefile(self, mode: str) -> BufferedReader:
        """What HTTPResponse wants of a socket: one file for all answers, since it reads ahead."""
        file = self.file
        file.close = lambda: None  # type: ignore[method-assign]  # the first answer shall not close it
        return file

    def answer(self, method: str = "GET") -> Answer:
        response = HTTPResponse(self, method=method)  # type: ignore[arg-type]
        response.begin()
        return answer_of(response)

    def closed(self) -> bool:
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_connection_serves_many_requests_in_their_order(http: Http, queue: str) -> None:
    connection = http.connect()
    for number in range(5):
        connection.request(
            "POST",
            f"/v1/queues/{queue}/messages",
            json.dumps({"payload": str(number)}),
            {"content-type": "application/json"},
        )
        assert answer_of(connection.getresponse()).status == 201
    connection.close()
    assert [message["payload"] for message in http.take(queue, count=9)] == list("01234")


def test_pipelined_requests_are_answered_in_their_order(http: Http) -> None:
    paths = ["/healthz", "/nowhere", "/readyz", "/v1/queues"] * 25
    with Raw(http) as raw:
        raw.send(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths))
        statuses = [raw.answer().status for _ in paths]
    assert statuses == [200, 404, 200, 200] * 25


@pytest.mark.parametrize(
    ("head", "stays"),
    [
        ("GET /healthz HTTP/1.1\r\nHost: localhost", True),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close", False),
        ("GET /healthz HTTP/1.0", False),
        ("GET /healthz HTTP/1.0\r\nConnection: keep-alive", True),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c", True),
        ("GET http://localhost/healthz HTTP/1.1\r\nHost: localhost", True),
    ],
)
def test_a_connection_stays_as_the_client_asks(http: Http, head: str, stays: bool) -> None:
    with Raw(http) as raw:
        raw.send(f"{head}\r\n\r\n".encode())
        answer = raw.answer()
        assert answer.status == 200
        if stays:
            raw.send(GET)
            assert raw.answer().status == 200
        else:
            assert answer.headers["connection"] == "close"
            assert raw.closed()


def test_a_head_has_no_body(http: Http) -> None:
    with Raw(http) as raw:
        raw.send(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET)
        answer = raw.answer("HEAD")
        assert (answer.status, int(answer.headers["content-length"]) > 0, answer.body) == (200, True, b"")
        assert raw.answer().body


def test_a_head_takes_nothing(http: Http, queue: str) -> None:
    http.put(queue, "x")
    with Raw(http) as raw:
        for path in ("messages", "stream"):
            raw.send(f"HEAD /v1/queues/{queue}/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert raw.answer("HEAD").status == 405
    assert http.queue(queue)["ready"] == 1


def test_a_client_that_waits_for_a_word_gets_it(http: Http, queue: str) -> None:
    with Raw(http) as raw:
        raw.send(f"POST /v1/queues/{queue}/messages HTTP/1.1\r\nHost: localhost\r\n".encode())
        raw.send(b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert raw.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert raw.file.readline() == b"\r\n"
        raw.send(b"hello")
        assert raw.answer().status == 201


def test_every_answer_has_a_date_and_no_cross_origin_leave(http: Http) -> None:
    answer = http("GET", "/healthz", headers={"origin": f"http://{http.address}"})
    assert answer.headers["date"].endswith("GMT")
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"\x00\x00\x00\x1a\x00\x12\x00\x04", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * 20_000 + b"\r\n", 431),
        (b"GET / HTTP/3.0\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_a_problem_and_the_connection_ends(http: Http, data: bytes, status: int) -> None:
    with Raw(http) as raw:
        raw.send(GET + data)
        assert raw.answer().status == 200, "what came before is answered"
        answer = raw.answer()
        assert answer.status == status
        assert answer.error
        assert raw.closed()
    assert http("GET", "/healthz").status == 200


def test_a_body_that_is_too_large_is_told_so_even_to_a_client_that_goes_on_sending(http: Http, queue: str) -> None:
    headers = {"content-type": "application/octet-stream"}
    answer = http("POST", f"/v1/queues/{queue}/messages", b"x" * (MAX_BODY_BYTES + 1), headers=headers, ok=False)
    assert answer.status == 413
    assert answer.json["detail"]


@given(st.binary(max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_broker_survives_whatever_is_sent(http: Http, data: bytes) -> None:
    with Raw(http) as raw:
        raw.send(b"POST /queue/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n" + data)
    assert http("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/queues", "GET"),
        ("PATCH", "/v1/queues/x", "DELETE, GET, PUT"),
        ("OPTIONS", "/v1/topics/x", "DELETE"),
    ],
)
def test_a_method_that_is_not_offered_is_told_with_those_that_are(
    http: Http, method: str, path: str, allowed: str
) -> None:
    answer = http(method, path, ok=False)
    assert (answer.status, answer.error) == (405, "MethodNotAllowed")
    assert answer.headers["allow"].startswith(allowed)


@pytest.mark.parametrize("path", ["/v1", "/v1/queues/", "/v1/queues/a/b", "//", "/v1/queues/a%2Fb/none", "/queue/x/y"])
def test_a_path_that_leads_nowhere_is_not_found(http: Http, path: str) -> None:
    assert http.refused("GET", path) == (404, "NotFound")


def test_a_path_that_is_no_utf_8_is_refused(http: Http) -> None:
    assert http.refused("GET", "/v1/queues/%ff") == (400, "Invalid")
    assert http.refused("GET", "/v1/queues?prefix=%ff") == (400, "Invalid")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example.com"},
        {"origin": "null"},
        {"host": "evil.example.com", "origin": "http://evil.example.com"},
        {"host": "evil.example.com"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_page_of_another_origin_changes_nothing(http: Http, queue: str, headers: dict[str, str]) -> None:
    http.put(queue, "x")
    for method, path in (
        ("POST", f"/v1/queues/{queue}/messages"),
        ("POST", f"/v1/queues/{queue}/take"),
        ("POST", f"/queue/dequeue?queue={queue}"),
        ("POST", f"/v1/queues/{queue}/stream"),
        ("GET", f"/v1/queues/{queue}/messages"),
        ("DELETE", f"/v1/queues/{queue}"),
        ("GET", f"/queue/dequeue?queue={queue}"),
        ("GET", f"/v1/queues/{queue}/stream"),
    ):
        assert http.refused(method, path, headers=headers) == (403, "Foreign")
    assert (http.queue(queue)["ready"], http.queue(queue)["held"]) == (1, 0)
