"""Changes of more entries than one write of the cluster's store may have: done in several, and finished by others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.catalog import rows
from waystation.cluster.memory_store import MemoryFace
from waystation.errors import StoreUnavailable

pytestmark = pytest.mark.timeout(120)

BINDINGS = 250


def in_store(cluster: Cluster) -> int:
    face = cluster.store.face()
    return len(face.read(rows.BINDINGS).entries)


async def bind_many(cluster: Cluster) -> None:
    routing = cluster.brokers[1].routing
    await cluster.brokers[1].topics.create("orders", 1)
    await routing.declare_exchange("events", "topic")
    await routing.declare_exchange("all", "fanout")
    await routing.bind("all", "exchange:events")
    for number in range(BINDINGS):
        await routing.bind("events", "topic:orders", f"key.{number}")
    await until(lambda: all(len(bound(cluster, one)) == BINDINGS for one in cluster.brokers))
    assert in_store(cluster) == BINDINGS + 1


def bound(cluster: Cluster, node: int) -> list[object]:
    exchange = cluster.brokers[node].routing.find("events")
    return [] if exchange is None else list(exchange.bindings)


def test_an_exchange_with_many_bindings_is_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await bind_many(cluster)
            await cluster.brokers[2].routing.delete_exchange("events")
            await until(lambda: all(broker.routing.find("events") is None for broker in cluster.brokers.values()))
            assert in_store(cluster) == 0

    run(main())


@pytest.mark.parametrize("who", ["start", "declare"])
def test_a_deletion_that_was_cut_short_is_finished_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """It is gone from the first write on, and an exchange of its name has none of its bindings."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await bind_many(cluster)
            written = MemoryFace.write
            doomed, writes = cluster.faces[2], []

            def dies(self: MemoryFace, changes: Mapping[str, bytes | None], *others: object, **named: object) -> int:
                if self is doomed and any(key.startswith((rows.BINDINGS, rows.EXCHANGES)) for key in changes):
                    writes.append(len(changes))
                    if len(writes) > 2:
                        raise StoreUnavailable("the broker has died")
                return written(self, changes, *others, **named)  # type: ignore[arg-type]

            monkeypatch.setattr(MemoryFace, "write", dies)
            with pytest.raises(StoreUnavailable):
                await cluster.brokers[2].routing.delete_exchange("events")
            await until(lambda: all(broker.routing.find("events") is None for broker in cluster.brokers.values()))
            assert 0 < in_store(cluster) < BINDINGS
            await cluster.kill(2)
            if who == "start":
                await cluster.start(2)
                await until(lambda: in_store(cluster) == 0)
            await cluster.brokers[1].routing.declare_exchange("events", "topic")
            assert in_store(cluster) == 0
            await cluster.stop(3)
            await cluster.start(3)
            await asyncio.sleep(0)
            assert not bound(cluster, 3)
            assert not bound(cluster, 1)

    run(main())


def test_a_topic_with_many_partitions_comes_and_goes(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            await cluster.brokers[1].topics.create("wide", 250)
            await until(lambda: cluster.brokers[2].topics.find("wide") is not None)
            await cluster.brokers[2].topics.delete("wide")
            await until(lambda: cluster.brokers[1].topics.find("wide") is None)
            left = list(cluster.store.face().read("partitions/").entries)
            own = {topic.id for topic in cluster.brokers[1].topics}
            assert all(any(str(one) in key for one in own) for key in left)

    run(main())
