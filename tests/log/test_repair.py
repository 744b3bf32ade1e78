"""Cutting damage out, so that readers can pass: what is shown, what is kept, and that offsets stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.kit import Home, flip
from waystation.errors import CorruptBatch
from waystation.log.batches import batch as batches
from waystation.log.opening import repair


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Twenty records, five to a segment, cleanly stopped."""
    made = Home(tmp_path, segment_bytes=900)
    made.fill(20)
    made.stop()
    return made


def spoil(home: Home, offset: int, at: int = 90) -> int:
    base = offset - offset % 5
    for position, header in batches.scan(home.segment(base).read_bytes()):
        if header.base_offset == offset:
            flip(home.segment(base), position + at)
            return position
    raise AssertionError(offset)


def fix(home: Home) -> list[repair.Damage]:
    found = repair.find(home.world, home.folder)
    repair.skip(home.world, home.folder, found)
    home.points.load()
    home.points.forget("log")
    return found


def test_a_sound_log_has_nothing_to_skip(home: Home) -> None:
    assert repair.find(home.world, home.folder) == []


def test_looking_changes_nothing(home: Home) -> None:
    spoil(home, 7)
    home.path("notes.log").write_text("somebody's")
    before = {path.name: path.read_bytes() for path in home.path("").iterdir()}
    assert len(repair.find(home.world, home.folder)) == 1
    assert {path.name: path.read_bytes() for path in home.path("").iterdir()} == before


@pytest.mark.parametrize("at", [8, 16, 30, 90])
@pytest.mark.parametrize("offset", [0, 4, 5, 7, 14])
def test_readers_pass_what_was_cut_out_and_offsets_stay(home: Home, offset: int, at: int) -> None:
    position = spoil(home, offset, at)
    found = fix(home)
    size = found[0].end - found[0].start
    following = offset + 1 if offset % 5 != 4 else None
    assert [(d.start, d.first_offset, d.next_offset) for d in found] == [(position, offset, following)]
    for again in (home.open, home.kill_and_open, home.restart):
        again()
        assert home.log.end_offset == 20
        assert [record.offset for record in home.records()] == [o for o in range(20) if o != offset]
    kept = list(home.path("").glob("*.corrupt-*"))
    assert [(path.name.rpartition("-")[2], path.stat().st_size) for path in kept] == [(str(position), size)]


def test_several_ranges_in_several_segments_go_at_once(home: Home) -> None:
    for offset in (1, 3, 7, 8, 19):
        spoil(home, offset)
    found = fix(home)
    assert [(d.first_offset, d.next_offset) for d in found] == [(1, 2), (3, 4), (7, 9), (19, None)]
    home.open()
    gone = {1, 3, 7, 8, 19}
    assert [record.offset for record in home.records()] == [o for o in range(20) if o not in gone]


def test_the_last_records_offset_is_not_given_again(home: Home) -> None:
    spoil(home, 19)
    fix(home)
    home.open()
    assert home.log.end_offset == 20
    assert home.put(b"next").base_offset == 20


def test_damage_after_a_kill_can_be_skipped_too(home: Home) -> None:
    home.open()
    home.fill(4)
    home.kill()
    spoil(home, 21)
    home.open()
    with pytest.raises(CorruptBatch):
        home.log.read(21, 1)
    home.kill()
    fix(home)
    home.open()
    assert [record.offset for record in home.records(20)] == [20, 22, 23]


def test_unused_room_is_not_damage(home: Home) -> None:
    home.open()
    home.fill(1)
    home.kill()
    assert repair.find(home.world, home.folder) == []


def test_forgetting_a_point_keeps_the_story_of_the_last_end(home: Home) -> None:
    """The power went before the repair: other logs of the broker must still be recovered as after a power cut."""
    home.open()
    home.fill(1)
    home.kill()
    assert home.disk.boot_id() == "boot 1"
    home.disk.boots = 2  # type: ignore[attr-defined]
    fix(home)
    home.points.load()
    assert not home.points.same_boot
    point = home.points.of("log")
    assert point is not None
    assert (point.offset, point.position) == (20, -1)
