"""Types of messages, defaults of a client, and what a receiver reads of both, however it receives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import waystation as ws
from tests.client.conftest import Connect
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import MessageBuilder, MessageType, errors
from waystation.message import Message as Outgoing

OBJECT = {"id": 7, "list": [1, 2.5, None]}
ROUND_TRIPS = [
    ("text", "grüße", "grüße".encode(), "grüße"),
    ("text", b"bytes", b"bytes", "bytes"),
    ("json", OBJECT, b'{"id":7,"list":[1,2.5,null]}', OBJECT),
    ("json", "a text", b'"a text"', "a text"),
    ("json", b'{"a": 1}', b'{"a": 1}', {"a": 1}),  # encoded already
    ("binary", b"\x00\xff", b"\x00\xff", b"\x00\xff"),
    ("command", ["resize", "a.png"], b'["resize","a.png"]', ["resize", "a.png"]),
    ("event", "created", b'"created"', "created"),
    ("event", b'{"a": 1}', b'{"a": 1}', {"a": 1}),
    ("command", b"\x00\xff", b"\x00\xff", b"\x00\xff"),  # in a format of its own
    ("invoice", "my own type", b"my own type", "my own type"),
]


@pytest.mark.parametrize(("kind", "value", "payload", "back"), ROUND_TRIPS)
def test_a_value_is_encoded_and_decoded_by_its_type(mq: Any, kind: str, value: Any, payload: bytes, back: Any) -> None:
    queue, topic = mq.queue(unique("typed")), unique("typed")
    queue.put(value, type=kind)
    mq.publish(topic, value, type=kind)
    with mq.subscribe(topic, group=unique("g"), start="earliest") as subscription:
        for message in (queue.get(timeout=DEADLINE_S), subscription.get_message(DEADLINE_S)):
            assert (message.type, message.payload, message.value) == (kind, payload, back)
            message.ack()


@pytest.mark.parametrize("kind", list(MessageType))
def test_types_have_names(mq: Any, kind: MessageType) -> None:
    queue = mq.queue(unique("typed"))
    queue.put(b"7", type=kind)
    message = queue.get(timeout=DEADLINE_S)
    assert message.type == kind
    message.ack()


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("text", {"a": 1}, "a dict is not text, which a message of the type text has"),
        ("text", b"\xff", "no UTF-8"),
        ("binary", "a text", "a str is not bytes, which a message of the type binary has"),
        ("json", b"{", "no JSON"),
        ("command", {1, 2}, "a set"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused(mq: Any, kind: str, value: Any, said: str) -> None:
    queue = mq.queue(unique("typed"))
    for call in (queue.put, lambda given, **more: mq.publish(unique("typed"), given, **more)):
        with pytest.raises(errors.Invalid, match=f"payload: .*{said}"):
            call(value, type=kind)
    assert queue.describe().put == 0
    queue.put(b"[1]", type="json", content_type="application/protobuf")  # the content type goes before it
    message = queue.get(timeout=DEADLINE_S)
    assert (message.type, message.value) == ("json", b"[1]")
    message.ack()


def test_the_header_of_other_programs_says_the_type(server: Server) -> None:
    """They know no field for it, and no content type either."""
    http, queue = Http(server.addresses["http"]), unique("typed")
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        jobs = mq.queue(queue)
        http.put(queue, {"payload": '{"a": 1}', "headers": {"message_type": "command"}})
        http.put(queue, {"payload": "a text", "headers": {"message_type": "text"}})
        http.put(queue, {"payload": "bytes", "headers": {"message_type": "their own"}})
        got = jobs.get_many(3, timeout=DEADLINE_S)
        assert [(one.type, one.value) for one in got] == [
            ("command", {"a": 1}),
            ("text", "a text"),
            ("binary", b"bytes"),
        ]
        assert [MessageBuilder.decode_message(one) for one in got] == [{"a": 1}, "a text", b"bytes"]
        jobs.ack_many(got)


def test_a_builder_makes_messages_of_a_type(mq: Any) -> None:
    events = MessageBuilder("event", priority=5, headers={"src": "web"})
    message = events.create_message({"id": 7}, key="u1", headers={"n": "1"})
    assert (message.type, message.priority, message.key) == ("event", 5, b"u1")
    assert message.headers == {"src": "web", "n": "1", "message_type": "event"}
    assert MessageBuilder.decode_message(message) == {"id": 7}
    queue, topic = mq.queue(unique("built")), unique("built")
    text = events.create_message("hello", MessageType.TEXT)
    queue.put(message)
    queue.put_many([text])
    mq.publish(topic, message)
    with mq.transaction(unique("tx")) as tx:
        tx.put(queue, message)
    first, second, third = (queue.get(timeout=DEADLINE_S) for _ in range(3))  # by priority, which is the same
    assert [one.value for one in (first, second, third)] == [{"id": 7}, "hello", {"id": 7}]
    assert (second.type, second.headers["message_type"]) == ("text", "text")
    queue.ack_many([first, second, third])


def test_a_builder_refuses_what_is_wrong_at_once(mq: Any) -> None:
    with pytest.raises(errors.Invalid, match="type: 'pickle' is not one of text, json, binary, command, event"):
        MessageBuilder("pickle")
    with pytest.raises(errors.Invalid, match="priority"):
        MessageBuilder(priority="high")
    with pytest.raises(TypeError, match="prio"):
        MessageBuilder(prio=1)
    built = MessageBuilder().create_message({"a": 1})
    with pytest.raises(errors.Invalid, match="priority: what is sent is a message already"):
        mq.queue(unique("built")).put(built, priority=3)


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_a_client_has_a_default_priority_and_time_to_live(connect: Connect) -> None:
    mq = connect(default_priority=6, default_ttl=60)
    queue, topic = mq.queue(unique("defaults")), unique("defaults")
    exchange = mq.exchange(unique("defaults"), "fanout")
    exchange.bind(queue)
    queue.put("put")
    queue.put_many(["many"])
    queue.put_nowait("nowait")
    mq.flush()
    exchange.publish("exchange")
    with mq.transaction(unique("tx")) as tx:
        tx.put(queue, "tx")
        tx.publish(topic, "tx")
    mq.publish(topic, "publish")
    mq.publish_many(topic, ["many"])
    mq.send_ordered(topic, "k", ["ordered"])
    got = queue.get_many(10, timeout=DEADLINE_S)
    with mq.subscribe(topic, group=unique("g"), start="earliest") as subscription:
        while len(got) < 9:
            got += subscription.poll(DEADLINE_S)
        assert {(one.priority, one.ttl) for one in got} == {(6, 60.0)}
        assert len(got) == 9
    queue.put("own", priority=0, ttl=5)
    queue.put("none", ttl=None, priority=1)
    queue.put(Outgoing(b"message"))  # which says everything itself
    assert [(one.priority, one.ttl) for one in queue.get_many(3, timeout=DEADLINE_S)] == [
        (1, None),
        (0, 5.0),
        (0, None),
    ]


def test_a_request_lives_as_long_as_somebody_waits(connect: Connect) -> None:
    mq, name, seen = connect(default_ttl=3600, default_priority=2), unique("sum"), []

    def respond(message: Any) -> int:
        seen.append((message.ttl, message.priority))
        return 7

    mq.queue(name)
    mq.respond(name)(respond)
    assert mq.request(name, "x", timeout=20).json() == 7
    assert seen == [(20.0, 2)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"default_priority": 256}, "default_priority: 256 is not between 0 and 255"),
        ({"default_priority": "high"}, "default_priority: 'high' is not a whole number"),
        ({"default_ttl": 0}, "default_ttl"),
        ({"default_ttl": -1}, "default_ttl"),
    ],
)
def test_wrong_defaults_are_refused_by_their_names(connect: Connect, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        connect(**options)


# -- what a receiver reads ---------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"type": "command", "ttl": 60, "max_deliveries": 3, "priority": 4}
READ = ("command", 60.0, 3, 4)


def of(message: Any) -> tuple[Any, ...]:
    return (message.type, message.ttl, message.max_deliveries, message.priority)


def _handled(mq: Any, **where: Any) -> Callable[[], Any]:
    got: list[Any] = []

    def handle(message: Any) -> None:
        got.append(of(message))

    mq.on(**where)(handle)

    def wait() -> Any:
        wait_for(lambda: got, "the handler is called")
        mq.off(handle)
        return got[0]

    return wait


def test_a_receiver_reads_type_ttl_and_limit_from_a_queue(mq: Any) -> None:
    queue = mq.queue(unique("read"))
    queue.put_many([OBJECT] * 2, **OPTIONS)
    looked = queue.peek(1)[0]
    assert of(looked) == READ
    message = queue.get(timeout=DEADLINE_S)
    assert of(message) == READ
    message.ack()
    with queue.consume() as consumer:
        message = consumer.get_message(DEADLINE_S)
        assert of(message) == READ
        message.ack()
    wait = _handled(mq, queue=queue.name)
    queue.put(OBJECT, **OPTIONS)
    assert wait() == READ


@pytest.mark.parametrize(
    "options", [{}, {"group": "g"}, {"group": "g", "mode": "stream"}], ids=["live", "shared", "stream"]
)
def test_a_receiver_reads_type_ttl_and_limit_from_a_topic(mq: Any, options: dict[str, Any]) -> None:
    topic = unique("read")
    mq.create_topic(topic, 1)
    if "group" in options:
        options = {**options, "group": unique("g")}
    with mq.subscribe(topic, **options) as subscription:
        mq.publish(topic, OBJECT, **OPTIONS)
        message = subscription.get_message(DEADLINE_S)
        assert of(message) == READ
        message.ack()
    wait = _handled(mq, patterns=topic, **options)
    if hasattr(mq, "ready"):
        mq.ready()
    mq.publish(topic, OBJECT, **OPTIONS)
    assert wait() == READ
    assert of(mq.find(f"{topic}-0@0")) == READ


def test_a_websocket_client_reads_type_ttl_and_limit(server: Server) -> None:
    http, name = Http(server.addresses["http"]), unique("read")
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        queue = mq.queue(name)
        mq.create_topic(name, 1)
        queue.put(OBJECT, **OPTIONS)
        mq.publish(name, OBJECT, **OPTIONS)
        paths: list[tuple[str, dict[str, str]]] = [
            (f"/v1/queues/{name}/stream", {}),
            ("/v1/subscriptions/stream", {"topic": name, "history": "1"}),
            ("/v1/subscriptions/stream", {"topic": name, "mode": "shared", "group": unique("g"), "start": "earliest"}),
            ("/v1/subscriptions/stream", {"topic": name, "mode": "stream", "group": unique("g"), "start": "earliest"}),
        ]
        for path, query in paths:
            with http.socket(path, **query) as socket:
                [message] = json.loads(socket.connection.recv(timeout=DEADLINE_S))["messages"]
            fields = ("type", "ttl_ms", "max_deliveries", "priority")
            assert tuple(message[field] for field in fields) == ("command", 60_000, 3, 4), path
