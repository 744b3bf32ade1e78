"""Replicas that are being moved are copied as fast as the operator says, and moving can be taken back meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_replication import publish
from waystation.cluster.replica_placement import WantedReplicas
from waystation.cluster.replication.throttle import UNLIMITED, Throttle
from waystation.world.clock import Clock

pytestmark = pytest.mark.timeout(120)

TOPIC = "orders"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
SIZE = 3 * 1024 * 1024


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def throttle(clock: Hands, rate: Callable[[], int]) -> Throttle:
    handed: Clock = clock  # type: ignore[assignment]
    return Throttle(handed, rate)


def test_a_debt_is_paid_off_with_time_and_a_new_rate_holds_at_once() -> None:
    clock, rate = Hands(), [1000]
    one = throttle(clock, lambda: rate[0])
    assert one.wait_s() == 0
    one.spend(500)
    assert one.wait_s() == 0.5
    clock.now = 0.25
    assert one.wait_s() == 0.25
    one.spend(1_000_000)
    assert one.wait_s() == 1.0  # looks again: the rate may be another
    rate[0] = 10_000_000
    assert one.wait_s() < 0.11
    rate[0] = UNLIMITED
    assert one.wait_s() == 0


async def begin_to_move(cluster: Cluster, rate: str) -> int:
    """A partition with much in it is to be on another node, too. Returns which one that is."""
    await cluster.brokers[1].topics.create(TOPIC, 1, None, WantedReplicas(1))
    leader = await cluster.leader(TOPIC)
    for _ in range(SIZE // (256 * 1024)):
        await publish(cluster, leader, TOPIC, b"x" * 256 * 1024)
    await cluster.brokers[1].alter_settings(dict.fromkeys(RATES, rate))
    new = next(one for one in cluster.brokers if one != leader)
    await until(lambda: cluster.brokers[new].settings.text(RATES[1]) == rate)
    await cluster.brokers[1].operations.reassign(cluster.brokers[1].topics.get(TOPIC).id, 0, [leader, new])
    return new


def copied(cluster: Cluster, node: int) -> int:
    partition = cluster.partition(node, TOPIC)
    return partition.size_bytes if partition.here else 0


@pytest.mark.parametrize("side", RATES)
def test_moving_is_held_back_by_either_side_and_can_be_cancelled(tmp_path: Path, side: str) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            new = await begin_to_move(cluster, "1000")
            other = RATES[0] if side == RATES[1] else RATES[1]
            await cluster.brokers[1].alter_settings({other: None})
            await until(lambda: copied(cluster, new) > 0)
            await asyncio.sleep(1.0)  # at full speed all of it is there long before
            assert copied(cluster, new) < SIZE
            topic_id = cluster.brokers[1].topics.get(TOPIC).id
            await cluster.brokers[1].operations.cancel_reassignment(topic_id, 0)
            await until(lambda: not cluster.partition(new, TOPIC).here)
            known = cluster.view().partition(topic_id, 0)
            assert known is not None
            assert (known.state.adding, len(known.state.replicas)) == ((), 1)

    run(main())


def test_moving_goes_on_when_the_throttle_is_lifted(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            new = await begin_to_move(cluster, "1000")
            await until(lambda: copied(cluster, new) > 0)
            assert copied(cluster, new) < SIZE
            await cluster.brokers[1].alter_settings(dict.fromkeys(RATES))
            await cluster.in_sync(TOPIC, {1, 2})
            assert copied(cluster, new) >= SIZE

    run(main())
