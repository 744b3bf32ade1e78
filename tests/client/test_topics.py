"""Publishing to topics and subscribing to them, in each of the four ways to use the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.client.receiving import read
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation import errors
from waystation.message import Message as Outgoing

Client = Any


def test_a_message_goes_through_a_topic(mq: Client) -> None:
    topic = unique("orders")
    with mq.subscribe(topic) as live:
        published = mq.publish(topic, {"id": 7}, key="u1", headers={"src": "web"}, id="o-7", correlation_id="c")
        assert (published.topic, published.partition, published.offset, published.id) == (topic, 0, 0, "o-7")
        message = live.get_message(30)
        assert message.value == {"id": 7}
        assert (message.topic, message.partition, message.offset, message.queue) == (topic, 0, 0, None)
        assert (message.key, message.headers["src"], message.id, message.correlation_id) == ("u1", "web", "o-7", "c")
        message.ack()  # a live message needs none, and that is no mistake
    assert mq.publish(topic, b"x").id == f"{topic}-0@1"
    assert mq.find(f"{topic}-0@1").payload == b"x"


def test_text_and_json_say_what_they_are(mq: Client) -> None:
    topic = unique("verbs")
    with mq.subscribe(topic) as live:
        mq.publish_text(topic, "hello")
        mq.publish_json(topic, "a string")
        mq.publish_json(topic, {"a": 1}, key="k")
        text, string, json = read(live, 3)
    assert (text.value, text.type) == ("hello", "text")
    assert (string.payload, string.value) == (b'"a string"', "a string")
    assert (json.value, json.key) == ({"a": 1}, "k")


def test_patterns_match_words_and_pick_up_topics_created_later(mq: Client) -> None:
    root = unique("p")
    with mq.subscribe(f"{root}.*.eu") as one_word, mq.subscribe(f"{root}.#") as any_words:
        for name in ("orders.eu", "orders.us", "orders.new.eu"):
            mq.publish(f"{root}.{name}", name)
        assert [message.text() for message in read(one_word, 1)] == ["orders.eu"]
        assert {message.text() for message in read(any_words, 3)} == {"orders.eu", "orders.us", "orders.new.eu"}


def test_regular_expressions_and_several_patterns(mq: Client) -> None:
    root = unique("r")
    with mq.subscribe(rf"{root}\.(a|b)\d", regex=True) as some, mq.subscribe([f"{root}.a1", f"{root}.c1"]) as named:
        for name in ("a1", "b2", "c1", "ax"):
            mq.publish(f"{root}.{name}", name)
        assert {message.text() for message in read(some, 2)} == {"a1", "b2"}
        assert {message.text() for message in read(named, 2)} == {"a1", "c1"}
    with pytest.raises(errors.Invalid):
        mq.subscribe("(", regex=True)


def test_a_filter_chooses_and_a_wrong_one_points_at_its_mistake(mq: Client) -> None:
    topic = unique("f")
    with mq.subscribe(topic, filter="json.total > 10 and headers.src = 'web'") as chosen:
        mq.publish(topic, {"total": 5}, headers={"src": "web"})
        mq.publish(topic, {"total": 50}, headers={"src": "web"})
        mq.publish(topic, {"total": 50}, headers={"src": "app"})
        mq.publish(topic, {"total": 11}, headers={"src": "web"})
        assert [message.json()["total"] for message in read(chosen, 2)] == [50, 11]
    with pytest.raises(errors.FilterSyntax):
        mq.subscribe(topic, filter="json.total >")


def test_history_shows_the_last_messages_first(mq: Client) -> None:
    topic = unique("h")
    mq.publish_many(topic, [str(number) for number in range(10)])
    with mq.subscribe(topic, history=3) as live:
        mq.publish(topic, "new")
        assert [message.text() for message in read(live, 4)] == ["7", "8", "9", "new"]


def test_a_group_shares_messages_and_its_position_is_kept(mq: Client) -> None:
    topic, group = unique("shared"), unique("billing")
    mq.publish_many(topic, [str(number) for number in range(20)])
    with mq.subscribe(topic, group=group, start="earliest", prefetch=5) as one:
        first = read(one, 5)
        with mq.subscribe(topic, group=group, start="earliest") as other:
            rest = read(other, 15)
            assert {message.text() for message in first + rest} == {str(number) for number in range(20)}
            other.commit()
        one.ack_many(first)
    with mq.subscribe(topic, group=group, start="earliest") as later:
        mq.publish(topic, "new")
        message = later.get_message(30)
        assert message.text() == "new"
        message.ack()


def test_a_rejected_message_of_a_group_comes_again_and_dies_at_last(mq: Client) -> None:
    topic, dead = unique("shared"), mq.queue(unique("dead"))
    options = {"start": "earliest", "max_deliveries": 2, "dead_letter": dead.name}
    mq.publish(topic, "bad")
    with mq.subscribe(topic, group=unique("g"), **options) as subscription:
        for delivery in (1, 2):
            message = subscription.get_message(30)
            assert message.deliveries == delivery
            message.reject("useless")
        with dead.get(timeout=30) as letter:
            assert letter.text() == "bad"


def test_iterating_over_a_group_acks_what_was_worked_on(mq: Client) -> None:
    topic, group = unique("loop"), unique("g")
    mq.publish_many(topic, ["a", "b", "c"])
    with mq.subscribe(topic, group=group, start="earliest") as subscription:
        for message in subscription:
            if message.text() == "b":
                break
    with mq.subscribe(topic, group=group) as subscription:
        message = subscription.get_message(30)
        assert (message.text(), message.deliveries) == ("c", message.deliveries)


def test_a_stream_is_in_order_and_goes_on_where_it_was_committed(mq: Client) -> None:
    topic, group = unique("stream"), unique("g")
    mq.publish_many(topic, [str(number) for number in range(10)])
    with mq.subscribe(topic, group=group, mode="stream", start="earliest") as stream:
        assert [message.text() for message in read(stream, 4)] == ["0", "1", "2", "3"]
        stream.commit()
    with mq.subscribe(topic, group=group, mode="stream", start="earliest") as stream:
        message = stream.get_message(30)
        assert (message.text(), message.offset) == ("4", 4)


def test_a_group_may_begin_at_a_time(mq: Client) -> None:
    topic = unique("time")
    mq.publish(topic, "old", timestamp=datetime.now(UTC) - timedelta(hours=2))
    mq.publish(topic, "new")
    start = datetime.now(UTC) - timedelta(hours=1)
    with mq.subscribe(topic, group=unique("g"), mode="stream", start=start) as stream:
        assert stream.get_message(30).text() == "new"


def test_keys_decide_the_partition_and_a_partition_can_be_chosen(mq: Client) -> None:
    topic = unique("parts")
    info = mq.create_topic(topic, partitions=4, settings={"retention.ms": 3_600_000})
    assert (len(info.partitions), info.settings["retention.ms"]) == (4, "3600000")
    partitions = {mq.publish(topic, b"", key="k").partition for _ in range(3)}
    assert len(partitions) == 1
    assert mq.publish(topic, b"", partition=3).partition == 3
    assert sum(end for _, end, _ in mq.describe_topic(topic).partitions) == 4
    assert topic in [known.topic for known in mq.topics()]
    with pytest.raises(errors.AlreadyExists):
        mq.create_topic(topic)
    mq.delete_topic(topic)
    with pytest.raises(errors.NotFound):
        mq.describe_topic(topic)


def test_many_are_published_at_once_and_without_waiting(mq: Client) -> None:
    topic = unique("many")
    with mq.subscribe(topic) as live:
        assert len(mq.publish_many(topic, [str(number) for number in range(2500)])) == 2500
        pending = [mq.publish_nowait(topic, str(number)) for number in range(2500, 2600)]
        assert [one.result().offset for one in pending] == list(range(2500, 2600))
        assert [int(message.text()) for message in read(live, 2600)] == list(range(2600))


def test_at_most_once_waits_for_nothing(mq: Client) -> None:
    topic = unique("most")
    mq.publish(topic, "the topic is there now")
    with mq.subscribe(topic) as live:
        assert mq.publish(topic, "fire and forget", guarantee="at-most-once").offset == -1
        assert live.get_message(30).text() == "fire and forget"


def test_exactly_once_is_refused_by_a_topic_that_cannot_keep_it(mq: Client) -> None:
    topic = unique("once")
    mq.create_topic(topic)
    refusal = r"no deduplication window.*waystation\.dedup\.window\.ms"
    with pytest.raises(errors.Conflict, match=refusal):
        mq.publish(topic, "x", guarantee="exactly-once")
    with pytest.raises(errors.Conflict, match=refusal):
        mq.publish_many(topic, ["x", "y"], guarantee="exactly-once")
    assert mq.publish(topic, "y").offset == 0  # nothing was stored before


def test_a_topic_that_exactly_once_creates_has_a_window(mq: Client) -> None:
    topic = unique("once")
    first = mq.publish(topic, "x", guarantee="exactly-once", id="order-7")
    assert mq.describe_topic(topic).settings["waystation.dedup.window.ms"] == "600000"
    again = mq.publish(topic, "x", guarantee="exactly-once", id="order-7")
    assert (len(first), len(again), list(again.duplicates)) == (1, 0, [0])
    with mq.subscribe(topic, history=10) as live:
        mq.publish(topic, "last")
        assert [message.text() for message in read(live, 2)] == ["x", "last"]


def test_a_client_that_wants_exactly_once_publishes_so(connect: Connect) -> None:
    mq, topic = connect(guarantee="exactly-once"), unique("once")
    mq.create_topic(topic)
    with pytest.raises(errors.Conflict, match="deduplication window"):
        mq.publish(topic, "x")
    with pytest.raises(errors.Conflict, match="deduplication window"):
        mq.publish_nowait(topic, "x").result()
    assert mq.publish(topic, "x", guarantee="at-least-once").offset == 0


def test_duplicates_are_told_and_neither_stored_nor_counted(mq: Client) -> None:
    topic = unique("twice")
    mq.create_topic(topic, 1, settings={"waystation.dedup.window.ms": 600_000})
    assert mq.publish(topic, "x", id="a").offset == 0
    before = mq.stats()["messages_published"]
    again = mq.publish(topic, "x", id="a")
    assert (len(again), list(again.duplicates), again.offset, list(again.places)) == (0, [0], -1, [])
    assert "1 left out" in repr(again)
    assert mq.stats()["messages_published"] == before
    some = mq.publish_many(topic, [Outgoing(b"x", id="a"), Outgoing(b"y", id="b"), Outgoing(b"z", id="b")])
    assert (len(some), list(some.duplicates)) == (1, [0, 2])
    assert some.offset == 1  # what is left out takes no offset
    assert mq.find(f"{topic}-0@{some.offset}").payload == b"y"
    assert mq.stats()["messages_published"] == before + 1
    wide = unique("twice")
    mq.create_topic(wide, 4, settings={"waystation.dedup.window.ms": 600_000})
    ids = [str(number) for number in range(2500)]
    assert len(mq.publish_many(wide, [Outgoing(b"", id=id) for id in ids])) == 2500
    mixed = mq.publish_many(wide, [Outgoing(b"", id=id) for id in [*ids[::2], "new", *ids[1::2]]])
    assert (len(mixed), list(mixed.duplicates)) == (1, [*range(1250), *range(1251, 2501)])


def test_an_id_of_an_aborted_transaction_was_not_used(mq: Client) -> None:
    topic = unique("aborted")
    mq.create_topic(topic, 1, settings={"waystation.dedup.window.ms": 600_000})
    with mq.transaction(unique("aborted")) as tx:
        tx.publish(topic, "undone", id="a")
        tx.abort()
    assert len(mq.publish(topic, "kept", id="a")) == 1
    with mq.transaction(unique("aborted")) as tx:
        tx.publish(topic, "committed", id="b")
        tx.publish(topic, "the same", id="b")
        with pytest.raises(errors.Unavailable, match="'b' was published in a transaction that is still open"):
            mq.publish(topic, "whether it is used is not known", id="b")
    for id in ("a", "b"):
        assert list(mq.publish(topic, "again", id=id).duplicates) == [0]


def test_duplicates_are_told_in_a_transaction_too(mq: Client) -> None:
    topic, wide = unique("twice"), unique("twice")
    mq.create_topic(topic, 1, settings={"waystation.dedup.window.ms": 600_000})
    mq.create_topic(wide, 4, settings={"waystation.dedup.window.ms": 600_000})
    mq.publish(topic, "x", id="a")
    ids = [str(number) for number in range(100)]
    mq.publish_many(wide, [Outgoing(b"", id=id) for id in ids[::2]])
    before = mq.stats()["messages_published"]
    with mq.transaction(unique("twice")) as tx:
        again = tx.publish(topic, "again", id="a")
        assert (len(again), list(again.duplicates), again.offset) == (0, [0], -1)
        first = tx.publish(topic, "y", id="b")
        assert (len(first), list(first.duplicates), first.offset) == (1, [], 1)
        assert list(tx.publish(topic, "twice in one transaction", id="b").duplicates) == [0]
        mixed = tx.publish_many(wide, [Outgoing(b"", id=id) for id in ids])
        assert (len(mixed), list(mixed.duplicates)) == (50, list(range(0, 100, 2)))
    assert mq.stats()["messages_published"] == before + 51
    with mq.subscribe(topic, history=10) as live:
        mq.publish(topic, "last")
        assert [message.text() for message in read(live, 3)] == ["x", "y", "last"]


def test_exactly_once_gives_ids_that_a_window_knows(mq: Client) -> None:
    topic = unique("once")
    mq.create_topic(topic, settings={"waystation.dedup.window.ms": 600_000})
    published = mq.publish(topic, "x", guarantee="exactly-once")
    assert len(published.id) == 32
    mq.publish(topic, "x", id=published.id)
    mq.publish(topic, "last")
    with mq.subscribe(topic, history=10) as live:
        assert [message.text() for message in read(live, 2)] == ["x", "last"]


def test_a_delayed_message_waits_for_its_time(mq: Client) -> None:
    topic = unique("delayed")
    with mq.subscribe(topic) as live:
        sent = datetime.now(UTC)
        mq.publish(topic, "later", delay=0.3)
        assert live.get_message(30).text() == "later"
        assert datetime.now(UTC) - sent >= timedelta(seconds=0.299), "the broker counts in whole milliseconds"


def test_subscribers_are_counted(mq: Client) -> None:
    topic = unique("count")
    mq.publish(topic, b"")
    with mq.subscribe(topic), mq.subscribe(topic):
        assert mq.describe_topic(topic).subscribers == 2
    wait_for(lambda: mq.describe_topic(topic).subscribers == 0, "they are gone")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "shared"}, "group"),
        ({"mode": "live", "group": "g"}, "mode"),
        ({"mode": "sideways", "group": "g"}, "mode"),
        ({"start": "somewhere", "group": "g"}, "start"),
        ({"prefetch": -1}, "prefetch"),
        ({"guarantee": "exactly-once", "group": "g", "mode": "shared"}, "guarantee"),
        ({"guarantee": "exactly-once"}, "group"),
        ({"guarantee": "surely"}, "guarantee"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(mq: Client, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        mq.subscribe("t", **options)


def test_a_wrong_topic_name_is_refused(mq: Client) -> None:
    with pytest.raises(errors.InvalidTopicName):
        mq.publish("no spaces please", b"")
