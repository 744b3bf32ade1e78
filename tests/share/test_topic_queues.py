"""Queues on topics: declared once, there after a restart, shared by their consumers, gone with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.feeds import Consumer, settled, until
from tests.broker.kit import broker_on, run, send, snapshot, values
from waystation.broker.broker import Broker
from waystation.errors import AlreadyExists, Conflict, Invalid, NotAllowed, NotFound
from waystation.message import MAX_HORIZON_MS, Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.share.feed import SharedFeed
from waystation.share.topic_queue_settings import TopicQueueSettings


class Worker(Consumer):
    feed: SharedFeed


async def consume(broker: Broker, name: str, credit: int = 1000, **options: Any) -> Worker:
    worker = Worker()
    worker.feed = await broker.topic_queues.consume(
        name, "worker", worker.deliver, worker.ended.append, visibility_timeout_ms=MAX_HORIZON_MS, **options
    )
    worker.feed.credit(credit)
    return worker


def test_consumers_compete_and_what_is_done_stays_done(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 2)
            broker.messages.publish("t", [Message(b"%d" % i) for i in range(10)])
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            assert broker.topic_queues.counts("jobs") == (10, 0, 0)
            workers = [await consume(broker, "jobs"), await consume(broker, "jobs")]
            broker.messages.publish("t", [Message(b"%d" % i) for i in range(10, 20)])
            await until(lambda: sum(len(one.got) for one in workers) == 20, "all of them")
            texts = sorted(text for one in workers for text in one.texts)
            assert texts == sorted(map(str, range(20)))
            assert broker.topic_queues.counts("jobs") == (0, 20, 2)
            for one in workers:
                settled = one.feed.settle(Verdict.ACK, [(each.tag, 1) for each in one.got])
                assert settled.unknown == []
                await broker.durable(settled.receipt)
            assert broker.topic_queues.counts("jobs") == (0, 0, 2)
            copy = snapshot(tmp_path / "a", "b")
        async with broker_on(copy) as broker:
            assert broker.topic_queues.names() == ["jobs"]
            assert broker.topic_queues.counts("jobs") == (0, 0, 0)
            worker = await consume(broker, "jobs")
            send(broker, "t", b"new")
            await worker.gets("new")

    run(story())


def test_what_comes_while_nobody_consumes_is_the_queues_also_over_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"before")
            for name, start in (("all", "earliest"), ("new", "latest")):
                await broker.topic_queues.declare(name, TopicQueueSettings("t", start=start))  # type: ignore[arg-type]
            send(broker, "t", b"after")
        async with broker_on(tmp_path) as broker:
            await broker.topics.add_partitions("t", 2)
            broker.messages.publish("t", [Message(b"other partition")], 1)
            await (await consume(broker, "all")).gets_all_of("before", "after", "other partition")
            await (await consume(broker, "new")).gets_all_of("after", "other partition")

    run(story())


def test_what_a_consumer_held_comes_to_the_next_one_and_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            send(broker, "t", b"a", b"b")
            first = await consume(broker, "jobs")
            await first.gets("a", "b")
            first.feed.settle(Verdict.ACK, [(first.got[0].tag, 1)])
            first.feed.close()
            second = await consume(broker, "jobs")
            await second.gets("b")
            assert second.got[0].deliveries == 2

    run(story())


def test_an_acknowledgement_that_nobody_waits_for_reaches_the_disk(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            send(broker, "t", b"a")
            worker = await consume(broker, "jobs")
            await worker.gets("a")
            receipt = worker.feed.settle(Verdict.ACK, [(worker.got[0].tag, 1)]).receipt
            assert receipt is not None
            assert receipt.partition.durable_offset < receipt.offset
            await until(lambda: receipt.partition.durable_offset >= receipt.offset, "it is durable")

    run(story())


def test_dead_letters_go_to_their_queue_with_their_story(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            settings = TopicQueueSettings("t", max_deliveries=2, dead_letter="jobs.dead")
            await broker.topic_queues.declare("jobs", settings)
            send(broker, "t", b"bad", b"worse")
            worker = await consume(broker, "jobs")
            await worker.gets("bad", "worse")
            worker.feed.settle(Verdict.KILL, [(worker.got[1].tag, 1)])
            worker.feed.settle(Verdict.REJECT, [(worker.got[0].tag, 1)], delay_ms=0)
            await worker.gets("bad", "worse", "bad")
            worker.feed.settle(Verdict.REJECT, [(worker.got[2].tag, 1)], delay_ms=0)
            await until(lambda: "jobs.dead" in broker.queues and broker.queues.describe("jobs.dead").ready == 2, "both")
            dead = broker.queues.getter("jobs.dead", "tester").take(2)
            reasons = {one.message.payload: failure_history_of(one.message)[0]["reason"] for one in dead}
            assert reasons == {b"bad": "delivery-limit", b"worse": "rejected"}

    run(story())


def test_dead_letters_go_through_an_exchange(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            for name in ("dead", "also"):
                await broker.queues.declare(name)
            await broker.routing.declare_exchange("morgue", "topic")
            await broker.routing.bind("morgue", "queue:dead", "t")
            await broker.routing.bind("morgue", "queue:also", "#")
            await broker.routing.bind("morgue", "topic:kept", "t")
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", dead_letter="exchange:morgue"))
            keyed = TopicQueueSettings("t", dead_letter="exchange:morgue", dead_letter_key="other")
            await broker.topic_queues.declare("keyed", keyed)
            nowhere = TopicQueueSettings("t", dead_letter="exchange:nothing")
            await broker.topic_queues.declare("nowhere", nowhere)
            send(broker, "t", b"bad")
            for name in ("nowhere", "jobs", "keyed"):
                worker = await consume(broker, name)
                await worker.gets("bad")
                worker.feed.settle(Verdict.KILL, [(worker.got[0].tag, 1)])
            await until(lambda: broker.queues.describe("also").ready == 2, "both letters")
            [dead] = broker.queues.getter("dead", "tester").take(5)
            assert (dead.message.exchange, dead.message.routing_key) == ("morgue", "t")
            assert dead.message.headers["x-first-death-reason"] == "rejected"
            also = broker.queues.getter("also", "tester").take(5)
            assert [one.message.routing_key for one in also] == ["t", "other"]
            assert values(broker, "kept") == [b"bad"]
            await until(lambda: broker.topic_queues.counts("nowhere").ready == 0, "dropped")

    run(story())


def test_a_queue_without_a_limit_gives_a_message_again_as_often_as_it_takes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            send(broker, "t", b"a")
            worker = await consume(broker, "jobs")
            for number in range(20):
                await until(lambda: len(worker.got) > number, "it again")  # noqa: B023
                worker.feed.settle(Verdict.REJECT, [(worker.got[-1].tag, 1)], delay_ms=0)
            assert worker.got[-1].deliveries == 20

    run(story())


def test_declaring_again_is_fine_and_declaring_differently_a_conflict(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            queues = broker.topic_queues
            first = await queues.declare("jobs", TopicQueueSettings("t"))
            assert await queues.declare("jobs", TopicQueueSettings("t")) is first
            with pytest.raises(Conflict, match="topic 't', not 'u'"):
                await queues.declare("jobs", TopicQueueSettings("u"))
            with pytest.raises(Conflict, match="max_deliveries 0, not 3"):
                await queues.declare("jobs", TopicQueueSettings("t", max_deliveries=3))
            await broker.queues.declare("plain")
            with pytest.raises(AlreadyExists):
                await queues.declare("plain", TopicQueueSettings("t"))

    run(story())


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path, auto_create_topics_enable="false") as broker:
            queues = broker.topic_queues
            with pytest.raises(NotFound):
                await queues.declare("jobs", TopicQueueSettings("nothing"))
            with pytest.raises(NotAllowed):
                await queues.declare("jobs", TopicQueueSettings("__queues"))
            await broker.topics.create("t", 1)
            with pytest.raises(NotAllowed):
                await queues.declare("__jobs", TopicQueueSettings("t"))
            with pytest.raises(Invalid, match="max_deliveries"):
                await queues.declare("jobs", TopicQueueSettings("t", max_deliveries=100_000))
            with pytest.raises(Invalid):
                await queues.declare("jobs", TopicQueueSettings("t", dead_letter="topic:not a topic"))
            assert (queues.names(), list(broker.shared)) == ([], [])
            for call in (queues.counts, queues.get):
                with pytest.raises(NotFound):
                    call("jobs")

    run(story())


def test_deleting_ends_the_consumers_and_forgets_the_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            queues = broker.topic_queues
            await queues.declare("jobs", TopicQueueSettings("t", max_deliveries=7))
            send(broker, "t", b"a", b"b")
            worker = await consume(broker, "jobs", credit=1)
            await worker.gets("a")
            with pytest.raises(Conflict, match="in use"):
                await queues.delete("jobs", if_unused=True)
            with pytest.raises(Conflict, match="not empty"):
                await queues.delete("jobs", if_empty=True)
            assert await queues.delete("jobs") == 1
            assert isinstance(worker.ended[0], NotFound)
            assert "jobs" not in queues
            assert "jobs" not in broker.shared
            assert broker.shared.own_settings("jobs") == {}
            with pytest.raises(NotFound):
                await queues.delete("jobs")
            await queues.declare("jobs", TopicQueueSettings("t"))
            await (await consume(broker, "jobs")).gets("a", "b")
            await queues.delete("jobs")
        async with broker_on(tmp_path) as broker:
            assert broker.topic_queues.names() == []
            assert "jobs" not in broker.shared

    run(story())


def test_purging_passes_over_what_there_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            send(broker, "t", b"a", b"b", b"c")
            worker = await consume(broker, "jobs", credit=1)
            await worker.gets("a")
            assert await broker.topic_queues.purge("jobs") == 2
            assert broker.topic_queues.counts("jobs").ready == 0
            worker.feed.settle(Verdict.ACK, [(worker.got[0].tag, 1)])
            worker.feed.credit(10)
            send(broker, "t", b"d")
            await worker.gets("a", "d")

    run(story())


def test_what_is_not_durable_goes_with_the_broker(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", durable=False))
        for _ in range(2):
            async with broker_on(tmp_path) as broker:
                assert broker.topic_queues.names() == []
                assert "jobs" not in broker.shared

    run(story())


def test_what_is_not_durable_stays_while_another_broker_starts(tmp_path: Path) -> None:
    """Brokers that share a catalog: the queue is deleted by the one that it was declared at."""

    async def story() -> None:
        async with broker_on(tmp_path, node_id="1") as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", durable=False))
        async with broker_on(tmp_path, node_id="2") as broker:
            assert broker.topic_queues.names() == ["jobs"]
            assert "jobs" in broker.shared
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", durable=False))  # it is the same
        async with broker_on(tmp_path, node_id="1") as broker:
            assert broker.topic_queues.names() == []
            assert "jobs" not in broker.shared

    run(story())


def test_what_an_earlier_version_declared_as_not_durable_is_deleted(tmp_path: Path) -> None:
    """It did not write where it was declared; there was one broker."""

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            settings = TopicQueueSettings("t", durable=False)
            await broker.topic_queues.declare("jobs", settings)
            await broker.topic_queues._write("jobs", msgspec.msgpack.encode(settings))
        async with broker_on(tmp_path) as broker:
            assert broker.topic_queues.names() == []

    run(story())


def test_an_auto_delete_queue_goes_with_its_last_consumer(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            queues = broker.topic_queues
            await queues.declare("jobs", TopicQueueSettings("t", auto_delete=True))
            send(broker, "t", b"a")
            first, second = await consume(broker, "jobs"), await consume(broker, "jobs", credit=0)
            await first.gets("a")
            second.feed.close()
            await settled()
            assert "jobs" in queues
            first.feed.retire()
            await until(lambda: "jobs" not in queues, "the queue goes")
            assert first.ended == []
            assert first.feed.settle(Verdict.ACK, [(first.got[0].tag, 1)]).receipt is None

    run(story())


def test_a_retired_consumer_gets_nothing_and_can_settle_what_it_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            send(broker, "t", b"a")
            worker = await consume(broker, "jobs")
            await worker.gets("a")
            worker.feed.retire()
            send(broker, "t", b"b")
            await settled()
            assert worker.texts == ["a"]
            assert broker.topic_queues.counts("jobs") == (1, 1, 0)
            assert worker.feed.settle(Verdict.ACK, [(worker.got[0].tag, 1)]).unknown == []
            await (await consume(broker, "jobs")).gets("b")

    run(story())


def test_exclusive_is_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            alone = await consume(broker, "jobs", exclusive=True)
            with pytest.raises(Conflict, match="exclusive"):
                await consume(broker, "jobs")
            alone.feed.close()
            other = await consume(broker, "jobs")
            with pytest.raises(Conflict):
                await consume(broker, "jobs", exclusive=True)
            other.feed.close()

    run(story())


def test_a_getter_takes_what_is_there_and_is_no_consumer(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            getter = await broker.topic_queues.getter("jobs", "getter", visibility_timeout_ms=MAX_HORIZON_MS)
            assert getter.take(1) == []
            send(broker, "t", b"a", b"b", b"c")
            assert [one.message.payload for one in getter.take(2)] == [b"a", b"b"]
            assert broker.topic_queues.counts("jobs") == (1, 2, 0)
            [last] = getter.take(5)
            assert getter.settle(Verdict.ACK, [(last.tag, 1)]).unknown == []
            getter.close()
            assert broker.topic_queues.counts("jobs") == (2, 0, 0)

    run(story())


def test_an_aborted_transaction_is_not_delivered(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t"))
            worker = await consume(broker, "jobs")
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"aborted")])
            await tx.end(False)
            send(broker, "t", b"sent")
            await worker.gets("sent")

    run(story())


def test_a_group_that_an_administrator_deleted_is_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", start="latest"))
            send(broker, "t", b"a")
            assert (await broker.shared_admin.delete("jobs")).error is None
            worker = await consume(broker, "jobs")
            send(broker, "t", b"b")
            await worker.gets("b")

    run(story())


def test_a_topic_that_is_made_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_queues.declare("jobs", TopicQueueSettings("t", start="latest"))
            await broker.topics.delete("t")
            assert broker.topic_queues.counts("jobs") == (0, 0, 0)
            await broker.topics.create("t", 1)
            send(broker, "t", b"a")
            await (await consume(broker, "jobs")).gets("a")

    run(story())
