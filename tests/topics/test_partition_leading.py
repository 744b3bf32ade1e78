"""A partition takes what is published only while this broker leads it; what is there is read all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.broker.kit import broker_on, run
from tests.cluster.in_process import until
from waystation.errors import NotLeader, OffsetOutOfRange
from waystation.log.batches import batch as batches
from waystation.message import Message
from waystation.protocols.kafka.requests.errors_map import code_of
from waystation.security.principals import ANONYMOUS
from waystation.topics.partitions.durability import SOON_S
from waystation.topics.partitions.partition import Receipt, log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.topics import TRANSACTIONS_TOPIC


def test_a_partition_that_is_not_led_refuses_and_stays_readable(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 1)
            partition = topic.partition(0)
            broker.messages.publish("t", [Message(b"first")])
            assert partition.leads
            partition.follow(partition.epoch + 1)
            assert not partition.leads
            with pytest.raises(NotLeader) as refused:
                broker.messages.publish("t", [Message(b"second")])
            assert code_of(refused.value).name == "not_leader_or_follower"
            assert [one.message.payload for one in broker.messages.history("t", 10)] == [b"first"]
            assert partition.end_offset == 1

    run(main())


def test_what_is_appended_after_a_change_of_leaders_has_the_new_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            partition = (await broker.topics.create("t", 1)).partition(0)
            broker.messages.publish("t", [Message(b"first")])
            first = partition.epoch
            partition.follow(first + 1)
            partition.lead(first + 2)
            broker.messages.publish("t", [Message(b"second")])
            assert [header.leader_epoch for _, header in partition.batches_from(0)] == [first, first + 2]
            assert partition.epochs.end_offset_for(first, partition.end_offset) == (first, 1)

    run(main())


@pytest.mark.parametrize("offset", [0, 9])
def test_only_who_leads_says_that_an_offset_is_not_there(tmp_path: Path, offset: int) -> None:
    """Another one may lack what the leader has: who reads there by offsets would begin again where the log does."""

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            partition = (await broker.topics.create("t", 1)).partition(0)
            broker.messages.publish("t", [Message(b"%d" % number) for number in range(3)])
            await partition.delete_records(1)
            reading = broker.access(ANONYMOUS, "/", broker.meters.native).reading
            (answer,) = reading.read_batches([("t", 0, offset)], 1_000, committed=True)
            assert (answer.batches, answer.next_offset) == (b"", 1)
            with pytest.raises(OffsetOutOfRange):
                await reading.read("t", 0, offset=offset, count=1, max_bytes=1_000)
            partition.follow(partition.epoch + 1)
            (answer,) = reading.read_batches([("t", 0, 1)], 1_000, committed=True)
            assert answer.next_offset == 3
            with pytest.raises(NotLeader):
                reading.read_batches([("t", 0, offset)], 1_000, committed=True)
            with pytest.raises(NotLeader):
                await reading.read("t", 0, offset=offset, count=1, max_bytes=1_000)

    run(main())


@pytest.mark.parametrize("name", ["orders", TRANSACTIONS_TOPIC])
def test_what_nobody_waits_for_is_synced_when_a_broker_of_a_cluster_leads_again(tmp_path: Path, name: str) -> None:
    """When it was to be synced this broker did not lead, and followed nobody. Until it is on the disk, the high
    watermark stands below it, and whoever has state in the partition does not answer."""

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = broker.topics.find(name) or await broker.topics.create(name, 1)
            log = log_of(topic.partition(0))
            partition = ReplicatedPartition(topic, 0, log, topic.partition(0).unfinished, broker.commit)
            partition.lead(7)
            batch = batches.build([(b"key", b"value", ())], 1)
            partition.append(batch, batches.read_header(batch))
            partition.follow(7)
            await asyncio.sleep(2 * SOON_S)
            assert log.durable_offset < log.end_offset
            partition.lead(8)
            await until(lambda: log.durable_offset == log.end_offset)

    run(main())


def test_who_asks_another_node_is_told_which_one_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("orders", 1)
            alone = topic.partition(0)
            partition = ReplicatedPartition(topic, 0, log_of(alone), alone.unfinished, broker.commit)
            partition.follow(7, leader=2)
            with pytest.raises(NotLeader, match=r"partition 0 of topic 'orders'.*\(node 2, .*cluster status"):
                partition.check_leads()
            partition.follow(8)
            with pytest.raises(NotLeader, match=r"connect to the node that does; `waystation cluster status`"):
                partition.check_leads()

    run(main())


class Truncated:
    """A partition whose next round comes after its end was cut off and written again."""

    durable_offset, truncations, failure, stalled, waits, index = 0, 0, None, None, True, 0
    topic = SimpleNamespace(name="t")

    def __init__(self) -> None:
        self.round: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_attempt(self) -> asyncio.Future[None]:
        return self.round

    async def until_durable(self, offset: int) -> None:
        await self.round

    def cut_and_written_again(self) -> None:
        self.truncations, self.durable_offset = 1, 1
        self.round.set_result(None)


def test_who_waits_for_a_record_that_is_truncated_is_never_told_that_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            partition: Any = Truncated()
            told: list[object] = []
            broker.when_durable([Receipt(partition, 1)], told.append)
            broker.durability.when_each_durable([Receipt(partition, 1)], told.append)
            partition.cut_and_written_again()  # the other record has the same offset
            await asyncio.sleep(0.01)
            first, each = told
            assert isinstance(first, NotLeader)
            assert isinstance(each, dict)
            assert isinstance(each[0], NotLeader)

    run(main())


def test_who_waits_for_several_records_is_told_that_one_is_truncated_while_another_is_waited_for(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            slow: Any = Truncated()
            cut: Any = Truncated()
            waiting = asyncio.ensure_future(broker.durable(Receipt(slow, 1), None, Receipt(cut, 1)))
            await asyncio.sleep(0)
            cut.cut_and_written_again()
            slow.durable_offset = 1
            slow.round.set_result(None)
            with pytest.raises(NotLeader):
                await waiting

    run(main())
