"""The recovery points: what they vouch for, and when they do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.log.kit import BootingDisk, Home, flip
from waystation.log.points import FILE, TRUNCATED_FILE, RecoveryPoints, save_truncated, trusted_point
from waystation.log.sync import RecoveryPoint
from waystation.world import OsDisk

POINTS = {"log": RecoveryPoint(5, 0, 100)}


def loaded(folder: Path, disk: OsDisk | None = None) -> RecoveryPoints:
    points = RecoveryPoints(disk or OsDisk(), str(folder))
    points.load()
    return points


def test_the_same_folder_during_the_same_boot_is_trusted(tmp_path: Path) -> None:
    RecoveryPoints(OsDisk(), str(tmp_path)).save(POINTS, clean=False)
    assert loaded(tmp_path).same_boot
    assert loaded(tmp_path).of("log") == POINTS["log"]


def test_a_copy_during_the_same_boot_is_not_taken_for_the_folder_itself(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    folder.mkdir()
    RecoveryPoints(OsDisk(), str(folder)).save(POINTS, clean=False)
    shutil.copytree(folder, copy)
    assert not loaded(copy).same_boot
    assert loaded(copy).of("log") == POINTS["log"], "how far it was synced is true of a copy too"


def test_forgetting_a_point_keeps_the_volume(tmp_path: Path) -> None:
    RecoveryPoints(OsDisk(), str(tmp_path)).save(POINTS, clean=False)
    loaded(tmp_path).forget("log")
    assert loaded(tmp_path).same_boot
    assert loaded(tmp_path).of("log") == RecoveryPoint(5, 0, -1)


def test_a_point_that_is_dropped_is_gone_and_others_stay(tmp_path: Path) -> None:
    cut = RecoveryPoint(7, 0, 100, truncations=2)
    RecoveryPoints(OsDisk(), str(tmp_path)).save({**POINTS, "cut": cut, "gone": cut}, clean=False)
    points = loaded(tmp_path)
    points.drop("gone")
    for one in (points, loaded(tmp_path)):
        assert one.of("gone") is None
        assert one.of("log") == POINTS["log"]
        assert one.of("cut") == cut
        assert one.same_boot


def test_a_point_that_is_dropped_leaves_a_file_away_that_is_not_there(tmp_path: Path) -> None:
    points = loaded(tmp_path)
    points.drop("log")
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("boot", ["this one", "another"])
def test_a_file_of_an_older_broker_is_read(tmp_path: Path, boot: str) -> None:
    boot_id = OsDisk().boot_id() if boot == "this one" else "another"
    body = json.dumps({"clean": False, "boot": boot_id, "points": {"log": [5, 0, 100]}}).encode()
    (tmp_path / FILE).write_bytes(crc32c(body).to_bytes(4, "big") + body)
    assert loaded(tmp_path).same_boot == (boot == "this one")
    assert loaded(tmp_path).of("log") == POINTS["log"]


def test_on_another_volume_a_torn_batch_ends_the_log_as_after_a_power_cut(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.fill(10)
    disk = home.disk
    assert isinstance(disk, BootingDisk)
    home.kill()
    size = (home.segment().read_bytes().rstrip(b"\0").rindex(b"x") + 2) // 10
    flip(home.segment(), 5 * size + 80)
    disk.moves += 1
    epoch = home.log.epoch
    home.open()
    assert home.log.end_offset < 10
    assert home.log.epoch == epoch + 1
    assert [name for name in home.names if ".log.cut-" in name]


# -- of a log that was truncated ---------------------------------------------------------------------------------------


def test_a_point_says_how_often_its_log_was_truncated(tmp_path: Path) -> None:
    points = {"log": RecoveryPoint(5, 0, 100, 3), "other": RecoveryPoint(7, 0, 70)}
    RecoveryPoints(OsDisk(), str(tmp_path)).save(points, clean=False)
    assert loaded(tmp_path).of("log") == points["log"]
    assert loaded(tmp_path).of("other") == points["other"]
    loaded(tmp_path).forget("log")
    assert loaded(tmp_path).of("log") == RecoveryPoint(5, 0, -1, 3)


@pytest.mark.parametrize(
    ("saved", "truncated", "counts"),
    [
        (RecoveryPoint(9, 0, 90, 1), RecoveryPoint(5, 0, 50, 2), RecoveryPoint(5, 0, 50, 2)),  # of before: taken back
        (RecoveryPoint(3, 0, 30, 1), RecoveryPoint(5, 0, 50, 2), RecoveryPoint(3, 0, 30, 2)),  # of before, but lower
        (RecoveryPoint(9, 0, 90, 2), RecoveryPoint(5, 0, 50, 2), RecoveryPoint(9, 0, 90, 2)),  # of afterwards
        (
            RecoveryPoint(9, 0, -1, 1),
            RecoveryPoint(5, 0, 50, 2),
            RecoveryPoint(5, 0, -1, 2),
        ),  # the files were rewritten
        (None, RecoveryPoint(5, 0, 50, 2), None),
    ],
)
def test_a_point_of_before_a_truncation_counts_only_as_far_as_that_left_it_true(
    tmp_path: Path, saved: RecoveryPoint | None, truncated: RecoveryPoint, counts: RecoveryPoint | None
) -> None:
    assert trusted_point(OsDisk(), str(tmp_path), saved, False) == (saved, saved.truncations if saved else 0)
    save_truncated(OsDisk(), str(tmp_path), truncated)
    assert trusted_point(OsDisk(), str(tmp_path), saved, True) == (counts, 2)


@pytest.mark.parametrize("content", [b"", b"1 2 3", b"1 2 3 x", b"1 2 3 4 5", b"\xff"])
def test_a_damaged_note_of_a_truncation_takes_every_point_back(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TRUNCATED_FILE).write_bytes(content)
    assert trusted_point(OsDisk(), str(tmp_path), RecoveryPoint(9, 0, 90, 1), True) == (None, 2)
