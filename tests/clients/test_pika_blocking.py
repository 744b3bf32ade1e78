"""pika, blocking: publish, get, consume, and acknowledge in every way."""

from __future__ import annotations

import datetime
import os
from decimal import Decimal
from typing import Any

import pika
import pytest

from tests.clients.amqp_kit import numbered
from tests.clients.pika_kit import (
    Inbox,
    Pikas,
    consumers,
    cut_off,
    depth,
    drain,
    get,
    get_one,
    new_queue,
    put,
    refused,
    until,
)
from tests.support.names import unique

HEADERS: dict[str, Any] = {
    "text": "čeština",
    "yes": True,
    "no": False,
    "small": 7,
    "negative": -7,
    "big": 2**40,
    "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "nothing": None,
    "list": ["a", 1, [True, {"deep": "er"}]],
    "table": {"inner": {"most": 1}},
    "empty": "",
}


def test_message_comes_back_as_it_was_sent(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers=HEADERS,
        delivery_mode=2,
        priority=5,
        correlation_id="c-1",
        reply_to="answers",
        expiration="3600000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="order.created",
        user_id="guest",
        app_id="shop",
    )
    channel.basic_publish("", queue, b"{}", sent)
    got = get_one(channel, queue)
    assert got.body == b"{}"
    assert (got.method.exchange, got.method.routing_key, got.method.redelivered) == ("", queue, False)
    aware = dict(got.properties.headers)
    aware["when"] = aware["when"].replace(tzinfo=datetime.UTC)
    assert aware == HEADERS
    names = [
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp",
        "type",
        "user_id",
        "app_id",
    ]
    assert {name: getattr(got.properties, name) for name in names} == {name: getattr(sent, name) for name in names}


