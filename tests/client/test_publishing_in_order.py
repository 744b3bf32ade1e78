"""Many messages to a topic: those that are stored are the first ones, in their order, and the error says how many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.names import unique
from waystation import errors
from waystation.message import Message as Outgoing

LARGE = "x" * 200_000
SMALL_LIMIT = {"max.message.bytes": 100_000}


def values_in(mq: Any, topic: str) -> list[Any]:
    """Everything in a topic of one partition."""
    _, count, _ = mq.describe_topic(topic).partitions[0]
    found: list[Any] = []
    with mq.subscribe(topic, group=unique("g"), mode="stream", start="earliest") as all_of_it:
        while len(found) < count:
            found += [message.value for message in all_of_it.poll(30, count)]
    return found


def test_publish_many_leaves_no_hole(mq: Any) -> None:
    topic = unique("hole")
    mq.create_topic(topic, 1, SMALL_LIMIT)
    values = [*range(1500), LARGE, *range(1501, 5000)]
    with pytest.raises(errors.TooLarge, match="first 1000 messages of this call are stored, none of the oth") as caught:
        mq.publish_many(topic, values)
    assert caught.value.stored == 1000
    assert values_in(mq, topic) == [*range(1000)]
    values[1500] = 1500
    assert len(mq.publish_many(topic, values[caught.value.stored :])) == 4000
    assert values_in(mq, topic) == [*range(5000)]


def test_publish_many_to_a_topic_that_it_creates_leaves_no_hole(mq: Any) -> None:
    """The first frames wait until the topic is there; its largest message is the broker's default, 1 MiB."""
    topic = unique("hole")
    with pytest.raises(errors.TooLarge) as caught:
        mq.publish_many(topic, [*range(1500), b"x" * (1 << 21), *range(1501, 5000)])
    assert caught.value.stored == 1500  # the large one is in a frame of its own
    assert values_in(mq, topic) == [*range(1500)]


def test_publish_many_stops_at_a_value_that_is_none(mq: Any) -> None:
    topic = unique("hole")
    with pytest.raises(errors.Invalid, match="first 1000 messages of this call are stored") as caught:
        mq.publish_many(topic, [*range(1500), object(), *range(1500, 3000)])
    assert caught.value.stored == 1000
    assert values_in(mq, topic) == [*range(1000)]


def test_publishes_of_others_are_not_refused_with_publish_many(mq: Any) -> None:
    topic = unique("hole")
    mq.create_topic(topic, 1, SMALL_LIMIT)
    others = [mq.publish_nowait(topic, "between") for _ in range(3)]
    with pytest.raises(errors.TooLarge):
        mq.publish_many(topic, [*range(1500), LARGE, *range(1501, 5000)])
    others += [mq.publish_nowait(topic, "after") for _ in range(3)]
    mq.flush()
    assert values_in(mq, topic) == ["between"] * 3 + [*range(1000)] + ["after"] * 3


# -- one key -----------------------------------------------------------------------------------------------------------


def test_messages_of_one_key_are_in_one_partition_in_their_order(mq: Any) -> None:
    topic = unique("orders")
    mq.create_topic(topic, 4)
    for key in ("u1", "u2", "u3"):
        sent = mq.send_ordered(topic, key, ({"n": n} for n in range(2500)), headers={"src": "web"})
        assert (len(sent), sent.partition >= 0) == (2500, True)
    got: dict[str, list[tuple[int, int, int]]] = {}
    with mq.subscribe(topic, group=unique("g"), mode="stream", start="earliest") as all_of_it:
        while sum(map(len, got.values())) < 7500:
            for message in all_of_it.poll(30, 1000):
                assert message.headers["src"] == "web"
                place = (message.partition, message.offset, message.value["n"])
                got.setdefault(message.key, []).append(place)
    for places in got.values():
        assert len({partition for partition, _, _ in places}) == 1
        assert [n for _, _, n in places] == [*range(2500)]
        assert [offset for _, offset, _ in places] == sorted(offset for _, offset, _ in places)


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_send_ordered_stops_at_the_first_refusal(connect: Connect, guarantee: str) -> None:
    mq, topic = connect(), unique("orders")
    window = {"waystation.dedup.window.ms": 60_000} if guarantee == "exactly-once" else {}
    mq.create_topic(topic, 1, SMALL_LIMIT | window)
    with pytest.raises(errors.TooLarge, match="first 1000 messages of this call are stored") as caught:
        mq.send_ordered(topic, "k", [*range(1500), LARGE, *range(1501, 5000)], guarantee=guarantee)
    assert caught.value.stored == 1000
    assert values_in(mq, topic) == [*range(1000)]


def test_send_ordered_refuses_what_would_break_the_order(mq: Any) -> None:
    topic = unique("orders")
    with pytest.raises(errors.Invalid, match="delay: messages that stay in order"):
        mq.send_ordered(topic, "k", ["a"], delay=5)
    with pytest.raises(errors.Invalid, match="delay: messages that stay in order"):
        mq.send_ordered(topic, "k", [Outgoing(b"a", deliver_at_ms=5)])
    with pytest.raises(errors.Invalid, match="key: b'other' is not b'k'"):
        mq.send_ordered(topic, "k", [Outgoing(b"a", key=b"other")])
    with pytest.raises(errors.Invalid, match="key: messages that stay in order need one"):
        mq.send_ordered(topic, None, ["a"])
    sent = mq.send_ordered(topic, b"k", [Outgoing(b"a", priority=3), "b"])
    assert (len(sent), sent.offset) == (2, 0)
