"""What groups of subscribers are promised, seen through the clients that users have: Python, JSON lines, HTTP.

A group reads what is committed, whoever publishes. What a group fails to handle is retried, and goes to a dead-letter
queue in the end, also if nobody has named one. What is redriven from there reaches that group alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pytest
from confluent_kafka import Producer

import waystation as ws
from tests.protocols.http.kit import Http
from tests.protocols.native.plain_client import MessageConsumer
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import errors
from waystation.queues.redriven import redrive_topic

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


# -- failures ----------------------------------------------------------------------------------------------------------


def test_what_a_handler_fails_to_handle_is_in_a_dead_letter_queue_in_the_end(mq: ws.Client) -> None:
    """Nobody has to name the queue, nor to create it."""
    topic, group = unique("orders"), unique("billing")
    tries: list[tuple[int, float]] = []

    def fail(message: ws.Message) -> None:
        tries.append((message.deliveries, time.monotonic()))
        raise ValueError("no such customer")

    mq.create_topic(topic, partitions=1)
    mq.on(topic, group=group, max_deliveries=2)(fail)
    mq.publish(topic, "order 7")
    wait_for(lambda: f"{topic}.{group}.dead" in [info.queue for info in mq.queues()], "a dead-letter queue")
    mq.off(fail)
    with mq.queue(f"{topic}.{group}.dead").get(timeout=DEADLINE_S) as letter:
        assert letter.text() == "order 7"
        failure = letter.deaths[0]
    assert (failure["queue"], failure["group"], failure["reason"]) == (f"topic:{topic}", group, "delivery-limit")
    assert "no such customer" in failure["error"]
    assert [count for count, _ in tries] == [1, 2]
    assert tries[1][1] - tries[0][1] >= 0.9  # seconds: it backs off as a queue does


def test_what_a_group_gave_up_is_among_the_dead_letters(server: Server, mq: ws.Client) -> None:
    topic, group, named = unique("orders"), unique("billing"), unique("named")
    mq.create_topic(topic, partitions=1)
    for name, target in ((group, None), (named, unique("morgue"))):
        subscription = mq.subscribe(topic, start="earliest", group=name, dead_letter=target)
        mq.publish(topic, "x")
        message = subscription.get_message(timeout=DEADLINE_S)
        assert message is not None
        message.kill("broken")
        subscription.close()
    http = Http(server.addresses["http"])

    def sources() -> dict[str, list[str]]:
        rows = http("GET", "/v1/dead-letters", limit=1000).json["dead_letters"]
        return {row["target"]: row["sources"] for row in rows}

    wait_for(lambda: sources().get(f"{topic}.{group}.dead") == [f"group:{group}"], "the default queue in the list")
    assert [f"group:{named}"] in sources().values()


def test_json_lines_dead_letters_what_is_rejected_too_often(server: Server, mq: ws.Client) -> None:
    topic, name = unique("orders"), unique("billing")
    mq.create_topic(topic, partitions=1)
    consumer = MessageConsumer(name, *split_address(server.bootstrap))
    assert consumer.subscribe(topic)
    sent = {"id": "x-1", "topic": topic, "payload": "x", "max_retries": 0}
    answer = consumer.send_command({"action": "publish", "message": sent})
    assert answer is not None
    assert answer["status"] == "success"
    [message] = wait_for(consumer.consume, "the message")
    assert consumer.reject_message(message["id"])
    with mq.queue(f"{topic}.{name}.dead").get(timeout=DEADLINE_S) as letter:
        assert (letter.id, letter.deaths[0]["reason"]) == ("x-1", "delivery-limit")
    consumer.disconnect()


@pytest.mark.parametrize("mode", ["shared", "stream"])
def test_a_messages_own_limit_holds_in_a_topic(mq: ws.Client, mode: Literal["shared", "stream"]) -> None:
    topic, group = unique("orders"), unique("billing")
    mq.create_topic(topic, partitions=1)
    mq.publish(topic, "once", max_deliveries=1)
    with mq.subscribe(topic, group=group, mode=mode, start="earliest", max_deliveries=0) as subscription:
        message = subscription.get_message(timeout=DEADLINE_S)
        assert message is not None
        message.reject("no")
        with mq.queue(f"{topic}.{group}.dead").get(timeout=DEADLINE_S) as letter:
            assert (letter.text(), letter.deaths[0]["deliveries"]) == ("once", 1)


@pytest.mark.parametrize("option", [{"max_deliveries": 3}, {"dead_letter": "morgue"}])
def test_a_live_subscription_has_nothing_that_fails(server: Server, mq: ws.Client, option: dict[str, Any]) -> None:
    [name] = option
    with pytest.raises(errors.Invalid, match=name):
        mq.subscribe(unique("news"), **option).get_message(timeout=1)
    http = Http(server.addresses["http"])
    answer = http("POST", "/v1/subscriptions/stream", topic="news", **option, ok=False)
    assert (answer.status, answer.json["field"]) == (400, name)


@pytest.mark.parametrize("mode", ["shared", "stream"])
@pytest.mark.parametrize("there", [True, False], ids=["subscribed", "away"])
def test_a_dead_letter_is_redriven_to_its_group_alone(
    server: Server, mq: ws.Client, mode: Literal["shared", "stream"], there: bool
) -> None:
    """Whether the group has a member at that moment or not. It dies again as it did the first time."""
    topic, group, other = unique("orders"), unique("billing"), unique("audit")
    mq.create_topic(topic, partitions=1)
    mq.publish(topic, "order 7", key="k", headers={"h": "v"})
    with mq.subscribe(topic, group=other, mode=mode, start="earliest") as bystander:
        assert _next(bystander).text() == "order 7"
        live = mq.subscribe(topic)
        billing = mq.subscribe(topic, group=group, mode=mode, start="earliest")
        _next(billing).kill("no such customer")
        dead = mq.queue(f"{topic}.{group}.dead")
        wait_for(lambda: len(dead) == 1, "a dead letter")
        wait_for(lambda: mq.view("group", group=group)["lag"] == 0, "it is done in the topic")
        if not there:
            billing.close()
        http = Http(server.addresses["http"])
        dry = http("POST", f"/v1/dead-letters/{dead.name}/redrive", {"dry_run": True}).json
        assert dry["targets"] == {f"group:{group}": 1}
        answer = dead.redrive()
        assert (answer.moved, answer.skipped, len(dead)) == (1, 0, 0)
        if not there:
            billing = mq.subscribe(topic, group=group, mode=mode)
        again = _next(billing)
        assert (again.text(), again.topic, again.key, again.headers["h"]) == ("order 7", topic, "k", "v")
        assert (again.deliveries, again.deaths[0]["error"]) == (1, "no such customer")
        _shows_no_names_of_the_brokers_own(http, group)
        again.kill("still no such customer")
        wait_for(lambda: len(dead) == 1, "it is dead again")
        [letter] = dead.peek(1)
        assert (letter.deaths[0]["queue"], letter.deaths[0]["count"]) == (f"topic:{topic}", 2)
        assert letter.deaths[0]["offset"] == 0
        billing.close()
        mq.publish(topic, "order 8")
        assert _next(bystander).text() == "order 8"
        assert _next(live).text() == "order 8"


def _shows_no_names_of_the_brokers_own(http: Http, group: str) -> None:
    """What is redriven is a number; the topic that it is in is shown to who asks for it."""
    for path in (
        "groups",
        f"groups/{group}",
        "topics",
        "queues",
        "subscriptions",
        "delayed",
        "dead-letters",
        "overview",
    ):
        assert "__" not in http("GET", f"/v1/{path}").body.decode(), path
    shown = http("GET", f"/v1/groups/{group}").json
    assert shown["lag"] == shown["redriven"] >= 1  # a stream counts the marker of the redrive's transaction, too
    assert "__redrive-" in http("GET", f"/v1/groups/{group}", internal="true").body.decode()


@pytest.mark.parametrize("mode", ["shared", "stream"])
def test_a_deleted_group_takes_what_was_redriven_to_it_along(
    server: Server, mq: ws.Client, mode: Literal["shared", "stream"]
) -> None:
    """Another group of its name does not get it. What it gave up before stays in the dead-letter queue."""
    topic, group = unique("orders"), unique("billing")
    mq.create_topic(topic, partitions=1)
    mq.publish_many(topic, ["order 7", "order 8"])
    with mq.subscribe(topic, group=group, mode=mode, start="earliest") as billing:
        dead = mq.queue(f"{topic}.{group}.dead")
        for number in (1, 2):
            _next(billing).kill("no")
            wait_for(lambda: len(dead) == number, "dead letters")  # noqa: B023
    assert dead.redrive(limit=1).moved == 1
    Http(server.addresses["http"])("DELETE", f"/v1/groups/{group}")
    assert dead.redrive().skipped == 1
    with mq.subscribe(topic, group=group, mode=mode, start="latest") as billing, mq.subscribe(topic) as live:
        assert dead.redrive(to=f"topic:{topic}").moved == 1
        assert _next(billing).text() == "order 8"
        assert _next(live).text() == "order 8"


def test_nobody_else_writes_to_where_redriven_messages_are(mq: ws.Client) -> None:
    topic, group = unique("orders"), unique("billing")
    mq.create_topic(topic, partitions=1)
    mq.publish(topic, "x")
    with mq.subscribe(topic, group=group, start="earliest") as billing:
        _next(billing).kill("no")
        dead = mq.queue(f"{topic}.{group}.dead")
        wait_for(lambda: dead.redrive().moved, "a dead letter to redrive")
        assert _next(billing).text() == "x"
        with pytest.raises(errors.NotAllowed, match="broker's own"):
            mq.publish(redrive_topic(group), "y")
        assert redrive_topic(group) not in [info.topic for info in mq.topics()]
        [line] = mq.view("groups", search=group)["groups"]
        assert (line["topics"], line["lag"]) == ([topic], 1)


def _next(subscription: Any) -> ws.Message:
    message: ws.Message | None = subscription.get_message(timeout=DEADLINE_S)
    assert message is not None
    return message
