"""What the tests of RabbitMQ's management API share: a client of it, and the broker under test.

`WAYSTATION_MANAGEMENT_ORACLE=HTTP_PORT:AMQP_PORT` points these tests at a RabbitMQ with its management plugin on this
machine: that is how the tests themselves are checked. What only Waystation has is skipped there.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from tests.protocols.http.kit import Answer, Http, name
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

ORACLE = os.environ.get("WAYSTATION_MANAGEMENT_ORACLE", "")
ours_only = pytest.mark.skipif(bool(ORACLE), reason="Waystation's own, or RabbitMQ is of another opinion")


def basic(user: str = "guest", password: str = "guest") -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@dataclass(slots=True)
class Api:
    """A client as RabbitMQ's tools are: JSON there and back, guest's password with every call."""

    http: Http
    amqp_port: int

    def __call__(self, method: str, path: str, body: Any = None, *, ok: bool = True, **query: Any) -> Answer:
        sent = {name.replace("_", "-") if name.startswith("if_") else name: value for name, value in query.items()}
        return self.http(method, f"/api{path}", body, headers=basic(), ok=ok, **sent)

    def get(self, path: str, **query: Any) -> Any:
        return self("GET", path, **query).json

    def refused(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """The status and the reason of a call that must fail."""
        answer = self(method, path, body, ok=False, **query)
        assert answer.status >= 400, answer
        return answer.status, str(answer.json["reason"]) if answer.body else ""

    # -- what most tests do ------------------------------------------------------------------------------------------

    def queue(self, vhost: str = "/", **said: Any) -> str:
        """A new queue."""
        queue = unique("q")
        self("PUT", f"/queues/{name(vhost)}/{queue}", {"durable": True, **said})
        return queue

    def exchange(self, kind: str = "topic", vhost: str = "/", **said: Any) -> str:
        exchange = unique("e")
        self("PUT", f"/exchanges/{name(vhost)}/{exchange}", {"type": kind, "durable": True, **said})
        return exchange

    def publish(self, exchange: str, key: str, payload: str = "hello", vhost: str = "/", **properties: Any) -> bool:
        body = {"properties": properties, "routing_key": key, "payload": payload, "payload_encoding": "string"}
        return bool(self("POST", f"/exchanges/{name(vhost)}/{name(exchange)}/publish", body).json["routed"])

    def take(self, queue: str, count: int = 1, mode: str = "ack_requeue_false", **more: Any) -> list[dict[str, Any]]:
        body = {"count": count, "ackmode": mode, "encoding": "auto", **more}
        return list(self("POST", f"/queues/%2F/{name(queue)}/get", body).json)

    def shown(self, queue: str, **wanted: Any) -> dict[str, Any]:
        """A queue, when it is as wanted: RabbitMQ's figures are some seconds old."""

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(f"/queues/%2F/{name(queue)}")
            return found if all(found.get(field) == value for field, value in wanted.items()) else None

        return wait_for(look, f"queue {queue} has {wanted}")

    @contextmanager
    def connection(self, vhost: str = "/", title: str | None = None) -> Iterator[BlockingConnection]:
        properties = {} if title is None else {"connection_name": title}
        given = pika.ConnectionParameters("127.0.0.1", self.amqp_port, vhost, client_properties=properties)
        connection = BlockingConnection(given)
        try:
            yield connection
        finally:
            with suppress(AMQPError):  # it may be closed already, from the other end
                connection.close()


def api_of(server: Server) -> Api:
    return Api(Http(server.addresses["http"]), int(server.addresses["amqp"].rpartition(":")[2]))


def oracle() -> Api:
    http, _, amqp = ORACLE.partition(":")
    return Api(Http(f"127.0.0.1:{http}"), int(amqp))
