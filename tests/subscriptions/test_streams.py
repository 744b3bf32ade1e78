"""Stream subscriptions: a consumer group's offsets for native consumers, beside Kafka's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.feeds import Consumer, settled, subscribe, until
from tests.broker.kit import HandClock, broker_on, run, snapshot
from waystation.broker.broker import Broker
from waystation.errors import Conflict
from waystation.groups.machines.calls import ConsumerBeat, JoinRequest, OffsetToCommit, TopicPartition
from waystation.message import Delivered, Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.subscriptions import stream_feed
from waystation.subscriptions.stream_feed import StreamFeed
from waystation.topics.partitions.no_log import NoLog
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition


def put(broker: Broker, topic: str, *texts: str, partition: int | None = None) -> None:
    broker.messages.publish(topic, [Message(text.encode()) for text in texts], partition)


async def stream(broker: Broker, *topics: str, group: str = "g", **options: object) -> Consumer:
    return await subscribe(broker, *topics, mode="stream", group=group, **{"start": "earliest", **options})


def feed_of(consumer: Consumer) -> StreamFeed:
    assert isinstance(consumer.feed, StreamFeed)
    return consumer.feed


def committed(broker: Broker, topic: str, partition: int = 0, group: str = "g") -> int:
    [found] = broker.groups.fetch_offsets(group, [(topic, partition)])
    return found.offset


async def ack(broker: Broker, consumer: Consumer, *tags: int) -> None:
    settled = consumer.feed.settle(Verdict.ACK, [(tag, 1) for tag in tags])
    assert settled.unknown == []
    await broker.durable(settled.receipt)


def test_what_is_acknowledged_is_where_the_next_consumer_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcdef")
            first = await stream(broker, "t")
            await first.gets(*"abcdef")
            assert [one.tag for one in first.got] == [0, 1, 2, 3, 4, 5]
            await ack(broker, first, 0, 1, 3)
            assert committed(broker, "t") == 2  # c is not acknowledged
            first.feed.close()
            second = await stream(broker, "t")
            await second.gets(*"cdef")
            await ack(broker, second, 0, 1, 2, 3)
            assert committed(broker, "t") == 6

    run(main())


@pytest.mark.parametrize("copy", ["behind", "none", "leads"])
def test_a_group_stays_where_it_is_on_a_broker_that_knows_less_of_a_partition(tmp_path: Path, copy: str) -> None:
    """In a cluster, where another broker has coordinated it until now. The high watermark that this one knows may be
    behind what was acknowledged there, and a replica may only come later."""

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            await broker.groups.commit_offsets("g", [OffsetToCommit("t", 0, 3)])
            log, alone = log_of(topic.partition(0)), topic.partition(0)
            await alone.until_durable(3)
            partition = ReplicatedPartition(topic, 0, log, alone.unfinished, broker.commit, high_watermark=1)
            topic.partitions[0] = partition
            if copy == "none":
                partition.use(NoLog(broker.world, log.folder, topic.settings))
            elif copy == "leads":
                partition.lead(7)
            consumer = await stream(broker, "t")
            await asyncio.sleep(0.3)
            if copy == "none":
                partition.use(log)
            partition.advance(3)
            await asyncio.sleep(0.3)
            feed_of(consumer).heartbeat()
            assert (consumer.texts, committed(broker, "t")) == ([], 3)
            partition.lead(8)
            put(broker, "t", "d")
            partition.advance(4)
            await consumer.gets("d")

    run(main())


@pytest.mark.parametrize("verdict", [Verdict.REJECT, Verdict.KILL])
def test_what_a_broker_cannot_read_for_a_while_is_tried_again_when_it_can(tmp_path: Path, verdict: Verdict) -> None:
    """In a cluster, where its replica is copied again, or a new leader has to write the end of a transaction again."""

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            log, alone = log_of(topic.partition(0)), topic.partition(0)
            await alone.until_durable(3)
            partition = ReplicatedPartition(topic, 0, log, alone.unfinished, broker.commit, high_watermark=3)
            topic.partitions[0] = partition
            consumer = await stream(broker, "t")
            await consumer.gets(*"abc")
            partition.use(log)
            consumer.feed.settle(verdict, [(1, 1)], error="not now", delay_ms=1)
            await ack(broker, consumer, 0, 2)
            await asyncio.sleep(0.2)
            assert (consumer.texts, committed(broker, "t")) == ([*"abc"], 1)
            partition.advance(3)
            await consumer.gets(*"abcb")

    run(main())


def test_an_ack_that_was_answered_survives_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            consumer = await stream(broker, "t")
            await consumer.gets(*"abc")
            await ack(broker, consumer, 0, 1)
            killed = snapshot(tmp_path / "a", "killed")
        async with broker_on(killed) as broker:
            assert committed(broker, "t") == 2
            again = await stream(broker, "t")
            # The one that was killed is still a member until its session ends; so ask for its partitions.
            view = broker.groups.describe_consumer_groups(["g"])[0]
            for member in view.members:
                if member.client_id == "tester" and member.member_id != feed_of(again).member.member_id:
                    leave = ConsumerBeat(group_id="g", member_id=member.member_id, member_epoch=-1)
                    await broker.groups.consumer_heartbeat(leave)
            await again.gets("c")

    run(main())


def test_order_within_each_partition_and_back_pressure_by_credit(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a", waystation_flush="os") as broker:
            await broker.topics.create("t", 3)
            for i in range(900):
                put(broker, "t", str(i), partition=i % 3)
            consumer = await stream(broker, "t", credit=10)
            await until(lambda: len(consumer.got) == 10, "the first ten")
            await settled()
            assert len(consumer.got) == 10
            consumer.feed.credit(5000)
            await until(lambda: len(consumer.got) == 900, "all")
            for index in range(3):
                assert [one.offset for one in consumer.got if one.partition == index] == list(range(300))
            consumer.feed.settle(Verdict.ACK, [(0, 900)])
            assert [committed(broker, "t", index) for index in range(3)] == [300, 300, 300]
            put(broker, "t", "live")
            await until(lambda: len(consumer.got) == 901, "what is new")

    run(main())


def test_prefetch_is_the_most_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcdef")
            consumer = await stream(broker, "t", prefetch=2)
            await consumer.gets("a", "b")
            await settled()
            assert len(consumer.got) == 2
            await ack(broker, consumer, 0)
            await consumer.gets("a", "b", "c")

    run(main())


def test_where_a_new_group_begins(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 1)
            for i in range(5):
                clock.ms += 1000
                put(broker, "t", str(i))
            latest = await stream(broker, "t", group="latest", start="latest")
            timed = await stream(broker, "t", group="timed", start_ms=clock.ms - 1500)
            none_so_late = await stream(broker, "t", group="future", start_ms=clock.ms + 1)
            await until(lambda: committed(broker, "t", group="latest") == 5, "a beginning")
            await until(lambda: committed(broker, "t", group="future") == 5, "a beginning")
            put(broker, "t", "5")
            await latest.gets("5")
            await timed.gets("3", "4", "5")
            await none_so_late.gets("5")

    run(main())


def test_a_new_group_keeps_its_beginning_if_it_dies_before_its_first_ack(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", "before")
            first = await stream(broker, "t", start="latest")
            await until(lambda: committed(broker, "t") == 1, "a beginning")
            first.feed.close()
            put(broker, "t", "between")
            second = await stream(broker, "t", start="latest")
            await second.gets("between")

    run(main())


def test_topics_that_come_later_are_read_from_their_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            consumer = await stream(broker, "orders.#", start="latest")
            assert consumer.answer.topics == []
            await broker.topics.create("orders.eu", 1)
            put(broker, "orders.eu", "a")
            await consumer.gets("a")
            await broker.topics.add_partitions("orders.eu", 2)
            put(broker, "orders.eu", "b", partition=1)
            await consumer.gets("a", "b")
            await broker.topics.create("other", 1)
            put(broker, "other", "no")
            await broker.topics.delete("orders.eu")
            await broker.topics.create("orders.us", 1)
            put(broker, "orders.us", "c")
            await consumer.gets("a", "b", "c")
            assert consumer.ended == []

    run(main())


def test_two_consumers_share_the_partitions_and_hand_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 4)
            one = await stream(broker, "t")
            await until(lambda: len(feed_of(one).owned()) == 4, "all partitions for one")
            for index in range(4):
                put(broker, "t", f"a{index}", partition=index)
            await one.gets_all_of("a0", "a1", "a2", "a3")
            await ack(broker, one, 0, 1, 2, 3)
            two = await stream(broker, "t")
            await until(lambda: len(feed_of(two).owned()) == 2, "half of them for two")
            assert not feed_of(one).owned() & feed_of(two).owned()
            for index in range(4):
                put(broker, "t", f"b{index}", partition=index)
            await until(lambda: len(one.got) + len(two.got) == 8, "one of each")
            assert sorted(one.texts[4:] + two.texts) == ["b0", "b1", "b2", "b3"]
            one.feed.close()
            await until(lambda: len(feed_of(two).owned()) == 4, "all for two")
            # What one had not acknowledged comes again.
            await until(lambda: sorted(two.texts) == ["b0", "b1", "b2", "b3"], "the rest")

    run(main())


def test_a_partition_that_is_taken_back_waits_for_the_acks_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_feed, "LET_GO_S", 30.0)

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 2)
            one = await stream(broker, "t")
            put(broker, "t", "a", partition=0)
            put(broker, "t", "b", partition=1)
            await one.gets_all_of("a", "b")
            two = await stream(broker, "t")
            await settled()
            assert len(feed_of(one).owned()) == 2
            await ack(broker, one, 0, 1)
            await until(lambda: len(feed_of(two).owned()) == 1, "the partition")
            await settled()
            assert two.got == []

    run(main())


def test_a_partition_whose_acks_do_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_feed, "LET_GO_S", 0.05)

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 2)
            one = await stream(broker, "t")
            put(broker, "t", "a", partition=0)
            put(broker, "t", "b", partition=1)
            await one.gets_all_of("a", "b")
            two = await stream(broker, "t")
            await until(lambda: two.got, "what the first one did not acknowledge")
            gone = [one_.tag for one_ in one.got if one_.message == two.got[0].message]
            kept = [one_.tag for one_ in one.got if one_.message != two.got[0].message]
            assert one.feed.settle(Verdict.ACK, [(gone[0], 1)]).unknown == [(gone[0], 1)]
            assert one.feed.settle(Verdict.ACK, [(kept[0], 1)]).unknown == []

    run(main())


class KafkaMember:
    """A KIP-848 consumer as the Kafka protocol would speak for it."""

    def __init__(self, broker: Broker, member_id: str) -> None:
        self.broker = broker
        self.member_id = member_id
        self.epoch = 0
        self.has: frozenset[TopicPartition] = frozenset()

    async def beat(self) -> None:
        first = self.epoch == 0
        answer = await self.broker.groups.consumer_heartbeat(
            ConsumerBeat(
                group_id="g",
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=10_000 if first else -1,
                topics=("t",) if first else None,
                owned=frozenset() if first else self.has,
            )
        )
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.has = answer.assignment

    async def gets(self, count: int) -> None:
        for _ in range(500):
            await self.beat()
            if len(self.has) == count:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{len(self.has)} partitions, not {count}")


def test_native_and_kafka_consumers_share_a_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 4)
            native = await stream(broker, "t")
            await until(lambda: len(feed_of(native).owned()) == 4, "all partitions")
            kafka = KafkaMember(broker, "kafka")
            await kafka.beat()
            await kafka.gets(2)
            assert not feed_of(native).owned() & kafka.has
            for index in range(4):
                put(broker, "t", str(index), partition=index)
            await native.gets_all_of(*(str(index) for _, index in feed_of(native).owned()))
            [(_, taken), _] = sorted(kafka.has)
            results = await broker.groups.commit_offsets(
                "g", [OffsetToCommit("t", taken, 1)], member_id="kafka", generation_id=kafka.epoch
            )
            assert results[0].error is None
            await broker.groups.consumer_heartbeat(ConsumerBeat(group_id="g", member_id="kafka", member_epoch=-1))
            await until(lambda: len(native.got) == 3, "what Kafka's consumer left")
            assert str(taken) not in native.texts

    run(main())


def test_a_group_of_classic_members_is_a_conflict(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            await broker.groups.join(
                JoinRequest(
                    group_id="g",
                    member_id="",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=(("range", b""),),
                    needs_member_id=False,
                )
            )
            with pytest.raises(Conflict, match="classic"):
                await stream(broker, "t")
            assert broker.subscriptions.counts() == {}

    run(main())


def test_a_member_that_was_taken_for_dead_joins_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", "a", "b")
            consumer = await stream(broker, "t")
            await consumer.gets("a", "b")
            member_id = feed_of(consumer).member.member_id
            await broker.groups.consumer_heartbeat(ConsumerBeat(group_id="g", member_id=member_id, member_epoch=-1))
            assert consumer.feed.settle(Verdict.ACK, [(0, 1)]).unknown == [(0, 1)]  # and it is not answered as kept
            await consumer.gets("a", "b", "a", "b")  # nobody knows what became of the first ones
            assert consumer.feed.settle(Verdict.ACK, [(0, 2)]).unknown == [(0, 2)]
            await ack(broker, consumer, 2, 3)
            assert committed(broker, "t") == 2

    run(main())


def test_only_committed_transactions_are_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumer = await stream(broker, "t")
            for commit in (False, True):
                tx = await broker.transacting.begin("tx")
                await tx.publish("t", [Message(b"yes" if commit else b"no")])
                await settled()
                assert consumer.got == []
                await tx.end(commit=commit)
            await consumer.gets("yes")
            await ack(broker, consumer, 0)
            put(broker, "t", "more")
            await consumer.gets("yes", "more")
            await ack(broker, consumer, 1)
            assert committed(broker, "t") == 5  # two markers and an aborted message are passed over

    run(main())


def test_an_offset_in_an_open_transaction_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            tx = await broker.transacting.begin("tx")
            await tx.commit_offsets("g", [("t", 0, 2)])
            consumer = await stream(broker, "t")
            await settled()
            assert consumer.got == []
            await tx.end(commit=True)
            await consumer.gets("c")

    run(main())


def test_filtered_messages_cost_no_credit_and_are_committed_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            broker.messages.publish("t", [Message(b"%d" % i, headers={"n": i}) for i in range(100)])
            consumer = await stream(broker, "t", filter="headers.n = '50'", credit=1)
            await consumer.gets("50")
            await ack(broker, consumer, 0)
            consumer.feed.credit(1)
            await until(lambda: committed(broker, "t") == 100, "what the filter passed over")
            broker.messages.publish("t", [Message(b"again", headers={"n": 50})])
            await consumer.gets("50", "again")
            await ack(broker, consumer, 1)
            assert committed(broker, "t") == 101

    run(main())


def test_auto_ack_delivers_what_is_durably_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            consumer = await stream(broker, "t", auto_ack=True, credit=2)
            durable: list[bool] = []
            log = broker.streams.receipt("g").partition
            keep = consumer.deliver

            def deliver(messages: list[Delivered]) -> None:
                durable.append(log.durable_offset == log.end_offset)
                keep(messages)

            feed_of(consumer)._deliver = deliver
            await consumer.gets("a", "b")
            assert committed(broker, "t") == 2
            assert all(durable)
            assert consumer.feed.settle(Verdict.ACK, [(0, 2)]).unknown == [(0, 2)]
            consumer.feed.credit(5)
            put(broker, "t", *"de")
            await consumer.gets(*"abcde")
            assert committed(broker, "t") == 5

    run(main())


def test_what_is_released_or_rejected_comes_again_and_holds_the_offset(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            consumer = await stream(broker, "t")
            await consumer.gets(*"abc")
            assert consumer.feed.settle(Verdict.RELEASE, [(0, 1)]).unknown == []
            assert consumer.feed.settle(Verdict.REJECT, [(1, 1)], error="not now", delay_ms=1).unknown == []
            await ack(broker, consumer, 2)
            assert committed(broker, "t") == 0
            await until(lambda: len(consumer.got) == 5, "both again")
            again = consumer.got[3:]
            assert [(one.message.payload, one.deliveries) for one in again] == [(b"a", 2), (b"b", 2)]
            await ack(broker, consumer, *(one.tag for one in again))
            assert committed(broker, "t") == 3

    run(main())


def test_a_message_that_fails_too_often_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            consumer = await stream(broker, "t", max_deliveries=2, dead_letter="topic:t.dead")
            await consumer.gets(*"abc")
            await ack(broker, consumer, 1)
            consumer.feed.settle(Verdict.REJECT, [(0, 1)], error="bad", delay_ms=1)
            consumer.feed.settle(Verdict.KILL, [(2, 1)], error="worse")
            await until(lambda: len(consumer.got) == 4, "the second try")
            consumer.feed.settle(Verdict.REJECT, [(3, 1)], error="bad again")
            await until(lambda: committed(broker, "t") == 3, "all done")
            dead = broker.messages.history("t.dead", 10)
            assert {one.message.id: one.message.payload for one in dead} == {"t-0@0": b"a", "t-0@2": b"c"}
            stories = {one.message.id: failure_history_of(one.message)[0] for one in dead}
            assert stories["t-0@0"]["reason"] == "delivery-limit"
            assert stories["t-0@0"]["deliveries"] == 2
            assert stories["t-0@0"]["error"] == "bad again"
            assert stories["t-0@2"]["reason"] == "rejected"
            assert stories["t-0@2"]["queue"] == "topic:t"

    run(main())


def test_a_dead_letter_goes_to_a_queue_of_its_topic_and_group_or_where_the_consumer_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", "a")
            to_queue = await stream(broker, "t", dead_letter="graves")
            default = await stream(broker, "t", group="d")
            nowhere = await stream(broker, "t", group="h", dead_letter="")
            for consumer in (to_queue, default, nowhere):
                await consumer.gets("a")
                consumer.feed.settle(Verdict.KILL, [(0, 1)], error="no")
            await until(lambda: committed(broker, "t") == 1, "buried")
            await until(lambda: committed(broker, "t", group="d") == 1, "buried in the default queue")
            assert committed(broker, "t", group="h") == 1
            assert broker.queues.describe("graves").ready == 1
            [letter] = broker.queues.peek("t.d.dead", 10)
            [death] = failure_history_of(letter.delivered.message)
            assert (death["queue"], death["group"], death["partition"], death["offset"]) == ("topic:t", "d", 0, 0)
            assert (death["reason"], death["error"]) == ("rejected", "no")
            assert (feed_of(default).passed_over, feed_of(nowhere).passed_over) == (0, 1)

    run(main())


def test_a_message_may_have_a_limit_of_its_own(tmp_path: Path) -> None:
    """It goes before the consumer's, which may have none."""

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            made = [Message(b"a", max_deliveries=1), Message(b"b")]
            await broker.durable(*broker.messages.publish("t", made).receipts)
            consumer = await stream(broker, "t")
            await consumer.gets("a", "b")
            consumer.feed.settle(Verdict.REJECT, [(0, 1)])
            await until(lambda: "t.g.dead" in broker.queues and broker.queues.describe("t.g.dead").ready, "it is dead")
            await until(lambda: committed(broker, "t") == 1, "buried")
            consumer.feed.settle(Verdict.REJECT, [(1, 1)], delay_ms=1)
            await consumer.gets("a", "b", "b")
            assert broker.queues.describe("t.g.dead").ready == 1

    run(main())


