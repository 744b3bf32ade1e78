"""Leader epochs: which began where, and that a lost history never shares its number with the one that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.log.kit import Home, run
from waystation.log.cleaning import retention
from waystation.log.epochs import FILE, Epochs
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, open_log
from waystation.world import OsDisk


def epochs(tmp_path: Path, *entries: tuple[int, int]) -> Epochs:
    made = Epochs(OsDisk(), str(tmp_path))
    for epoch, offset in entries:
        made.note(epoch, offset)
    return made


def test_an_epoch_ends_where_the_next_begins(tmp_path: Path) -> None:
    table = epochs(tmp_path, (0, 0), (2, 10), (5, 25))
    assert [table.end_offset_for(epoch, 40) for epoch in range(6)] == [
        (0, 10),
        (0, 10),
        (2, 25),
        (2, 25),
        (2, 25),
        (5, 40),
    ]
    assert table.end_offset_for(6, 40) == (-1, -1)
    assert table.end_offset_for(-1, 40) == (-1, -1)
    assert epochs(tmp_path, (3, 10)).end_offset_for(2, 40) == (2, 10), "all of it is removed, and what follows is there"
    assert epochs(tmp_path).end_offset_for(0, 40) == (-1, -1)


def test_an_epoch_without_a_batch_is_forgotten_when_the_next_begins(tmp_path: Path) -> None:
    table = epochs(tmp_path, (0, 0), (2, 10), (5, 10))
    assert table.entries == [(0, 0), (5, 10)]
    table.drop_before(12)
    table.note(6, 12)
    assert table.entries == [(6, 12)]


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    table = epochs(tmp_path, (0, 0), (2, 10))
    assert table.changed
    table.save()
    assert not table.changed
    assert (tmp_path / FILE).read_text() == "0\n2\n0 0\n2 10\n"
    again = epochs(tmp_path)
    again.load()
    assert again.entries == [(0, 0), (2, 10)]


@pytest.mark.parametrize("text", ["", "0", "0\n5\n1 2\n3", "\xff\xfe", "0\n0\n"])
def test_a_damaged_file_loses_entries_but_stops_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, "latin-1")
    table = epochs(tmp_path)
    table.load()
    assert table.entries in ([], [(1, 2)])


def test_a_cut_log_forgets_what_began_behind_its_end(tmp_path: Path) -> None:
    table = epochs(tmp_path, (0, 0), (2, 10), (5, 25))
    for end, left in ((26, 3), (25, 2), (11, 2), (10, 1), (0, 0)):
        table.cut(end)
        assert len(table.entries) == left


def test_a_log_that_begins_later_keeps_the_epoch_that_covers_its_start(tmp_path: Path) -> None:
    table = epochs(tmp_path, (0, 0), (2, 10), (5, 25))
    table.drop_before(10)
    assert table.entries == [(2, 10), (5, 25)]
    table.drop_before(17)
    assert table.entries == [(2, 17), (5, 25)]
    table.drop_before(100)
    assert table.entries == [(5, 100)]


def test_batches_carry_the_epoch_of_their_writing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.put(b"a")
    home.sync()
    home.save_points()
    home.reboot_and_open()
    home.put(b"b")
    assert [header.leader_epoch for header in home.headers()] == [0, 1]
    home.restart()
    home.put(b"c")
    home.kill_and_open()  # nothing is lost by that, so nothing has to be told apart
    home.put(b"d")
    assert [header.leader_epoch for header in home.headers()] == [0, 1, 1, 1]
    assert home.log.epochs.entries == [(0, 0), (1, 1)]
    assert home.log.epochs.end_offset_for(0, home.log.end_offset) == (0, 1)


def test_a_history_that_was_lost_twice_had_two_numbers(tmp_path: Path) -> None:
    """A consumer read offset 1 of epoch 1; the power cut took it. The next record at offset 1 is not of epoch 1."""
    home = Home(tmp_path)
    home.put(b"kept")
    home.sync()
    home.save_points()
    kept = home.log.active.size
    numbers = []
    for value in (b"lost", b"lost again", b"lost for good"):
        home.put(value)
        numbers.append(home.headers()[-1].leader_epoch)
        home.kill()
        with home.segment().open("r+b") as file:
            file.truncate(kept)
        home.reboot_and_open()
        assert home.log.end_offset == 1
    assert numbers == sorted(set(numbers))
    for number in numbers:
        assert home.log.epochs.end_offset_for(number, home.log.end_offset)[1] == 1


def test_epochs_follow_the_start_of_the_log(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(3)
    home.sync()
    home.save_points()
    home.reboot_and_open()
    home.fill(3)
    run(retention.remove_before(home.log, 4))
    assert home.log.epochs.entries == [(1, 4)]
    home.sync()
    home.restart()
    assert home.log.epochs.entries == [(1, 4)]


# -- what recovery makes of them ---------------------------------------------------------------------------------------


def filled(tmp_path: Path, **settings: Any) -> Home:
    """Three epochs on several segments, and a recovery point behind all of it."""
    home = Home(tmp_path, segment_bytes=500, **settings)
    for epoch in (0, 3, 4):
        home.log.lead(epoch)
        home.fill(7)
    home.sync()
    home.save_points()
    return home


KNOWN = [(0, 0), (3, 7), (4, 14)]


def recovered(home: Home, *, same_boot: bool, clean: bool = False) -> Log:
    """As one finds it who does not lead it."""
    trust = Trust(home.points.of("log"), clean, same_boot)
    home.log = open_log(home.world, home.folder, home.settings, trust)
    return home.log


@pytest.mark.parametrize("same_boot", [True, False])
def test_recovery_gives_no_epochs(tmp_path: Path, same_boot: bool) -> None:
    home = filled(tmp_path)
    home.kill()
    log = recovered(home, same_boot=same_boot)
    assert log.epochs.entries == KNOWN
    assert log.epoch == log.known_epoch == 4


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("behind", ["0\n1\n0 0\n", "0\n2\n0 0\n3 7\n", "0\n0\n", "0\n3\n0 0\n3 7\n4", "", None])
def test_a_file_that_is_lost_or_behind_is_made_again_from_the_batches(
    tmp_path: Path, same_boot: bool, behind: str | None
) -> None:
    home = filled(tmp_path)
    home.kill()
    if behind is None:
        home.path(FILE).unlink()
    else:
        home.path(FILE).write_text(behind)
    assert recovered(home, same_boot=same_boot).epochs.entries == KNOWN
    home.fill(1)
    home.sync()
    assert home.path(FILE).read_text() == "0\n3\n0 0\n3 7\n4 14\n"


def test_a_file_that_is_lost_after_a_clean_stop_is_made_again(tmp_path: Path) -> None:
    home = filled(tmp_path)
    home.stop()
    home.path(FILE).unlink()
    assert recovered(home, same_boot=True, clean=True).epochs.entries == KNOWN


def test_what_the_file_says_of_offsets_behind_the_end_is_not_believed_after_a_clean_stop_either(tmp_path: Path) -> None:
    home = filled(tmp_path)
    home.stop()
    home.path(FILE).write_text("0\n4\n0 0\n3 7\n4 14\n6 21\n")
    log = recovered(home, same_boot=True, clean=True)
    assert log.epochs.entries == KNOWN
    assert log.known_epoch == 6


def test_what_the_file_says_of_another_history_is_not_believed(tmp_path: Path) -> None:
    """Behind the recovery point the batches say it."""
    home = filled(tmp_path)
    home.fill(3)
    home.kill()
    home.path(FILE).write_text("0\n5\n0 0\n3 7\n4 14\n5 21\n9 22\n")
    log = recovered(home, same_boot=True)
    assert log.epochs.entries == KNOWN
    assert log.known_epoch == 9  # nobody leads in one of them again


def test_a_file_that_knows_of_a_start_that_a_crash_has_undone_is_made_again(tmp_path: Path) -> None:
    home = filled(tmp_path)
    home.kill()
    home.path(FILE).write_text("0\n1\n4 16\n")
    assert recovered(home, same_boot=False).epochs.entries == KNOWN


def test_an_epoch_that_has_begun_is_not_given_again_after_a_crash(tmp_path: Path) -> None:
    """The machine went down and took what was read in epoch 0. Then the process died, before anything was written."""
    home = Home(tmp_path)
    home.put(b"kept")
    home.sync()
    home.save_points()
    kept = home.log.active.size
    home.put(b"read, and lost")
    home.kill()
    with home.segment().open("r+b") as file:
        file.truncate(kept)
    home.reboot_and_open()
    assert home.log.epoch == 1
    home.kill_and_open()
    home.put(b"another record at its offset")
    assert [header.leader_epoch for header in home.headers()] == [0, 1]
