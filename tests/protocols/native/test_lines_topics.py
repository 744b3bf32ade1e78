"""Publish and subscribe, shown with nothing but a socket and JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for


def _publish(lines: JsonLines, topic: str, *payloads: str, **fields: Any) -> dict[str, Any]:
    answer = lines.ask("publish_messages", topic=topic, messages=[{"payload": each} for each in payloads], **fields)
    assert isinstance(answer, dict)
    return answer


def _subscribe(lines: JsonLines, consumer: int, *topics: str, **fields: Any) -> dict[str, Any]:
    answer = lines.ask("subscribe_topics", consumer=consumer, topics=list(topics), **{"credit": 1000, **fields})
    assert isinstance(answer, dict)
    return answer


def _payloads(lines: JsonLines, count: int) -> list[str]:
    return [message["payload"] for message in lines.delivered(count)]


# -- topics themselves -------------------------------------------------------------------------------------------------


def test_topics_are_made_described_listed_and_deleted(lines: JsonLines) -> None:
    topic = unique("t")
    info = lines.ask("create_topic", topic=topic, partitions=2, settings={"retention.ms": "3600000"})
    assert (info["topic"], len(info["partitions"]), info["settings"]) == (topic, 2, {"retention.ms": "3600000"})
    _publish(lines, topic, "a", "b", partition=1)
    start, end, size = lines.ask("describe_topic", topic=topic)["partitions"][1]
    assert (start, end) == (0, 2)
    assert size > 0
    assert topic in [info["topic"] for info in lines.ask("list_topics")]
    assert [info["topic"] for info in lines.ask("list_topics", pattern=topic)] == [topic]
    assert lines.refusal("create_topic", topic=topic).kind == "AlreadyExists"
    lines.ask("delete_topic", topic=topic)
    assert lines.refusal("describe_topic", topic=topic).kind == "NotFound"


def test_a_publish_says_where_it_went(lines: JsonLines) -> None:
    topic = unique("t")
    assert _publish(lines, topic, "a", "b")["places"] == [[topic, 0, 0]]
    assert _publish(lines, topic, "c")["places"] == [[topic, 0, 2]]
    assert _publish(lines, topic, "d", acks="written")["places"] == [[topic, 0, 3]]
    lines.send("publish_messages", topic=topic, message={"payload": "e"}, acks="none")
    assert lines.ask("ping") is None
    assert lines.ask("describe_topic", topic=topic)["partitions"][0][:2] == [0, 5]


def test_publishes_that_make_their_topic_keep_their_order(lines: JsonLines) -> None:
    topic = unique("t")
    for i in range(20):
        lines.send("publish_messages", topic=topic, message={"payload": str(i)})
    assert [lines.answer()["value"]["places"] for _ in range(20)] == [[[topic, 0, i]] for i in range(20)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "topic"),
        ({"topic": "a", "exchange": "b"}, "topic"),
        ({"topic": "not/valid"}, "name"),
        ({"topic": "__queues"}, "__queues"),
    ],
)
def test_a_publish_to_nowhere_is_refused(lines: JsonLines, fields: dict[str, str], said: str) -> None:
    refused = lines.refusal("publish_messages", message={"payload": "x"}, **fields)
    assert refused.kind in ("Invalid", "InvalidTopicName", "NotAllowed")
    assert said in refused.text


# -- P1 ----------------------------------------------------------------------------------------------------------------


def test_patterns_pick_up_topics_that_come_later(lines: JsonLines, other: JsonLines) -> None:
    root = unique("p1")
    _publish(other, f"{root}.eu", "before")
    answer = _subscribe(lines, 1, f"{root}.*")
    assert answer["topics"] == [f"{root}.eu"]
    _publish(other, f"{root}.eu", "a")
    assert _payloads(lines, 1) == ["a"]
    _publish(other, f"{root}.us", "b")
    _publish(other, f"{root}.us.deep", "not this")
    (message,) = lines.delivered(1)
    assert (message["payload"], message["source"]) == ("b", f"{root}.us")
    _subscribe(lines, 2, f"{root}.#")
    _publish(other, f"{root}.us.deep", "c")
    push = lines.push()
    assert (push["consumer"], push["messages"][0]["payload"]) == (2, "c")


def test_regular_expressions(lines: JsonLines, other: JsonLines) -> None:
    root = unique("p1")
    _subscribe(lines, 1, f"{root}-[ab]", syntax="regex")
    for name in "cab":
        _publish(other, f"{root}-{name}", name)
    assert _payloads(lines, 2) == ["a", "b"]
    assert lines.refusal("subscribe_topics", consumer=2, topics=["("], syntax="regex").kind in (
        "Invalid",
        "InvalidPattern",
    )


def test_unsubscribe_while_running(lines: JsonLines, other: JsonLines) -> None:
    topic = unique("p1")
    _subscribe(lines, 1, topic)
    _publish(other, topic, "a")
    assert _payloads(lines, 1) == ["a"]
    lines.ask("cease", consumer=1)
    _publish(other, topic, "b")
    assert lines.ask("ping") is None
    assert not lines.pushes


# -- P2 ----------------------------------------------------------------------------------------------------------------


def test_a_shared_subscription_keeps_its_place(server: Server, lines: JsonLines) -> None:
    topic, group = unique("p2"), unique("g")
    _publish(lines, topic, *"abcd")
    with JsonLines(server.bootstrap) as first:
        _subscribe(first, 1, topic, mode="shared", group=group, start="earliest", credit=2)
        a, _ = first.delivered(2)
        assert a["payload"] == "a"
        first.ask("settle", consumer=1, tags=[a["tag"]])
    _subscribe(lines, 1, topic, mode="shared", group=group)
    messages = {message["payload"]: message["deliveries"] for message in lines.delivered(3)}
    assert messages == {"b": 2, "c": 1, "d": 1}


def test_members_of_a_group_share_and_groups_do_not(lines: JsonLines, other: JsonLines) -> None:
    topic, group = unique("p2"), unique("g")
    lines.ask("create_topic", topic=topic, partitions=1)
    _subscribe(lines, 1, topic, mode="shared", group=group, credit=3)
    _subscribe(other, 1, topic, mode="shared", group=group, credit=3)
    _subscribe(other, 2, topic, mode="shared", group=unique("g"), credit=6)
    _publish(lines, topic, *map(str, range(6)))
    lines.delivered(3)
    by_consumer: dict[int, list[str]] = {1: [], 2: []}
    while sum(map(len, by_consumer.values())) < 9:
        push = other.push()
        by_consumer[push["consumer"]] += [message["payload"] for message in push["messages"]]
    assert len(by_consumer[1]) == 3
    assert by_consumer[2] == list(map(str, range(6)))


def test_a_stream_subscription_commits_offsets(server: Server, lines: JsonLines) -> None:
    topic, group = unique("p2"), unique("g")
    _publish(lines, topic, *"abcd")
    with JsonLines(server.bootstrap) as first:
        _subscribe(first, 1, topic, mode="stream", group=group, start="earliest")
        messages = first.delivered(4)
        assert [message["offset"] for message in messages] == [0, 1, 2, 3]
        first.ask("settle", consumer=1, runs=[[messages[0]["tag"], 2]])
        first.ask("cease", consumer=1)
    _subscribe(lines, 1, topic, mode="stream", group=group, start="earliest")
    assert _payloads(lines, 2) == ["c", "d"]


def test_a_filter_chooses(lines: JsonLines, other: JsonLines) -> None:
    topic = unique("p2")
    _subscribe(lines, 1, topic, filter="json.size > 3 and headers.colour in ('red', 'blue')")
    for size, colour in ((1, "red"), (5, "blue"), (6, "green"), (9, "red")):
        message = {"json": {"size": size}, "headers": {"colour": colour}}
        other.ask("publish_messages", topic=topic, message=message)
    assert _payloads(lines, 2) == ['{"size":5}', '{"size":9}']
    refused = lines.refusal("subscribe_topics", consumer=2, topics=[topic], filter="headers.size >")
    assert refused.kind in ("Invalid", "FilterSyntax")


def test_what_is_not_possible_is_said(lines: JsonLines) -> None:
    topic = unique("p2")
    assert lines.refusal("subscribe_topics", consumer=1, topics=[topic], mode="shared").kind == "Invalid"
    assert lines.refusal("subscribe_topics", consumer=1, topics=[]).kind == "Invalid"
    assert lines.refusal("subscribe_topics", consumer=0, topics=[topic]).kind == "Invalid"
    assert lines.refusal("subscribe_topics", consumer=1, topics=[topic], credit=-1).kind == "Invalid"
    _subscribe(lines, 1, topic)
    taken = lines.refusal("subscribe_topics", consumer=1, topics=[topic])
    assert (taken.kind, "consumer" in taken.text) == ("Invalid", True)


# -- P3 ----------------------------------------------------------------------------------------------------------------


def test_history_and_subscriber_counts(lines: JsonLines, other: JsonLines) -> None:
    topic = unique("p3")
    _publish(other, topic, *"abcde")
    assert _subscribe(lines, 1, topic, history=2)["subscribers"] == 1
    assert _payloads(lines, 2) == ["d", "e"]
    assert _subscribe(other, 1, topic)["subscribers"] == 2
    assert _publish(lines, topic, "f")["subscribers"] == 2
    assert lines.ask("describe_topic", topic=topic)["subscribers"] == 2
    assert lines.ask("stats")["topics"][topic]["subscriptions"] == 2
    other.ask("cease", consumer=1)
    wait_for(lambda: lines.ask("describe_topic", topic=topic)["subscribers"] == 1, "one has gone")


# -- P5 ----------------------------------------------------------------------------------------------------------------


def test_request_and_reply(lines: JsonLines, other: JsonLines) -> None:
    queue = other.queue(unique("sums"))
    other.ask("consume_queue", consumer=1, queue=queue, credit=10, auto_ack=True)
    inbox = lines.ask("open_inbox", consumer=7)
    lines.put(queue, {"json": [1, 2, 3], "reply_to": inbox, "correlation_id": "c-1"})
    (request,) = other.delivered(1)
    assert request["reply_to"] == inbox
    reply = {"json": 6, "correlation_id": request["correlation_id"]}
    assert other.ask("reply", to=request["reply_to"], message=reply) is True
    push = lines.push()
    assert push["consumer"] == 7
    assert (push["messages"][0]["payload"], push["messages"][0]["correlation_id"]) == ("6", "c-1")
    lines.ask("cease", consumer=7)
    assert other.ask("reply", to=inbox, message=reply) is False


def test_an_inbox_goes_with_its_connection(server: Server, lines: JsonLines) -> None:
    with JsonLines(server.bootstrap) as asker:
        inbox = asker.ask("open_inbox", consumer=1)
        assert asker.refusal("settle", consumer=1, tags=[0]).kind == "Invalid"
    wait_for(lambda: lines.ask("reply", to=inbox, message={"payload": "x"}) is False, "the inbox is gone")


# -- routing and offsets -----------------------------------------------------------------------------------------------


def test_exchanges_route_to_queues_and_topics(lines: JsonLines) -> None:
    exchange, queue, topic = unique("x"), lines.queue(unique("q")), unique("t")
    lines.ask("create_topic", topic=topic)
    lines.ask("declare_exchange", exchange=exchange, kind="topic")
    lines.ask("bind", exchange=exchange, target=f"queue:{queue}", key="orders.*")
    lines.ask("bind", exchange=exchange, target=f"topic:{topic}", key="orders.#")
    message = {"payload": "routed"}
    both = [f"queue:{queue}", f"topic:{topic}"]
    assert sorted(lines.ask("route", exchange=exchange, routing_key="orders.eu", message=message)) == both
    answer = lines.ask("publish_messages", exchange=exchange, routing_key="orders.eu", message=message)
    assert (answer["queues"], answer["places"]) == ([queue], [[topic, 0, 0]])
    assert lines.get_payloads(queue) == ["routed"]
    lines.ask("unbind", exchange=exchange, target=f"queue:{queue}", key="orders.*")
    assert lines.ask("route", exchange=exchange, routing_key="orders.eu", message=message) == both[1:]
    fields = {"exchange": exchange, "routing_key": "other", "message": message}
    assert lines.refusal("publish_messages", mandatory=True, **fields).kind == "NotFound"
    assert [each[0] for each in lines.ask("list_routing")["bindings"]].count(exchange) == 1
    lines.ask("delete_exchange", exchange=exchange)
    assert lines.refusal("publish_messages", **fields).kind == "NotFound"


def test_offsets_are_committed_alone_and_in_a_transaction(lines: JsonLines) -> None:
    topic, group = unique("t"), unique("g")
    _publish(lines, topic, *"abcde")
    lines.ask("commit_offsets", group=group, offsets=[[topic, 0, 2]])
    number = lines.ask("begin", transactional_id=unique("tx"))
    lines.ask("commit_offsets", group=group, offsets=[[topic, 0, 4]], tx=number)
    lines.ask("publish_messages", topic=topic, message={"payload": "f"}, tx=number)
    lines.ask("end", tx=number)
    _subscribe(lines, 1, topic, mode="stream", group=group, start="earliest")
    assert _payloads(lines, 2) == ["e", "f"]
    assert lines.refusal("begin", transactional_id="").kind == "Invalid"
    assert lines.refusal("begin", transactional_id="__waystation.x").kind == "NotAllowed"
