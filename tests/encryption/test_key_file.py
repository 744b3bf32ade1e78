"""The file of keys: whoever has the master key opens it, nobody else, and a crash leaves the old file or the new."""

from __future__ import annotations

import os
import random

import msgspec
import pytest
from msgspec.structs import replace

from tests.simulation.disk import Fault, PowerCut, SimDisk
from tests.simulation.world import SimRandom
from waystation.encryption import key_file
from waystation.encryption.key_file import FILE, FolderKeyRing, KeyFile
from waystation.encryption.master_key import MasterKey
from waystation.errors import Conflict, Corrupt, DataInUse, InvalidSetting, NewerFormat, WrongKey
from waystation.world import SystemRandom

ROOT = "/data"
OLD, NEW, OTHER = (MasterKey(os.urandom(32)) for _ in range(3))
RANDOM = SystemRandom()


def fresh(seed: int = 0) -> tuple[SimDisk, KeyFile]:
    disk = SimDisk(seed)
    disk.make_folder(ROOT)
    content = key_file.created(OLD, RANDOM, 1)
    key_file.save(disk, ROOT, content)
    return disk, content


def test_a_rotation_keeps_what_was_opened_and_both_master_keys_open_it_until_one_is_retired() -> None:
    _, content = fresh()
    first = key_file.unwrapped(content, ROOT, OLD)
    content = key_file.rotated(content, ROOT, OLD, NEW, RANDOM, 2)
    for master in (OLD, NEW):
        found = key_file.unwrapped(content, ROOT, master)
        assert len(found) == 2
        assert found.items() > first.items()
        assert content.active not in first
    content = key_file.retired(content, ROOT, NEW)
    assert len(key_file.unwrapped(content, ROOT, NEW)) == 2
    with pytest.raises(WrongKey, match=f"gives the master key {OLD.id}.*{NEW.id} does"):
        key_file.unwrapped(content, ROOT, OLD)
    assert OLD.id not in msgspec.json.encode(content).decode()


def test_a_rotation_without_another_master_key_brings_a_folder_key_only() -> None:
    _, content = fresh()
    again = key_file.rotated(content, ROOT, OLD, None, RANDOM, 2)
    assert again.masters == content.masters
    assert len(again.keys) == 2


def test_nobody_is_locked_out_by_mistake() -> None:
    _, content = fresh()
    rotated = key_file.rotated(content, ROOT, OLD, NEW, RANDOM, 2)
    with pytest.raises(Conflict, match="newest master key"):
        key_file.retired(rotated, ROOT, OLD)
    with pytest.raises(InvalidSetting, match="retire it first"):
        key_file.rotated(rotated, ROOT, NEW, None, RANDOM, 3)
    assert len(key_file.rotated(rotated, ROOT, OLD, NEW, RANDOM, 3).keys) == 3, "with both, it can be rotated again"
    assert [key.number for key in key_file.without(rotated, {key.number for key in rotated.keys}).keys] == [
        rotated.active
    ]


def test_no_key_is_in_the_file_and_a_changed_file_is_refused() -> None:
    disk, content = fresh()
    data = disk.content()[f"{ROOT}/{FILE}"]
    for secret in (*key_file.unwrapped(content, ROOT, OLD).values(), OLD.secret):
        assert secret not in data
        assert secret.hex().encode() not in data
    with pytest.raises(WrongKey):
        key_file.unwrapped(content, ROOT, OTHER)
    moved = replace(content, folder="0123")
    with pytest.raises(Corrupt, match="does not open"):
        key_file.unwrapped(moved, ROOT, OLD)
    swapped = key_file.rotated(content, ROOT, OLD, None, RANDOM, 2)
    one, two = swapped.keys
    crossed = replace(swapped, keys=(replace(one, wraps=two.wraps), replace(two, wraps=one.wraps)))
    with pytest.raises(Corrupt, match="does not open"):
        key_file.unwrapped(crossed, ROOT, OLD)
    with pytest.raises(Corrupt, match="lacks"):
        key_file.unwrapped(replace(content, active=5), ROOT, OLD)


def test_a_file_that_is_damaged_or_newer_is_refused() -> None:
    disk, content = fresh()
    disk.replace_file(f"{ROOT}/{FILE}", b"{")
    with pytest.raises(Corrupt, match="backup"):
        key_file.load(disk, ROOT)
    key_file.save(disk, ROOT, replace(content, format=2))
    with pytest.raises(NewerFormat):
        key_file.load(disk, ROOT)


def test_one_process_changes_it_at_a_time() -> None:
    disk, _ = fresh()
    with key_file.changing(disk, ROOT), pytest.raises(DataInUse), key_file.changing(disk, ROOT):
        pass
    with key_file.changing(disk, ROOT):
        pass


@pytest.mark.parametrize("kind", ["open", "create", "write", "sync", "rename", "sync_folder"])
def test_a_disk_that_refuses_a_rotation_leaves_the_old_file_or_the_new(kind: str) -> None:
    disk, content = fresh()
    changed = key_file.rotated(content, ROOT, OLD, NEW, RANDOM, 2)
    disk.inject(Fault(kind))
    with pytest.raises(OSError, match="Input/output"):
        key_file.save(disk, ROOT, changed)
    disk = disk.process_crash()
    assert key_file.load(disk, ROOT) in (content, changed)


def test_a_power_cut_at_every_step_of_a_rotation_leaves_the_old_file_or_the_new() -> None:
    seen = set()
    for seed in range(40):
        for step in range(1, 12):
            disk, content = fresh(seed)
            changed = key_file.rotated(content, ROOT, OLD, NEW, SimRandom(random.Random(seed)), 2)
            disk.fail_at(disk.operations + step)
            try:
                key_file.save(disk, ROOT, changed)
                finished = True
            except PowerCut:
                finished = False
            found = key_file.load(disk.power_cut(), ROOT)
            assert found in ((changed,) if finished else (content, changed))
            seen.add((finished, found == changed))
    assert {(True, True), (False, True), (False, False)} <= seen


def test_a_running_broker_takes_a_new_key_and_keeps_the_old_ones() -> None:
    disk, content = fresh()
    keys = FolderKeyRing(disk, ROOT, content, OLD, "env:NOT_THERE", RANDOM)
    before = b"".join(keys.new_data_key().seal(b"before", b""))
    changed = key_file.rotated(content, ROOT, OLD, NEW, RANDOM, 2)
    key_file.save(disk, ROOT, changed)
    keys.refresh()
    assert keys.active == changed.active
    after = b"".join(keys.new_data_key().seal(b"after", b""))
    key_file.save(disk, ROOT, key_file.retired(changed, ROOT, NEW))
    keys.refresh()  # it has the old master key, and that is no reason to stop
    disk.replace_file(f"{ROOT}/{FILE}", b"rubbish")
    keys.refresh()
    assert (keys.open(before, b""), keys.open(after, b"")) == (b"before", b"after")
    assert keys.active == changed.active
