"""A follower's log takes its leader's batches as they are, from its end on, and refuses everything else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.log.kit import Home
from tests.simulation.disk import Fault, SimDisk
from waystation.errors import CorruptBatch, FencedLeaderEpoch, InvalidRecord, StorageFailed, UnexpectedOffset
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.log import Log


class Pair:
    """A leader's log, and one that follows it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.leader = Home(root / "leader")
        self.follower = Home(root / "follower", **settings)

    @property
    def log(self) -> Log:
        return self.follower.log

    def stored(self, offset: int = 0) -> bytes:
        """The leader's bytes from the batch that holds the offset on."""
        return b"".join(data for data, _ in self.leader.log.batches_from(offset))

    def follow(self) -> None:
        self.log.append_as_is(self.stored(self.log.end_offset))

    def agree(self) -> bool:
        return [*self.log.batches_from(0)] == [*self.leader.log.batches_from(0)]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_leaders_batches_are_stored_byte_for_byte(pair: Pair) -> None:
    pair.leader.fill(3)
    pair.leader.log.lead(4)
    pair.leader.put(b"two", b"records")
    appended = pair.log.append_as_is(pair.stored())
    assert (appended.base_offset, appended.last_offset) == (0, 4)
    assert pair.agree()
    assert [header.leader_epoch for header in pair.follower.headers()] == [0, 0, 0, 4]
    assert pair.log.epochs.entries == pair.leader.log.epochs.entries == [(0, 0), (4, 3)]
    assert pair.log.written_offset == pair.log.end_offset == 5
    assert pair.log.durable_offset == 0
    pair.follower.sync()
    assert pair.log.durable_offset == 5


def test_it_survives_a_restart_with_its_epochs(pair: Pair) -> None:
    pair.leader.fill(3)
    pair.leader.log.lead(4)
    pair.leader.fill(2)
    pair.follow()
    pair.follower.sync()
    for again in (pair.follower.kill_and_open, pair.follower.restart):
        again()
        assert pair.agree()
        assert pair.log.epochs.entries == [(0, 0), (4, 3)]


def test_segments_roll_as_the_leaders_do(tmp_path: Path) -> None:
    pair = Pair(tmp_path, segment_bytes=500)
    pair.leader.fill(20)
    pair.follow()
    assert len(pair.log.segments) > 3
    assert pair.agree()


def test_producers_and_transactions_follow(pair: Pair) -> None:
    leader = pair.leader
    leader.send(7, 0, b"a")
    leader.send(8, 0, b"b", txn=True)
    leader.send(9, 0, b"c", txn=True)
    leader.end(8, commit=False)
    pair.follow()
    assert pair.log.aborted.overlapping(0, 100) == [Aborted(8, 1, 3)]
    assert pair.log.stable_offset == leader.log.stable_offset == 2
    assert pair.log.producers.open == {9: 2}
    # Now it leads: a batch that was sent to the former leader is recognised.
    pair.log.lead(1)
    assert pair.follower.send(7, 0, b"a").duplicate


def test_the_leaders_time_stays(tmp_path: Path) -> None:
    pair = Pair(tmp_path, message_timestamp_type="LogAppendTime")
    pair.leader.put(b"a", at=1_000)
    pair.follow()
    assert pair.agree()


def test_what_does_not_begin_at_the_end_is_refused(pair: Pair) -> None:
    pair.leader.fill(6)
    pair.follow()
    pair.leader.fill(4)
    for offset in (0, 5, 7):  # what is there already, an overlap, a hole
        with pytest.raises(UnexpectedOffset):
            pair.log.append_as_is(pair.stored(offset))
    assert pair.log.end_offset == 6
    pair.follow()
    assert pair.agree()


def test_a_hole_between_two_batches_is_refused_and_nothing_is_stored(pair: Pair) -> None:
    pair.leader.fill(3)
    found = [data for data, _ in pair.leader.log.batches_from(0)]
    with pytest.raises(UnexpectedOffset):
        pair.log.append_as_is(found[0] + found[2])
    assert pair.log.end_offset == pair.log.active.size == 0


