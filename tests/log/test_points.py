"""The recovery points: what they vouch for, and when they do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.log.kit import BootingDisk, Home, flip
from waystation.log.points import FILE, RecoveryPoints
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
