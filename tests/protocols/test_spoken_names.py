"""Names of a namespace in commands, routes and views: every field that may have names in it is known to the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from waystation import protocol
from waystation.broker.access.administration.view_rows import ACTIONS, VIEWS
from waystation.errors import NotFound
from waystation.message import Delivered, Message
from waystation.protocol import (
    Answer,
    Bind,
    Cancel,
    CommitOffsets,
    DeclareQueue,
    Deliver,
    Failure,
    ListQueues,
    ListTopics,
    Publish,
    Put,
    QueueInfo,
    Redrive,
    RoutingInfo,
    Subscribe,
)
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.spoken_names import FIELDS, OF_STRUCT, THEIR_OWN, TOLD, SpokenNames
from waystation.queues.settings import QueueSettings
from waystation.routing.namespace_names import NamespaceNames

SHOP = SpokenNames(NamespaceNames("shop"))

NO_NAMES = frozenset(
    (
        "ack_id", "ack_ids", "advice", "alarm", "app_id", "apply_to", "assignor", "at", "available_at",
        "broker", "by_error", "by_protocol", "by_reason", "checkpoint", "choices", "cleanup_policy", "client",
        "client_id", "cluster_id", "connection", "connections", "consumer", "content_encoding", "content_type",
        "correlation_id", "created_at", "cursor", "data", "dead_letter_key", "deaths", "default", "definition",
        "description", "detail", "doc", "doing", "error", "expectation", "fallback", "file", "filter",
        "groups", "header", "headers_base64", "host", "inputs", "instance", "ip", "job", "key_base64", "kind",
        "last_error", "listeners", "log", "master", "mechanism", "mechanisms", "member", "messages", "metadata",
        "namespace", "next", "note", "on_fail", "only", "openapi", "operation", "own", "password",
        "payload_base64", "peer", "phase", "pipeline", "policy", "principal", "product", "protocol", "query",
        "query_id", "queue_type", "quotas", "rack", "reason", "reply_to", "resource", "result", "role",
        "routing_key", "rule", "run", "schedule", "search", "secret", "seen", "series", "settings", "sink",
        "state", "status", "table", "tag", "tags", "text", "timestamp", "trigger", "type", "ui_url", "unknown",
        "user", "user_id", "value", "verifiers", "version", "watermark", "what", "why",
    )
)  # fmt: skip
"""Texts in which there is no name of a topic, queue, exchange, group or transaction, or a name that is the same inside
and outside: of users, namespaces, nodes, inboxes and pipelines. Where a page goes on (`next`) is a full name."""


def _texts(kind: Any) -> bool:
    if isinstance(kind, inspect.StrType | inspect.AnyType):
        return True
    parts = [getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    parts += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    return any(_texts(part) for part in parts if part is not None)


def _fields(kind: Any, seen: set[type]) -> Iterator[tuple[str, str]]:
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            if _texts(field.type):
                yield kind.cls.__name__, field.name
            yield from _fields(field.type, seen)
        return
    for name in ("type", "item_type", "key_type", "value_type"):
        part = getattr(kind, name, None)
        if part is not None:
            yield from _fields(part, seen)
    for part in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from _fields(part, seen)


def _structs() -> Iterator[Any]:
    yield from (one for one in vars(protocol).values() if isinstance(one, type) and issubclass(one, msgspec.Struct))
    for row in (*VIEWS.values(), *ACTIONS.values()):
        yield from (one for one in (row.query, row.shown) if one is not None)
    for route in ROUTES:
        yield from (one for one in (route.query, route.body, route.answer, route.later) if one is not None)


def test_every_text_of_a_command_route_or_view_is_said_to_have_names_or_none() -> None:
    known = {*FIELDS, *TOLD, *THEIR_OWN, *NO_NAMES, *(field for fields in OF_STRUCT.values() for field in fields)}
    seen: set[type] = set()
    unknown = defaultdict(set)
    for struct in _structs():
        for owner, field in _fields(inspect.type_info(struct), seen):
            if field not in known:
                unknown[field].add(owner)
    assert not unknown, "say in spoken_names.py what these are, or in NO_NAMES that they have none"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (Put(queue="q", messages=[Message(b"x")]), Put(queue="shop/q", messages=[Message(b"x")])),
        (Publish(topic="t", messages=[]), Publish(topic="shop.t", messages=[])),
        (Publish(exchange="", routing_key="q", messages=[]), Publish(exchange="", routing_key="q", messages=[])),
        (ListQueues(), ListQueues(prefix="shop/")),
        (ListTopics(), ListTopics(pattern="shop.*.#")),
        (ListTopics(pattern="#.error"), ListTopics(pattern="shop.#.error")),
        (Cancel(queue="q", message_id="q#1"), Cancel(queue="shop/q", message_id="shop/q#1")),
        (Cancel(queue="q", message_id="order#1"), Cancel(queue="shop/q", message_id="order#1")),
        (Bind(exchange="x", target="topic:t"), Bind(exchange="shop/x", target="topic:shop.t")),
        (Redrive(queue="q", to="other"), Redrive(queue="shop/q", to="shop/other")),
        (CommitOffsets(group="g", offsets=[("t", 0, 1)]), CommitOffsets(group="shop/g", offsets=[("shop.t", 0, 1)])),
        (
            Subscribe(consumer=1, topics=["^a|b"], syntax="regex", group="g", dead_letter=""),
            Subscribe(consumer=1, topics=["shop\\.(?:a|b)"], syntax="regex", group="shop/g", dead_letter=""),
        ),
        (
            DeclareQueue(queue="q", settings=QueueSettings(dead_letter="topic:t", dead_letter_exchange=None)),
            DeclareQueue(queue="shop/q", settings=QueueSettings(dead_letter="topic:shop.t", dead_letter_exchange=None)),
        ),
    ],
)
def test_what_is_asked_has_full_names(asked: Any, meant: Any) -> None:
    before = msgspec.json.encode(asked)
    assert SHOP.asked(asked) == meant
    assert msgspec.json.encode(asked) == before, "what a client sent stays as it is"


def test_an_expression_that_is_none_stays_outside_of_the_group() -> None:
    asked = Subscribe(consumer=1, topics=["a)|(?:.*"], syntax="regex")
    assert SHOP.asked(asked).topics == ["a)|(?:.*"], "it is refused as it is"


def test_what_is_told_has_plain_names_and_what_clients_wrote_stays() -> None:
    death = {"queue": "shop/q", "reason": "rejected", "exchange": "shop/x"}
    message = Message(b"shop/q", headers={"own": "shop/q", "x-death": [death]}, exchange="shop/x", key=b"shop.t")
    told = SHOP.outgoing(Deliver(1, [Delivered(0, 1, 0, message, "shop.t", 0, 3)]))
    assert isinstance(told, Deliver)
    (delivered,) = told.messages
    assert (delivered.source, delivered.message.exchange, delivered.message.payload) == ("t", "x", b"shop/q")
    assert delivered.message.headers == {
        "own": "shop/q",
        "x-death": [{"queue": "q", "reason": "rejected", "exchange": "x"}],
    }
    listed = SHOP.outgoing(Answer(1, [QueueInfo("shop/shop/q", QueueSettings(dead_letter="shop/dead"))]))
    assert isinstance(listed, Answer)
    assert (listed.value[0].queue, listed.value[0].settings.dead_letter) == ("shop/q", "dead")
    routing = RoutingInfo([("shop/x", "topic", "shop/y")], [("shop/x", "queue:shop/q", "shop.key", {})])
    answer = SHOP.outgoing(Answer(1, routing))
    assert isinstance(answer, Answer)
    assert answer.value == RoutingInfo([("x", "topic", "y")], [("x", "queue:q", "shop.key", {})])
    assert SHOP.told({"topics": {"shop.t": {"partitions": 1}}}) == {"topics": {"t": {"partitions": 1}}}
    assert SHOP.told({"id": "shop/q#3", "json": {"queue": "shop/q"}}) == {"id": "q#3", "json": {"queue": "shop/q"}}
    assert SHOP.told({"id": "shop/own"}) == {"id": "shop/own"}, "a sender's own id"


def test_errors_name_what_those_inside_know() -> None:
    told = SHOP.outgoing(Failure(1, "NotFound", "there is no queue 'shop/q'; did you mean 'shop/p' or 'shop/r'?"))
    assert isinstance(told, Failure)
    assert told.text == "there is no queue 'q'; did you mean 'p' or 'r'?"
    error = SHOP.retold(NotFound("there is no topic 'shop.t'; did you mean 'shop.u'?"))
    assert str(error) == "there is no topic 't'; did you mean 'u'?"
