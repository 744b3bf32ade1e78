"""Options have an effect or are refused: by the Python client, by JSON lines and by HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.protocols.http.kit import Http
from tests.protocols.native.kit import JsonLines, Refused
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation import errors


@pytest.fixture
def lines(server: Server) -> Iterator[JsonLines]:
    with JsonLines(server.bootstrap) as lines:
        yield lines


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


# -- subscriptions -----------------------------------------------------------------------------------------------------

WITHOUT_EFFECT = [
    ({"start": "earliest"}, "start: a live subscription begins now"),
    ({"start_ms": 5}, "start_ms: a live subscription begins now"),
    ({"hold_ms": 5}, "hold_ms: .* no visibility timeout"),
    ({"mode": "shared", "group": "g", "slow": "drop"}, "slow: is for live subscriptions"),
    ({"mode": "stream", "group": "g", "hold_ms": 5}, "hold_ms: .* no visibility timeout"),
]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": "earliest"}, "start: a live subscription begins now.*history"),
        ({"start": 1_700_000_000}, "start: a live subscription begins now.*history"),
        ({"hold": 5}, "hold: .* no visibility timeout"),
        ({"mode": "live", "guarantee": "exactly-once"}, "guarantee: a live subscription has no position"),
        ({"group": "g", "slow": "drop"}, "slow: is for live subscriptions"),
        ({"group": "g", "mode": "stream", "hold": 5}, "hold: .* no visibility timeout"),
    ],
)
def test_the_client_refuses_what_a_subscription_cannot_keep(mq: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        mq.subscribe(unique("news"), **options)


@pytest.mark.parametrize(("options", "said"), WITHOUT_EFFECT)
def test_json_lines_and_http_refuse_what_a_subscription_cannot_keep(
    lines: JsonLines, http: Http, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=f"Invalid: {said}"):
        lines.ask("subscribe_topics", consumer=1, topics=["news"], **options)
    answer = http("POST", "/v1/subscriptions/stream", topic="news", **options, ok=False)
    assert (answer.status, answer.json["field"]) == (400, said.split(":")[0])


# -- answers and conditions --------------------------------------------------------------------------------------------


def test_exactly_once_without_an_answer_is_refused(mq: Any) -> None:
    topic = unique("once")
    for call in (mq.publish, lambda name, value, **options: mq.publish_many(name, [value], **options)):
        with pytest.raises(errors.Invalid, match="acks: exactly-once needs the broker's answer"):
            call(topic, "x", guarantee="exactly-once", acks="none")
    assert topic not in [info.topic for info in mq.topics()]


def test_a_binding_has_one_kind_of_condition(mq: Any) -> None:
    jobs, by_headers = mq.queue(unique("jobs")), mq.exchange(unique("x"), "headers")
    with pytest.raises(errors.Invalid, match=r"filter: .* is of the kind 'headers'"):
        by_headers.bind(jobs, filter="headers.a = 1")
    for kind in ("headers", "filter"):
        with pytest.raises(errors.Invalid, match="filter: give headers or a filter, not both"):
            mq.exchange(unique("x"), kind).bind(jobs, headers={"a": 1}, filter="headers.a = 1")
    assert not [one for one in mq.routing().bindings if one[1] == f"queue:{jobs.name}"]


# -- delays ------------------------------------------------------------------------------------------------------------


def test_a_delay_beside_a_time_of_delivery_is_refused(mq: Any) -> None:
    jobs, topic = mq.queue(unique("jobs")), unique("later")
    both: dict[str, Any] = {"delay": 1, "deliver_at": time.time() + 2}
    calls: list[Callable[[], Any]] = [
        lambda: jobs.put("x", **both),
        lambda: jobs.put_many(["x"], **both),
        lambda: mq.publish(topic, "x", **both),
        lambda: mq.publish_many(topic, ["x"], **both),
    ]
    for call in calls:
        with pytest.raises(errors.Invalid, match="delay: give either delay or deliver_at, not both"):
            call()
    assert jobs.describe().put == 0
    jobs.put("x", delay=0, deliver_at=time.time() - 1)  # no delay is none


def test_json_lines_and_http_refuse_a_delay_beside_a_time_of_delivery(lines: JsonLines, http: Http) -> None:
    queue = unique("jobs")
    lines.ask("declare_queue", queue=queue)
    both = {"payload": "x", "delay_ms": 1000, "deliver_at_ms": 2_000_000_000_000}
    with pytest.raises(Refused, match="delay_ms: give either delay_ms or deliver_at_ms, not both"):
        lines.ask("put", queue=queue, message=both)
    lines.ask("put", queue=queue, message={**both, "tag": 7, "deliveries": 1})  # received, and sent on as it is
    for path in (f"/v1/queues/{queue}/messages", f"/v1/topics/{queue}/messages"):
        answer = http("POST", path, both, ok=False)
        assert (answer.status, answer.json["field"]) == (400, "delay_ms")
        headers = {"x-delay": "1000", "x-deliver-at": "2000000000000", "content-type": "text/plain"}
        assert http("POST", path, b"x", headers=headers, ok=False).status == 400


# -- the plain actions of JSON lines -----------------------------------------------------------------------------------


def _subscription(**more: Any) -> dict[str, Any]:
    return {"id": unique("s"), "topic_pattern": "news", "consumer_id": unique("c"), **more}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"auto_ack": "yes"}, "auto_ack: must be true or false"),
        ({"auto_ack": False, "delivery_mode": "at_most_once"}, "auto_ack: at_most_once acknowledges on delivery"),
        ({"auto_ack": True, "delivery_mode": "exactly_once"}, "auto_ack: .* at_most_once"),
        ({"autoack": True}, "autoack: a subscription has no such field; did you mean auto_ack"),
        ({"max_retries": 3}, "max_retries: a subscription has no such field"),
    ],
)
def test_a_plain_subscription_has_no_silent_options(lines: JsonLines, more: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        lines.ask("subscribe", subscription=_subscription(**more))


@pytest.mark.parametrize("automatic", [True, False])
def test_auto_ack_of_a_plain_subscription_acknowledges_on_delivery(
    server: Server, lines: JsonLines, automatic: bool
) -> None:
    """What was delivered is redelivered to the next connection, unless it is acknowledged."""
    topic = unique("news")
    wanted = _subscription(topic_pattern=topic, auto_ack=automatic, created_at=time.time())
    lines.ask("publish", message={"topic": topic, "payload": "x"})
    lines.ask("subscribe", subscription=wanted)
    consume = {"consumer_id": wanted["consumer_id"], "wait_ms": 20_000}
    assert len(lines.try_ask("consume", **consume)["messages"]) == 1
    lines.close()
    with JsonLines(server.bootstrap) as other:
        if automatic:
            other.ask("publish", message={"topic": topic, "payload": "last"})
        [message] = wait_for(lambda: other.try_ask("consume", **consume)["messages"], "a message")
        assert message["payload"] == ("last" if automatic else "x")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_retries": 2.5}, "max_retries: must be a whole number"),
        ({"max_retries": 2, "max_deliveries": 9}, "max_retries: give either max_retries or max_deliveries, not both"),
        ({"expiry": 4e9, "ttl_ms": 5}, "expiry: give either expiry or ttl_ms, not both"),
        ({"timestamp": 5, "timestamp_ms": 5}, "timestamp: give either timestamp or timestamp_ms, not both"),
    ],
)
def test_a_plain_message_says_everything_once(lines: JsonLines, more: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        lines.ask("publish", message={"topic": unique("news"), "payload": "x", **more})


def test_max_retries_of_a_plain_message_is_its_limit(lines: JsonLines) -> None:
    topic = unique("news")
    wanted = _subscription(topic_pattern=topic)
    lines.ask("publish", message={"topic": topic, "payload": "x", "max_retries": 1})
    lines.ask("subscribe", subscription=wanted)
    consume = {"consumer_id": wanted["consumer_id"], "wait_ms": 20_000}
    for count in range(2):
        [message] = wait_for(lambda: lines.try_ask("consume", **consume)["messages"], "a message")
        assert (message["retry_count"], message["max_retries"]) == (count, 1)
        lines.ask("reject", consumer_id=wanted["consumer_id"], message_id=message["id"], reason="no")


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("consume", {"consumer_id": "c", "auto_ack": True}),
        ("publish", {"message": {"topic": "news", "payload": "x"}, "max_retries": 3}),
        ("ack", {"consumer_id": "c", "message_id": "m", "reason": "because"}),
        ("subscribe", {"subscription": {}, "auto_ack": True}),
    ],
)
def test_a_plain_action_refuses_fields_that_it_does_not_have(
    lines: JsonLines, action: str, fields: dict[str, Any]
) -> None:
    extra = list(fields)[-1]
    with pytest.raises(Refused, match=f"Invalid: {extra}: {action} has no such field"):
        lines.ask(action, **fields)
