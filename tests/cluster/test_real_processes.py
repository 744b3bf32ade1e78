"""Three brokers and etcd as processes: one hangs, and transactions over partitions of several nodes."""

from __future__ import annotations

import pytest

from tests.clients import kit
from tests.clients.crash_load import PARTITIONS, Writing, wait_for_progress
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique

pytestmark = pytest.mark.timeout(300)


def test_a_leader_that_hangs_is_replaced_and_goes_on_as_a_follower(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("hung"))
    writing = Writing(cluster.bootstrap, topic, {"socket.timeout.ms": 3000, "request.timeout.ms": 3000})
    writing.start()
    wait_for_progress({writing: 500})
    hung = cluster.leader(topic)
    cluster.pause(hung)
    try:
        wait_for_progress(
            {writing: 3000 + 500}
        )  # more than what can be waiting: the partition of the one that hangs, too
        assert cluster.leader(topic) != hung
    finally:
        cluster.resume(hung)
    cluster.wait_in_sync(topic)
    wait_for_progress({writing: 500})
    writing.stop()
    writing.check(kit.read_all(cluster.bootstrap, topic))


def test_transactions_over_partitions_of_several_nodes_are_seen_whole_or_not_at_all(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("whole"), 2 * PARTITIONS)
    producer = kit.producer(cluster.bootstrap, {"transactional.id": unique("mover"), "message.timeout.ms": 60_000})
    producer.init_transactions(60)
    committed: list[bytes] = []
    for number in range(20):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, partition) for partition in range(2 * PARTITIONS)]
        for partition, value in enumerate(values):
            producer.produce(topic, value, partition=partition)
        if number % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += values
    found = kit.read_all(cluster.bootstrap, topic, {"isolation.level": "read_committed"})
    assert sorted(one.value() or b"" for one in found) == sorted(committed)
