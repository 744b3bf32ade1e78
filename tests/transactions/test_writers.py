"""Transactional data on a broker that leads the partition, while another one coordinates the transaction.

Two brokers in one process, without a cluster around them: the first one leads topic `a`, and asks the second one, which
coordinates. Markers are written to the first one as its coordinator would have them written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from waystation.broker.broker import Broker
from waystation.catalog import MemoryCatalog
from waystation.cluster.links.peer import JoinTransaction
from waystation.config import BrokerSettings
from waystation.errors import ProducerEpochStale, Unavailable
from waystation.groups.machines.calls import OffsetToCommit
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.batches import batch as batches
from waystation.security.principals import ANONYMOUS
from waystation.transactions.errors import ConcurrentTransactions, CoordinatorAway, InvalidTransactionState
from waystation.transactions.machine import Producer
from waystation.transactions.writers import Writers
from waystation.world.world import real_world

ID = "shop"
FEW = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1", "waystation.queue.shards": "1"}


class Link:
    """To the broker that coordinates."""

    def __init__(self) -> None:
        self.coordinator: Writers
        self.asked: list[JoinTransaction] = []
        self.before_answer: Callable[[], object] = lambda: None
        self.failure: Exception | None = None

    def home_of(self, transactional_id: str) -> int | None:
        return 2 if transactional_id == ID else None

    async def join(self, node_id: int, asked: JoinTransaction) -> None:
        assert node_id == 2
        self.asked.append(asked)
        if self.failure is not None:
            raise self.failure
        await self.coordinator.answer(asked)
        self.before_answer()


class Stage:
    def __init__(self, leader: Broker, coordinator: Broker, link: Link, producer: Producer) -> None:
        self.leader, self.coordinator, self.link, self.producer = leader, coordinator, link, producer
        self.partition = leader.topics.get("a").partition(0)
        self.sequence = 0

    def may_append(self, producer: Producer | None = None) -> bool:
        producer = producer or self.producer
        return self.leader.writers.check_for(ID)(ID, *producer, "a", 0)

    async def join(self, *, joins: bool = True) -> None:
        await self.leader.writers.join(ID, self.producer, "a", 0, joins=joins)

    def append(self) -> None:
        data = batches.build(
            [(b"k", b"v", ())],
            0,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.sequence,
            attributes=batches.TRANSACTIONAL,
        )
        self.partition.append(data, batches.read_header(data))
        self.sequence += 1

    def mark(self) -> None:
        """The transaction ends in the partition."""
        self.leader.markers.write_marker("a", 0, *self.producer, False, 0)


def play(folder: Path, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        link = Link()
        leader = Broker(real_world(), str(folder / "1"), BrokerSettings(FEW), MemoryCatalog(), coordinators=link)
        coordinator = Broker(real_world(), str(folder / "2"), BrokerSettings(FEW), MemoryCatalog())
        for broker in (leader, coordinator):
            await broker.start()
            await broker.topics.create("a", 1)
        link.coordinator = coordinator.writers
        try:
            producer = await coordinator.transactions.init_producer_id(ID, 60_000)
            await story(Stage(leader, coordinator, link, producer))
        finally:
            await leader.stop()
            await coordinator.stop()

    for name in ("1", "2"):
        (folder / name).mkdir()
    asyncio.run(run())


def test_the_coordinator_is_asked_once_for_a_transaction_and_a_partition(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        assert not stage.may_append()
        await stage.join()
        assert stage.may_append()
        assert stage.coordinator.transactions.describe(ID).partitions == {("a", 0)}
        for _ in range(3):
            assert stage.may_append()
            stage.append()
        assert len(stage.link.asked) == 1
        stage.mark()
        assert not stage.may_append(), "the next transaction is asked about again"

    play(tmp_path, story)


def test_a_transaction_that_ends_while_the_coordinator_answers_takes_nothing_more(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.link.before_answer = stage.mark
        with pytest.raises(ConcurrentTransactions):
            await stage.join()
        assert not stage.may_append()
        assert not stage.partition.producers.open

    play(tmp_path, story)


def test_an_answer_does_not_outlive_the_transaction(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.join()
        stage.mark()  # its time ran out, and nothing had been written
        assert not stage.may_append()

    play(tmp_path, story)


def test_an_answer_does_not_outlive_the_leader(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.join()
        stage.partition.lead(stage.partition.epoch + 1)
        assert not stage.may_append()

    play(tmp_path, story)


def test_an_older_producer_is_refused_by_what_the_log_has_seen(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.join()
        old = stage.producer
        stage.producer = Producer(old.producer_id, old.epoch + 1)
        stage.append()
        with pytest.raises(ProducerEpochStale):
            stage.may_append(old)
        with pytest.raises(ProducerEpochStale):
            await stage.join()  # the coordinator knows no such epoch either

    play(tmp_path, story)


def test_a_partition_that_has_to_be_in_the_transaction_does_not_join_by_data(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(InvalidTransactionState, match="a-0"):
            await stage.join(joins=False)
        await stage.coordinator.transactions.add_partitions(ID, stage.producer, [("a", 0)])
        await stage.join(joins=False)
        assert stage.may_append()

    play(tmp_path, story)


@pytest.mark.parametrize("failure", [Unavailable("no answer"), NotCoordinator("somebody else is")])
def test_a_coordinator_that_cannot_be_asked_is_told_as_away(tmp_path: Path, failure: Exception) -> None:
    async def story(stage: Stage) -> None:
        stage.link.failure = failure
        with pytest.raises(CoordinatorAway, match=str(failure)):
            await stage.join()
        assert not stage.may_append()

    play(tmp_path, story)


def test_offsets_of_a_group_here_join_a_transaction_there(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        access = stage.leader.access(*_anybody(stage.leader))
        results = await access.transactions.commit_offsets(ID, stage.producer, "group", [_offset(7)], joins=True)
        assert [result.error for result in results] == [None]
        assert [(one.topic, one.index, one.joins) for one in stage.link.asked] == [("__consumer_offsets", 0, True)]
        results = await access.transactions.commit_offsets(ID, stage.producer, "group", [_offset(8)], joins=True)
        assert len(stage.link.asked) == 1
        stage.leader.markers.write_marker("__consumer_offsets", 0, *stage.producer, True, 0)
        (found,) = stage.leader.groups.fetch_offsets("group", [("a", 0)])
        assert found.offset == 8

    play(tmp_path, story)


def _anybody(broker: Broker) -> tuple[Any, str, Any]:
    return ANONYMOUS, "/", broker.meters.kafka


def _offset(offset: int) -> OffsetToCommit:
    return OffsetToCommit("a", 0, offset)
