"""HTTP requests byte by byte, without a socket."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.protocols.http.transport.engine import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    Broken,
    Engine,
    Event,
    Expects,
    Request,
)

CONVERSATION = (
    b"GET /v1/queues?limit=3 HTTP/1.1\r\nHost: localhost\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    b"POST /a%2Fb HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\nx-late: 1\r\n\r\n"
    b"GET /d HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    b"DELETE /e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
)


def whole(data: bytes) -> list[Event]:
    return Engine().receive(data)


def test_requests_come_out_as_they_went_in() -> None:
    get, post, chunked, upgrade, delete = (event for event in whole(CONVERSATION) if isinstance(event, Request))
    assert (get.method, get.target, get.body) == ("GET", b"/v1/queues?limit=3", b"")
    assert get.headers == {"host": "localhost", "x-a": "1, 2"}
    assert (post.target, post.body) == (b"/a%2Fb", b"hello")
    assert chunked.body == b"abcde"
    assert "x-late" not in chunked.headers, "a trailer is no header"
    assert (upgrade.target, upgrade.websocket) == (b"/d", False)
    assert (delete.method, delete.keep_alive) == ("DELETE", False)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    engine = Engine()
    places = [0, *sorted(cuts), len(CONVERSATION)]
    events: list[Event] = []
    for begin, end in pairwise(places):
        events += engine.receive(CONVERSATION[begin:end])
    assert events == whole(CONVERSATION)
    assert engine.between_requests


@given(st.binary(max_size=400))
def test_whatever_comes_the_worst_is_one_refusal(data: bytes) -> None:
    engine = Engine()
    broken = [event for event in engine.receive(b"GET / HTTP/1.1\r\nHost: x\r\n" + data) if isinstance(event, Broken)]
    assert len(broken) <= 1
    if broken:
        assert engine.receive(b"GET / HTTP/1.1\r\n\r\n") == [], "nothing is read behind it"


def test_a_websocket_gets_the_bytes_behind_its_handshake() -> None:
    head = b"GET /s HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
    engine = Engine()
    (request,) = engine.receive(head + b"\x81\x00")
    assert isinstance(request, Request)
    assert (request.websocket, request.rest) == (True, b"\x81\x00")
    assert engine.receive(b"\x81\x00") == []


def test_a_client_that_waits_for_a_word_is_seen() -> None:
    engine = Engine()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert engine.receive(head) == [Expects()]
    assert not engine.between_requests
    (request,) = engine.receive(b"ok")
    assert isinstance(request, Request)
    assert request.body == b"ok"


def test_a_client_of_http_1_0_knows_no_word_to_wait_for() -> None:
    (request,) = whole(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok")
    assert isinstance(request, Request)
    assert request.body == b"ok"


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 17\r\n\r\nGET /x HTTP/1.1\r\n", b"Transfer-Encoding: chunked\r\n\r\n2\r\nGE\r\n0\r\n\r\n"],
)
@pytest.mark.parametrize("cut", [0, 1, 10])
def test_a_body_behind_an_offer_of_another_protocol_is_no_request(body: bytes, cut: int) -> None:
    """`curl --http2 -d …`; and whatever hides a request in a body, behind a proxy that lets the offer pass."""
    head = b"POST /d HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nExpect: 100-continue\r\n"
    data = head + body + b"DELETE /e HTTP/1.1\r\nHost: x\r\n\r\n"
    at = len(head) + body.index(b"\r\n\r\n") + cut
    engine = Engine()
    expects, post, delete = engine.receive(data[:at]) + engine.receive(data[at:])
    assert expects == Expects()
    assert isinstance(post, Request)
    assert isinstance(delete, Request)
    assert (post.method, post.target) == ("POST", b"/d")
    assert post.body == (b"GET /x HTTP/1.1\r\n" if b"Length" in body else b"GE")
    assert (post.headers["host"], post.keep_alive) == ("x", True)
    assert delete.target == b"/e"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nContent-Length: 16\r\n\r\nGET / HTTP/1.1\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\nC\x00: d\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * (MAX_HEAD_BYTES // 6) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx-a: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    ],
)
def test_what_cannot_be_understood_has_its_status(data: bytes, status: int) -> None:
    events = whole(data)
    assert [event.status for event in events if isinstance(event, Broken)] == [status]


def test_a_header_without_an_end_is_given_up() -> None:
    engine = Engine()
    engine.receive(b"GET / HTTP/1.1\r\nx-a: ")
    events: list[Event] = []
    for _ in range(MAX_HEAD_BYTES // 1024 + 2):
        events += engine.receive(b"b" * 1024)
    assert [event.status for event in events if isinstance(event, Broken)] == [431]


def test_a_chunked_body_without_an_end_is_given_up() -> None:
    engine = Engine()
    engine.receive(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    events: list[Event] = []
    for _ in range(MAX_BODY_BYTES // 0x100000 + 2):
        events += engine.receive(chunk)
    assert [event.status for event in events if isinstance(event, Broken)] == [413]
