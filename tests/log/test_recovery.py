"""Opening a log again: after a clean stop, a killed process, a power cut, and with any of its helpers gone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.kit import NOW_MS, Home, flip, run
from tests.simulation.disk import SimDisk
from waystation.errors import CorruptBatch
from waystation.log.batches import batch as batches
from waystation.log.cleaning import retention
from waystation.log.opening.recovery import Trust, open_log
from waystation.log.points import FILE as POINTS
from waystation.world import World


def content(home: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(home.path("").iterdir())}


def positions(path: Path) -> list[int]:
    return [at for at, _ in batches.scan(path.read_bytes())]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Thirty records, five to a segment, all synced and noted; then ten more that are neither."""
    made = Home(tmp_path, segment_bytes=900, index_interval_bytes=300)
    made.fill(30)
    made.sync()
    made.save_points()
    made.fill(10)
    return made


def offsets(home: Home) -> list[int]:
    return [record.offset for record in home.records()]


def test_a_clean_stop_is_believed_and_nothing_is_changed(home: Home) -> None:
    home.stop()
    before = content(home)
    for _ in range(5):
        home.open()
        assert offsets(home) == list(range(40))
        assert home.log.epoch == 0
        home.stop()
        assert content(home) == before


def test_reopening_after_every_kind_of_end_leaves_the_records_byte_for_byte(home: Home) -> None:
    data = b"".join(home.log.read(segment.base_offset, 1 << 20) for segment in home.log.segments)
    for again in (home.kill_and_open, home.restart, home.kill_and_open, home.kill_and_open, home.reboot_and_open) * 3:
        again()
        assert b"".join(home.log.read(segment.base_offset, 1 << 20) for segment in home.log.segments) == data
        assert home.log.end_offset == 40


def test_a_killed_process_loses_nothing_that_was_written(home: Home) -> None:
    home.kill_and_open()
    assert offsets(home) == list(range(40))
    assert home.log.durable_offset == 40
    assert home.log.recovery_point.offset == 40
    assert home.segment(home.log.active.base_offset).stat().st_size == home.log.active.size  # no zeros behind it


def test_after_a_power_cut_that_spared_everything_all_is_there(home: Home) -> None:
    home.reboot_and_open()
    assert offsets(home) == list(range(40))
    assert home.log.epoch == 1


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 100, 171])
@pytest.mark.parametrize("reboot", [True, False])
def test_a_torn_batch_at_the_end_is_cut(home: Home, cut: int, reboot: bool) -> None:
    last = home.segment(home.log.active.base_offset)
    home.kill()
    data = last.read_bytes().rstrip(b"\0")
    starts = positions(last)
    last.write_bytes(data[: starts[-1] + min(cut, len(data) - starts[-1] - 1)])
    home.reboot_and_open() if reboot else home.open()
    assert offsets(home) == list(range(39))
    assert last.stat().st_size == starts[-1]
    assert home.put(b"next").base_offset == 39
    assert not [name for name in home.names if ".cut-" in name]


@pytest.mark.parametrize("zeros", [1, 61, 5_000, 3_000_000])
def test_room_that_was_never_used_is_no_damage(home: Home, zeros: int, caplog: pytest.LogCaptureFixture) -> None:
    home.kill()
    last = home.segment(home.log.active.base_offset)
    with last.open("ab") as file:
        file.write(bytes(zeros))
    home.open()
    assert offsets(home) == list(range(40))
    assert last.stat().st_size == home.log.active.size
    assert not caplog.records


def test_a_sealed_segment_with_zeros_behind_its_records_is_read_through(home: Home) -> None:
    """The process died after the next segment was begun, before this one was cut to its length."""
    home.kill()
    bases = [segment.base_offset for segment in home.log.segments]
    sealed = home.segment(bases[-2])
    size = sealed.stat().st_size
    with sealed.open("ab") as file:
        file.write(bytes(4_000))
    home.open()
    assert offsets(home) == list(range(40))
    assert sealed.stat().st_size == size
    for segment in home.log.segments:
        assert offsets(home)[segment.base_offset] == segment.base_offset


# -- damage in the middle ----------------------------------------------------------------------------------------------


def damage(home: Home, offset: int, at: int) -> tuple[Path, int]:
    """Flips a bit of the batch with this offset; gives its file and position."""
    base = max(segment.base_offset for segment in home.log.segments if segment.base_offset <= offset)
    path = home.segment(base)
    for position, header in batches.scan(path.read_bytes()):
        if header.base_offset == offset:
            flip(path, position + at, 1)
            return path, position
    raise AssertionError(offset)


@pytest.mark.parametrize("at", [9, 16, 40, 100])
def test_a_power_cut_ends_the_log_at_the_first_bad_batch(home: Home, at: int) -> None:
    home.kill()
    path, position = damage(home, 33, at)
    behind = path.read_bytes()[position:]
    later = [segment.base_offset for segment in home.log.segments if segment.base_offset > 33]
    home.reboot_and_open()
    assert offsets(home) == list(range(33))
    assert home.path(f"{path.name}.cut-{position}").read_bytes() == behind  # for a person to look at
    for base in later:
        assert not home.segment(base).exists()
        assert home.path(f"{base:020d}.log.cut-0").exists()
    assert home.put(b"other").base_offset == 33
    home.restart()
    assert len(offsets(home)) == 34


