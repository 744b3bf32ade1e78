"""Group commit: one flush for all who wait, tiers in order, a failure where it belongs, and a disk that is full."""

from __future__ import annotations

import asyncio
import errno
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.disk import Fault, SimDisk
from tests.simulation.world import Simulation, simulated_world
from waystation.config import TopicSettings
from waystation.errors import StorageFailed
from waystation.log.batches import batch as batches
from waystation.log.commit import PATIENCE_S, RETRY_S, FlushMode, GroupCommit
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, open_log

NOTHING_KNOWN = Trust(None, False, True)


class Desk:
    """A group commit and some logs on a simulated disk: two of data, one for offsets, one for transactions."""

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.simulation = Simulation(seed, SimDisk(seed, capacity=capacity))
        self.disk = self.simulation.disk
        self.world = self.simulation.world
        self.commit = GroupCommit(self.world)
        self.data = self.open("data")
        self.other = self.open("other")
        self.offsets = self.open("offsets", 1)
        self.states = self.open("states", 2)

    def open(self, name: str, tier: int = 0) -> Log:
        return open_log(
            self.world, f"/data/{name}", TopicSettings(), NOTHING_KNOWN, tier=tier, on_write=self.commit.written
        )

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            self.commit.start()
            await work
            await self.commit.stop()

        self.simulation.run(asyncio.wait_for(main(), 1_000))

    def syncs(self) -> list[str]:
        """The folders of what was synced, in order."""
        return [
            path.split("/")[2] for kind, path, _, _ in self.disk.history if kind == "sync" and path.endswith(".log")
        ]

    def on_disk(self, log: Log) -> int:
        """Records in the log's files, as the cache has them."""
        data = self.disk.read_file(log.active.path()) or b""
        return sum(header.record_count for _, header in batches.scan(data))


def put(log: Log, value: bytes = b"v") -> int:
    batch = batches.build([(b"k", value, ())], 1_700_000_000_000)
    return log.append(batch, batches.read_header(batch)).last_offset + 1


def fill(log: Log) -> None:
    for _ in range(20):
        put(log, b"x" * 10_000)