def test_tags_that_are_not_held_are_told_and_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcd")
            consumer = await stream(broker, "t")
            await consumer.gets(*"abcd")
            settle = consumer.feed.settle
            assert settle(Verdict.ACK, [(1, 2)]).unknown == []
            assert settle(Verdict.ACK, [(0, 4), (7, 2), (-3, 2)]).unknown == [(1, 2), (7, 2), (-3, 2)]
            assert settle(Verdict.ACK, [(0, 2**62)]).unknown == [(0, 2**62)]
            assert consumer.feed.touch([(0, 1)]) == [(0, 1)]
            assert committed(broker, "t") == 4

    run(main())


def test_retention_that_overtakes_a_group_moves_it_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcdef")
            consumer = await stream(broker, "t", credit=1)
            await consumer.gets("a")
            consumer.feed.settle(Verdict.RELEASE, [(0, 1)])
            await broker.topics.get("t").partition(0).delete_records(4)
            fresh = await stream(broker, "t", group="h")
            await fresh.gets("e", "f")
            consumer.feed.close()
            late = await stream(broker, "t")
            await late.gets("e", "f")

    run(main())


def test_leaving_is_quick_and_the_group_is_empty_after_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            consumers = [await stream(broker, "t") for _ in range(3)]
            assert len(consumers) == 3
        async with broker_on(tmp_path / "a") as broker:
            assert broker.groups.describe_consumer_groups(["g"])[0].members == ()

    run(main())


