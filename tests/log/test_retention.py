"""Old records go: by age, by size, by request; whole segments, oldest first, and never by mistake."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from tests.log.kit import DAY_MS, NOW_MS, BootingDisk, Home, run
from tests.simulation.disk import Fault, SimDisk
from waystation.config import TopicSettings
from waystation.errors import StorageFailed
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.cleaning import retention
from waystation.log.producers import REMEMBERED_BATCHES
from waystation.world import ThreadOffload, World

T = TypeVar("T")


def enforce(home: Home) -> int:
    return run(retention.enforce(home.log, home.clock.ms))


def logs(home: Home) -> list[int]:
    return [int(name[:-4]) for name in home.names if name.endswith(".log")]


def test_segments_go_when_their_newest_record_is_too_old(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    for i in range(4):
        home.put(b"v", at=NOW_MS + i * 1_000)
    home.clock.ms = NOW_MS + DAY_MS
    assert enforce(home) == 0
    home.clock.ms += 1
    assert enforce(home) == 1
    assert logs(home) == [1, 2, 3]
    home.clock.ms += 1_999
    assert enforce(home) == 1
    assert (home.log.start_offset, [r.offset for r in home.records(2)]) == (2, [2, 3])


def test_the_segment_in_use_goes_too_when_all_of_it_is_old(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_ms=DAY_MS)
    home.fill(5)
    home.clock.ms += DAY_MS + 1
    assert enforce(home) == 1
    assert (home.log.start_offset, home.log.end_offset) == (5, 5)
    assert logs(home) == [5]
    assert home.put(b"next").base_offset == 5
    home.restart()
    assert home.values(5) == [b"next"]


def test_what_may_be_truncated_is_neither_old_nor_too_much(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_ms=DAY_MS)
    home.fill(4)
    home.log.roll(4)
    home.fill(6)
    late = NOW_MS + 2 * DAY_MS
    assert [retention.expired_until(home.log, late, before=offset) for offset in (0, 3, 4, 9, 10)] == [0, 0, 4, 4, 10]
    home.settings = home.log.settings = TopicSettings(retention_ms=-1, retention_bytes=home.log.active.size)
    assert [retention.expired_until(home.log, late, before=offset) for offset in (4, 9, 10)] == [0, 0, 4]


def test_what_is_above_the_high_watermark_does_not_count_in_the_segment_that_it_is_in(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_ms=-1, index_interval_bytes=0)
    home.fill(4)
    home.log.roll(4)
    size = home.log.size_bytes
    home.fill(8)
    home.settings = home.log.settings = replace(home.settings, retention_bytes=size)
    assert [retention.expired_until(home.log, NOW_MS, before=offset) for offset in (7, 8, 12)] == [0, 4, 4]


def test_an_empty_log_is_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_ms=0, retention_bytes=0)
    home.clock.ms += DAY_MS
    assert enforce(home) == 0
    assert logs(home) == [0]


@pytest.mark.parametrize("policy", ["compact", "delete", ""])
def test_nothing_goes_without_a_limit_or_a_policy_to_delete(tmp_path: Path, policy: str) -> None:
    home = Home(tmp_path, segment_bytes=1, cleanup_policy=policy, retention_ms=-1 if policy == "delete" else 1)
    home.fill(4)
    home.clock.ms += 10_000 * DAY_MS
    assert enforce(home) == 0


def test_the_oldest_go_until_the_log_fits(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(5)
    size = home.log.size_bytes // 5
    for limit, left in ((5 * size, 5), (4 * size + 1, 5), (4 * size, 4), (2 * size, 2), (0, 1)):
        home.log.settings = type(home.settings)(segment_bytes=1, retention_ms=-1, retention_bytes=limit)
        enforce(home)
        assert len(logs(home)) == left, limit
    assert home.values(4) == home.values(home.log.start_offset)


def test_records_without_a_time_are_as_old_as_the_broker_knows_them(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    home.put(b"v", at=-1)
    home.put(b"w", at=-1)
    assert enforce(home) == 0
    home.clock.ms += 5 * DAY_MS
    home.restart()
    assert enforce(home) == 0
    home.clock.ms += DAY_MS + 1
    assert enforce(home) == 2


def test_a_time_index_that_lost_its_end_does_not_make_records_old(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=2_000, index_interval_bytes=0, retention_ms=DAY_MS)
    for i in range(40):
        home.put(b"v" * 100, at=NOW_MS - 2 * DAY_MS + i * 100_000)
    home.put(b"fresh", at=NOW_MS)
    home.put(b"v" * 2_000, at=NOW_MS)
    home.stop()
    for path in home.path("").glob("*.timeindex"):
        path.write_bytes(path.read_bytes()[:24])
    home.open()
    enforce(home)
    assert b"fresh" in home.values(home.log.start_offset)


def with_hole(home: Home, size: int) -> None:
    """What a power cut leaves of the time indexes: they are as long as they were, but their first bytes are zeros."""
    for path in home.path("").glob("*.timeindex"):
        data = path.read_bytes()
        path.write_bytes(bytes(min(size, len(data))) + data[size:])
    home.reboot_and_open()


def test_a_hole_in_a_time_index_does_not_make_records_without_a_time_old(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    home.put(b"v", at=-1)
    home.put(b"w", at=-1)
    home.sync()
    with_hole(home, 512)
    assert (enforce(home), home.values()) == (0, [b"v", b"w"])


def test_while_the_disk_does_not_say_whether_it_is_a_hole_nothing_goes() -> None:
    disk = SimDisk()
    home = Home("/data", disk, segment_bytes=1, retention_ms=DAY_MS)
    home.put(b"v", at=-1)
    home.put(b"w", at=-1)
    home.stop()
    index = disk.open(f"{home.folder}/{0:020d}.timeindex")
    index.write([bytes(12)], 0)
    index.close()
    home.open()
    disk.inject(Fault("read", f"{home.folder}/{0:020d}.log", times=1))
    with pytest.raises(OSError, match="error"):
        enforce(home)
    assert (enforce(home), home.values()) == (0, [b"v", b"w"])


def test_a_hole_in_a_time_index_does_not_make_a_marker_old(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    home.end(1, commit=True)
    home.put(b"v")
    home.sync()
    with_hole(home, 512)
    assert (enforce(home), home.log.start_offset) == (0, 0)


def test_a_time_index_that_lost_its_first_sector_does_not_make_records_old(tmp_path: Path) -> None:
    """Its last entry lies across the end of that sector: of what it says, only the offset is left."""
    home = Home(tmp_path, segment_bytes=20_000, index_interval_bytes=0, retention_ms=DAY_MS)
    for i in range(42):
        home.put(b"v", at=NOW_MS - 42 + i)
    home.end(1, commit=True)
    home.put(b"w" * 20_000)
    home.sync()
    assert home.path(f"{0:020d}.timeindex").stat().st_size == 43 * 12
    with_hole(home, 512)
    assert (enforce(home), len(home.records())) == (0, 43)


def test_records_of_1970_are_old_with_and_without_their_time_index(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    home.put(b"v", at=0)
    home.put(b"w")
    home.restart()
    index = home.path(f"{0:020d}.timeindex")
    assert (index.read_bytes(), home.log.segments[0].latest_timestamp()) == (bytes(12), 0)
    assert index.exists()  # it was meant so, and is believed
    index.unlink()
    home.restart()
    assert (enforce(home), home.values(1)) == (1, [b"w"])


def test_a_segment_that_compaction_emptied_does_not_stop_the_clock(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, cleanup_policy="compact,delete", retention_ms=DAY_MS)
    home.fill(4)
    home.stop()
    home.segment(1).write_bytes(b"")
    home.open()
    home.clock.ms += DAY_MS + 1
    assert enforce(home) == 4
    assert home.log.start_offset == 4


def test_a_removal_waits_for_a_flush_that_has_the_files(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=DAY_MS)
    home.fill(3)

    async def story() -> None:
        job = home.log.take_sync()
        assert job is not None
        removal = asyncio.create_task(retention.remove_before(home.log, 2))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not removal.done()
        assert (home.log.start_offset, logs(home)) == (0, [0, 1, 2])
        job.run()
        home.log.synced(job)
        assert await removal == 2

    run(story())
    assert (home.log.start_offset, logs(home)) == (2, [2])


def producer_batch(sequence: int) -> bytearray:
    return batches.build(
        [(None, b"%d" % sequence, ())], NOW_MS, producer_id=5, producer_epoch=0, base_sequence=sequence
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_producer_goes_on_after_a_power_cut_though_what_it_sent_was_deleted_before_it_was_synced(seed: int) -> None:
    """Nobody answered it, so it sends all of it again: each batch is a duplicate or the next one."""
    rng = random.Random(seed)
    disk = SimDisk(seed)
    home = Home("/data", disk, segment_bytes=1)

    async def story() -> None:
        for sequence in range(REMEMBERED_BATCHES):
            batch = producer_batch(sequence)
            home.log.append(batch, batches.read_header(batch))
            if sequence == 1:
                assert home.log.take_sync() is not None  # a flush that does not come to its end
        removal = asyncio.create_task(retention.remove_before(home.log, REMEMBERED_BATCHES - 1))
        for _ in range(10):
            await asyncio.sleep(0)
        removal.cancel()

    run(story())
    home = Home("/data", disk.power_cut(rng), segment_bytes=1)
    for sequence in range(REMEMBERED_BATCHES):
        batch = producer_batch(sequence)
        home.log.append(batch, batches.read_header(batch))


def test_a_moved_start_survives_and_never_goes_back(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.fill(10)
    run(retention.remove_before(home.log, 6))
    run(retention.remove_before(home.log, 3))
    assert home.log.start_offset == 6
    for again in (home.kill_and_open, home.restart, home.reboot_and_open):
        again()
        assert home.log.start_offset == 6
        assert [record.offset for record in home.records(6)] == [6, 7, 8, 9]


def test_two_at_once_leave_the_further_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.fill(50)
    home.log.world = World(home.clock, home.world.random, home.disk, ThreadOffload())

    async def both() -> None:
        await asyncio.gather(*(retention.remove_before(home.log, offset) for offset in range(40, 0, -1)))

    run(both())
    home.log.world.offload.close()
    assert home.path("log-start").read_text() == "40"


def test_a_damaged_start_is_taken_as_the_first_record(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(5)
    run(retention.remove_before(home.log, 2))
    home.stop()
    home.path("log-start").write_bytes(b"\x00\xff")
    home.open()
    assert home.log.start_offset == 2


def test_a_full_disk_does_not_keep_retention_from_making_room() -> None:
    disk = SimDisk()
    home = Home("/data", disk, segment_bytes=1, retention_ms=DAY_MS)
    home.fill(4)
    home.sync()
    home.clock.ms += DAY_MS + 1
    disk.inject(Fault("write", "", errno.ENOSPC, times=2))  # the snapshot and the first attempt at the start
    home.log.derived.saved_offset = -1
    assert run(retention.enforce(home.log, home.clock.ms)) == 4
    assert logs(home) == [4]


def test_a_start_that_cannot_be_saved_is_an_error() -> None:
    disk = SimDisk()
    home = Home("/data", disk)
    home.fill(4)
    home.sync()
    disk.inject(Fault("write", "log-start", errno.EIO, times=5))
    with pytest.raises(StorageFailed):
        run(retention.remove_before(home.log, 2))


def test_records_that_a_crash_brings_back_are_still_aborted() -> None:
    disk = SimDisk()
    home = Home("/data", disk)
    home.send(7, 0, b"a", txn=True)
    home.end(7, commit=False)
    home.sync()
    disk.inject(Fault("write", "log-start", errno.EIO, times=5))
    with pytest.raises(StorageFailed):
        run(retention.remove_before(home.log, 2))
    home.fill(1)
    retention.begin_segment(home.log)
    home.sync()
    home.kill()
    home = Home("/data", disk.process_crash())
    assert home.log.start_offset == 0
    assert home.log.aborted.overlapping(0, 100) == [Aborted(7, 0, 1)]


def test_retention_leaves_a_failed_log_alone(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1, retention_ms=0)
    home.fill(3)
    home.log.fail(StorageFailed("the disk is broken"))
    home.clock.ms += 10
    assert enforce(home) == 0


class HeldOffload:
    """Its work begins when it is let go, as on threads that are busy."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            self.asked.set()
            await self.let_go.wait()
            try:
                result.set_result(work(*args))
            except Exception as error:
                result.set_exception(error)

        self._doing = asyncio.ensure_future(do())  # goes on when the caller is cancelled, as a thread does
        return await result

    def close(self) -> None:
        pass


