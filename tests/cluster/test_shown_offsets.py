"""An offset that the next coordinator of a group may not know is shown to nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import cluster_of, until
from tests.cluster.test_own_transactions import keep_back
from tests.cluster.test_queues_in_a_cluster import lead
from waystation.groups.machines.calls import FetchedOffset, OffsetToCommit
from waystation.groups.machines.errors import NotCoordinator, UnstableOffset
from waystation.topics.topics import OFFSETS_TOPIC

pytestmark = pytest.mark.timeout(120)


def test_a_group_is_never_set_back_to_before_what_it_was_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            groups = cluster.brokers[1].groups
            await cluster.brokers[1].topics.create("t", 1)
            index = groups.partition_for("g")
            await cluster.in_sync(OFFSETS_TOPIC, {1, 2, 3}, index)
            await lead(cluster, OFFSETS_TOPIC, index, 1)
            await until(lambda: groups._shards[index].led)
            await groups.commit_offsets("g", [OffsetToCommit("t", 0, 5)])
            await keep_back(cluster, 1, (cluster.brokers[1].topics.get(OFFSETS_TOPIC).id, index))

            committing = asyncio.ensure_future(groups.commit_offsets("g", [OffsetToCommit("t", 0, 6)]))
            await until(lambda: groups.newest_offset("g", "t", 0) == 6)
            assert groups.fetch_offsets("g") == [FetchedOffset("t", 0, 5)]
            [found] = groups.fetch_offsets("g", [("t", 0)], require_stable=True)
            assert isinstance(found.error, UnstableOffset)

            await lead(cluster, OFFSETS_TOPIC, index, 2)
            with pytest.raises(NotCoordinator):
                await committing
            others = cluster.brokers[2].groups
            await until(lambda: others.exists("g"))
            [found] = others.fetch_offsets("g", [("t", 0)], require_stable=True)
            assert (found.offset, found.error) == (5, None)

    run(main())