# -- in transactions ---------------------------------------------------------------------------------------------------


def test_an_ack_in_a_transaction_counts_when_it_commits(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            await broker.topics.create("out", 1)
            put(broker, "t", *"abcd")
            consumer = await stream(broker, "t", prefetch=2)
            await consumer.gets("a", "b")
            tx = await broker.transacting.begin("tx")
            await tx.publish("out", [Message(b"A")])
            await tx.settle(feed_of(consumer), [(0, 1)])
            await tx.end(commit=False)
            assert committed(broker, "t") == 0
            assert consumer.feed.touch([(0, 2)]) == []  # it still has both
            await tx.settle(feed_of(consumer), [(0, 2)])
            await tx.publish("out", [Message(b"AB")])
            await settled()
            assert len(consumer.got) == 2
            await tx.end(commit=True)
            assert committed(broker, "t") == 2
            await consumer.gets(*"abcd")  # there is room again
            assert [one.message.payload for one in broker.messages.history("out", 5)] == [b"AB"]
            with pytest.raises(Conflict, match="not all in flight"):
                await tx.settle(feed_of(consumer), [(1, 2)])

    run(main())


def test_transactions_of_one_partition_commit_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abc")
            consumer = await stream(broker, "t")
            await consumer.gets(*"abc")
            await ack(broker, consumer, 2)
            first, second = await broker.transacting.begin("1"), await broker.transacting.begin("2")
            late = asyncio.ensure_future(second.settle(feed_of(consumer), [(1, 1)]))
            await settled()
            assert not late.done()
            await first.settle(feed_of(consumer), [(0, 1)])
            await settled()
            assert not late.done()
            await first.end(commit=True)
            await late
            assert committed(broker, "t") == 1
            await second.end(commit=True)
            assert committed(broker, "t") == 3  # the last one was acknowledged before them

    run(main())


def test_an_ack_that_waits_for_its_turn_ends_with_its_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"ab")
            consumer = await stream(broker, "t")
            await consumer.gets(*"ab")
            tx = await broker.transacting.begin("tx")
            late = asyncio.ensure_future(tx.settle(feed_of(consumer), [(1, 1)]))
            await settled()
            consumer.feed.close()
            with pytest.raises(Conflict):
                await late
            await tx.end(commit=False)
            assert committed(broker, "t") == 0

    run(main())


