"""What the broker counts: published, delivered, subscribed, in flight, missed. Seen by each of the four clients."""

from __future__ import annotations

from typing import Any

from tests.client.receiving import read
from tests.support.names import unique
from tests.support.waiting import wait_for

Client = Any


def test_what_live_subscribers_get_is_delivered(mq: Client) -> None:
    topic = unique("live")
    mq.create_topic(topic, 1)
    with mq.subscribe(topic) as subscription:
        before = mq.stats()
        mq.publish_many(topic, [b"x"] * 7)
        read(subscription, 7)
        after = mq.stats()
    assert after["messages_delivered"] == before["messages_delivered"] + 7
    assert after["messages_published"] == before["messages_published"] + 7


def test_what_was_published_stays_counted_when_it_is_deleted(mq: Client) -> None:
    topic = unique("gone")
    before = mq.stats()["messages_published"]
    mq.publish_many(topic, [b"x"] * 5)
    mq.delete_topic(topic)
    assert mq.stats()["messages_published"] == before + 5


def test_a_subscription_counts_once_whatever_number_of_topics_it_gets(mq: Client) -> None:
    root, group = unique("many"), unique("g")
    for name in "abc":
        mq.create_topic(f"{root}.{name}", 1)
    before = mq.stats()["total_subscriptions"]
    with mq.subscribe(f"{root}.*"), mq.subscribe(f"{root}.*", group=group), mq.subscribe(f"{root}.a"):
        stats = mq.stats()
        assert stats["total_subscriptions"] == before + 3
        assert stats["topics"][f"{root}.a"]["subscriptions"] == 3
        assert stats["topics"][f"{root}.b"]["subscriptions"] == 2
    wait_for(lambda: mq.stats()["total_subscriptions"] == before, "they are gone")


def test_a_message_that_is_acked_in_an_open_transaction_is_in_flight(mq: Client) -> None:
    name = unique("jobs")
    queue = mq.queue(name)
    queue.put_many([b"1", b"2", b"3"])
    message = queue.get(timeout=5)
    with mq.transaction(unique("tx")) as tx:
        tx.ack(message)
        tx.publish(unique("done"), b"x")
        shown = mq.view("queue", queue=name)
        assert (shown["ready"], shown["held"], shown["parked"]) == (2, 1, 0)
        assert mq.stats()["queues"]["held"] >= 1
    shown = mq.view("queue", queue=name)
    assert (shown["ready"], shown["held"]) == (2, 0)


def test_the_brokers_own_queues_are_not_counted(mq: Client) -> None:
    topic = unique("later")
    mq.create_topic(topic, 1)
    before = mq.stats()
    mq.publish(topic, "x", delay=600)
    after = mq.stats()
    assert after["queues"] == before["queues"]
    assert after["active_consumers"] == before["active_consumers"]


def test_what_a_slow_subscriber_misses_is_counted(mq: Client) -> None:
    topic = unique("fast")
    mq.create_topic(topic, 1)
    with mq.subscribe(topic, slow="drop", prefetch=2) as subscription:
        mq.publish_many(topic, [b"x"] * 50)
        got = read(subscription, 1)
        mq.publish_many(topic, [b"y"] * 10)
        got += read(subscription, 2)
        shown = mq.view("topic", topic=topic)
        assert shown["dropped"] > 0
        assert shown["dropped"] + len(got) <= 60