async def until(condition: Callable[[], bool]) -> None:
    """Gives others their turn; the desk's clock is virtual and its patience ends."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("never happened")


def test_everybody_who_waits_shares_a_flush() -> None:
    desk = Desk()

    async def one(log: Log) -> None:
        await desk.commit.durable(log, put(log))
        assert log.durable_offset >= 1

    async def many() -> None:
        await asyncio.gather(*(one(log) for log in (desk.data, desk.other) for _ in range(100)))
        assert desk.commit.rounds <= 2
        assert desk.syncs().count("data") <= 2

    desk.run(many())


def test_who_comes_during_a_flush_waits_for_the_next() -> None:
    desk = Desk()

    async def work() -> None:
        first = put(desk.data)
        waiting = asyncio.ensure_future(desk.commit.durable(desk.data, first))
        await until(lambda: bool(desk.data._syncing))
        second = put(desk.data)
        await waiting
        assert desk.data.durable_offset == first
        await desk.commit.durable(desk.data, second)
        assert desk.data.durable_offset == second

    desk.run(work())


def test_what_is_durable_already_is_not_waited_for() -> None:
    desk = Desk()

    async def work() -> None:
        end = put(desk.data)
        await desk.commit.durable(desk.data, end)
        rounds = desk.commit.rounds
        await desk.commit.durable(desk.data, end)
        await desk.commit.durable(desk.data, 0)
        assert desk.commit.rounds == rounds

    desk.run(work())


def test_upper_tiers_are_written_only_after_what_was_appended_before_them_is_synced() -> None:
    desk = Desk()

    async def work() -> None:
        put(desk.states)
        put(desk.offsets)
        put(desk.data)
        assert desk.on_disk(desk.data) == 1
        assert desk.on_disk(desk.offsets) == desk.on_disk(desk.states) == 0
        assert desk.offsets.written_offset == 0  # its readers see what is written
        before = len(desk.disk.history)
        await desk.commit.durable(desk.states, 1)
        order = [
            (kind, path.split("/")[2])
            for kind, path, _, _ in desk.disk.history[before:]
            if path.endswith(".log") and kind in ("write", "sync")
        ]
        assert order == [
            ("sync", "data"),
            ("write", "offsets"),
            ("sync", "offsets"),
            ("write", "states"),
            ("sync", "states"),
        ]

    desk.run(work())


def test_an_upper_append_during_a_round_waits_for_the_next_with_its_data() -> None:
    desk = Desk()

    async def work() -> None:
        put(desk.data)
        put(desk.offsets)
        waiting = asyncio.ensure_future(desk.commit.durable(desk.offsets, 1))
        await until(lambda: bool(desk.data._syncing))
        put(desk.data)
        put(desk.offsets)  # speaks of the record above, which this round does not sync
        await waiting
        assert (desk.offsets.durable_offset, desk.offsets.written_offset) == (1, 1)
        await desk.commit.durable(desk.offsets, 2)
        assert desk.data.durable_offset == 2

    desk.run(work())


@pytest.mark.parametrize("kind", ["sync", "sync_folder"])
def test_a_failing_sync_condemns_its_log_and_no_other_of_its_tier(kind: str) -> None:
    desk = Desk()
    desk.disk.inject(Fault(kind, "/data/data", times=100))

    async def work() -> None:
        ends = [(log, put(log)) for log in (desk.data, desk.other)]
        results = await asyncio.gather(*(desk.commit.durable(log, end) for log, end in ends), return_exceptions=True)
        assert isinstance(results[0], StorageFailed)
        assert results[1] is None
        with pytest.raises(StorageFailed):
            put(desk.data)
        assert desk.data.read(0, 100)  # readers go on
        assert desk.data.durable_offset == 0
        await desk.commit.durable(desk.other, put(desk.other))

    desk.run(work())


def test_a_condemned_log_is_recovered_by_the_next_start() -> None:
    desk = Desk()
    desk.disk.inject(Fault("sync", "/data/data", times=1))

    async def work() -> None:
        with pytest.raises(StorageFailed):
            await desk.commit.durable(desk.data, put(desk.data))

    desk.run(work())
    desk.data.close(clean=True)
    again = Desk()
    again.disk = desk.disk
    log = open_log(desk.world, "/data/data", TopicSettings(), NOTHING_KNOWN)
    assert log.end_offset <= 1
    put(log)


def test_a_log_that_failed_does_not_keep_what_it_refuses() -> None:
    """Whoever is refused tries again, until somebody restarts the broker."""
    desk = Desk()
    desk.data.fail(StorageFailed("broken"))
    batch = batches.build([(None, bytes(100_000), ())], 0)
    before = sys.getrefcount(batch)

    def send(refused: bytearray) -> None:
        with pytest.raises(StorageFailed, match="broken"):
            desk.data.append(refused, batches.check_batch(refused))

    for _ in range(3):
        send(batch)
    gc.collect()
    assert sys.getrefcount(batch) == before


def test_what_depends_on_a_log_that_failed_is_not_written() -> None:
    desk = Desk()
    desk.disk.inject(Fault("sync", "/data/data", times=1))

    async def work() -> None:
        put(desk.data)
        put(desk.offsets)
        with pytest.raises(StorageFailed):
            await desk.commit.durable(desk.offsets, 1)
        assert desk.on_disk(desk.offsets) == 0

    desk.run(work())


def test_a_retired_log_tells_those_who_wait_for_it() -> None:
    desk = Desk()

    async def work() -> None:
        waiting = asyncio.ensure_future(desk.commit.durable(desk.data, put(desk.data) + 5))
        await asyncio.sleep(0)
        desk.data.retire(StorageFailed("deleted"))
        await desk.commit.quiesce([desk.data])
        with pytest.raises(StorageFailed, match="deleted"):
            await waiting

    desk.run(work())


def test_a_stop_leaves_everything_durable() -> None:
    desk = Desk()

    async def work() -> None:
        for log in (desk.data, desk.offsets, desk.states):
            put(log)

    desk.run(work())
    assert [log.durable_offset for log in (desk.data, desk.offsets, desk.states)] == [1, 1, 1]


def test_the_interval_flushes_though_nobody_waits() -> None:
    desk = Desk()
    desk.commit.configure("interval", 200)

    async def work() -> None:
        assert not desk.commit.waits
        put(desk.data)
        put(desk.offsets)
        await asyncio.sleep(1)
        assert desk.data.durable_offset == desk.offsets.durable_offset == 1

    desk.run(work())


@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_upper_tiers_are_acknowledged_when_they_and_what_is_below_are_synced_in_every_mode(mode: FlushMode) -> None:
    desk = Desk()
    desk.commit.configure(mode, 3_600_000)

    async def work() -> None:
        await asyncio.sleep(1)
        put(desk.data)
        for log in (desk.offsets, desk.states):
            assert desk.commit.waits_for(log)
            end = put(log)
            await asyncio.sleep(1)
            assert desk.on_disk(log) == 0, "the kernel could write it before the data that it speaks of"
            await desk.commit.durable(log, end)
            assert desk.data.durable_offset == 1
            assert log.durable_offset == end

    desk.run(work())


def test_a_change_to_the_interval_takes_effect_at_once() -> None:
    desk = Desk()

    async def work() -> None:
        await asyncio.sleep(1)
        desk.commit.configure("interval", 200)
        await asyncio.sleep(0.01)
        put(desk.data)
        await asyncio.sleep(1)
        assert desk.data.durable_offset == 1

    desk.run(work())


def test_the_kernel_is_left_alone_when_asked() -> None:
    desk = Desk()
    desk.commit.configure("os", 200)

    async def work() -> None:
        await asyncio.sleep(1)
        before = len(desk.syncs())
        put(desk.data)
        await asyncio.sleep(10)
        assert len(desk.syncs()) == before

    desk.run(work())


def test_offsets_that_nobody_waits_for_are_synced_in_a_while_though_the_kernel_is_left_alone() -> None:
    desk = Desk()
    desk.commit.configure("os", 200)

    async def work() -> None:
        put(desk.data)
        put(desk.offsets)
        await asyncio.sleep(1)
        assert (desk.data.durable_offset, desk.offsets.durable_offset) == (1, 1)
        rounds = desk.commit.rounds
        await asyncio.sleep(10)
        assert desk.commit.rounds == rounds

    desk.run(work())


# -- a disk without room -----------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_takes_again_when_there_is_room() -> None:
    desk = Desk()

    async def work() -> None:
        while desk.data.end_offset < 3:
            await desk.commit.durable(desk.data, put(desk.data, b"x" * 10_000))
        desk.disk.capacity = 0
        with pytest.raises(StorageFailed, match="No space"):
            fill(desk.data)
        end = desk.data.end_offset
        for _ in range(5):
            with pytest.raises(StorageFailed):
                put(desk.data, b"x" * 100_000)
        assert desk.data.end_offset == end
        assert [header.base_offset for _, header in desk.data.batches_from(0)] == list(range(end))
        desk.disk.capacity = None
        assert put(desk.data, b"small") == end + 1  # over the rest of what was refused
        await desk.commit.durable(desk.data, end + 1)

    desk.run(work())
    desk.data.close(clean=False)
    log = open_log(desk.world, "/data/data", TopicSettings(), NOTHING_KNOWN)
    assert log.end_offset == desk.data.end_offset
    assert len(list(log.batches_from(0))) == log.end_offset


def test_refused_rolls_leave_no_files_open() -> None:
    desk = Desk()
    desk.data.settings = TopicSettings(segment_bytes=1)

    async def work() -> None:
        put(desk.data)
        before = len(desk.disk.open_files)
        desk.disk.inject(Fault("create", "/data/data", errno.ENOSPC, times=10))
        for _ in range(10):
            with pytest.raises(StorageFailed):
                put(desk.data)
        desk.disk.inject(Fault("write", "/data/data", errno.ENOSPC, times=30))
        for _ in range(10):
            with pytest.raises(StorageFailed):
                put(desk.data)
        assert len(desk.disk.open_files) <= before + 1
        assert desk.data.end_offset == 1

    desk.run(work())


def test_offsets_wait_in_memory_for_room_and_are_written_in_order() -> None:
    desk = Desk()
    fault = desk.disk.inject(Fault("write", "/data/offsets", errno.ENOSPC, times=1_000))

    async def work() -> None:
        for i in range(3):
            with pytest.raises(StorageFailed, match="No space"):
                await desk.commit.durable(desk.offsets, put(desk.offsets, b"%d" % i))
        await desk.commit.durable(desk.data, put(desk.data))  # others go on
        assert desk.on_disk(desk.offsets) == 0
        fault.times = 0
        end = put(desk.offsets, b"3")
        await desk.commit.durable(desk.offsets, end)
        found = [record.value for data, h in desk.offsets.batches_from(0) for record in batches.records_of(data, h)]
        assert found == [b"0", b"1", b"2", b"3"]

    desk.run(work())


def test_what_waits_for_room_is_bounded_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.log.log.PENDING_WHILE_STALLED", 3)
    desk = Desk()
    fault = desk.disk.inject(Fault("write", "/data/offsets", errno.ENOSPC, times=1_000))

    async def work() -> None:
        for _ in range(3):
            with pytest.raises(StorageFailed):
                await desk.commit.durable(desk.offsets, put(desk.offsets))
        with pytest.raises(StorageFailed):
            put(desk.offsets)
        assert desk.offsets.pending_count == 3
        fault.times = 0
        with pytest.raises(StorageFailed):
            put(desk.offsets)  # still refused, but it makes the commit look again
        await until(lambda: desk.offsets.stalled is None)
        await desk.commit.durable(desk.offsets, put(desk.offsets))
        assert desk.offsets.end_offset == 4

    desk.run(work())


def test_a_disk_too_full_for_notes_does_not_condemn_the_data() -> None:
    """The epochs and the snapshots cannot be saved; the records can."""
    desk = Desk()
    fault = desk.disk.inject(Fault("create", ".new", errno.ENOSPC, times=1_000))

    async def work() -> None:
        end = put(desk.data)
        desk.data._write_derived(desk.data.active)
        await desk.commit.durable(desk.data, end)
        assert desk.data.failure is None
        assert desk.data.recovery_point.offset == 0  # recovery would still find the epoch by reading
        fault.times = 0
        await desk.commit.durable(desk.data, put(desk.data))
        assert desk.data.recovery_point.offset == 2
        assert any(name.endswith(".snapshot") for name in desk.disk.list("/data/data"))

    desk.run(work())


def test_a_clean_stop_on_a_full_disk_is_not_called_clean() -> None:
    desk = Desk()

    async def work() -> None:
        put(desk.offsets)
        desk.disk.inject(Fault("sync", "/data/offsets", times=1_000))

    desk.run(work())
    desk.offsets.close(clean=True)
    assert desk.offsets.failure is not None


# -- a process without file handles ------------------------------------------------------------------------------------

NO_HANDLES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


def put_and_roll(log: Log) -> int:
    """The log's folder has a new name in it, so that a sync must open it."""
    log.settings = TopicSettings(segment_bytes=1)
    put(log)
    end = put(log)
    log.settings = TopicSettings()
    return end


