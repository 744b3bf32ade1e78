"""A filter or headers on a kind of exchange that does not look at them would let everything pass: every protocol
refuses such a binding, and nothing is bound."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import waystation as ws
from tests.protocols.http.kit import Http
from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from waystation import errors

FILTER = {"filter": "json.total > 100"}
HEADERS = {"x-match": "all", "kind": "pdf"}
WITHOUT_MATCH = {"kind": "pdf"}
IGNORED = [
    *((kind, said) for kind in ("direct", "fanout", "topic", "x-consistent-hash") for said in (FILTER, HEADERS)),
    ("direct", WITHOUT_MATCH),
    ("filter", HEADERS | FILTER),
]
Bind = Callable[[Server, str, str, dict[str, Any]], str]
KEY = "1"
"""Which is a weight too."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("bindings")) as server:
        yield server


def by_python(server: Server, exchange: str, queue: str, arguments: dict[str, Any]) -> str:
    headers = {name: value for name, value in arguments.items() if name not in ("x-match", "filter")}
    with ws.connect(f"waystation://{server.bootstrap}") as mq, pytest.raises(errors.Invalid) as caught:
        mq.exchange(exchange, passive=True).bind(
            mq.queue(queue), KEY, headers=headers or None, filter=arguments.get("filter")
        )
    return str(caught.value)


def by_json_lines(server: Server, exchange: str, queue: str, arguments: dict[str, Any]) -> str:
    with JsonLines(server.bootstrap) as lines:
        return str(lines.refusal("bind", exchange=exchange, target=f"queue:{queue}", key=KEY, arguments=arguments))


def by_http(server: Server, exchange: str, queue: str, arguments: dict[str, Any]) -> str:
    said = {"target": f"queue:{queue}", "key": KEY, "arguments": arguments}
    answer = Http(server.addresses["http"])("POST", f"/v1/exchanges/{exchange}/bindings", said, ok=False)
    assert answer.status == 400
    return str(answer.json["detail"])


def by_management(server: Server, exchange: str, queue: str, arguments: dict[str, Any]) -> str:
    login = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    said = {"routing_key": KEY, "arguments": arguments}
    path = f"/api/bindings/%2F/e/{exchange}/q/{queue}"
    answer = Http(server.addresses["http"])("POST", path, said, headers=login, ok=False)
    assert answer.status == 400
    return str(answer.json["reason"])


def by_amqp(server: Server, exchange: str, queue: str, arguments: dict[str, Any]) -> str:
    host, port = split_address(server.addresses["amqp"])
    with (
        pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection,
        pytest.raises(ChannelClosedByBroker) as caught,
    ):
        connection.channel().queue_bind(queue, exchange, KEY, arguments)
    assert caught.value.reply_code == 406
    return str(caught.value.reply_text)


def arguments_of(mq: ws.Client, exchange: str) -> list[dict[str, Any]]:
    """Of each of its bindings."""
    return [arguments for source, _, _, arguments in mq.routing().bindings if source == exchange]


@pytest.mark.parametrize("bind", [by_python, by_json_lines, by_http, by_management, by_amqp])
@pytest.mark.parametrize(("kind", "arguments"), IGNORED)
def test_a_condition_that_the_exchange_would_ignore_is_refused(
    server: Server, kind: str, arguments: dict[str, Any], bind: Bind
) -> None:
    exchange, queue = unique("x"), unique("q")
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        mq.queue(queue)
        mq.exchange(exchange, kind=kind)
        why = bind(server, exchange, queue, arguments)
        if bind is by_python and arguments == HEADERS | FILTER:
            assert "not both" in why, "the client knows that no exchange looks at both"
        else:
            assert f"{kind!r}" in why, "it says which kind of exchange has no use for it"
        assert arguments_of(mq, exchange) == []


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("headers", HEADERS),
        ("headers", WITHOUT_MATCH),
        ("filter", FILTER),
        ("direct", {"x-note": "of an operator"}),
        ("topic", {}),
    ],
)
def test_what_the_exchange_looks_at_and_what_is_no_condition_is_bound(
    server: Server, kind: str, arguments: dict[str, Any]
) -> None:
    exchange, queue = unique("x"), unique("q")
    with ws.connect(f"waystation://{server.bootstrap}") as mq, JsonLines(server.bootstrap) as lines:
        mq.queue(queue)
        mq.exchange(exchange, kind=kind)
        lines.ask("bind", exchange=exchange, target=f"queue:{queue}", key=KEY, arguments=arguments)
        assert arguments_of(mq, exchange) == [arguments]