def test_holes_of_a_compacted_leader_are_taken_and_survive_a_power_cut(tmp_path: Path) -> None:
    pair = Pair(tmp_path, segment_bytes=1)
    pair.leader.fill(9)
    found = [data for data, _ in pair.leader.log.batches_from(0)]
    for data in (found[0], found[3], found[4], found[8]):
        pair.log.append_as_is(data, gaps=True)
    pair.follower.sync()
    expected = [0, 3, 4, 8]
    assert [header.base_offset for header in pair.follower.headers()] == expected
    pair.follower.reboot_and_open()
    assert [header.base_offset for header in pair.follower.headers()] == expected
    assert pair.log.end_offset == 9


def test_an_epoch_that_goes_back_is_refused(pair: Pair) -> None:
    pair.leader.log.lead(3)
    pair.leader.fill(1)
    pair.follow()
    for epoch in (2, -1):
        batch = batches.build([(None, b"of a former leader", ())], 0)
        batches.place(batch, 1, epoch)
        with pytest.raises(FencedLeaderEpoch):
            pair.log.append_as_is(batch)
    assert pair.log.end_offset == 1
    with pytest.raises(FencedLeaderEpoch):
        pair.log.lead(2)


def test_damage_is_refused_and_nothing_is_stored(pair: Pair) -> None:
    pair.leader.fill(2)
    good = pair.stored()
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for data in (bytes(flipped), good[:-1], good[:70], good + b"\0" * 5, b"x" * 200):
        with pytest.raises(CorruptBatch):
            pair.log.append_as_is(data)
    with pytest.raises(InvalidRecord):
        pair.log.append_as_is(b"")
    assert pair.log.end_offset == 0
    assert not pair.log.epochs.entries
    pair.follow()
    assert pair.agree()


def test_a_marker_that_cannot_be_read_is_refused(pair: Pair) -> None:
    marker = batches.build_marker(1, 0, True, 0, 0)
    batches.sign(marker, batches.CONTROL | batches.TRANSACTIONAL | 4, 1, 0, -1)  # says that it is zstd, and is not
    batches.place(marker, 0, 0)
    with pytest.raises(InvalidRecord):
        pair.log.append_as_is(marker)
    assert pair.log.end_offset == 0


def test_an_upper_tier_waits_in_memory_for_the_commit(pair: Pair) -> None:
    pair.follower.stop()
    pair.follower.open(tier=1)
    pair.leader.fill(3)
    pair.follow()
    assert (pair.log.written_offset, pair.log.end_offset, pair.log.pending_count) == (0, 3, 3)
    with pytest.raises(UnexpectedOffset):
        pair.log.append_as_is(pair.stored())
    pair.log.write_pending(3)
    assert pair.agree()
    assert pair.log.epochs.entries == [(0, 0)]


def test_what_came_before_a_refusal_of_the_disk_is_there(tmp_path: Path) -> None:
    disk = SimDisk()
    follower = Home("/data", disk)
    leader = Home(tmp_path)
    leader.fill(4)
    stored = b"".join(data for data, _ in leader.log.batches_from(0))
    disk.inject(Fault("write", ".log", errno.ENOSPC, after=2))
    with pytest.raises(StorageFailed):
        follower.log.append_as_is(stored)
    assert follower.log.end_offset == follower.log.written_offset == 2
    rest = b"".join(data for data, _ in leader.log.batches_from(2))
    follower.log.append_as_is(rest)
    assert [*follower.log.batches_from(0)] == [*leader.log.batches_from(0)]


def test_a_failed_log_takes_nothing(pair: Pair) -> None:
    pair.leader.fill(1)
    pair.log.fail(StorageFailed("broken"))
    with pytest.raises(StorageFailed):
        pair.follow()


def test_whoever_leads_begins_an_epoch_durably(pair: Pair) -> None:
    pair.leader.fill(2)
    pair.follow()
    pair.follower.sync()
    pair.log.lead(5)
    pair.follower.put(b"mine")
    assert pair.follower.headers()[-1].leader_epoch == 5
    assert (pair.follower.path("leader-epoch-checkpoint")).read_text() == "0\n2\n0 0\n5 2\n"


def test_readers_are_told(pair: Pair) -> None:
    told: list[int] = []
    pair.log.on_readable = lambda: told.append(pair.log.written_offset)
    pair.leader.fill(3)
    pair.follow()
    assert told == [3]
