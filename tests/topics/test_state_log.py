"""What coordinators keep survives damage to a part of it: the broker starts, and the rest is known."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run
from waystation.broker.broker import Broker
from waystation.groups.machines.calls import OffsetToCommit

GROUPS = [f"group-{n}" for n in range(6)]


async def committed(broker: Broker) -> dict[str, int]:
    found = {group: broker.groups.fetch_offsets(group, [("t", 0)]) for group in GROUPS}
    return {group: offsets[0].offset for group, offsets in found.items() if offsets and offsets[0].offset >= 0}


def test_a_damaged_batch_of_committed_offsets_costs_only_what_it_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fill() -> None:
        async with broker_on(tmp_path, offsets_topic_num_partitions="1") as broker:
            await broker.topics.create("t", 1)
            for n, group in enumerate(GROUPS):
                await broker.groups.commit_offsets(group, [OffsetToCommit("t", 0, n + 10)])

    run(fill())
    (segment,) = tmp_path.glob("topics/__consumer_offsets.*/0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"group-2") + 20] ^= 1
    segment.write_bytes(data)

    async def look() -> dict[str, int]:
        async with broker_on(tmp_path, offsets_topic_num_partitions="1") as broker:
            return await committed(broker)

    with caplog.at_level(logging.ERROR):
        assert run(look()) == {group: n + 10 for n, group in enumerate(GROUPS) if n != 2}
    assert any(str(segment) in record.getMessage() for record in caplog.records)