def test_offsets_that_a_transaction_commits_by_name_move_the_consumer_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcdef")
            consumer = await stream(broker, "t", prefetch=3)
            await consumer.gets(*"abc")
            tx = await broker.transacting.begin("tx")
            await tx.commit_offsets("g", [("t", 0, 2)])
            await tx.end(commit=True)
            await consumer.gets(*"abcde")
            assert consumer.feed.settle(Verdict.ACK, [(0, 2)]).unknown == [(0, 2)]

    run(main())


def test_what_failed_comes_first_and_what_is_behind_it_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            put(broker, "t", *"abcd")
            consumer = await stream(broker, "t", credit=3, max_deliveries=2)
            await consumer.gets(*"abc")
            consumer.feed.settle(Verdict.REJECT, [(0, 1)], delay_ms=50)
            tx = await broker.transacting.begin("tx")
            with pytest.raises(Conflict, match="t-0@0 is to be redelivered"):
                await tx.settle(feed_of(consumer), [(1, 1)])
            await tx.end(commit=False)
            for _ in range(3):  # no fault of theirs, so it is not counted
                consumer.feed.settle(Verdict.REJECT, [(2, 1)])
                consumer.feed.settle(Verdict.REJECT, [(1, 1)])
            consumer.feed.credit(3)
            await consumer.gets(*"abcabc")
            assert [one.deliveries for one in consumer.got[3:]] == [2, 2, 2]
            consumer.feed.credit(10)
            await settled()
            assert len(consumer.got) == 6  # d is not delivered before they are done
            await ack(broker, consumer, 3, 4, 5)
            await consumer.gets(*"abcabcd")
            assert committed(broker, "t") == 3

    run(main())