async def hang_up(home: Home, offset: int) -> asyncio.Task[int]:
    """Asks for a removal and is cancelled while a thread works at it."""
    offload = HeldOffload()
    home.log.world = World(home.clock, home.world.random, home.disk, offload)
    removal = asyncio.ensure_future(retention.remove_before(home.log, offset))
    await offload.asked.wait()
    removal.cancel()
    await asyncio.sleep(0)
    offload.let_go.set()
    return removal


def test_a_sync_that_fails_is_heard_of_though_who_asked_for_the_removal_has_hung_up() -> None:
    disk = SimDisk()
    home = Home("/data", disk, segment_bytes=1)
    home.fill(4)
    disk.inject(Fault("sync", ".log", errno.EIO, times=1))

    async def story() -> None:
        removal = await hang_up(home, 3)
        with pytest.raises(asyncio.CancelledError):
            await removal

    run(story())
    with pytest.raises(StorageFailed, match="failed to sync"):  # fsync said it once: the next would say all is well
        home.fill(1)


class SlowDisk(BootingDisk):
    """Is long at work on the first start of a log that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def replace_file(self, path: str, content: bytes) -> None:
        if path.endswith("log-start") and not self.begun.is_set():
            self.begun.set()
            self.let_go.wait(timeout=30)
        super().replace_file(path, content)


def test_a_removal_whose_client_has_hung_up_does_not_save_its_start_over_a_further_one(tmp_path: Path) -> None:
    disk = SlowDisk()
    home = Home(tmp_path, disk)
    home.fill(10)
    home.sync()
    home.log.world = World(home.clock, home.world.random, disk, ThreadOffload())

    async def story() -> None:
        removal = asyncio.ensure_future(retention.remove_before(home.log, 4))
        await asyncio.to_thread(disk.begun.wait, 30)
        removal.cancel()
        further = asyncio.ensure_future(retention.remove_before(home.log, 8))
        await asyncio.wait([further], timeout=0.2)  # it would be done by now if it did not wait for its turn
        disk.let_go.set()
        await further
        with pytest.raises(asyncio.CancelledError):
            await removal

    run(story())
    home.log.world.offload.close()
    assert home.path("log-start").read_text() == "8"


# -- by count ----------------------------------------------------------------------------------------------------------


def offsets(home: Home) -> list[int]:
    return [record.offset for record in home.records(home.log.start_offset)]


def test_the_newest_so_many_are_left_and_exactly_those(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_messages=3)
    home.fill(5)
    home.sync()
    assert offsets(home) == [2, 3, 4]
    home.fill(1)
    assert home.log.start_offset == 2, "only what is durable counts: a power cut may take the rest"
    home.sync()
    assert offsets(home) == [3, 4, 5]
    home.restart()
    assert offsets(home) == [3, 4, 5]
    home.kill_and_open()
    assert offsets(home) == [3, 4, 5]


def test_the_start_may_be_inside_of_a_batch(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_messages=3)
    home.put(b"a", b"b", b"c", b"d", b"e")
    home.sync()
    assert home.log.start_offset == 2
    assert enforce(home) == 0
    home.restart()
    assert (home.log.start_offset, home.log.end_offset) == (2, 5)


def test_what_a_number_has_removed_does_not_come_back_with_a_larger_one(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_messages=3)
    home.fill(10)
    home.sync()
    enforce(home)
    home.settings = TopicSettings(retention_messages=100)
    home.restart()
    assert offsets(home) == [7, 8, 9]


def test_files_go_with_the_messages_also_the_one_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SEALED_EARLY_BYTES", 500)
    home = Home(tmp_path, retention_messages=3)
    for _ in range(10):
        home.fill(5)
        home.sync()
        enforce(home)
    assert home.log.end_offset == 50
    assert len(logs(home)) <= 2
    assert logs(home)[0] >= 40


def test_a_compacted_log_is_not_bounded_by_count(tmp_path: Path) -> None:
    home = Home(tmp_path, retention_messages=3, cleanup_policy="compact")
    for number in range(5):
        home.put(b"v", key=b"k%d" % number)
    home.sync()
    assert home.log.start_offset == 0
