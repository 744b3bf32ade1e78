"""What groups of subscribers are promised, seen through the clients that users have: Python, JSON lines, HTTP.

A group reads what is committed, whoever publishes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from confluent_kafka import Producer

import waystation as ws
from tests.protocols.http.kit import Http
from tests.protocols.native.plain_client import MessageConsumer
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

Received = Callable[[], list[str]]
"""All that a consumer has received until now."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("groups")) as server:
        yield server


@pytest.fixture
def mq(server: Server) -> Iterator[ws.Client]:
    with ws.connect(f"waystation://{server.bootstrap}") as client:
        yield client


class Subscribers:
    """Each way to subscribe as a new group, from the beginning of what a pattern matches."""

    def __init__(self, server: Server, mq: ws.Client, until: ExitStack) -> None:
        self._server = server
        self._mq = mq
        self._until = until

    def python_shared(self, pattern: str) -> Received:
        return self._handler(pattern)

    def python_stream(self, pattern: str) -> Received:
        return self._handler(pattern, mode="stream")

    def _handler(self, pattern: str, **options: Any) -> Received:
        got: list[str] = []

        def handle(message: ws.Message) -> None:
            got.append(message.text())

        self._mq.on(pattern, group=unique("g"), start="earliest", **options)(handle)
        self._until.callback(self._mq.off, handle)
        return lambda: got

    def json_lines(self, pattern: str) -> Received:
        consumer = MessageConsumer(unique("g"), *split_address(self._server.bootstrap))
        self._until.callback(consumer.disconnect)
        assert consumer.subscribe(pattern)
        return _asking(lambda: [one["payload"] for one in consumer.consume()])

    def http(self, pattern: str) -> Received:
        socket = Http(self._server.addresses["http"]).socket(
            "/v1/subscriptions/stream", topic=pattern, mode="shared", group=unique("g"), start="earliest"
        )
        self._until.enter_context(socket)

        def more() -> list[str]:
            with suppress(TimeoutError):
                return [one["payload"] for one in json.loads(socket.connection.recv(timeout=0.02))["messages"]]
            return []

        return _asking(more)


def _asking(more: Callable[[], list[str]]) -> Received:
    got: list[str] = []

    def all_of_it() -> list[str]:
        got.extend(more())
        return got

    return all_of_it


@pytest.fixture(params=["python_shared", "python_stream", "json_lines", "http"])
def subscribe(request: pytest.FixtureRequest, server: Server, mq: ws.Client) -> Iterator[Callable[[str], Received]]:
    with ExitStack() as until:
        yield getattr(Subscribers(server, mq, until), request.param)


# -- transactions ------------------------------------------------------------------------------------------------------


class Mistake(Exception):
    """Something fails in the middle of a transaction."""


def test_a_group_sees_nothing_of_an_open_or_aborted_transaction(
    mq: ws.Client, subscribe: Callable[[str], Received]
) -> None:
    root = unique("orders")
    topic, other = f"{root}.eu", f"{root}.us"
    mq.create_topic(topic, partitions=1)
    mq.create_topic(other, partitions=1)
    received = subscribe(f"{root}.*")
    with suppress(Mistake), mq.transaction(unique("tx")) as tx:
        tx.publish(topic, "aborted")
        raise Mistake
    with mq.transaction(unique("tx")) as tx:
        tx.publish(topic, "committed")
        mq.publish(other, "meanwhile")
        wait_for(lambda: "meanwhile" in received(), "what has no transaction")
        assert received() == ["meanwhile"]
    mq.publish(topic, "after")
    wait_for(lambda: "after" in received(), "what came last")
    assert received() == ["meanwhile", "committed", "after"]


def test_a_group_sees_nothing_that_a_kafka_producer_aborted(
    server: Server, mq: ws.Client, subscribe: Callable[[str], Received]
) -> None:
    topic = unique("orders")
    mq.create_topic(topic, partitions=1)
    received = subscribe(topic)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions(DEADLINE_S)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value.encode())
        assert producer.flush(DEADLINE_S) == 0
        end(DEADLINE_S)
    mq.publish(topic, "after")
    wait_for(lambda: "after" in received(), "what came last")
    assert received() == ["committed", "after"]
