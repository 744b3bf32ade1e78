"""pika, blocking: messages that time out, overflow or are rejected, and what they are marked with when they move."""

from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import NackError

from tests.clients.amqp_kit import death, numbered
from tests.clients.pika_kit import (
    Inbox,
    Pikas,
    bound_queue,
    depth,
    drain,
    get,
    get_one,
    new_exchange,
    new_queue,
    put,
    refused,
)
from tests.support.waiting import wait_for


def to(queue: str, **arguments: Any) -> dict[str, Any]:
    """Arguments of a queue whose dead letters go to another queue."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **named}


def test_message_ttl_of_the_queue(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-message-ttl": 100})
    put(channel, queue, numbered(3))
    wait_for(lambda: depth(channel, queue) == 0, "the messages timed out")
    assert get(channel, queue) is None


def test_expiration_of_the_message(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"short"], expiration="100")
    put(channel, queue, [b"long"], expiration="60000")
    wait_for(lambda: depth(channel, queue) == 1, "one message timed out")
    got = get_one(channel, queue)
    assert (got.body, got.properties.expiration) == (b"long", "60000")


def test_the_shorter_of_both_times_counts(pikas: Pikas) -> None:
    channel = pikas.channel()
    short, long = new_queue(channel, {"x-message-ttl": 100}), new_queue(channel, {"x-message-ttl": 60000})
    put(channel, short, [b"x"], expiration="60000")
    put(channel, long, [b"x"], expiration="100")
    wait_for(lambda: depth(channel, short) + depth(channel, long) == 0, "both timed out")


def test_time_of_zero_means_now_or_never(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-message-ttl": 0})
    put(channel, queue, [b"nobody waits for me"])
    wait_for(lambda: depth(channel, queue) == 0, "it is gone")
    inbox = Inbox(channel, queue, auto_ack=True)
    put(channel, queue, [b"straight to a consumer"])
    assert inbox.take(1)[0].body == b"straight to a consumer"


@pytest.mark.parametrize("value", ["soon", "-1", "1.5"])
def test_expiration_that_is_no_time_is_refused(pikas: Pikas, value: str) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    code, text = refused(lambda: put(channel, queue, [b"x"], expiration=value))
    assert code == 406
    assert "expiration" in text


def test_rejected_message_moves_with_x_death(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    exchange = new_exchange(channel, "direct")
    queue = new_queue(channel, to(dead))
    channel.queue_bind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"bad")
    one = get_one(channel, queue, auto_ack=False)
    channel.basic_reject(one.tag, requeue=False)
    moved = get_one(channel, dead)
    assert (moved.body, moved.method.exchange, moved.method.routing_key) == (b"bad", "", dead)
    assert not moved.redelivered
    assert death(moved.headers) == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": exchange,
        "routing-keys": ["k"],
    }
    assert moved.headers["x-death"][0]["time"]
    first = {name: moved.headers[f"x-first-death-{name}"] for name in ("queue", "reason", "exchange")}
    assert first == {"queue": queue, "reason": "rejected", "exchange": exchange}


def test_nack_without_requeue_moves_all_it_names(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead))
    put(channel, queue, numbered(4))
    got = Inbox(channel, queue).take(4)
    channel.basic_nack(got[2].tag, multiple=True, requeue=False)
    wait_for(lambda: depth(channel, dead) == 3, "three moved")
    assert drain(channel, dead) == numbered(3)


def test_expired_message_moves_without_its_time(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead))
    put(channel, queue, [b"late"], expiration="50", headers={"mine": "kept"}, correlation_id="c")
    moved = get_one(channel, dead)
    assert moved.body == b"late"
    assert (moved.properties.expiration, moved.properties.correlation_id) == (None, "c")
    assert moved.headers["mine"] == "kept"
    assert death(moved.headers) == {
        "count": 1,
        "reason": "expired",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
        "original-expiration": "50",
    }


def test_queue_ttl_moves_messages_in_order(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead, message_ttl=50))
    put(channel, queue, numbered(5))
    wait_for(lambda: depth(channel, dead) == 5, "all moved")
    got = [get_one(channel, dead) for _ in range(5)]
    assert [d.body for d in got] == numbered(5)
    assert "original-expiration" not in got[0].headers["x-death"][0]


def test_overflow_drops_the_oldest_and_moves_it(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead, max_length=2))
    put(channel, queue, numbered(4))
    assert drain(channel, queue) == numbered(2, start=2)
    got = [get_one(channel, dead) for _ in range(2)]
    assert [d.body for d in got] == numbered(2)
    assert death(got[0].headers)["reason"] == "maxlen"


def test_max_length_counts_ready_messages_only(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-max-length": 2})
    put(channel, queue, [b"held"])
    held = get_one(channel, queue, auto_ack=False)
    put(channel, queue, numbered(3))
    assert drain(channel, queue) == numbered(2, start=1)
    channel.basic_ack(held.tag)


def test_max_length_in_bytes(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-max-length-bytes": 1000})
    put(channel, queue, [b"a" * 400, b"b" * 400, b"c" * 400])
    assert [body[:1] for body in drain(channel, queue)] == [b"b", b"c"]


def test_reject_publish_refuses_the_newest(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead, max_length=2, overflow="reject-publish"))
    put(channel, queue, numbered(2))
    with pytest.raises(NackError):
        put(channel, queue, [b"no room"])
    assert (drain(channel, queue), depth(channel, dead)) == (numbered(2), 0)


def test_reject_publish_dlx_refuses_and_moves_the_newest(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead, max_length=2, overflow="reject-publish-dlx"))
    put(channel, queue, numbered(2))
    with pytest.raises(NackError):
        put(channel, queue, [b"no room"])
    moved = get_one(channel, dead)
    assert (moved.body, death(moved.headers)["reason"]) == (b"no room", "maxlen")
    assert drain(channel, queue) == numbered(2)


def test_publish_to_a_full_and_a_free_queue_is_nacked_and_kept_where_there_is_room(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "fanout")
    free = bound_queue(channel, exchange)
    full = new_queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    put(channel, full, [b"first"])
    channel.queue_bind(full, exchange)
    with pytest.raises(NackError):
        channel.basic_publish(exchange, "", b"second")
    assert (drain(channel, free), drain(channel, full)) == ([b"second"], [b"first"])


def test_dead_letters_go_through_an_exchange_with_the_messages_own_key(pikas: Pikas) -> None:
    channel = pikas.channel()
    dlx = new_exchange(channel, "topic")
    hit, miss = bound_queue(channel, dlx, "jobs.#"), bound_queue(channel, dlx, "other.#")
    exchange = new_exchange(channel, "direct")
    queue = new_queue(channel, {"x-dead-letter-exchange": dlx})
    channel.queue_bind(queue, exchange, "jobs.mail")
    channel.basic_publish(exchange, "jobs.mail", b"bad")
    channel.basic_reject(get_one(channel, queue, auto_ack=False).tag, requeue=False)
    moved = get_one(channel, hit)
    assert (moved.body, moved.method.exchange, moved.method.routing_key) == (b"bad", dlx, "jobs.mail")
    assert depth(channel, miss) == 0


def test_dead_letter_to_an_exchange_that_is_not_there_is_dropped(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-dead-letter-exchange": "nobody-declared-this-one"})
    put(channel, queue, [b"bad"])
    channel.basic_reject(get_one(channel, queue, auto_ack=False).tag, requeue=False)
    assert depth(channel, queue) == 0
    assert channel.is_open


def test_death_is_counted_per_queue_and_reason_newest_first(pikas: Pikas) -> None:
    channel = pikas.channel()
    # A retry by time: work rejects into wait, wait expires back into work.
    work_exchange = new_exchange(channel, "direct")
    wait = new_queue(
        channel, {"x-dead-letter-exchange": work_exchange, "x-message-ttl": 30, "x-dead-letter-routing-key": "w"}
    )
    work = new_queue(channel, to(wait))
    channel.queue_bind(work, work_exchange, "w")
    channel.basic_publish(work_exchange, "w", b"try me")
    for _ in range(3):
        channel.basic_reject(get_one(channel, work, auto_ack=False).tag, requeue=False)
    last = get_one(channel, work)
    entries = [(d["queue"], d["reason"], d["count"]) for d in last.headers["x-death"]]
    assert entries == [(wait, "expired", 3), (work, "rejected", 3)]
    assert last.headers["x-first-death-queue"] == work
    assert last.headers["x-first-death-reason"] == "rejected"


def test_message_that_only_times_out_in_a_circle_is_dropped(pikas: Pikas) -> None:
    channel = pikas.channel()
    first_exchange = new_exchange(channel, "fanout")
    second = new_queue(channel, {"x-dead-letter-exchange": first_exchange, "x-message-ttl": 20})
    first = new_queue(channel, to(second, message_ttl=20))
    channel.queue_bind(first, first_exchange)
    put(channel, first, [b"round and round"])
    wait_for(lambda: depth(channel, first) + depth(channel, second) == 0, "the circle is broken", every_s=0.2)


def test_message_that_dies_back_into_its_own_queue_by_rejection_keeps_coming(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "fanout")
    queue = new_queue(channel, {"x-dead-letter-exchange": exchange})
    channel.queue_bind(queue, exchange)
    put(channel, queue, [b"again"])
    for count in (1, 2):
        channel.basic_reject(get_one(channel, queue, auto_ack=False).tag, requeue=False)
        moved = wait_for(lambda: get(channel, queue, auto_ack=False), "it is back")
        assert death(moved.headers)["count"] == count
        assert not moved.redelivered
        channel.basic_nack(moved.tag, requeue=True)


def test_acked_and_purged_messages_are_no_dead_letters(pikas: Pikas) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, to(dead))
    put(channel, queue, numbered(3))
    channel.basic_ack(get_one(channel, queue, auto_ack=False).tag)
    assert channel.queue_purge(queue).method.message_count == 2
    put(channel, queue, [b"x"])
    channel.queue_delete(queue)
    assert depth(channel, dead) == 0


def test_held_message_does_not_time_out(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-message-ttl": 60})
    put(channel, queue, [b"held"])
    held = get_one(channel, queue, auto_ack=False)
    put(channel, queue, [b"ready"])
    wait_for(lambda: depth(channel, queue) == 0, "the ready one timed out")
    channel.basic_ack(held.tag)
    assert depth(channel, queue) == 0
    assert channel.is_open
