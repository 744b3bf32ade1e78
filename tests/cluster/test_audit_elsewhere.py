"""A node that leads no partition of the audit log has its entries written by one that does."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster import in_process
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.errors import NotLeader, WaystationError
from waystation.security import audit
from waystation.security.principals import Principal
from waystation.topics.partitions.replicated_partition import ReplicatedPartition

pytestmark = pytest.mark.timeout(120)

ALICE = Principal("alice").at("10.0.0.1", "kafka")


@pytest.fixture(autouse=True)
def audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(in_process.SETTINGS, "waystation.audit", "on")


def entries(cluster: Cluster, node: int) -> list[bytes]:
    """Names of what was changed, as far as the node has them."""
    topic = cluster.brokers[node].topics.find(audit.TOPIC)
    found: list[bytes] = []
    for partition in () if topic is None else topic.partitions:
        for data, _ in partition.batches_from(partition.start_offset):
            found += [one for one in (b"first", b"second", b"third") if b'"name":"%s"' % one in data]
    return found


async def without_partitions(cluster: Cluster, node: int) -> None:
    """All partitions of the audit log are led by the other one."""
    topic = cluster.brokers[node].topics.get(audit.TOPIC)
    other = 3 - node
    for index in range(len(topic.partitions)):
        await cluster.brokers[node].operations.reassign(topic.id, index, [other, node])
        with contextlib.suppress(WaystationError):  # it leads already, or will in a moment
            await cluster.brokers[node].operations.elect_preferred(topic.id, index)
    await until(lambda: not any(one.leads for one in topic.partitions))
    await until(
        lambda: all(
            isinstance(one, ReplicatedPartition) and one.leads
            for one in cluster.brokers[other].topics.get(audit.TOPIC).partitions
        )
    )


def test_entries_are_written_by_a_node_that_leads_a_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            book = cluster.brokers[1].audit
            book.changed(ALICE, "create", "topic", "first")
            await until(lambda: entries(cluster, 1) == entries(cluster, 2) == [b"first"])
            await without_partitions(cluster, 1)
            book.changed(ALICE, "create", "topic", "second")
            await until(lambda: sorted(entries(cluster, 2)) == [b"first", b"second"])
            await until(lambda: not book._waiting)  # when it has heard that they are written
            assert book._waiting_bytes == 0
            with pytest.raises(NotLeader):
                book.take([(b"", b"")])

    run(main())


def test_entries_wait_while_nobody_can_write_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            book = cluster.brokers[1].audit
            book.changed(ALICE, "create", "topic", "first")
            await until(lambda: entries(cluster, 1) == entries(cluster, 2) == [b"first"])
            await without_partitions(cluster, 1)
            cluster.network.cut.add(frozenset((1, 2)))
            book.changed(ALICE, "create", "topic", "second")
            book.changed(ALICE, "create", "topic", "third")
            await until(lambda: book._told)
            assert len(book._waiting) == 2
            cluster.network.cut.clear()
            await until(lambda: {b"first", b"second", b"third"} == set(entries(cluster, 2)))
            await until(lambda: not book._waiting)

    run(main())