@pytest.mark.parametrize("at", [9, 16, 40, 100])
@pytest.mark.parametrize("offset", [31, 32, 34, 36])
def test_a_killed_process_keeps_everything_around_the_bad_batch(
    home: Home, at: int, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    home.kill()
    path, position = damage(home, offset, at)
    for again in (home.open, home.kill_and_open, home.restart):
        again()
        assert home.log.end_offset == 40
        with pytest.raises(CorruptBatch, match=path.name):
            home.log.read(offset, 1)
        seen = []
        for start in range(40):
            if start != offset:
                seen.append(batches.read_header(home.log.read(start, 1)).base_offset)
        assert seen == [start for start in range(40) if start != offset]
    assert f"{path}" in caplog.text
    assert f"position {position}" in caplog.text
    assert home.put(b"next").base_offset == 40
    assert home.values(40) == [b"next"]


def test_the_last_batch_of_a_segment_that_others_follow_was_whole_once(home: Home) -> None:
    home.kill()
    bases = [segment.base_offset for segment in home.log.segments]
    last = bases[-1] - 1
    assert last > 30
    damage(home, last, 100)
    for again in (home.open, home.kill_and_open):
        again()
        assert home.log.end_offset == 40
        with pytest.raises(CorruptBatch):
            home.log.read(last, 1)
        assert batches.read_header(home.log.read(bases[-1], 1)).base_offset == bases[-1]


def test_records_that_a_power_cut_lost_in_the_middle_take_those_behind_them_along(home: Home) -> None:
    """The end of one segment never reached the disk, the beginning of the next did."""
    home.kill()
    bases = [segment.base_offset for segment in home.log.segments]
    path = home.segment(bases[-2])
    data = path.read_bytes()
    cut = positions(path)[-1]
    path.write_bytes(data[:cut] + bytes(len(data) - cut))
    home.reboot_and_open()
    assert offsets(home) == list(range(bases[-1] - 1))
    assert not home.segment(bases[-1]).exists()


def test_damage_before_the_recovery_point_is_found_by_readers_only(home: Home) -> None:
    home.kill()
    damage(home, 7, 90)
    home.reboot_and_open()
    assert home.log.end_offset == 40
    with pytest.raises(CorruptBatch):
        home.log.read(7, 1)
    assert batches.read_header(home.log.read(8, 1)).base_offset == 8


@pytest.mark.parametrize("offset", [5, 40, 41, 1_000])
def test_a_batch_that_stands_in_a_torn_record_is_not_taken_for_one(home: Home, offset: int) -> None:
    """Somebody keeps copies of segments in a topic; what stands in a value was never appended here."""
    inner = batches.build([(None, b"from nowhere", ())], NOW_MS)
    batches.place(inner, offset, 0)
    home.put(b"x" * 50 + bytes(inner) + b"y" * 50)
    home.kill()
    path = home.segment(home.log.active.base_offset)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-20])
    home.open()
    assert offsets(home) == list(range(40))


# -- helpers that are gone or lie --------------------------------------------------------------------------------------


def lose_points(home: Home) -> None:
    (Path(home.root) / POINTS).unlink()


def garble_points(home: Home) -> None:
    flip(Path(home.root) / POINTS, 20)


def empty_points(home: Home) -> None:
    (Path(home.root) / POINTS).write_bytes(b"")


def lose_indexes(home: Home) -> None:
    for path in home.path("").glob("*index"):
        path.unlink()


def tear_indexes(home: Home) -> None:
    for path in home.path("").glob("*index"):
        path.write_bytes(path.read_bytes()[:13])


def zero_indexes(home: Home) -> None:
    for path in home.path("").glob("*index"):
        path.write_bytes(bytes(path.stat().st_size))


def swap_indexes(home: Home) -> None:
    """Every segment has another's."""
    paths = sorted(home.path("").glob("*.index"))
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, reversed(contents), strict=True):
        path.write_bytes(data)


def lose_snapshots(home: Home) -> None:
    for path in home.path("").glob("*.snapshot"):
        path.unlink()


def garble_snapshots(home: Home) -> None:
    for path in home.path("").glob("*.snapshot"):
        flip(path, 6)


def lose_epochs(home: Home) -> None:
    home.path("leader-epoch-checkpoint").unlink(missing_ok=True)


def leave_strangers(home: Home) -> None:
    for name in ("notes.log", "README", "00000000000000000099.index", "000.log", "x.snapshot.new", "5-9.cleaned"):
        home.path(name).write_bytes(b"whatever")


