"""Live subscriptions: everything from now on, to everybody who wants it, and nobody's slowness is another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.feeds import settled, subscribe, until
from tests.broker.kit import HandClock, broker_on, run, send
from waystation.broker.broker import Broker
from waystation.errors import CorruptBatch, Invalid, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.feed import Settled, Verdict
from waystation.subscriptions.live import LiveFeed
from waystation.topics.partitions.partition import log_of


def put(broker: Broker, topic: str, *texts: str, partition: int | None = None) -> None:
    broker.messages.publish(topic, [Message(text.encode()) for text in texts], partition)


def feed_of(feed: object) -> LiveFeed:
    assert isinstance(feed, LiveFeed)
    return feed


def test_a_subscriber_gets_everything_from_now_on_and_nothing_of_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 2)
            put(broker, "t", "before")
            one = await subscribe(broker, "t")
            two = await subscribe(broker, "t")
            put(broker, "t", "a", "b", partition=0)
            send(broker, "t", b"by kafka", key=b"k", headers=(("x-priority", b"3"),))
            for consumer in (one, two):
                await consumer.gets("a", "b", "by kafka")
                last = consumer.got[-1]
                assert (last.source, last.partition, last.deliveries) == ("t", 0, 1)
                assert (last.message.key, last.message.priority) == (b"k", 3)
            assert one.answer.topics == ["t"]
            assert two.answer.subscribers == 2

    run(main())


def test_history_comes_first_and_nothing_twice(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t.a", 2)
            await broker.topics.create("t.b", 1)
            for i in range(10):
                clock.ms += 1
                put(broker, "t.a" if i % 2 else "t.b", str(i), partition=0)
            consumer = await subscribe(broker, "t.*", history=4, credit=0)
            put(broker, "t.a", "10")
            await settled()
            assert consumer.got == []
            consumer.feed.credit(3)
            await consumer.gets("6", "7", "8")
            consumer.feed.credit(10)
            await consumer.gets("6", "7", "8", "9", "10")

    run(main())


def test_a_pattern_picks_up_topics_that_come_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            consumer = await subscribe(broker, "orders.*", "exact")
            regex = await subscribe(broker, "orders.[a-z]+", syntax="regex")
            assert consumer.answer.topics == []
            for name in ("orders.eu", "orders", "orders.eu.west", "exact", "exact.not"):
                await broker.messages.ensure(name)
                put(broker, name, name)
            await consumer.gets("orders.eu", "exact")
            await regex.gets("orders.eu")
            await broker.topics.add_partitions("orders.eu", 3)
            put(broker, "orders.eu", "new partition", partition=2)
            await consumer.gets("orders.eu", "exact", "new partition")

    run(main())


def test_a_topic_deleted_and_made_again_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t", "other.#")
            put(broker, "t", "a")
            await consumer.gets("a")
            await broker.topics.delete("t")
            await broker.topics.create("t", 1)
            put(broker, "t", "b")
            await consumer.gets("a", "b")
            assert consumer.got[1].offset == 0
            assert consumer.ended == []

    run(main())


def test_internal_topics_are_nobodys(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "#", "__consumer_offsets")
            assert consumer.answer.topics == ["t"]

    run(main())


def test_a_filter_lets_through_what_it_says_also_of_the_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            for i in range(20):
                broker.messages.publish("t", [Message(b"%d" % i, headers={"odd": "yes" if i % 2 else "no"})])
            consumer = await subscribe(broker, "t", filter="headers.odd = 'yes'", history=2)
            for i in range(20, 24):
                broker.messages.publish("t", [Message(b"%d" % i, headers={"odd": "yes" if i % 2 else "no"})])
            await consumer.gets("17", "19", "21", "23")
            with pytest.raises(Invalid, match=r"\d"):
                await subscribe(broker, "t", filter="headers.odd = = 1")

    run(main())


def test_a_blocked_subscriber_reads_on_later_and_misses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a", waystation_flush="os") as broker:
            await broker.topics.create("t", 3)
            slow = await subscribe(broker, "t", slow="block", credit=5)
            quick = await subscribe(broker, "t", credit=100_000)
            for i in range(3000):
                put(broker, "t", str(i), partition=i % 3)
                if i % 500 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(quick.got) == 3000, "all for the quick one")
            assert len(slow.got) == 5
            for _ in range(100):
                slow.feed.credit(30)
                await settled()
            await until(lambda: len(slow.got) == 3000, "all for the slow one too")
            for index in range(3):
                offsets = [one.offset for one in slow.got if one.partition == index]
                assert offsets == list(range(1000))
            assert feed_of(slow.feed).dropped == 0

    run(main())


def test_a_dropping_subscriber_goes_on_with_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t", slow="drop", credit=2)
            put(broker, "t", "1", "2", "3", "4")
            await consumer.gets("1", "2")
            put(broker, "t", "5")
            await settled()
            consumer.feed.credit(10)
            put(broker, "t", "6")
            await consumer.gets("1", "2", "6")
            assert feed_of(consumer.feed).dropped == 3

    run(main())


def test_retention_that_overtakes_a_blocked_subscriber_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t", credit=0)
            for i in range(10):
                put(broker, "t", str(i))
            await broker.topics.get("t").partition(0).delete_records(7)
            consumer.feed.credit(100)
            await consumer.gets("7", "8", "9")
            assert feed_of(consumer.feed).dropped == 7

    run(main())


def test_only_what_is_committed_is_seen(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t")
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"aborted")])
            put(broker, "t", "plain")
            await settled()
            assert consumer.got == []
            await tx.end(commit=False)
            await consumer.gets("plain")
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"committed")])
            await tx.end(commit=True)
            await consumer.gets("plain", "committed")

    run(main())


def test_nothing_is_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t")
            put(broker, "t", "a")
            await consumer.gets("a")
            assert consumer.feed.settle(Verdict.ACK, [(0, 1)]) == Settled(None, [])
            assert consumer.feed.touch([(0, 1)]) == []

    run(main())


def test_a_closed_subscriber_gets_nothing_more_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t", "#")
            put(broker, "t", "a")
            await consumer.gets("a")
            put(broker, "t", "b")
            consumer.feed.close()
            consumer.feed.close()
            consumer.feed.credit(5)
            await settled()
            assert consumer.texts == ["a"]
            assert not broker.topics.get("t").partition(0).watchers
            assert len(broker.readers) == 0
            assert broker.subscriptions.counts() == {}

    run(main())


def test_a_subscriber_that_fails_is_ended_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            bad = await subscribe(broker, "t", credit=0)

            def explode(messages: list[Delivered]) -> None:
                raise ValueError("no connection")

            feed_of(bad.feed)._deliver = explode
            bad.feed.credit(1)
            good = await subscribe(broker, "t")
            put(broker, "t", "a")
            await good.gets("a")
            await until(lambda: bad.ended, "the end of the bad one")

    run(main())


def test_a_corrupt_place_ends_the_subscription_with_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await subscribe(broker, "t", credit=0)
            put(broker, "t", "a" * 100)
            log = log_of(broker.topics.get("t").partition(0))
            segment = log.active
            segment.file.write([b"garbage"], 80)
            segment.verified = (0, 0)
            consumer.feed.credit(1)
            await until(lambda: consumer.ended, "the end")
            [error] = consumer.ended
            assert isinstance(error, CorruptBatch)
            log.fail(error)

    run(main())


def test_a_thousand_subscribers_share_one_decoded_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumers = [await subscribe(broker, "t") for _ in range(1000)]
            put(broker, "t", "a", "b")
            for consumer in consumers:
                await consumer.gets("a", "b")
            assert len({id(consumer.got[0]) for consumer in consumers}) == 1

    run(main())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"group": "g"}, "group"),
        ({"history": -1}, "history"),
        ({"history": 10_001}, "history"),
        ({"mode": "stream"}, "group"),
        ({"mode": "shared"}, "group"),
        ({"mode": "stream", "group": "g", "history": 3}, "history"),
        ({"mode": "stream", "group": "g", "start_ms": -3}, "start_ms"),
        ({"prefetch": -1}, "prefetch"),
        ({"hold_ms": 0}, "hold_ms"),
        ({"filter": ""}, "filter"),
        ({"topics": []}, "topics"),
        ({"topics": ["a*"]}, "pattern"),
        ({"topics": ["("], "syntax": "regex"}, "pattern"),
        ({"topics": ["a"] * 1001}, "topics"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused_by_field(
    tmp_path: Path, options: dict[str, object], field: str
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topics = options.pop("topics", ["t"])
            with pytest.raises(WaystationError, match=field) as refused:
                await subscribe(broker, *topics, **options)  # type: ignore[misc]
            assert isinstance(refused.value, Invalid)
            assert broker.subscriptions.counts() == {}

    run(main())


def test_a_message_whose_time_is_over_is_passed_over(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 1)
            broker.messages.publish("t", [Message(b"short", ttl_ms=100), Message(b"long", ttl_ms=10_000)])
            waiting = await subscribe(broker, "t", credit=0, history=2)
            blocked = await subscribe(broker, "t", credit=0)
            streaming = await subscribe(broker, "t", mode="stream", group="g", start="earliest", credit=0)
            broker.messages.publish("t", [Message(b"brief", ttl_ms=100), Message(b"last")])
            clock.ms += 100
            for consumer in (waiting, blocked, streaming):
                consumer.feed.credit(10)
            await waiting.gets("long", "last")
            await blocked.gets("last")
            await streaming.gets("long", "last")

    run(main())
