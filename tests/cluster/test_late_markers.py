"""What a coordinator has asked for and not heard of arrives late: it ends no transaction but the one that it means.

The leader of the partition is another node than the coordinator. A request that is under way twice is one whose answer
was lost, so that it was made again; the first one waits in a socket of a process that stood still.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.broker.broker import Broker
from waystation.cluster.links.link import LinkLost
from waystation.cluster.links.peer import Answer, MarkersWritten, Request, WriteMarkers
from waystation.log.batches import batch as batches
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.topics import TRANSACTIONS_TOPIC
from waystation.transactions.machine import Producer, TransactionState


class Stage:
    """A transactional producer, its coordinator, and the node that leads the partition it writes to."""

    def __init__(self, cluster: Cluster, leader: int, coordinator: Broker, name: str, producer: Producer) -> None:
        self.cluster, self.leader, self.coordinator = cluster, leader, coordinator
        self.name, self.producer = name, producer
        self.sequence = 0
        self.asked: list[WriteMarkers] = []
        self.lose_answers = 0
        self._answer = cluster.network.answering[leader]
        cluster.network.answering[leader] = self._listen

    async def _listen(self, request: Request, connection: str) -> Answer:
        answer = await self._answer(request, connection)
        if isinstance(request, WriteMarkers):
            self.asked.append(request)
            if self.lose_answers:
                self.lose_answers -= 1
                raise LinkLost("no answer")
        return answer

    @property
    def partition(self) -> ReplicatedPartition:
        return self.cluster.partition(self.leader, "orders")

    @property
    def is_open(self) -> bool:
        return self.producer.producer_id in self.partition.producers.open

    async def write(self) -> None:
        """In the present transaction."""
        writers = self.cluster.brokers[self.leader].writers
        if not writers.check_for(self.name)(self.name, *self.producer, "orders", 0):
            await writers.join(self.name, self.producer, "orders", 0, joins=True)
        data = batches.build(
            [(None, b"%d" % self.sequence, ())],
            0,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.sequence,
            attributes=batches.TRANSACTIONAL,
        )
        self.partition.append(data, batches.read_header(data))
        await self.partition.until_durable(self.partition.end_offset)
        self.sequence += 1

    async def end(self, *, commit: bool, bumps_epoch: bool) -> None:
        before = self.producer
        self.producer = await self.coordinator.transactions.end(
            self.name, self.producer, commit, bumps_epoch=bumps_epoch
        )
        if self.producer != before:
            self.sequence = 0

    async def deliver(self, request: WriteMarkers) -> tuple[str, ...]:
        answer = await self._answer(request, "")
        assert isinstance(answer, MarkersWritten)
        return answer.failures


def play(folder: Path, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with cluster_of(folder) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await until(lambda: all(broker.topics.find("orders") for broker in cluster.brokers.values()))
            for number in range(100):
                name = f"shop-{number}"
                index = cluster.brokers[leader].transactions.partition_of(name)
                home = await cluster.leader(TRANSACTIONS_TOPIC, index)
                if home != leader:
                    break
            coordinator = cluster.brokers[home]
            producer = await coordinator.transactions.init_producer_id(name, 60_000)
            await story(Stage(cluster, leader, coordinator, name, producer))

    run(main())


@pytest.mark.parametrize("bumps_epoch", [False, True])
def test_a_marker_that_arrives_late_does_not_end_the_next_transaction(tmp_path: Path, bumps_epoch: bool) -> None:
    async def story(stage: Stage) -> None:
        await stage.write()
        stage.lose_answers = 1
        with pytest.raises(LinkLost):
            await stage.end(commit=True, bumps_epoch=bumps_epoch)
        await until(
            lambda: stage.coordinator.transactions.describe(stage.name).state is TransactionState.COMPLETE_COMMIT
        )
        await stage.end(commit=True, bumps_epoch=bumps_epoch)  # it asks again, and hears how it ended
        assert len(stage.asked) == 2, "the coordinator has made its request again"
        await stage.write()
        for late in stage.asked[:]:
            assert await stage.deliver(late) == ("Conflict",)
            assert stage.is_open
        await stage.end(commit=False, bumps_epoch=bumps_epoch)
        (aborted,) = stage.partition.aborted.overlapping(0, stage.partition.stable_offset)
        assert aborted.first_offset == 3, "behind the first record and the two markers of its transaction"

    play(tmp_path, story)


def test_a_marker_for_a_leader_of_another_epoch_is_refused(tmp_path: Path) -> None:
    """A leader remembers the requests of its own epoch alone: the transaction may have ended under another one."""

    async def story(stage: Stage) -> None:
        await stage.write()
        await stage.end(commit=True, bumps_epoch=False)
        await stage.write()
        (sent,) = stage.asked
        (marker,) = sent.markers
        assert marker.leader_epoch == stage.partition.epoch
        for epoch, refusal in ((marker.leader_epoch - 1, "FencedLeaderEpoch"), (marker.leader_epoch + 1, "Unknown")):
            if epoch < 0:
                continue
            late = msgspec.structs.replace(marker, attempt=marker.attempt + 100, leader_epoch=epoch)
            (failure,) = await stage.deliver(WriteMarkers((late,)))
            assert failure.startswith(refusal)
            assert stage.is_open

    play(tmp_path, story)