@pytest.mark.parametrize(
    "accident",
    [
        *(lose_points, garble_points, empty_points),
        *(lose_indexes, tear_indexes, zero_indexes, swap_indexes),
        *(lose_snapshots, garble_snapshots, lose_epochs, leave_strangers),
    ],
    ids=lambda accident: accident.__name__,
)
@pytest.mark.parametrize("end", ["stop", "kill", "reboot"])
def test_losing_a_helper_costs_time_not_records(home: Home, accident: Callable[[Home], None], end: str) -> None:
    home.send(7, 0, b"idempotent")
    home.send(8, 0, b"open", txn=True)
    home.stop() if end == "stop" else home.kill()
    accident(home)
    home.reboot_and_open() if end == "reboot" else home.open()
    assert offsets(home) == list(range(42))
    assert home.log.stable_offset == 41
    assert home.send(7, 0, b"idempotent").duplicate
    for offset in range(42):
        assert batches.read_header(home.log.read(offset, 1)).base_offset == offset
    assert home.put(b"next").base_offset == 42


def test_without_points_no_damage_takes_what_is_behind_it_away(home: Home) -> None:
    """Old rot must not pass for a power cut only because nothing is known of how the last run ended."""
    home.stop()
    damage(home, 3, 90)
    lose_points(home)
    home.reboot_and_open()
    assert home.log.end_offset == 40
    assert [o for o in range(40) if _readable(home, o)] == [o for o in range(40) if o != 3]


def _readable(home: Home, offset: int) -> bool:
    try:
        return batches.read_header(home.log.read(offset, 1)).base_offset == offset
    except CorruptBatch:
        return False


def test_data_that_was_synced_and_is_gone_is_told_and_its_offsets_are_not_given_again(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.stop()
    path = home.segment(home.log.active.base_offset)
    cut = positions(path)[-2]
    with path.open("r+b") as file:
        file.truncate(cut)
    home.open()
    assert "those records are lost" in caplog.text
    assert home.log.end_offset == 40
    assert offsets(home) == list(range(38))
    assert home.put(b"next").base_offset == 40
    home.kill_and_open()
    assert offsets(home) == [*range(38), 40]


def test_a_point_in_a_segment_that_retention_took_means_reading_what_is_left(home: Home) -> None:
    run(retention.remove_before(home.log, home.log.active.base_offset))
    start = home.log.start_offset
    home.kill_and_open()
    assert home.log.start_offset == start
    assert [record.offset for record in home.records(start)] == list(range(start, 40))


def test_a_start_that_outlived_its_records_is_where_the_log_goes_on(home: Home) -> None:
    """The start was durable, the records before it were not, and the power went."""
    run(retention.remove_before(home.log, 38))
    home.kill()
    for base in [segment.base_offset for segment in home.log.segments]:
        if base > 30:
            home.segment(base).unlink()
    home.reboot_and_open()
    assert (home.log.start_offset, home.log.end_offset) == (38, 38)
    assert home.put(b"next").base_offset == 38
    home.restart()
    assert home.values(38) == [b"next"]


@pytest.mark.parametrize("power", [True, False])
def test_a_log_on_a_full_disk_opens_for_its_readers(power: bool) -> None:
    for seed in range(20):
        disk = SimDisk(seed)
        home = Home("/data", disk, segment_bytes=900)
        home.fill(12)
        home.sync()
        home.save_points()
        home.fill(12)
        durable = home.log.durable_offset
        after = disk.power_cut() if power else disk.process_crash()
        after.capacity = 0
        trust = Trust(home.points.of("log"), False, not power)
        world = World(home.clock, home.world.random, after, home.world.offload)
        log = open_log(world, home.folder, home.settings, trust)
        assert log.end_offset >= durable
        assert [header.base_offset for _, header in log.batches_from(0)] == list(range(log.end_offset))
        after.capacity = None
        batch = batches.build([(None, b"room again", ())], NOW_MS)
        assert log.append(batch, batches.read_header(batch)).base_offset == log.durable_offset


def test_no_file_stays_open_after_recovery(home: Home) -> None:
    for again in (home.restart, home.kill_and_open):
        again()
        assert all(segment._file is None for segment in home.log.segments)


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_of_ends_and_work_keeps_every_record(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    home = Home(tmp_path, segment_bytes=rng.choice((1, 500, 3_000)), index_interval_bytes=rng.choice((0, 300, 4_096)))
    expected: list[bytes | None] = []
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            value = rng.randbytes(rng.randrange(200))
            home.put(value)
            expected.append(value)
            if rng.random() < 0.3:
                home.sync()
            if rng.random() < 0.2:
                home.save_points()
        rng.choice((home.restart, home.kill_and_open, home.reboot_and_open))()
        assert home.values() == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_segment_that_was_just_begun_when_the_process_died_keeps_its_name(seed: int) -> None:
    """Its name was never synced. What is written to it by the next process, and synced, survives a power cut."""
    disk = SimDisk(seed)
    home = Home("/data", disk)
    home.put(b"first")
    home.sync()
    home.save_points()
    home.log.roll(home.log.end_offset)
    disk = disk.process_crash()
    home = Home("/data", disk)
    home.put(b"second")
    home.sync()
    home = Home("/data", disk.power_cut(random.Random(seed)))
    assert home.values() == [b"first", b"second"]