@pytest.mark.parametrize("error", NO_HANDLES)
def test_a_folder_that_cannot_be_opened_condemns_nothing_and_is_synced_when_it_can_be(error: int) -> None:
    desk = Desk()

    async def work() -> None:
        ends = [(desk.data, put_and_roll(desk.data)), (desk.offsets, put(desk.offsets))]
        desk.disk.inject(Fault("open", "/data/data", error, times=3))
        waiting = [asyncio.ensure_future(desk.commit.durable(log, end)) for log, end in ends]
        await desk.commit.durable(desk.other, put(desk.other))  # others go on
        assert not any(waiter.done() for waiter in waiting)
        assert desk.on_disk(desk.offsets) == 0, "it may speak of what is not synced yet"
        await asyncio.gather(*waiting)
        assert desk.data.failure is desk.offsets.failure is None
        assert (desk.data.durable_offset, desk.offsets.durable_offset) == (2, 1)

    desk.run(work())
    recovered = open_log(
        simulated_world(1, desk.disk.power_cut()), "/data/data", TopicSettings(), Trust(None, False, False)
    )
    assert recovered.end_offset == 2


def test_who_waits_for_a_log_that_cannot_be_opened_is_told_in_time_and_may_try_again() -> None:
    desk = Desk()
    fault = Fault("open", "/data/data", errno.EMFILE, times=1_000_000)

    async def work() -> None:
        clock = desk.world.clock
        ends = [(desk.data, put_and_roll(desk.data)), (desk.offsets, put(desk.offsets))]
        desk.disk.inject(fault)
        for log, end in ends:
            began = clock.monotonic()
            with pytest.raises(StorageFailed):
                await desk.commit.durable(log, end)
            assert clock.monotonic() - began < 2 * PATIENCE_S
        with pytest.raises(StorageFailed, match="Too many open files"):
            put(desk.data)  # what could not be synced for so long does not grow
        rounds = desk.commit.rounds
        await asyncio.sleep(10)
        assert desk.commit.rounds - rounds <= 10 / RETRY_S + 1, "it spins"
        fault.times = 0
        await asyncio.sleep(1)
        assert desk.data.stalled is None
        assert (desk.data.durable_offset, desk.offsets.durable_offset) == (2, 1), "nobody had to ask"
        await desk.commit.durable(desk.data, put(desk.data))
        await desk.commit.durable(desk.offsets, put(desk.offsets))
        assert desk.offsets.stalled is None

    desk.run(work())


def test_a_transaction_is_not_complete_on_the_disk_before_what_waits_for_room_below_it() -> None:
    desk = Desk()
    fault = desk.disk.inject(Fault("write", "/data/offsets", errno.ENOSPC, times=1_000_000))

    async def work() -> None:
        put(desk.offsets)
        waiting = asyncio.ensure_future(desk.commit.durable(desk.states, put(desk.states)))
        await asyncio.sleep(1)
        assert desk.on_disk(desk.states) == 0
        fault.times = 0
        await waiting
        assert (desk.offsets.durable_offset, desk.states.durable_offset) == (1, 1)

    desk.run(work())


def test_a_stop_without_handles_is_not_called_clean_and_loses_nothing() -> None:
    desk = Desk()
    fault = Fault("open", "/data/data", errno.EMFILE, times=1_000_000)

    async def work() -> None:
        put_and_roll(desk.data)
        desk.disk.inject(fault)

    desk.run(work())
    desk.data.close(clean=True)
    assert desk.data.failure is not None
    fault.times = 0
    log = open_log(desk.world, "/data/data", TopicSettings(), NOTHING_KNOWN)
    assert log.end_offset == 2
