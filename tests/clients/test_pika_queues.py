"""pika, blocking: what a queue is declared with, what it keeps to, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.amqp_kit import QUORUM, numbered
from tests.clients.pika_kit import (
    Inbox,
    Pikas,
    consumers,
    depth,
    drain,
    get,
    get_one,
    gone,
    new_queue,
    put,
    refused,
    until,
)
from tests.support.names import unique
from tests.support.waiting import wait_for


def test_broker_names_a_queue_that_has_no_name(pikas: Pikas) -> None:
    channel = pikas.channel()
    names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
    assert names[0] != names[1]
    assert all(name.startswith("amq.gen-") for name in names)


def test_empty_name_means_the_queue_declared_last(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"x")
    assert channel.queue_purge("").method.message_count == 1
    put(channel, queue, [b"y"])
    assert get_one(channel, "").body == b"y"


def test_empty_name_on_a_fresh_channel_means_nothing(pikas: Pikas) -> None:
    code, _text = refused(lambda: pikas.channel().queue_bind("", "amq.direct", "k"))
    assert code == 404


def test_declaration_tells_messages_and_consumers(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(3))
    method = channel.queue_declare(queue, exclusive=True).method
    assert (method.queue, method.message_count, method.consumer_count) == (queue, 3, 0)
    Inbox(channel, queue)
    assert consumers(channel, queue) == 1


def test_passive_declaration_of_nothing_is_not_found(pikas: Pikas) -> None:
    name = unique("nothing")
    code, text = refused(lambda: pikas.channel().queue_declare(name, passive=True))
    assert (code, text) == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")


def test_purge_empties_what_is_ready_and_says_how_much(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(5))
    held = get_one(channel, queue, auto_ack=False)
    assert channel.queue_purge(queue).method.message_count == 4
    assert channel.queue_purge(queue).method.message_count == 0
    channel.basic_reject(held.tag, requeue=True)
    assert drain(channel, queue) == numbered(1)


def test_delete_tells_how_many_messages_went(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, numbered(4))
    assert channel.queue_delete(queue).method.message_count == 4
    assert gone(pikas, queue)
    assert channel.queue_delete(queue).method.message_count == 0


def test_delete_only_if_empty_or_unused(pikas: Pikas) -> None:
    connection = pikas.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    queue = new_queue(channel)
    put(channel, queue, [b"x"])
    code, text = refused(lambda: channel.queue_delete(queue, if_empty=True))
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty")
    channel = connection.channel()
    inbox = Inbox(channel, queue, auto_ack=True)
    inbox.take(1)
    other = connection.channel()
    code, text = refused(lambda: other.queue_delete(queue, if_unused=True))
    assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use")
    inbox.cancel()
    channel.queue_delete(queue, if_unused=True, if_empty=True)
    assert gone(pikas, queue)


def test_exclusive_queue_is_locked_for_others_and_leaves_with_its_connection(pikas: Pikas) -> None:
    owner = pikas.channel()
    queue = new_queue(owner, exclusive=True)
    calls = (
        lambda channel: channel.queue_declare(queue, passive=True),
        lambda channel: channel.queue_declare(queue, exclusive=True),
        lambda channel: channel.basic_consume(queue, print),
        lambda channel: channel.basic_get(queue),
        lambda channel: channel.queue_purge(queue),
        lambda channel: channel.queue_bind(queue, "amq.direct", "k"),
        lambda channel: channel.queue_delete(queue),
    )
    for call in calls:
        code, text = refused(lambda call=call: call(pikas.channel()))  # type: ignore[misc]
        assert code == 405
        assert text.startswith(
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"
        )
    # Everybody may publish to it.
    put(pikas.channel(), queue, [b"for you"])
    assert drain(owner, queue) == [b"for you"]
    owner.connection.close()
    wait_for(lambda: gone(pikas, queue), "the exclusive queue is gone")


def test_auto_delete_queue_leaves_with_its_last_consumer(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, exclusive=False, auto_delete=True)
    # Without ever having had a consumer it stays.
    assert depth(channel, queue) == 0
    first, second = Inbox(channel, queue), Inbox(channel, queue)
    first.cancel()
    assert depth(channel, queue) == 0
    second.cancel()
    wait_for(lambda: gone(pikas, queue), "the queue is gone")


def test_auto_delete_queue_leaves_with_the_channel_of_its_consumer(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, exclusive=False, auto_delete=True)
    Inbox(channel, queue)
    channel.close()
    wait_for(lambda: gone(pikas, queue), "the queue is gone")


DIFFERENT: list[tuple[dict[str, Any], str, str, str]] = [
    ({"durable": True}, "durable", "'true'", "'false'"),
    ({"auto_delete": True}, "auto_delete", "'true'", "'false'"),
    ({"arguments": {"x-message-ttl": 5}}, "x-message-ttl", "the value '5' of type 'signedint'", "none"),
    ({"arguments": {"x-max-length": 5}}, "x-max-length", "the value '5' of type 'signedint'", "none"),
    (
        {"arguments": {"x-dead-letter-exchange": "d"}},
        "x-dead-letter-exchange",
        "the value 'd' of type 'longstr'",
        "none",
    ),
]


@pytest.mark.parametrize(("differing", "name", "received", "current"), DIFFERENT, ids=[d[1] for d in DIFFERENT])
def test_declaring_again_differently_is_refused_with_what_differs(
    pikas: Pikas, differing: dict[str, Any], name: str, received: str, current: str
) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, exclusive=False)
    channel.queue_declare(queue)
    code, text = refused(lambda: channel.queue_declare(queue, **differing))
    what = f"inequivalent arg '{name}' for queue '{queue}' in vhost '/': received {received} but current is {current}"
    assert (code, text) == (406, f"PRECONDITION_FAILED - {what}")
    channel.connection.channel().queue_delete(queue)


def test_declaring_again_with_another_value_tells_both(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-message-ttl": 60000})
    code, text = refused(lambda: channel.queue_declare(queue, exclusive=True, arguments={"x-message-ttl": 1}))
    assert code == 406
    assert text.endswith("in vhost '/': received '1' but current is '60000'")


def test_equal_declaration_is_welcome_whoever_says_it(pikas: Pikas) -> None:
    arguments = {"x-message-ttl": 60000, "x-max-length": 10, "x-max-priority": 3}
    first, second = pikas.channel(), pikas.channel()
    queue = new_queue(first, arguments, exclusive=False, auto_delete=True)
    assert second.queue_declare(queue, auto_delete=True, arguments=arguments).method.queue == queue


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "abc"),
        ("x-expires", 0),
        ("x-max-length", -1),
        ("x-max-priority", -1),
        ("x-max-priority", 300),
        ("x-overflow", "explode"),
        ("x-dead-letter-exchange", 5),
        ("x-queue-type", "no-such-type"),
        ("x-single-active-consumer", "yes"),
    ],
)
def test_argument_that_makes_no_sense_is_refused(pikas: Pikas, name: str, value: object) -> None:
    channel = pikas.channel()
    code, text = refused(lambda: channel.queue_declare(unique("bad"), durable=True, arguments={name: value}))
    assert code == 406
    assert name in text


def test_dead_letter_key_without_an_exchange_is_refused(pikas: Pikas) -> None:
    channel = pikas.channel()
    arguments = {"x-dead-letter-routing-key": "k"}
    code, text = refused(lambda: channel.queue_declare(unique("bad"), durable=True, arguments=arguments))
    assert code == 406
    assert "x-dead-letter" in text


def test_names_of_the_broker_are_refused(pikas: Pikas) -> None:
    code, text = refused(lambda: pikas.channel().queue_declare("amq.mine"))
    assert code == 403
    assert text == "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"


def test_queue_name_may_be_odd_but_not_too_long(pikas: Pikas) -> None:
    channel = pikas.channel()
    for name in (unique("with space"), unique("čeština"), unique("a/b:c#d*e"), unique("x") + "y" * 200):
        channel.queue_declare(name, exclusive=True)
        put(channel, name, [b"x"])
        assert drain(channel, name) == [b"x"]


def test_higher_priority_overtakes(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-max-priority": 5})
    for number, priority in enumerate((0, 3, 5, 1, 3, None, 9)):
        put(channel, queue, [b"%s %d" % (str(priority).encode(), number)], priority=priority)
    # Above the queue's highest counts as its highest; no priority counts as 0.
    assert drain(channel, queue) == [b"5 2", b"9 6", b"3 1", b"3 4", b"1 3", b"0 0", b"None 5"]


def test_priority_means_nothing_to_a_plain_queue(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    for priority in (1, 9, 5):
        put(channel, queue, [b"%d" % priority], priority=priority)
    got = [get_one(channel, queue) for _ in range(3)]
    assert [d.body for d in got] == [b"1", b"9", b"5"]
    assert [d.properties.priority for d in got] == [1, 9, 5]


def test_single_active_consumer_passes_the_queue_on(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-single-active-consumer": True})
    first, second = Inbox(channel, queue), Inbox(channel, queue)
    put(channel, queue, numbered(4))
    got = first.take(4)
    assert second.settled() == []
    for delivery in got[:2]:
        channel.basic_ack(delivery.tag)
    first.cancel()
    put(channel, queue, [b"after"])
    assert second.take(1)[0].body == b"after"
    assert first.settled() == []


def test_single_active_consumer_that_dies_hands_its_messages_to_the_next(pikas: Pikas) -> None:
    one, two, keeper = pikas.channel(), pikas.channel(), pikas.channel()
    queue = new_queue(keeper, {"x-single-active-consumer": True}, exclusive=False)
    first, second = Inbox(one, queue), Inbox(two, queue)
    put(keeper, queue, numbered(3))
    first.take(3)
    assert second.settled() == []
    one.connection.close()
    got = second.take(3)
    assert [(d.body, d.redelivered) for d in got] == [(body, True) for body in numbered(3)]
    keeper.queue_delete(queue)


def test_quorum_queue_counts_deliveries_and_gives_up(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    arguments = {**QUORUM, "x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = new_queue(channel, arguments, durable=True)
    put(channel, queue, [b"poison"])
    inbox = Inbox(channel, queue)
    counts: list[Any] = []
    for _ in range(3):
        (one,) = inbox.take(1)
        counts.append(one.headers.get("x-delivery-count"))
        channel.basic_nack(one.tag, requeue=True)
    assert counts in ([None, 1, 2], [0, 1, 2])
    got = get_one(channel, dead)
    assert got.body == b"poison"
    assert got.headers["x-death"][0]["reason"] == "delivery_limit"
    assert depth(channel, queue) == 0
    channel.queue_delete(queue)


def test_quorum_queue_must_be_durable_and_cannot_be_exclusive(pikas: Pikas) -> None:
    for flags in ({"durable": False}, {"durable": True, "exclusive": True}):
        channel = pikas.channel()
        code, _text = refused(lambda ch=channel, f=flags: ch.queue_declare(unique("qq"), arguments=QUORUM, **f))  # type: ignore[misc]
        assert code == 406


def test_quorum_queue_does_everyday_work(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, QUORUM, durable=True)
    channel.basic_qos(prefetch_count=10)
    put(channel, queue, numbered(30), delivery_mode=2)
    inbox = Inbox(channel, queue)
    bodies: list[bytes] = []
    while len(bodies) < 30:
        got = inbox.take(1)
        bodies += [d.body for d in got]
        channel.basic_ack(got[-1].tag, multiple=True)
    assert bodies == numbered(30)
    channel.queue_delete(queue)


def test_queue_expires_when_nobody_uses_it(pikas: Pikas) -> None:
    channel = pikas.channel()
    idle = new_queue(channel, {"x-expires": 150}, exclusive=False)
    used = new_queue(channel, {"x-expires": 150}, exclusive=False)
    Inbox(channel, used)
    put(channel, idle, [b"messages do not keep it"])
    wait_for(lambda: gone(pikas, idle), "the unused queue is gone", every_s=0.25)
    assert consumers(channel, used) == 1
    channel.queue_delete(used)


def test_many_queues_on_one_channel(pikas: Pikas) -> None:
    channel = pikas.channel()
    queues = [new_queue(channel) for _ in range(200)]
    for number, queue in enumerate(queues):
        channel.basic_publish("", queue, b"%d" % number)
    inboxes = [Inbox(channel, queue, auto_ack=True) for queue in queues]
    until(channel.connection, lambda: all(inbox.got for inbox in inboxes), "one message from each queue")
    assert [inbox.bodies for inbox in inboxes] == [[b"%d" % n] for n in range(200)]


def test_redelivered_is_false_for_fresh_and_true_for_returned_messages(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"x"])
    fresh = get_one(channel, queue, auto_ack=False)
    assert not fresh.redelivered
    channel.basic_nack(fresh.tag, requeue=True)
    assert get_one(channel, queue, auto_ack=False).redelivered
    assert get(channel, queue) is None
