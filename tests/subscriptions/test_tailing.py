"""Readers of a topic without a group: from a chosen place on, then as it grows, as far as their credit goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.feeds import Consumer, settled, until
from tests.broker.kit import HandClock, broker_on, run, send
from waystation.broker.broker import Broker
from waystation.errors import Invalid, NotAllowed, NotFound
from waystation.message import Message
from waystation.queues.feed import Settled, Verdict
from waystation.subscriptions.tailing import FIRST, LAST, NEXT, TailFeed, TailStart
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition


class Reader(Consumer):
    feed: TailFeed


def tail(broker: Broker, topic: str, start: TailStart, credit: int = 1000) -> Reader:
    reader = Reader()
    reader.feed = broker.tailing.open(topic, start, reader.deliver, reader.ended.append)
    reader.feed.credit(credit)
    return reader


def test_first_is_everything_and_then_what_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"a", b"b")
            reader = tail(broker, "t", FIRST)
            await reader.gets("a", "b")
            send(broker, "t", b"c")
            await reader.gets("a", "b", "c")
            assert [(one.tag, one.source, one.partition, one.offset) for one in reader.got] == [
                (1, "t", 0, 0),
                (2, "t", 0, 1),
                (3, "t", 0, 2),
            ]

    run(story())


def test_next_is_only_what_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"old")
            reader = tail(broker, "t", NEXT)
            send(broker, "t", b"new")
            await reader.gets("new")

    run(story())


def test_last_is_the_last_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            await broker.topics.create("empty", 1)
            send(broker, "t", b"a", b"b")
            send(broker, "t", b"c", b"d")
            reader, of_nothing = tail(broker, "t", LAST), tail(broker, "empty", LAST)
            await reader.gets("c", "d")
            send(broker, "empty", b"first")
            await of_nothing.gets("first")

    run(story())


def test_last_passes_over_an_aborted_transaction(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"a")
            send(broker, "t", b"b", b"c")
            undone = await broker.transacting.begin("tx")
            await undone.publish("t", [Message(b"aborted")])
            await undone.end(False)
            reader = tail(broker, "t", LAST)
            await reader.gets("b", "c")

    run(story())


def test_a_reader_that_goes_on_at_an_offset_gets_nothing_before_it(tmp_path: Path) -> None:
    """In a cluster, where it has read from another broker: this one may not know yet how far that is acknowledged."""

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topics.create("t", 1)
            send(broker, "t", b"a", b"b", b"c")
            alone = topic.partition(0)
            await alone.until_durable(3)
            partition = ReplicatedPartition(topic, 0, log_of(alone), alone.unfinished, broker.commit, high_watermark=1)
            topic.partitions[0] = partition
            reader = tail(broker, "t", TailStart("offset", 2))
            partition.advance(3)
            await reader.gets("c")

    run(story())


@pytest.mark.parametrize(("offset", "texts"), [(0, "abc"), (1, "bc"), (3, "d"), (1000, "d")])
def test_an_offset_begins_there_or_at_the_end(tmp_path: Path, offset: int, texts: str) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"a", b"b", b"c")
            reader = tail(broker, "t", TailStart("offset", offset))
            await settled()
            if texts == "d":
                assert reader.got == []
                send(broker, "t", b"d")
            await reader.gets(*texts)

    run(story())


def test_a_time_begins_with_the_first_that_is_not_older(tmp_path: Path) -> None:
    async def story() -> None:
        clock = HandClock()
        async with broker_on(tmp_path, clock) as broker:
            await broker.topics.create("t", 2)
            send(broker, "t", b"old")
            clock.ms += 10_000
            send(broker, "t", b"new")
            reader = tail(broker, "t", TailStart("time", clock.ms - 5_000))
            later = tail(broker, "t", TailStart("time", clock.ms + 5_000))
            await reader.gets("new")
            await settled()
            assert later.got == []

    run(story())


def test_all_partitions_each_in_order_also_one_that_is_added(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 2)
            reader = tail(broker, "t", FIRST)
            await broker.topics.add_partitions("t", 3)
            for number in range(30):
                publish(broker, number % 3, f"{number % 3}-{number // 3}")
            expected = [f"{partition}-{number}" for number in range(10) for partition in range(3)]
            await reader.gets_all_of(*expected)
            for partition in range(3):
                mine = [one.message.payload.decode() for one in reader.got if one.partition == partition]
                assert mine == [f"{partition}-{number}" for number in range(10)]

    run(story())


def publish(broker: Broker, partition: int, text: str) -> None:
    broker.messages.publish("t", [Message(text.encode())], partition)


def test_credit_is_obeyed_and_can_be_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *(b"%d" % number for number in range(10)))
            reader = tail(broker, "t", FIRST, credit=3)
            await reader.gets("0", "1", "2")
            await settled()
            assert len(reader.got) == 3
            reader.feed.credit(5)
            reader.feed.credit(-4)
            await reader.gets("0", "1", "2", "3")
            await settled()
            assert len(reader.got) == 4

    run(story())


def test_verdicts_change_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"a")
            reader = tail(broker, "t", FIRST)
            await reader.gets("a")
            for verdict in Verdict:
                assert reader.feed.settle(verdict, [(1, 1)]) == Settled(None, [])
            assert reader.feed.touch([(1, 1)]) == []
            await settled()
            assert reader.texts == ["a"]

    run(story())


def test_open_transactions_wait_and_aborted_ones_are_not_seen(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            reader = tail(broker, "t", FIRST)
            for commit in (False, True):
                tx = await broker.transacting.begin("tx")
                await tx.publish("t", [Message(b"committed" if commit else b"aborted")])
                send(broker, "t", b"behind")
                await settled()
                assert reader.texts == (["behind"] if commit else [])
                await tx.end(commit)
                await until(lambda: reader.got, "what waited for the transaction")
            await reader.gets("behind", "committed", "behind")

    run(story())


def test_a_deleted_topic_ends_its_readers(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            reader = tail(broker, "t", FIRST)
            await broker.topics.delete("t")
            await until(lambda: reader.ended, "the reader is told")
            assert isinstance(reader.ended[0], NotFound)
            assert broker.tailing.count("t") == 0
            assert len(broker.readers) == 0

    run(story())


def test_a_closed_reader_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 2)
            reader = tail(broker, "t", FIRST)
            assert broker.tailing.count("t") == 1
            reader.feed.close()
            reader.feed.close()
            send(broker, "t", b"a")
            await settled()
            assert reader.got == []
            assert (broker.tailing.count("t"), len(broker.readers)) == (0, 0)

    run(story())


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("orders", 1)
            with pytest.raises(NotFound, match=r"^there is no topic 'order'$"):
                tail(broker, "order", FIRST)
            with pytest.raises(NotAllowed):
                tail(broker, "__queues", FIRST)
            with pytest.raises(Invalid):
                tail(broker, "orders", TailStart("offset", -1))

    run(story())


def test_retention_that_is_faster_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"a", b"b", b"c")
            reader = tail(broker, "t", FIRST, credit=0)
            await broker.topics.get("t").partition(0).delete_records(2)
            reader.feed.credit(10)
            await reader.gets("c")
            assert reader.feed.missed == 2

    run(story())
