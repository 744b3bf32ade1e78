"""Rolling: a new segment begins where the old one ends, or nothing has changed, whatever step the disk refuses."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.kit import Home, run
from tests.simulation.disk import Fault, SimDisk
from waystation.config import TopicSettings
from waystation.errors import StorageFailed
from waystation.log.cleaning import compaction
from waystation.world import World

SMALL = b"s" * 50
LARGE = b"L" * 400


def rolls_that_fail(kind: str, *more: str) -> tuple[SimDisk, Home]:
    """A log of offsets 0 to 4 whose next roll the disk refuses, at `kind` (and what is done about it, at `more`)."""
    disk = SimDisk(1)
    home = Home("/data", disk, segment_bytes=1_000)
    for _ in range(5):
        home.put(SMALL)
    home.sync()
    home.save_points()
    faults = [disk.inject(Fault(each, "/data/log/0", errno.EIO, times=1)) for each in (kind, *more)]
    with pytest.raises(StorageFailed):
        home.put(LARGE * 2)
    for fault in faults:
        fault.times = 0
    return disk, home


@pytest.mark.parametrize("steps", [("truncate",), ("create",), ("open",), ("truncate", "create")], ids="-".join)
def test_a_roll_that_the_disk_refuses_leaves_the_old_segment_in_use(steps: tuple[str, ...]) -> None:
    _, home = rolls_that_fail(*steps)
    for i in range(5):
        home.put(b"%d" % i)
    home.sync()
    assert [record.offset for record in home.records(5)] == [5, 6, 7, 8, 9]
    home.kill_and_open()
    assert [record.offset for record in home.records(5)] == [5, 6, 7, 8, 9], "the first start shows them"
    home.put(b"10")
    home.sync()
    home.kill_and_open()
    assert [record.offset for record in home.records(5)] == [5, 6, 7, 8, 9, 10], "and so does the second"
    home.put(LARGE * 2)
    home.restart()
    assert [record.offset for record in home.records()] == list(range(12))


def test_a_refused_roll_leaves_no_file_behind() -> None:
    disk, home = rolls_that_fail("truncate")
    assert [name for name in home.names if name.endswith(".log")] == ["00000000000000000000.log"]
    home.put(LARGE * 2)
    assert [name for name in home.names if name.endswith(".log")] == [
        "00000000000000000000.log",
        "00000000000000000005.log",
    ]
    assert disk.open_files


def left_behind(home: Home, base: int, content: bytes = b"") -> None:
    file = home.disk.open(f"{home.folder}/{base:020d}.log", create=True)
    if content:
        file.write([content], 0)
    file.sync()
    file.close()
    home.disk.sync_folder(home.folder)


def test_a_file_that_can_be_neither_emptied_nor_removed_hides_nothing_either() -> None:
    disk = SimDisk(5)
    home = Home("/data", disk, segment_bytes=1_000)
    for _ in range(5):
        home.put(SMALL)
    left_behind(home, 5, bytes(4_096))
    faults = [disk.inject(Fault(kind, "/data/log/00000000000000000005", times=9)) for kind in ("truncate", "remove")]
    with pytest.raises(StorageFailed):
        home.put(LARGE * 2)
    for i in range(5):
        home.put(b"%d" % i)
    for fault in faults:
        fault.times = 0
    home.kill_and_open()
    assert [record.offset for record in home.records(5)] == [5, 6, 7, 8, 9]


def stop_cleanly(home: Home) -> None:
    home.stop()


def kill(home: Home) -> None:
    home.kill()


def kill_without_points(home: Home) -> None:
    home.kill()
    home.disk.remove(f"{home.root}/recovery-points")


ENDS = pytest.mark.parametrize("end", [stop_cleanly, kill, kill_without_points], ids=lambda end: end.__name__)


@ENDS
@pytest.mark.parametrize("zeros", [0, 65_536])
@pytest.mark.parametrize("later", [0, 5], ids=["it would be the last", "others follow"])
def test_an_empty_segment_inside_another_hides_nothing(
    end: Callable[[Home], None], zeros: int, later: int, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home("/data", SimDisk(2), segment_bytes=1_000)
    for i in range(10):
        home.put(b"%d" % i)
    for _ in range(later):
        home.put(LARGE)
    home.sync()
    home.save_points()
    left_behind(home, 5, bytes(zeros))
    expected = [record.offset for record in home.records()]
    end(home)
    for _ in range(2):
        home.open()
        assert [record.offset for record in home.records()] == expected
        assert [record.offset for record in home.records(5)] == expected[5:]
        assert "00000000000000000005.log" not in home.names
        expected.append(home.put(b"more").base_offset)
        home.sync()
        end(home)
    assert [
        line
        for line in caplog.records
        if line.levelno >= logging.WARNING and "00000000000000000005.log" in line.message
    ]


@ENDS
def test_records_that_a_misnamed_segment_hid_are_found_again(
    end: Callable[[Home], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A broker without this check went on in the empty file: offsets 10 and up in a segment that is named 5."""
    home = Home("/data", SimDisk(3), segment_bytes=1_000)
    for i in range(10):
        home.put(b"%d" % i)
    home.log.roll(10)
    for i in range(10, 15):
        home.put(b"%d" % i)
    home.sync()
    home.log.recovery_point = home.log.recovery_point.__class__(15, 5, home.log.recovery_point.position)
    home.save_points()
    end(home)
    home.disk.rename(f"{home.folder}/{10:020d}.log", f"{home.folder}/{5:020d}.log")
    home.open()
    assert home.values() == [b"%d" % i for i in range(15)]
    assert [record.offset for record in home.records(5)] == list(range(5, 15))
    assert [
        line for line in caplog.records if line.levelno == logging.ERROR and "00000000000000000005.log" in line.message
    ]
    home.put(b"15")
    home.restart()
    assert home.values() == [b"%d" % i for i in range(16)]


