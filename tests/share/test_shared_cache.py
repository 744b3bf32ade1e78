"""Batches that are opened for share groups: done ones leave memory, and what is kept is counted as what it takes."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from tests.broker.feeds import subscribe, until
from tests.broker.kit import broker_on, send
from waystation.log.batches import batch as batches
from waystation.queues.feed import Verdict
from waystation.share.machines.window import OpenedBatches
from waystation.topics.records.record_reading import delivered_of

Headers = tuple[tuple[str, bytes], ...]


def test_batches_leave_memory_when_the_group_has_acked_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker_on(tmp_path / "data") as broker:
            await broker.topics.create("t", 1, {})
            member = await subscribe(broker, "t", mode="shared", group="g", start="earliest")
            for number in range(50):
                send(broker, "t", b"%d" % number)
            await until(lambda: len(member.got) == 50, "all of them")
            assert len(broker.shared.opened) == 50
            for one in member.got[1:]:
                settled = member.feed.settle(Verdict.ACK, [(one.tag, 1)])
                await broker.durable(settled.receipt)
            assert len(broker.shared.opened) > 0, "the first one is still in flight"
            settled = member.feed.settle(Verdict.ACK, [(member.got[0].tag, 1)])
            await broker.durable(settled.receipt)
            send(broker, "t", b"next")
            await until(lambda: len(member.got) == 51, "the next")
            assert len(broker.shared.opened) <= 1
            assert broker.shared.opened.cost < 2_000

    asyncio.run(work())


def plain(_number: int) -> Headers:
    return ()


def identified(number: int) -> Headers:
    return (("x-message-id", b"%032d" % number), ("x-content-type", b"application/json"))


def many(number: int) -> Headers:
    return tuple((f"header-{n}", b"value-%d-%d" % (number, n)) for n in range(15))


@pytest.mark.parametrize("headers", [plain, identified, many])
@pytest.mark.parametrize("payload", [6, 1000])
@pytest.mark.parametrize("together", [1, 10, 100])
def test_what_the_cache_counts_is_what_it_takes(headers: type, payload: int, together: int) -> None:
    """Within a half: else its bound would be another than it says, fifty times as much for small messages."""
    count = 2000
    stored = []
    for n in range(0, count, together):
        records = [(None, bytes(payload), headers(n + i)) for i in range(together)]
        stored.append(bytes(batches.build(records, 1_700_000_000_000)))
    opened = OpenedBatches(1 << 40)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at, data in enumerate(stored):
            header = batches.read_header(data)
            body = batches.records_section(data, header)
            messages = delivered_of(body, header, "t", 0, 0)
            opened.put((None, at), messages, len(body))  # type: ignore[arg-type]  # nobody asks for the partition
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.65 * taken < opened.cost < 1.5 * taken, f"{opened.cost / count:.0f} counted, {taken / count:.0f} taken"
