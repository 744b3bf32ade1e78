"""A share group whose coordinator has nothing of the topic: what its leader offers is all that it knows of the log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_replication import publish
from tests.support.names import unique
from waystation.cluster.replica_placement import WantedReplicas
from waystation.errors import NotLeader
from waystation.groups.machines.errors import NonEmptyGroup, UnknownGroup
from waystation.share.machines.calls import ShareBeat
from waystation.share.machines.errors import InvalidShareRequest
from waystation.share.machines.sessions import ShareSession
from waystation.share.other_coordinators import OtherShareGroup, _offered
from waystation.share.peer_calls import RENEW_LOCKS, Acquire, Acquired, Offered, Settling
from waystation.topics.partitions.partition import Partition
from waystation.topics.topics import SHARE_TOPIC

pytestmark = pytest.mark.timeout(120)

TOPIC = "orders"
MEMBER = "m"


class Stage:
    """A topic with one replica, and a group that another node coordinates."""

    def __init__(self, cluster: Cluster, leader: int, group: OtherShareGroup) -> None:
        self.cluster = cluster
        self.leader = leader
        self.group = group
        self.session = ShareSession((group.id, MEMBER), "User:alice")

    @property
    def partition(self) -> Partition:
        return self.cluster.partition(self.leader, TOPIC)

    async def beat(self, epoch: int) -> None:
        await self.group.heartbeat(
            ShareBeat(group_id=self.group.id, member_id=MEMBER, member_epoch=epoch, topics=(TOPIC,))
        )

    async def take(self, count: int) -> list[tuple[int, int]]:
        given = await self.group.acquire(self.session, [self.partition], MEMBER, count, 1 << 20, whole=False)
        found = given.get((self.partition.topic.id, 0))
        assert found is None or found.error is None
        return [] if found is None else [(grant.first, grant.count) for grant in found.grants]

    def offer(self) -> Offered:
        """What the leader tells the coordinator now."""
        return _offered(self.partition, {}, {}, 100)

    async def take_by(self, offer: Offered) -> list[tuple[int, int]]:
        """The offer arrives now."""
        told = await self.group._ask("acquire", Acquire(MEMBER, 100, 1 << 20, False, (offer,)), Acquired)
        return [(grant.first, grant.count) for grant in told.taken[0].grants]

    def coordinate_again(self) -> None:
        """The coordinator knows what its log says."""
        shared = self.cluster.brokers[self.group.home].shared
        for index in range(3):
            partition = self.cluster.partition(self.group.home, SHARE_TOPIC, index)
            shared.drop(index)
            shared.lead(partition)

    async def settle(self, verdict: str, *runs: tuple[int, int]) -> int:
        """How many of these it does not hold."""
        topic_id = self.partition.topic.id
        (settled,) = await self.group.settle(MEMBER, [Settling(topic_id, 0, ((verdict, runs),))])
        if settled.error is not None:
            raise settled.error
        return sum(count for _, count in settled.unknown)

    async def start(self) -> int:
        (offset,) = await self.group.offsets([(TOPIC, [0])])
        assert offset.error is None
        return offset.start


async def on_stage(cluster: Cluster) -> Stage:
    await cluster.brokers[1].topics.create(TOPIC, 1, None, WantedReplicas(1))
    leader = await cluster.leader(TOPIC)
    home = next(one for one in cluster.brokers if one != leader)
    topic_id = cluster.brokers[1].topics.get(SHARE_TOPIC).id
    for index in range(3):
        await cluster.brokers[1].operations.reassign(topic_id, index, [home, leader])
    await until(lambda: all(cluster.brokers[home].shared.journal.leads(index) for index in range(3)))
    name = unique("g")
    coordinators = cluster.brokers[leader].share_coordinators
    group = await until(lambda: _elsewhere(coordinators.elsewhere(name)))
    assert group.home == home
    assert not cluster.partition(home, TOPIC).here
    await group.alter_settings({"share.auto.offset.reset": "earliest", "share.renew.acknowledge.enable": "false"})
    return Stage(cluster, leader, group)


def _elsewhere(found: OtherShareGroup | None) -> OtherShareGroup | None:
    return found


def test_records_are_taken_settled_and_counted_by_what_the_leader_offers(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            stage = await on_stage(cluster)
            await stage.beat(0)
            assert await stage.take(10) == []
            for number in range(4):
                await publish(cluster, stage.leader, TOPIC, b"a%d" % number, b"b%d" % number)
            assert await stage.take(3) == [(0, 3)]
            assert await stage.take(100) == [(3, 5)]
            assert await stage.settle("ack", (0, 2), (3, 1)) == 0
            assert await stage.settle("ack", (0, 2)) == 2
            assert await stage.start() == 2
            with pytest.raises(InvalidShareRequest):
                await stage.settle(RENEW_LOCKS, (2, 1))
            assert await stage.settle("release", (2, 1)) == 0
            assert await stage.take(100) == [(2, 1)]
            await stage.group.release(MEMBER, [(stage.partition.topic.id, 0)])
            assert await stage.take(100) == [(2, 1), (4, 4)]
            assert await stage.settle("ack", (2, 1), (4, 4)) == 0
            assert await stage.start() == 8

    run(main())


@pytest.mark.parametrize("since", ["nothing", "a_new_coordinator"])
def test_an_offer_that_is_late_takes_no_acknowledgement_back(tmp_path: Path, since: str) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            stage = await on_stage(cluster)
            await stage.beat(0)
            await publish(cluster, stage.leader, TOPIC, b"0", b"1")
            late = stage.offer()
            await publish(cluster, stage.leader, TOPIC, b"2", b"3", b"4", b"5")
            assert await stage.take(100) == [(0, 6)]
            assert await stage.settle("ack", (0, 1), (2, 3)) == 0
            if since == "a_new_coordinator":
                stage.coordinate_again()
            else:
                assert await stage.settle("release", (1, 1), (5, 1)) == 0
            assert await stage.take_by(late) + await stage.take_by(stage.offer()) == [(1, 1), (5, 1)]

    run(main())


@pytest.mark.parametrize("since", ["nothing", "a_new_coordinator"])
def test_a_log_that_a_later_leader_has_without_its_tail_gives_its_offsets_to_other_records(
    tmp_path: Path, since: str
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            stage = await on_stage(cluster)
            await stage.beat(0)
            await publish(cluster, stage.leader, TOPIC, b"0", b"1")
            short = stage.offer()
            await publish(cluster, stage.leader, TOPIC, b"2", b"3", b"4", b"5")
            assert await stage.take(100) == [(0, 6)]
            assert await stage.settle("ack", (0, 1), (2, 4)) == 0
            if since == "a_new_coordinator":
                stage.coordinate_again()
            later = msgspec.structs.replace(short, epoch=short.epoch + 1)
            assert await stage.take_by(later) == [(1, 1)]
            again = msgspec.structs.replace(stage.offer(), epoch=later.epoch)
            assert await stage.take_by(again) == [(2, 4)]

    run(main())


def test_a_node_that_leads_no_more_says_nothing_of_the_log(tmp_path: Path) -> None:
    """It knows the new epoch, and has not got the new leader's log."""

    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            stage = await on_stage(cluster)
            await stage.beat(0)
            await publish(cluster, stage.leader, TOPIC, b"0", b"1")
            partition = cluster.partition(stage.leader, TOPIC)
            partition.follow(partition.epoch + 1)
            given = await stage.group.acquire(stage.session, [partition], MEMBER, 10, 1 << 20, whole=False)
            assert isinstance(given[partition.topic.id, 0].error, NotLeader)

    run(main())


def test_administrators_see_and_change_it_from_any_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            stage = await on_stage(cluster)
            await publish(cluster, stage.leader, TOPIC, *[b"%d" % number for number in range(10)])
            await stage.beat(0)
            assert await stage.take(10) == [(0, 10)]
            assert await stage.settle("ack", (0, 10)) == 0
            assert (await stage.group.describe()).members[0].member_id == MEMBER
            with pytest.raises(NonEmptyGroup):
                await stage.group.delete()
            await stage.beat(-1)
            (altered,) = await stage.group.alter_offsets([(TOPIC, 0, 7)])
            assert altered.error is None
            assert await stage.start() == 7
            await stage.beat(0)
            assert await stage.take(10) == [(7, 3)]
            await stage.beat(-1)
            assert (await stage.group.settings())["share.auto.offset.reset"] == "earliest"
            await stage.group.delete()
            with pytest.raises(UnknownGroup):
                await stage.start()

    run(main())
