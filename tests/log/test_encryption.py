"""An encrypted log behaves as a plain one: the same bytes come out, and what is torn, damaged or changed is found."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.log.kit import HandClock
from tests.simulation.disk import Fault, PowerCut, SimDisk
from waystation.config import TopicSettings
from waystation.encryption.key_ring import OVERHEAD, KeyRing
from waystation.errors import Corrupt, CorruptBatch, InvalidRecord
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import ENCRYPTED, HEADER_SIZE
from waystation.log.batches.sealed_batch import opened_batches, sealed_batch
from waystation.log.cleaning import encrypting
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, open_log
from waystation.wire.crc32c import crc32c
from waystation.world import InlineOffload, OsDisk, SystemRandom, World

SECRETS = {1: os.urandom(32), 2: os.urandom(32)}
UNKNOWN = Trust(None, False, True)


def world(active: int | None = 1) -> World:
    keys = None if active is None else KeyRing(SECRETS, active, SystemRandom())
    return World(HandClock(), SystemRandom(), OsDisk(), InlineOffload(), keys=keys)


def opened(folder: Path, active: int | None = 1, **settings: int) -> Log:
    return open_log(world(active), str(folder), TopicSettings(**settings), UNKNOWN)  # type: ignore[arg-type]


def batch(text: bytes, codec: int = 0) -> bytearray:
    return batches.build([(b"key-of-" + text, text, (("header-of", text),))], 1_000, codec=codec)


def send(log: Log, text: bytes, codec: int = 0) -> bytes:
    made = batch(text, codec)
    log.append(made, batches.read_header(made))
    return bytes(made)


def everything(log: Log) -> bytes:
    return b"".join(bytes(data) for data, _ in log.batches_from(log.start_offset))


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_readers_get_the_bytes_that_were_appended(tmp_path: Path, codec: int) -> None:
    log = opened(tmp_path / "log", segment_bytes=3_000)
    sent = b"".join(send(log, b"secret %d " % number + bytes(number), codec) for number in range(60))
    assert everything(log) == sent
    log.close(clean=True)
    log = opened(tmp_path / "log")
    assert everything(log) == sent
    assert len(log.segments) > 2
    found = on_disk(tmp_path)
    assert b"secret" not in found
    assert b"key-of" not in found
    assert b"header-of" not in found
    log.close(clean=True)


def test_plain_and_encrypted_batches_and_those_of_several_keys_stand_in_one_file(tmp_path: Path) -> None:
    sent = b""
    for active in (None, 1, 2, 1):
        log = opened(tmp_path / "log", active)
        sent += send(log, b"one") + send(log, b"two")
        log.close(clean=True)
    log = opened(tmp_path / "log", 2)
    assert everything(log) == sent
    log.close(clean=True)
    used = encrypting.usage(world(), str(tmp_path / "log"))
    assert used.encrypted.keys() == {1, 2}
    assert used.plain == 2 * len(batch(b"one"))


def test_a_client_cannot_send_what_looks_encrypted() -> None:
    made = batch(b"x")
    batches.sign(made, ENCRYPTED, -1, -1, -1)
    with pytest.raises(InvalidRecord, match="bit 14"):
        batches.check_batch(made)
    with pytest.raises(InvalidRecord, match="bit 14"):
        batches.check_batches(made)


def test_a_batch_that_was_changed_is_found_whatever_its_checksum_says(tmp_path: Path) -> None:
    keys = world().keys
    assert keys is not None
    made = batch(b"a secret")
    stored = b"".join(sealed_batch(keys.new_data_key(), made))
    assert len(stored) == len(made) + OVERHEAD
    assert opened_batches(keys, stored)[0] == made
    for position in range(len(stored)):
        if position in (16, *range(8, 12), *range(17, 21)):
            continue  # magic and length are found before; the checksum is what is put right below
        changed = bytearray(stored)
        changed[position] ^= 1
        header = batches.read_header(changed)
        if not header.attributes & ENCRYPTED:
            continue  # then it is said to be plain, and its records do not parse
        batches._CRC.pack_into(changed, 17, crc32c(memoryview(changed)[21:]))
        with pytest.raises(Corrupt):
            opened_batches(keys, bytes(changed))


def test_rot_is_found_by_the_checksum_and_the_batches_behind_it_are_read(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    for number in range(6):
        send(log, b"number %d" % number)
    log.close(clean=True)
    file = next((tmp_path / "log").glob("*.log"))
    size = len(batch(b"number 0")) + OVERHEAD
    data = bytearray(file.read_bytes())
    assert len(data) == 6 * size
    data[2 * size + HEADER_SIZE + 30] ^= 1
    file.write_bytes(data)
    log = opened(tmp_path / "log")
    with pytest.raises(CorruptBatch):
        log.read(2, 1_000)
    assert b"number 3" in log.read(3, 100_000)
    assert b"number 1" in log.read(0, 100_000)
    log.close(clean=True)


def test_a_torn_batch_is_cut_and_what_is_appended_in_its_place_is_sealed_again(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    sent = send(log, b"first")
    send(log, b"torn")
    log.close(clean=True)
    file = next((tmp_path / "log").glob("*.log"))
    stored = file.read_bytes()
    file.write_bytes(stored[:-7])
    log = opened(tmp_path / "log")
    sent += send(log, b"torn")
    assert everything(log) == sent
    log.close(clean=True)
    again = file.read_bytes()
    assert len(again) == len(stored)
    assert again[: len(stored) // 2] == stored[: len(stored) // 2]
    assert again[-40:] != stored[-40:], "the same bytes at the same place are not the same when they are sealed again"


def test_another_key_opens_nothing_and_names_itself(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", 2)
    send(log, b"secret")
    log.close(clean=True)
    strange = World(
        HandClock(), SystemRandom(), OsDisk(), InlineOffload(), keys=KeyRing({1: b"1" * 32}, 1, SystemRandom())
    )
    log = open_log(strange, str(tmp_path / "log"), TopicSettings(), UNKNOWN)
    with pytest.raises(CorruptBatch, match="00000002"):
        log.read(0, 1_000)
    log.close(clean=True)


def test_a_read_that_ends_in_a_batch_gives_whole_ones_and_says_where_they_end(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    sent = [send(log, b"number %d" % number) for number in range(10)]
    size = len(sent[0])
    for limit in (1, size, 3 * size + 10, 100_000):
        data = log.read(2, limit)
        assert b"".join(sent[2:]).startswith(data)
        whole, offset = log.whole_of_read(data)
        assert whole == len(data) > 0
        assert offset == 2 + len(data) // size
    assert log.read(4, 100_000, 6) == sent[4] + sent[5]
    log.close(clean=True)


# -- what is there already ---------------------------------------------------------------------------------------------


def test_a_plain_log_is_encrypted_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = opened(folder, None, segment_bytes=1_000)
    sent = b"".join(send(log, b"secret %d" % number) for number in range(40))
    log.close(clean=True)
    assert b"secret" in on_disk(tmp_path)
    assert encrypting.encrypt(world(1), str(folder), everything=False) > len(sent)
    assert b"secret" not in on_disk(tmp_path)
    assert encrypting.encrypt(world(1), str(folder), everything=False) == 0, "there is nothing left to do"
    assert encrypting.encrypt(world(1), str(folder), everything=True) == 0
    log = opened(folder)
    assert everything(log) == sent
    log.close(clean=True)
    assert encrypting.encrypt(world(2), str(folder), everything=True) > 0
    assert encrypting.usage(world(), str(folder)).encrypted.keys() == {2}
    log = opened(folder)
    assert everything(log) == sent
    log.close(clean=True)


def _simulated(disk: SimDisk, active: int | None) -> World:
    keys = None if active is None else KeyRing(SECRETS, active, SystemRandom())
    return World(HandClock(), SystemRandom(), disk, InlineOffload(), keys=keys)


def _plain_log(disk: SimDisk) -> bytes:
    log = open_log(_simulated(disk, None), "/log", TopicSettings(segment_bytes=400), UNKNOWN)
    sent = b"".join(send(log, b"secret %d" % number) for number in range(10))
    log.close(clean=True)
    return sent


def _is_whole(disk: SimDisk, sent: bytes) -> None:
    log = open_log(_simulated(disk, 1), "/log", TopicSettings(), UNKNOWN)
    assert everything(log) == sent
    log.close(clean=True)
    assert encrypting.encrypt(_simulated(disk, 1), "/log", everything=False) >= 0
    assert not any(b"secret" in data for data in disk.content().values())


def test_a_power_cut_at_every_step_of_encrypting_loses_nothing_and_it_can_be_repeated() -> None:
    interrupted = 0
    for seed in range(3):
        for step in range(1, 200):
            disk = SimDisk(seed)
            sent = _plain_log(disk)
            disk.fail_at(disk.operations + step)
            try:
                encrypting.encrypt(_simulated(disk, 1), "/log", everything=False)
                break
            except PowerCut:
                interrupted += 1
            _is_whole(disk.power_cut(), sent)
    assert interrupted > 60


KINDS = ["list", "stat", "open", "create", "read", "write", "truncate", "sync", "remove", "rename", "sync_folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_refuses_a_step_of_encrypting_loses_nothing(kind: str) -> None:
    for after in range(4):
        disk = SimDisk(1)
        sent = _plain_log(disk)
        fault = disk.inject(Fault(kind, after=after))
        with contextlib.suppress(OSError):
            encrypting.encrypt(_simulated(disk, 1), "/log", everything=False)
        fault.times = 0
        _is_whole(disk.process_crash(), sent)


def test_a_damaged_segment_is_not_rewritten(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = opened(folder, None)
    for number in range(4):
        send(log, b"secret %d" % number)
    log.close(clean=True)
    file = next(folder.glob("*.log"))
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptBatch, match="position 0"):
        encrypting.encrypt(world(1), str(folder), everything=False)
    assert file.read_bytes() == data
    assert not list(folder.glob("*.cleaned"))
