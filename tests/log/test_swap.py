"""Swaps of a compaction: whatever step the disk refuses, no newer file is ever replaced by an older one."""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass

import pytest
from msgspec.structs import force_setattr

from tests.log.kit import Home, run
from tests.log.test_compaction import compact, keyed, put, table
from tests.simulation.disk import Fault, SimDisk
from waystation.errors import StorageFailed
from waystation.log.cleaning import retention
from waystation.world import World

KEYS = 5


@dataclass(slots=True)
class Nth(Fault):
    """Strikes at the operations `after` … of any kind on the log's files."""

    def strikes(self, kind: str, path: str) -> bool:
        return Fault.strikes(self, self.kind, path)


def prepared(seed: int) -> tuple[SimDisk, Home, dict[bytes, bytes]]:
    disk = SimDisk(seed)
    home = keyed("/data", disk, segment_bytes=500)
    expected: dict[bytes, bytes] = {}
    change(home, expected, 0, 30)
    return disk, home, expected


def change(home: Home, expected: dict[bytes, bytes], first: int, count: int) -> None:
    for i in range(first, first + count):
        key, value = f"k{i % KEYS}", f"v{i}" * 3
        put(home, key, value)
        expected[key.encode()] = value.encode()
    home.sync()
    home.save_points()


def next_life(home: Home, disk: SimDisk, end: str) -> SimDisk:
    if end == "clean stop":
        home.stop()
    disk = disk.power_cut() if end == "power cut" else disk.process_crash()
    home.disk = disk
    home.world = World(home.clock, home.world.random, disk, home.world.offload)
    home.open()
    return disk


def operations_of_a_pass() -> int:
    disk, home, _ = prepared(0)
    counting = disk.inject(Nth("any", "/data/log", after=1_000_000))
    compact(home)
    return 1_000_000 - counting.after


def try_to_compact(home: Home) -> bool:
    try:
        compact(home)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("end", ["power cut", "kill", "clean stop"])
@pytest.mark.parametrize("times", [1, 2, 1_000], ids=["once", "twice", "until the restart"])
def test_no_refused_step_of_a_pass_lets_an_older_value_come_back(end: str, times: int) -> None:
    operations = operations_of_a_pass()
    assert operations > 60
    for step in range(operations):
        disk, home, expected = prepared(step)
        fault = disk.inject(Nth("any", "/data/log", error=errno.EMFILE, after=step, times=times))
        try_to_compact(home)
        if times <= 2:
            fault.times = 0
            assert table(home) == expected, step
            change(home, expected, 30, 14)
            for _ in range(3):
                if try_to_compact(home):
                    break
            assert table(home) == expected, step
            assert not [name for name in home.names if name.endswith(".swap")], step
            change(home, expected, 44, 10)
        fault.times = 0
        disk = next_life(home, disk, end)
        assert table(home) == expected, step
        change(home, expected, 60, 8)
        compact(home)
        assert table(home) == expected, step
        disk = next_life(home, disk, "kill")
        assert table(home) == expected, step
        assert not [name for name in home.names if name.endswith((".swap", ".cleaned", ".refused"))], step


def test_readers_go_on_while_a_swap_cannot_be_finished() -> None:
    disk, home, expected = prepared(1)
    fault = disk.inject(Fault("list", "/data/log", errno.EMFILE, times=1_000))
    with pytest.raises(OSError, match="open files"):
        compact(home)
    for name in list(disk.open_files.values()):
        assert not name.endswith(".cleaned")
    assert table(home) == expected
    change(home, expected, 30, 3)
    assert table(home) == expected
    fault.times = 0
    compact(home)
    assert home.log.swap is None
    assert table(home) == expected


def test_a_swap_that_is_not_finished_keeps_retention_from_removing_segments() -> None:
    disk, home, expected = prepared(1)
    fault = disk.inject(Fault("list", "/data/log", errno.EMFILE, times=2))
    with pytest.raises(OSError, match="open files"):
        compact(home)
    with pytest.raises(StorageFailed, match="swap"):
        run(retention.remove_before(home.log, 20))
    assert home.log.start_offset == 0
    fault.times = 0
    run(retention.remove_before(home.log, 20))
    assert home.log.start_offset == 20
    disk = next_life(home, disk, "kill")
    assert {record.offset for record in home.records()} <= set(range(20, 30))
    assert {key: value for key, value in expected.items() if key in table(home)} == table(home)


def test_segments_that_retention_took_meanwhile_are_not_brought_back() -> None:
    _, home, _ = prepared(1)
    opened = home.world.offload

    async def offload(work, *arguments):  # type: ignore[no-untyped-def]
        if getattr(work, "__name__", "") == "_rewrite":
            done = await opened(work, *arguments)
            await retention.remove_before(home.log, 20)
            return done
        return await opened(work, *arguments)

    force_setattr(home.world, "offload", offload)
    compact(home)
    assert min(record.offset for record in home.records()) >= 20
    assert not [name for name in home.names if name.endswith((".swap", ".cleaned"))]


def left_over(home: Home, name: str, source: str) -> None:
    """A swap file as a failed pass left it, with the content of a segment of that time."""
    home.disk.replace_file(f"{home.folder}/{name}", home.disk.read_file(source) or b"")


@pytest.mark.parametrize(
    ("name", "refused"),
    [("0-0.swap", False), ("0-5.swap", True), ("1-5.swap", True), ("2-2.swap", True)],
    ids=["of one segment", "beginning with the merged one", "in the merged one", "one in the merged one"],
)
def test_a_left_over_swap_is_never_carried_out_over_newer_files(
    name: str, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As a broker left them that went on after a failed swap: a newer pass has merged the segments into one."""
    disk, home, expected = prepared(1)
    old = f"{home.root}/old"
    disk.replace_file(old, disk.read_file(f"{home.folder}/{0:020d}.log") or b"")
    put(home, "once", "kept")
    expected[b"once"] = b"kept"
    change(home, expected, 30, 30)
    home.log.settings = home.settings = keyed("/other", SimDisk(), segment_bytes=100_000).settings
    compact(home)
    assert len([name for name in home.names if name.endswith(".log")]) == 2
    left_over(home, name, old)
    disk = next_life(home, disk, "kill")
    assert table(home) == expected
    errors = [line for line in caplog.records if line.levelno == logging.ERROR and name in line.message]
    assert len(errors) == refused
    assert (f"{name}.refused" in home.names) == refused
    assert name not in home.names


def test_a_swap_that_lost_its_first_segments_is_finished() -> None:
    for removed in range(1, 4):
        disk, home, expected = prepared(1)
        fault = disk.inject(Fault("remove", "/data/log/0", errno.EIO, after=removed, times=1))
        with pytest.raises(OSError, match="Input/output"):
            compact(home)
        assert fault.times == 0
        assert [name for name in home.names if name.endswith(".swap")]
        next_life(home, disk, "kill")
        assert table(home) == expected
        assert not [name for name in home.names if name.endswith((".swap", ".refused"))]
