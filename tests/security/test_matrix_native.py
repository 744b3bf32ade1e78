"""Every command of the native protocol, every view and action, and every plain action, in the matrix of permissions
(`matrix_kit.py`), as JSON lines to the listener. The tables of commands say which there are: one without a row fails.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.security.matrix_kit import ADMIN, ALICE, PASSWORD, SECRET, Row, Stage, Told, Walk, right, run, stage
from tests.support.ports import split_address
from waystation.broker.access.administration.view_rows import ACTIONS, VIEWS, Listing
from waystation.broker.access.administration.view_rows import Row as ViewRow
from waystation.log.batches import batch as batches
from waystation.protocols.native.commands import requests
from waystation.protocols.native.plain_actions.plain import FIELDS
from waystation.protocols.native.session import CALLS

READ_Q, DESCRIBE_Q, READ_T, DESCRIBE_T = (
    "read queue jobs",
    "describe queue jobs",
    "read topic orders",
    "describe topic orders",
)
READ_G, WRITE_X, LOOK, OPERATE = "read group group", "write transactional-id tx", "describe cluster", "alter cluster"
QUEUE: dict[str, Any] = {"queue": "secret-jobs"}
TOPIC: dict[str, Any] = {"topic": "secret-orders"}
ANY_X = "write transactional-id *"
EXCHANGE: dict[str, Any] = {"exchange": "secret-events"}
MESSAGES: dict[str, Any] = {"messages": [{"payload": "x"}]}
POSITIONS: dict[str, Any] = {"positions": [["secret-orders", 0, 0]]}
OFFSETS: dict[str, Any] = {"group": "secret-group", "offsets": [["secret-orders", 0, 0]]}
BATCH = base64.b64encode(bytes(batches.build([(None, b"x", ())], 1_772_366_400_000))).decode()
BEGIN = {"action": "begin", "transactional_id": "secret-tx"}
RULE = {"principal": "User:secret-bob", "operation": "read", "resource": "topic", "name": "new"}

COMMANDS: dict[str, Row] = {
    "hello": Row("", {"version": 99}, anybody=True, fails=True),
    "authenticate": Row("", {"data": ""}, anybody=True, fails=True),
    "ping": Row(anybody=True),
    "ask_node": Row(OPERATE, {"request": ""}, fails=True),
    "declare_queue": Row("create queue new", {"queue": "secret-new"}),
    "declare_queue #passive": Row(DESCRIBE_Q, {**QUEUE, "passive": True}),
    "declare_queue #altered": Row("create queue jobs", {**QUEUE, "alter": True, "settings": {"max_length": 5}}),
    "declare_queue #with dead letters": Row(
        "create queue new; read queue new; write queue dead",
        {"queue": "secret-new", "settings": {"dead_letter": "secret-dead"}},
    ),
    "delete_queue": Row("delete queue jobs", QUEUE),
    "purge_queue": Row(READ_Q, QUEUE),
    "describe_queue": Row(DESCRIBE_Q, QUEUE),
    "list_queues": Row("", shows=DESCRIBE_Q),
    "put": Row("write queue jobs", {**QUEUE, **MESSAGES}),
    "put #in a transaction": Row("write queue jobs", [BEGIN, {**QUEUE, **MESSAGES, "tx": 1}], before=ANY_X),
    "get": Row(READ_Q, QUEUE),
    "peek": Row(READ_Q, QUEUE),
    "find": Row(READ_Q, {**QUEUE, "message_id": "secret-id"}),
    "find #in a topic": Row(READ_T, {**TOPIC, "message_id": "secret-id"}),
    "find #anywhere": Row("read queue *; read topic *", {"message_id": "nothing"}),
    "cancel": Row(READ_Q, {**QUEUE, "message_id": "secret-id"}),
    "redrive": Row("read queue dead; write queue jobs", {"queue": "secret-dead", "to": "secret-jobs"}),
    "redrive #to a topic": Row(
        "read queue dead; write topic orders", {"queue": "secret-dead", "to": "topic:secret-orders"}
    ),
    "consume_queue": Row(READ_Q, {**QUEUE, "consumer": 1}),
    "subscribe_topics": Row(READ_T, {"topics": ["secret-orders"], "consumer": 1}),
    "subscribe_topics #in a group": Row(
        f"{READ_T}; read group stream",
        {"topics": ["secret-orders"], "consumer": 1, "mode": "stream", "group": "secret-stream"},
    ),
    "subscribe_topics #a regex": Row("read topic *", {"topics": ["secret-.*"], "syntax": "regex", "consumer": 1}),
    # What a session has opened is its own: to use it needs no right, and nothing else can be named.
    "credit": Row("", {"consumer": 1, "count": 1}),
    "settle": Row("", {"consumer": 1, "tags": [1]}, fails=True),
    "touch": Row("", {"consumer": 1, "tags": [1]}, fails=True),
    "cease": Row("", {"consumer": 1}, fails=True),
    "open_reader": Row(READ_Q, {**QUEUE, "consumer": 1}),
    "claim_entries": Row("", {"consumer": 1}, fails=True),
    "read_entries": Row(READ_Q, {**QUEUE, "runs": [[0, 1]]}),
    "read_batches": Row(READ_T, POSITIONS),
    "await_records": Row(READ_T, POSITIONS),
    "join_group": Row(
        f"{READ_T}; read group member", {"consumer": 1, "group": "secret-member", "topics": ["secret-orders"]}
    ),
    "group_assignment": Row("", {"consumer": 1}, fails=True),
    "publish_messages": Row("write topic orders", {**TOPIC, **MESSAGES}, compare=False),
    "publish_messages #to a new topic": Row("write topic new; create topic new", {"topic": "secret-new", **MESSAGES}),
    "publish_messages #through an exchange": Row("write exchange events", {**EXCHANGE, **MESSAGES, "routing_key": "k"}),
    "publish_messages #to the default exchange": Row(
        "write queue jobs",
        {"exchange": "", **MESSAGES, "routing_key": "secret-jobs"},
        either="write exchange =amq.default",
    ),
    "create_topic": Row("create topic new; describe topic new", {"topic": "secret-new"}),
    "delete_topic": Row("delete topic orders", TOPIC),
    "describe_topic": Row(DESCRIBE_T, TOPIC),
    "describe_topic #created": Row("describe topic new; create topic new", {"topic": "secret-new", "create": True}),
    "list_topics": Row("", shows=DESCRIBE_T),
    "declare_exchange": Row("create exchange new", {"exchange": "secret-new"}),
    "declare_exchange #passive": Row("describe exchange events", {**EXCHANGE, "passive": True}),
    "delete_exchange": Row("delete exchange events", EXCHANGE),
    "bind": Row("read exchange events; write queue jobs", {**EXCHANGE, "target": "queue:secret-jobs", "key": "k"}),
    "unbind": Row("read exchange events; write queue jobs", {**EXCHANGE, "target": "queue:secret-jobs", "key": "k"}),
    "list_routing": Row("", shows="describe exchange events"),
    "route": Row("describe exchange events", {**EXCHANGE, "message": {"payload": "x"}}),
    "open_inbox": Row("", {"consumer": 1}),
    "reply": Row("", {"to": "_inbox.nobody", "message": {"payload": "x"}}),
    "begin": Row(WRITE_X, {"transactional_id": "secret-tx"}),
    "commit_offsets": Row(f"{READ_G}; {READ_T}", OFFSETS),
    "commit_offsets #in a transaction": Row(f"{READ_G}; {READ_T}", [BEGIN, {**OFFSETS, "tx": 1}], before=ANY_X),
    "end": Row("", {"tx": 1}, fails=True),
    "publish_batches": Row("write topic orders", {**TOPIC, "batches": [[0, BATCH]]}, compare=False),
    "publish_batches #in a transaction": Row(
        "write topic orders", [BEGIN, {**TOPIC, "batches": [[0, BATCH]], "tx": 1}], before=ANY_X, compare=False
    ),
    "stage": Row("", {"tx": 1}, fails=True),
    "commit_staged": Row(
        "write transactional-id name; write transactional-id tx",
        {"name": "secret-name", "sequence": 1, "staged": [["secret-tx", 1, 0]]},
        fails=True,
    ),
    "abort_staged": Row("write transactional-id tx…", {"prefix": "secret-tx"}),
    "abort_staged #by name": Row(WRITE_X, {"staged": [["secret-tx", 1, 0]]}),
    "staged_position": Row("describe transactional-id name", {"name": "secret-name"}),
    "end_connection": Row(OPERATE, {"connection": "secret-connection"}, fails=True),
    "alter_settings": Row("alter-configs cluster", {"settings": {"log.cleaner.backoff.ms": 20_000}}),
}  # fmt: skip

VIEW_ROWS: dict[str, Row] = {
    "audit": Row("read topic =__audit"),
    "acls": Row(LOOK),
    "overview": Row(LOOK),
    "history": Row(LOOK),
    "cluster": Row(LOOK),
    "partitions": Row(LOOK),
    "connections": Row(LOOK),
    "connection": Row(LOOK, {"connection": "secret-connection"}, fails=True),
    "consumers": Row(DESCRIBE_Q, QUEUE),
    "dead-letters": Row("", shows="describe queue dead"),
    "dead-letter-messages": Row(READ_Q, QUEUE),
    "dead-letter-summary": Row(READ_Q, QUEUE),
    "delayed": Row("read queue *"),
    "delayed #of a queue": Row(READ_Q, QUEUE),
    "groups": Row("", shows="describe group group"),
    "group": Row("describe group group", {"group": "secret-group"}),
    "jobs": Row(LOOK),
    "job": Row(LOOK, {"job": "secret-job"}, fails=True),
    "namespaces": Row("", shows="describe namespace shop"),
    "namespace": Row("describe namespace shop", {"namespace": "secret-shop"}),
    "policies": Row("", shows="describe namespace shop"),
    "policies #of a namespace": Row("describe namespace shop", {"namespace": "secret-shop"}),
    "policy": Row("describe namespace shop", {"namespace": "secret-shop", "policy": "secret-policy"}),
    "pipelines": Row(LOOK),
    "pipeline": Row(LOOK, {"pipeline": "secret-pipeline"}, fails=True),
    "queues": Row("", shows=DESCRIBE_Q),
    "quotas": Row("describe-configs cluster"),
    "queue": Row(DESCRIBE_Q, QUEUE),
    "exchanges": Row("", shows="describe exchange events"),
    "bindings": Row("describe exchange events", EXCHANGE, shows=DESCRIBE_Q),
    "routing": Row("", shows="describe exchange events"),
    "search": Row(READ_T, {**TOPIC, "text": "x"}),
    "settings": Row("describe-configs cluster"),
    "topics": Row("", shows=DESCRIBE_T),
    "topic": Row(DESCRIBE_T, TOPIC),
    "topic-offsets": Row(DESCRIBE_T, {**TOPIC, "at": "earliest"}),
    "topic-settings": Row("describe-configs topic orders", TOPIC),
    "keys": Row(LOOK),
    "users": Row(LOOK),
}

ACTION_ROWS: dict[str, Row] = {
    "add-acls": Row(OPERATE, {"acls": [RULE]}),
    "remove-acls": Row(OPERATE, {"acls": [RULE]}),
    "add-key": Row(OPERATE, {"user": "secret-bob"}),
    "remove-key": Row(OPERATE, {"key": "secret-key"}),
    "add-user": Row(OPERATE, {"user": "secret-new", "password": "first"}),
    "remove-user": Row(OPERATE, {"user": "secret-bob"}),
    "set-password": Row(OPERATE, {"user": "secret-bob", "password": "second"}),
    "alter-topic": Row("alter-configs topic orders", {**TOPIC, "settings": {"retention.ms": "100000"}}),
    "alter-topic #partitions": Row("alter-configs topic orders; alter topic orders", {**TOPIC, "partitions": 1}),
    "cancel-delayed": Row("alter topic orders", {**TOPIC, "id": "secret-late"}, fails=True),
    "cancel-job": Row(OPERATE, {"job": "secret-job"}, fails=True),
    "delete-records": Row("delete topic orders", {**TOPIC, "before_offset": -1}),
    "drain-node": Row(OPERATE, {"node": 9}, fails=True),
    "elect-leaders": Row(OPERATE),
    "reassign": Row(OPERATE, {"replication_factor": 1}),
    "remove-node": Row(OPERATE, {"node": 9}, fails=True),
    "redrive": Row("read queue dead; write queue jobs", {"queue": "secret-dead", "to": "secret-jobs"}),
    "reset-group": Row("alter group group", {"group": "secret-group", "to": "earliest", **TOPIC}),
    "delete-group": Row("delete group group", {"group": "secret-group"}),
    "set-namespace": Row("create namespace shop", {"namespace": "secret-shop", "max_queues": 9}),
    "delete-namespace": Row("delete namespace shop", {"namespace": "secret-shop"}),
    "set-policy": Row(
        "alter namespace shop",
        {"namespace": "secret-shop", "policy": "secret-policy", "pattern": "^never", "definition": {"max-length": 2}},
    ),
    "delete-policy": Row("alter namespace shop", {"namespace": "secret-shop", "policy": "secret-policy"}),
    "set-quotas": Row("alter-configs cluster", {"user": "secret-bob", "quotas": {"producer_byte_rate": 10**9}}),
    "remove-quotas": Row("alter-configs cluster", {"user": "secret-bob"}),
    "start-pipeline": Row(OPERATE, {"pipeline": "secret-pipeline"}, fails=True),
    "stop-pipeline": Row(OPERATE, {"pipeline": "secret-pipeline"}, fails=True),
}

SUBSCRIPTION = {"id": "matrix", "topic_pattern": "secret-orders", "consumer_id": "secret-consumer"}
PLAIN: dict[str, Row] = {
    "publish": Row("write topic orders", {"message": {"topic": "secret-orders", "payload": "x"}}, compare=False),
    "subscribe": Row(f"{READ_T}; read group consumer", {"subscription": SUBSCRIPTION}),
    "unsubscribe": Row("", {"subscription_id": "nothing"}, fails=True),
    "consume": Row("", {"consumer_id": "secret-nobody"}),
    "ack": Row("", {"consumer_id": "secret-nobody", "message_id": "1"}, fails=True),
    "reject": Row("", {"consumer_id": "secret-nobody", "message_id": "1"}, fails=True),
    "stats": Row(LOOK),
}

ROWS = {
    **COMMANDS,
    **{f"view {verb}": row for verb, row in VIEW_ROWS.items()},
    **{f"act {verb}": row for verb, row in ACTION_ROWS.items()},
    **PLAIN,
}


def verbs() -> set[str]:
    """`view` and `act` are as many verbs as there are views and actions."""
    commands = {verb for verb in CALLS.values() if verb not in ("view", "act")}
    return {*commands, *FIELDS, *(f"view {one}" for one in VIEWS), *(f"act {one}" for one in ACTIONS)}


def lines_of(verb: str, row: Row) -> list[dict[str, Any]]:
    kind, _, what = verb.partition(" ")
    if what:
        return [{"action": kind, "what": what, "query": row.request or {}}]
    first, last = ([], row.request) if not isinstance(row.request, list) else (row.request[:-1], row.request[-1])
    return [*first, {"action": verb, **(last or {})}]


async def ask(stage: Stage, who: str | None, verb: str, row: Row, names: str) -> Told:
    reader, writer = await asyncio.open_connection(*split_address(stage.addresses["kafka"]))

    async def say(line: dict[str, Any]) -> dict[str, Any]:
        writer.write(json.dumps(line).replace(SECRET, names).encode() + b"\n")
        while True:
            answer = json.loads(await asyncio.wait_for(reader.readline(), 20))
            if answer.get("kind") not in ("deliver", "ceased"):
                return dict(answer)

    try:
        if who is not None:
            await say({"action": "hello", "id": 1, "user": who, "password": PASSWORD})
        answer: dict[str, Any] = {}
        for number, line in enumerate(lines_of(verb, row), 2):
            answer = await say({"id": number, **line})
        text = json.dumps(answer)
    finally:
        writer.close()
    error = str(answer.get("error") or "")
    if answer.get("status") != "error" and not error:
        return Told("done", text)
    if "NotAuthenticated" in text and who is None:
        return Told("nobody", text)
    return Told("refused" if "may not" in text else "failed", text)


def test_every_command_view_and_action() -> None:
    walk = Walk(ask, verbs(), ROWS)
    run(walk)
    print(f"{len(verbs())} verbs, {walk.cases} cases")
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.cases > 500


def test_a_verb_without_a_row_fails_and_so_does_one_that_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unasked(broker: Any, query: Any, sight: Any) -> None:
        await broker.users.remove(query.user)

    row: Any = ACTIONS["remove-user"]
    monkeypatch.setitem(
        ACTIONS, "forget-user", ViewRow(row.query, Listing(unasked, VIEWS["queues"].lists), None, VIEWS["queues"].asks)
    )
    assert "act forget-user" in verbs()
    walk = Walk(ask, {"act forget-user"}, {})
    run(walk)
    assert walk.wrong == ["act forget-user: there is no row that says what it needs"]
    walk = Walk(ask, {"act forget-user"}, {"act forget-user": Row(OPERATE, {"user": "secret-bob"})})
    run(walk)
    assert "act forget-user, without a right: it was done" in walk.wrong


def test_a_command_that_asks_nobody_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(session: Any, command: Any) -> Any:
        return session.broker.queues.purge(command.queue)

    monkeypatch.setitem(requests.HANDLERS, type_of("purge_queue"), unasked)
    walk = Walk(ask, {"purge_queue"}, {"purge_queue": COMMANDS["purge_queue"]})
    run(walk)
    assert "purge_queue, without a right: it was done" in walk.wrong


def test_a_subscription_of_another_user_can_be_neither_ended_nor_replaced() -> None:
    async def story() -> None:
        async with stage() as found:
            await found.prepare()
            assert (await ask(found, ADMIN, "subscribe", PLAIN["subscribe"], SECRET)).kind == "done"
            assert (await ask(found, ALICE, "subscribe", PLAIN["subscribe"], SECRET)).kind == "refused"
            end = Row("", {"subscription_id": "matrix"})
            assert (await ask(found, ALICE, "unsubscribe", end, SECRET)).kind == "failed"
            assert (await ask(found, ADMIN, "unsubscribe", end, SECRET)).kind == "done"

    asyncio.run(story())


def test_a_right_to_one_transaction_is_none_to_all_whose_names_begin_so() -> None:
    async def story() -> None:
        async with stage() as found:
            await found.allow([right("write transactional-id tx")])
            row = COMMANDS["abort_staged"]
            assert (await ask(found, ALICE, "abort_staged", row, SECRET)).kind == "refused"

    asyncio.run(story())


def type_of(action: str) -> type:
    return next(kind for kind, name in CALLS.items() if name == action)
