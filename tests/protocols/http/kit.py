"""A plain HTTP client, a WebSocket and an event stream for tests of HTTP. Used by tests/protocols/http alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode

from websockets.sync.client import ClientConnection, connect

from tests.support.ports import split_address
from tests.support.waiting import DEADLINE_S

JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The class of the error that a problem is."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status
        assert problem["type"].startswith("urn:waystation:error:")
        assert problem["title"]
        assert problem["detail"]
        return str(problem["error"])


@dataclass(slots=True)
class Http:
    """A client that makes a connection for each request."""

    address: str

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        ok: bool = True,
        **query: Any,
    ) -> Answer:
        """Sends a request. `body`: bytes as they are, anything else as JSON. `ok`: the answer has to be 2xx."""
        connection = self.connect()
        try:
            data, sent = body, dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                data = json.dumps(body).encode()
                sent = JSON | sent
            connection.request(method, path + ask(query), data, sent)
            answer = answer_of(connection.getresponse())
        finally:
            connection.close()
        assert not ok or 200 <= answer.status < 300, answer
        return answer

    def connect(self) -> HTTPConnection:
        host, port = split_address(self.address)
        return HTTPConnection(host, port, timeout=DEADLINE_S)

    def refused(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, str]:
        """The status and the error's class of a request that must fail."""
        answer = self(method, path, body, ok=False, **more)
        assert answer.status >= 400, answer
        return answer.status, answer.error

    def socket(self, path: str, **query: Any) -> Socket:
        return Socket(f"ws://{self.address}{path}{ask(query)}")

    def events(self, path: str, method: str = "GET", **query: Any) -> Events:
        connection = self.connect()
        sent = {"accept": "text/event-stream", "x-requested-with": "a test"}
        connection.request(method, path + ask(query), headers=sent if method == "GET" else {})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        return Events(connection, response)

    # -- what most tests do ------------------------------------------------------------------------------------------

    def put(self, queue: str, *messages: Any) -> list[str]:
        """Puts messages (texts, or message objects) and returns their ids."""
        objects = [{"payload": message} if isinstance(message, str) else message for message in messages]
        return list(self("POST", f"/v1/queues/{name(queue)}/messages", objects).json["ids"])

    def take(self, queue: str, count: int = 1, wait_ms: int = 0, **query: Any) -> list[dict[str, Any]]:
        answer = self("POST", f"/v1/queues/{name(queue)}/take", count=count, wait_ms=wait_ms, **query)
        return list(answer.json["messages"])

    def one(self, queue: str, **query: Any) -> dict[str, Any]:
        """The next message, which has to come."""
        (message,) = self.take(queue, wait_ms=int(DEADLINE_S * 1000), **query)
        return message

    def queue(self, queue: str) -> dict[str, Any]:
        return dict(self("GET", f"/v1/queues/{name(queue)}").json)


class Socket:
    """A WebSocket that speaks JSON."""

    def __init__(self, address: str) -> None:
        self._manager = connect(address, open_timeout=DEADLINE_S, compression=None)
        self.connection: ClientConnection = self._manager.__enter__()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.__exit__(None, None, None)

    def send(self, **value: Any) -> None:
        self.connection.send(json.dumps(value))

    def receive(self) -> dict[str, Any]:
        return dict(json.loads(self.connection.recv(timeout=DEADLINE_S)))

    def messages(self, count: int) -> list[dict[str, Any]]:
        """So many delivered messages; nothing else may come meanwhile."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            value = self.receive()
            assert value["kind"] == "deliver", value
            found += value["messages"]
        assert len(found) == count
        return found

    def ask(self, **value: Any) -> dict[str, Any]:
        """Sends with an id and returns the answer to it; deliveries that come before are dropped."""
        self.send(id=7, **value)
        while True:
            answer = self.receive()
            if answer.get("id") == 7:
                return answer

    def nothing_within(self, seconds: float) -> bool:
        try:
            self.connection.recv(timeout=seconds)
        except TimeoutError:
            return True
        return False


class Events:
    """A stream of server-sent events."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self._events = self._read()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event: its kind and its data."""
        return next(self._events)

    def messages(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            kind, value = self.next()
            assert kind == "message", (kind, value)
            found.append(value)
        return found

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        kind = data = ""
        for line in self._response:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                kind = value
            elif field == "data":
                data = value
            elif not field and not value and kind:
                yield kind, json.loads(data)
                kind = data = ""


def name(text: str) -> str:
    """A name as it is written in a path."""
    return quote(text, safe="")


def ask(query: Mapping[str, Any]) -> str:
    pairs = [(key, value) for key, value in query.items() if value is not None]
    texts = [(key, str(value).lower() if isinstance(value, bool) else value) for key, value in pairs]
    return f"?{urlencode(texts, doseq=True)}" if texts else ""


def answer_of(response: HTTPResponse) -> Answer:
    return Answer(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())
