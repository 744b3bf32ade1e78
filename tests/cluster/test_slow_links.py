"""A follower behind a slow link asks for what the link carries in time, and catches up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import cluster_of, until
from tests.cluster.test_replication import everything, publish
from waystation.cluster.links.peer import Answer, Fetch, Fetched, Request
from waystation.cluster.replication import fetching
from waystation.cluster.replication.fetch_size import FAST_S, LEAST_BYTES, MOST_BYTES, SLOW_S, FetchSize

pytestmark = pytest.mark.timeout(120)


def test_a_follower_on_a_slow_link_catches_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MiB are too much for one answer that has to come within 0.8 s, where 1 MiB takes one second."""
    monkeypatch.setattr(fetching, "PATIENCE_S", 0.3)

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("t", 2)
            leader = await cluster.leader("t")
            slow = next(one for one in cluster.brokers if one != leader)
            await cluster.stop(slow)
            payloads = [b"%d" % number + bytes(100_000) for number in range(20)]
            for payload in payloads:
                await publish(cluster, leader, "t", payload)
            asked: list[int] = []
            for node_id, answering in list(cluster.network.answering.items()):

                async def delayed(request: Request, connection: str, answering=answering) -> Answer:  # type: ignore[no-untyped-def]
                    answer: Answer = await answering(request, connection)
                    if isinstance(request, Fetch) and isinstance(answer, Fetched) and request.node_id == slow:
                        asked.append(request.max_bytes)
                        await asyncio.sleep(sum(len(one.records) for one in answer.partitions) / 2**20)
                    return answer

                cluster.network.answering[node_id] = delayed
            await cluster.start(slow)
            ends = [cluster.partition(leader, "t", index).end_offset for index in range(2)]
            await until(lambda: [cluster.partition(slow, "t", index).end_offset for index in range(2)] == ends, 60)
            assert min(asked) < MOST_BYTES
            await until(lambda: len(everything(cluster, slow, "t")) == ends[0])

    run(main())


def test_less_is_asked_for_when_an_answer_is_slow_or_lost_and_more_when_full_ones_are_fast() -> None:
    size = FetchSize()
    assert size.bytes == MOST_BYTES
    size.answered(MOST_BYTES, SLOW_S / 2)
    assert size.bytes == MOST_BYTES
    size.answered(MOST_BYTES, 2 * SLOW_S)
    assert size.bytes == MOST_BYTES // 2
    size.answered(2**20, 2 * SLOW_S)  # a full one would have been slower still
    assert size.bytes == 2**19
    size.answered(100, 2 * SLOW_S)  # the leader was slow, not the link
    assert size.bytes == 2**19
    size.answered(2**17, FAST_S / 2)  # there was no more: that says nothing
    assert size.bytes == 2**19
    size.answered(2**19, FAST_S / 2)
    assert size.bytes == 2**20
    for _ in range(20):
        size.lost()
    assert size.bytes == LEAST_BYTES
    for _ in range(20):
        size.answered(size.bytes, FAST_S / 2)
    assert size.bytes == MOST_BYTES