def test_decimal_header_stays_a_decimal(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    sent = {"price": Decimal("3.14"), "all": [{"price": Decimal("-0.50")}]}
    put(channel, queue, [b""], headers=sent)
    found = get_one(channel, queue).headers
    assert found == sent
    assert type(found["price"]) is type(found["all"][0]["price"]) is Decimal


def test_plain_message_comes_back_plain(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    channel.basic_publish("", queue, b"")
    got = get_one(channel, queue)
    assert got.body == b""
    assert {name: value for name, value in vars(got.properties).items() if value is not None} == {}


def test_five_megabytes_pass_in_many_frames(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    body = os.urandom(5_000_000)
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    inbox = Inbox(channel, queue)
    (got,) = inbox.take(1)
    assert got.body == body
    channel.basic_ack(got.tag)


def test_publish_then_get_on_one_channel_finds_the_message_without_confirms(pikas: Pikas) -> None:
    channel = pikas.channel(confirm=False)
    queue = new_queue(channel)
    for body in numbered(20):
        channel.basic_publish("", queue, body)
        got = get(channel, queue)
        assert got is not None
        assert got.body == body


def test_get_tells_what_is_left_and_when_there_is_nothing(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    assert get(channel, queue) is None
    put(channel, queue, numbered(3))
    left = [(d.body, d.method.message_count) for d in (get_one(channel, queue) for _ in range(3))]
    assert left == [(b"000000", 2), (b"000001", 1), (b"000002", 0)]
    assert get(channel, queue) is None


def test_got_but_unacked_message_is_held_until_it_is_settled(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"a", b"b"])
    first, second = (get_one(channel, queue, auto_ack=False) for _ in range(2))
    assert get(channel, queue) is None
    channel.basic_ack(first.tag)
    channel.basic_reject(second.tag, requeue=True)
    again = get_one(channel, queue)
    assert (again.body, again.redelivered) == (b"b", True)
    assert get(channel, queue) is None


def test_consumer_gets_everything_in_order_and_acks(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(200))
    inbox = Inbox(channel, queue)
    got = inbox.take(200)
    assert [d.body for d in got] == numbered(200)
    assert [d.tag for d in got] == list(range(1, 201))
    assert {d.method.consumer_tag for d in got} == {inbox.tag}
    for delivery in got:
        channel.basic_ack(delivery.tag)
    inbox.cancel()
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_start_consuming_runs_until_stopped(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(5))
    seen: list[bytes] = []

    def on_message(ch: Any, method: Any, _properties: Any, body: bytes) -> None:
        seen.append(body)
        ch.basic_ack(method.delivery_tag)
        if len(seen) == 5:
            ch.stop_consuming()

    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert seen == numbered(5)
    assert depth(channel, queue) == 0


def test_generator_consumer_gives_the_rest_back_when_cancelled(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(10))
    for count, (method, _properties, body) in enumerate(channel.consume(queue, inactivity_timeout=20), 1):
        assert body == b"%06d" % (count - 1)
        channel.basic_ack(method.delivery_tag)
        if count == 4:
            break
    channel.cancel()
    assert drain(channel, queue) == numbered(6, start=4)


def test_one_ack_settles_everything_before_it(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(10))
    got = Inbox(channel, queue).take(10)
    channel.basic_ack(got[6].tag, multiple=True)
    channel.basic_nack(0, multiple=True, requeue=True)
    channel.close()
    fresh = channel.connection.channel()
    assert drain(fresh, queue) == numbered(3, start=7)


def test_ack_of_tag_zero_settles_everything(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(5))
    Inbox(channel, queue).take(5)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_requeued_messages_return_to_their_places(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(6))
    got = [get_one(channel, queue, auto_ack=False) for _ in range(4)]
    channel.basic_reject(got[2].tag, requeue=True)
    channel.basic_nack(got[1].tag, multiple=True, requeue=True)
    channel.basic_ack(got[3].tag)
    rest = [get_one(channel, queue) for _ in range(5)]
    assert [d.body for d in rest] == [b"000000", b"000001", b"000002", b"000004", b"000005"]
    assert [d.redelivered for d in rest] == [True, True, True, False, False]


def test_rejected_without_requeue_is_gone(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(3))
    got = Inbox(channel, queue).take(3)
    channel.basic_reject(got[0].tag, requeue=False)
    channel.basic_nack(got[2].tag, multiple=True, requeue=False)
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_recover_brings_everything_unacked_again(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(3))
    inbox = Inbox(channel, queue)
    first = inbox.take(3)
    channel.basic_ack(first[0].tag)
    channel.basic_recover(requeue=True)
    again = inbox.take(2)
    assert [(d.body, d.redelivered) for d in again] == [(b"000001", True), (b"000002", True)]
    assert [d.tag for d in again] == [4, 5]


def test_consumer_that_needs_no_acks_holds_nothing(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    channel.basic_qos(prefetch_count=1)
    put(channel, queue, numbered(20))
    assert [d.body for d in Inbox(channel, queue, auto_ack=True).take(20)] == numbered(20)
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_prefetch_of_a_consumer_holds_the_rest_back(pikas: Pikas) -> None:
    channel = pikas.channel()
    first_queue, second_queue = new_queue(channel), new_queue(channel)
    put(channel, first_queue, numbered(6))
    put(channel, second_queue, numbered(6))
    channel.basic_qos(prefetch_count=2)
    first, second = Inbox(channel, first_queue), Inbox(channel, second_queue)
    until(channel.connection, lambda: len(first.got) == 2 and len(second.got) == 2, "two for each consumer")
    assert (first.settled(), second.settled()) == (numbered(2), numbered(2))
    channel.basic_ack(first.got[0].tag)
    until(channel.connection, lambda: len(first.got) == 3, "room for one more")
    assert (first.settled(), second.settled()) == (numbered(3), numbered(2))


def test_prefetch_set_later_is_for_consumers_that_come_later(pikas: Pikas) -> None:
    channel = pikas.channel()
    first_queue, second_queue = new_queue(channel), new_queue(channel)
    put(channel, first_queue, numbered(9))
    put(channel, second_queue, numbered(9))
    channel.basic_qos(prefetch_count=1)
    first = Inbox(channel, first_queue)
    channel.basic_qos(prefetch_count=4)
    second = Inbox(channel, second_queue)
    until(channel.connection, lambda: first.got and len(second.got) == 4, "each has its own limit")
    assert (len(first.settled()), len(second.settled())) == (1, 4)


def test_prefetch_of_a_channel_is_shared_by_its_consumers(pikas: Pikas) -> None:
    channel = pikas.channel()
    first_queue, second_queue = new_queue(channel), new_queue(channel)
    put(channel, first_queue, numbered(6))
    put(channel, second_queue, numbered(6))
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Inbox(channel, first_queue), Inbox(channel, second_queue)
    until(channel.connection, lambda: len(first.got) + len(second.got) == 3, "three in all")
    assert len(first.settled()) + len(second.settled()) == 3
    channel.basic_ack(0, multiple=True)
    until(channel.connection, lambda: len(first.got) + len(second.got) == 6, "three more")
    assert len(first.settled()) + len(second.settled()) == 6


def test_cancelled_consumer_gets_nothing_more_and_keeps_what_it_holds(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"held"])
    inbox = Inbox(channel, queue)
    (held,) = inbox.take(1)
    inbox.cancel()
    put(channel, queue, [b"later"])
    assert inbox.settled() == []
    assert drain(channel, queue) == [b"later"]
    channel.basic_ack(held.tag)
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_consumers_take_turns(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    both = [Inbox(channel, queue, auto_ack=True) for _ in range(2)]
    put(channel, queue, numbered(40))
    until(channel.connection, lambda: sum(len(inbox.got) for inbox in both) == 40, "all are delivered")
    assert all(len(inbox.got) >= 10 for inbox in both)


def test_busy_consumer_leaves_work_to_the_idle_one(pikas: Pikas) -> None:
    busy, idle = pikas.channel(), pikas.channel()
    queue = new_queue(busy, exclusive=False, auto_delete=True)
    for channel in (busy, idle):
        channel.basic_qos(prefetch_count=1)
    stuck = Inbox(busy, queue)
    put(busy, queue, numbered(1))
    stuck.take(1)
    worker = Inbox(idle, queue)
    put(busy, queue, numbered(10, start=1))
    done: list[bytes] = []
    while len(done) < 10:
        (one,) = worker.take(1)
        idle.basic_ack(one.tag)
        done.append(one.body)
    assert done == numbered(10, start=1)


def test_higher_consumer_priority_is_served_first(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    channel.basic_qos(prefetch_count=3)
    low = Inbox(channel, queue)
    high = Inbox(channel, queue, arguments={"x-priority": 10})
    put(channel, queue, numbered(5))
    until(channel.connection, lambda: len(low.got) + len(high.got) == 5, "all are delivered")
    assert (high.bodies, low.bodies) == (numbered(3), numbered(2, start=3))


def test_exclusive_consumer_shares_with_nobody(pikas: Pikas) -> None:
    first, second = pikas.channel(), pikas.channel()
    queue = new_queue(first, exclusive=False, auto_delete=True)
    inbox = Inbox(first, queue, exclusive=True)
    code, text = refused(lambda: Inbox(second, queue))
    assert code == 403
    assert queue in text
    third = pikas.channel()
    keeper = pikas.channel()
    assert consumers(third, queue) == 1
    put(keeper, queue, [b"mine"])
    assert inbox.take(1)[0].body == b"mine"


def test_exclusive_consumer_comes_only_to_a_free_queue(pikas: Pikas) -> None:
    first, second = pikas.channel(), pikas.channel()
    queue = new_queue(first, exclusive=False, auto_delete=True)
    Inbox(first, queue)
    assert refused(lambda: Inbox(second, queue, exclusive=True))[0] == 403


def test_consumer_is_told_when_its_queue_is_deleted(pikas: Pikas) -> None:
    first, second = pikas.channel(), pikas.channel()
    queue = new_queue(first, exclusive=False)
    told: list[str] = []
    first.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    inbox = Inbox(first, queue)
    second.queue_delete(queue)
    until(first.connection, lambda: told, "the broker cancels the consumer")
    assert told == [inbox.tag]
    assert first.is_open
    assert first.consumer_tags == []


def test_consumer_tag_may_be_chosen_but_only_once(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    assert Inbox(channel, queue, consumer_tag="me").tag == "me"
    twice = pika.spec.Basic.Consume(queue=queue, consumer_tag="me")
    channel.connection._impl._send_method(channel.channel_number, twice)
    code, text = cut_off(lambda: depth(channel, queue))
    assert code == 530
    assert "me" in text


def test_same_consumer_tag_on_two_channels_is_fine(pikas: Pikas) -> None:
    connection = pikas.connect()
    first, second = connection.channel(), connection.channel()
    queue = new_queue(first)
    assert [Inbox(ch, queue, consumer_tag="me").tag for ch in (first, second)] == ["me", "me"]
    assert consumers(first, queue) == 2


def test_consuming_and_getting_from_nowhere_is_not_found(pikas: Pikas) -> None:
    name = unique("nowhere")
    code, text = refused(lambda: Inbox(pikas.channel(), name))
    assert (code, text) == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
    assert refused(lambda: get(pikas.channel(), name))[0] == 404


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_settling_an_unknown_delivery_tag_is_an_error(pikas: Pikas, how: str) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    getattr(channel, f"basic_{how}")(77)
    assert refused(lambda: depth(channel, queue)) == (406, "PRECONDITION_FAILED - unknown delivery tag 77")


def test_settling_twice_is_an_error(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"a"])
    tag = get_one(channel, queue, auto_ack=False).tag
    channel.basic_ack(tag)
    channel.basic_ack(tag)
    assert refused(lambda: depth(channel, queue))[0] == 406
