"""A store that gives no answer for seconds keeps threads waiting: not those that sync logs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from tests.broker.kit import run
from tests.cluster.in_process import cluster_of
from tests.cluster.test_replication import publish
from waystation.cluster.memory_store import Fate


def test_what_is_published_is_acknowledged_while_calls_of_the_store_hang(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, nodes=1) as cluster:
            broker = cluster.brokers[1]
            await broker.topics.create("orders", 1)
            await cluster.leader("orders")
            answered = threading.Event()

            def hang(call: str) -> Fate:
                answered.wait(30)
                return Fate.ANSWERED

            cluster.faces[1].fate = hang
            asking = [asyncio.ensure_future(broker.follower.catch_up()) for _ in range(20)]
            try:
                await asyncio.sleep(0.1)
                async with asyncio.timeout(5):
                    await publish(cluster, 1, "orders", b"1")
            finally:
                answered.set()
            await asyncio.gather(*asking)

    run(main())