@pytest.mark.parametrize("reboot", [True, False], ids=["reboot", "kill"])
def test_records_that_stand_in_two_segments_are_damage_and_are_kept(
    tmp_path: Path, reboot: bool, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path, segment_bytes=100_000)
    home.save_points()
    for i in range(10):
        home.put(b"old %d" % i)
    home.kill()
    whole = home.segment(0).read_bytes()
    other = Home(tmp_path / "other", segment_bytes=100_000)
    other.put(*[b"x"] * 5)
    other.log.roll(5)
    for i in range(5, 8):
        other.put(b"new %d" % i)
    other.sync()
    other.kill()
    home.segment(5).write_bytes(other.segment(5).read_bytes())
    home.reboot_and_open() if reboot else home.open()
    assert home.values(5) == [b"new 5", b"new 6", b"new 7"]
    assert home.values()[:5] == [b"old %d" % i for i in range(5)]
    assert home.log.end_offset == 8
    assert [
        line for line in caplog.records if line.levelno == logging.ERROR and "00000000000000000005.log" in line.message
    ]
    kept = b"".join(path.read_bytes() for path in sorted(home.path("").iterdir()) if ".log" in path.name)
    for i in range(5, 10):
        assert b"old %d" % i in whole
        assert b"old %d" % i in kept, "what lost is kept for a person"
    home.put(b"new 8")
    home.restart()
    assert home.values(5) == [b"new 5", b"new 6", b"new 7", b"new 8"]


def test_a_compacted_segment_that_begins_with_a_gap_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    home = Home("/data", SimDisk(4), segment_bytes=150, cleanup_policy="compact")
    home.settings = TopicSettings(segment_bytes=150, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for i in range(30):
        home.put(b"%d" % i, key=b"k%d" % (i % 2))
    home.sync()
    names = home.names
    home.kill_and_open()
    assert [name for name in names if name.endswith(".log")] == [name for name in home.names if name.endswith(".log")]
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_that_was_sealed_before_a_kill_is_as_long_after_a_power_cut(seed: int) -> None:
    """Everything in it was durable, so the next start has nothing to check. But its length was cut, and that was not:
    a power cut could bring back the room that had been allocated ahead, behind the last batch and before the next
    segment, where no later start looks."""
    disk = SimDisk(seed)
    home = Home("/data", disk, segment_bytes=1_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    for i in range(5):
        home.put(SMALL, key=b"%d" % (i % 2))
    home.sync()
    home.save_points()
    home.log.roll(5)
    home.disk = disk.process_crash()
    home.world = World(home.clock, home.world.random, home.disk, home.world.offload)
    home.open()
    home.put(SMALL, key=b"1")
    home.sync()
    home.save_points()
    home.disk = home.disk.power_cut(random.Random(seed))
    home.world = World(home.clock, home.world.random, home.disk, home.world.offload)
    home.open()
    sealed = home.log.segments[0]
    assert sealed.size == sum(header.size for header in home.headers()[:5])
    assert [record.offset for record in home.records()] == list(range(6))


def compacted_and_rolled(disk: SimDisk) -> tuple[Home, list[bytes | None]]:
    """A compacted log with holes between its segments, all of it durable and noted; then a new segment has begun, and
    the process was killed before a sync. Opened again: also the values it has."""
    home = Home("/data", disk, segment_bytes=150, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for i in range(30):
        home.put(b"%d" % i, key=b"k%d" % (i % 2))
    home.sync()
    home.save_points()
    plan = compaction.due(home.log, home.clock.ms)
    assert plan is not None
    run(compaction.compact(home.log, plan))
    values = home.values()
    assert len(values) < 30
    home.log.roll(30)
    home.disk = disk.process_crash()
    home.world = World(home.clock, home.world.random, home.disk, home.world.offload)
    home.open()  # and notes its recovery point: a checkpoint
    return home, values


def lose_power(home: Home, seed: int) -> None:
    """And start again."""
    assert isinstance(home.disk, SimDisk)
    home.disk = home.disk.power_cut(random.Random(seed))
    home.world = World(home.clock, home.world.random, home.disk, home.world.offload)
    home.open()


@pytest.mark.parametrize("seed", range(10))
def test_a_recovery_point_names_no_segment_that_a_power_cut_can_take(seed: int) -> None:
    """It did: the next start did not find the segment, read all of them, took the first hole that compaction had left
    for a loss, and put everything behind it aside."""
    home, values = compacted_and_rolled(SimDisk(seed))
    lose_power(home, seed)
    assert home.values() == values
    assert home.log.end_offset == 30
    assert not [name for name in home.names if ".cut-" in name]


def test_a_segment_that_somebody_removed_takes_no_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    home, values = compacted_and_rolled(SimDisk(1))
    home.put(b"30", key=b"k0")
    home.sync()
    home.save_points()
    home.kill()
    home.disk.remove(f"{home.folder}/{30:020d}.log")
    home.disk.sync_folder(home.folder)
    lose_power(home, 1)
    assert home.values() == values
    assert home.log.end_offset == 31, "its offset is not used again"
    assert [line for line in caplog.records if line.levelno == logging.ERROR and "lost" in line.message]
