"""Truncating an open log: what is removed is gone for readers, for producers and after every kind of end."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.log.kit import Home, run
from tests.simulation.disk import Fault, PowerCut, SimDisk
from waystation.errors import CorruptBatch, NotLeader, OffsetOutOfRange, StorageFailed, Unavailable
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.cleaning import compaction, retention
from waystation.log.cleaning.truncation import truncate
from waystation.log.commit import GroupCommit
from waystation.log.points import TRUNCATED_FILE
from waystation.world import World


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def cut(home: Home, offset: int) -> int:
    """Truncates the log without a commit that runs."""
    return run(truncate(home.log, offset, GroupCommit(home.world)))


def offsets(home: Home) -> list[int]:
    return [header.base_offset for header in home.headers(home.log.start_offset)]


def endings(home: Home) -> list[Callable[[], object]]:
    return [home.kill_and_open, home.reboot_and_open, home.restart]


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_bytes", [1, 500, 1_000_000])
def test_everything_from_the_offset_on_is_gone_for_good(tmp_path: Path, segment_bytes: int) -> None:
    for i in range(3):
        home = Home(tmp_path / str(i), segment_bytes=segment_bytes)
        home.fill(20)
        home.sync()
        home.save_points()
        kept = home.values()[:8]
        assert cut(home, 8) == 8
        for _ in range(2):
            log = home.log
            assert (log.end_offset, log.written_offset, log.durable_offset) == (8, 8, 8)
            assert home.values() == kept
            assert log.read(8, 1_000) == b""
            with pytest.raises(OffsetOutOfRange):
                log.read(9, 1_000)
            endings(home)[i]()
        home.fill(3)
        assert home.values()[:8] == kept
        assert offsets(home) == [*range(11)]


def test_another_history_goes_on_from_there(home: Home) -> None:
    home.fill(10)
    home.sync()
    home.save_points()
    cut(home, 4)
    batch = batches.build([(None, b"of the new leader", ())], home.clock.ms)
    batches.place(batch, 4, 7)
    home.log.append_as_is(batch)
    home.sync()
    home.save_points()
    for end in endings(home)[:2]:
        end()
        assert home.values()[4:] == [b"of the new leader"]
        assert home.log.epochs.entries[:2] == [(0, 0), (7, 4)]


def test_a_batch_is_removed_whole(home: Home) -> None:
    home.put(b"a", b"b", b"c")
    home.put(b"d", b"e", b"f")
    home.put(b"g")
    assert cut(home, 4) == 3
    assert home.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("interval", [0, 4_096])
def test_the_batch_before_is_found_whatever_the_index_says(tmp_path: Path, interval: int) -> None:
    for offset in range(0, 30):
        home = Home(tmp_path / str(offset), index_interval_bytes=interval)
        for i in range(10):
            home.put(*(b"%d" % i, b"x", b"y"))
        assert cut(home, offset) == offset // 3 * 3
        assert offsets(home) == [*range(0, offset // 3 * 3, 3)]


def test_nothing_to_be_removed_changes_nothing(home: Home) -> None:
    home.fill(3)
    names = home.names
    for offset in (3, 4, 100):
        assert cut(home, offset) == 3
    assert home.names == names
    assert home.log.truncations == 0


def test_a_log_is_emptied_and_goes_on(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(5)
    assert cut(home, 0) == 0
    assert home.values() == []
    assert [name for name in home.names if name.endswith(".log")] == ["0" * 20 + ".log"]
    assert home.log.epochs.entries == []
    home.fill(2)
    home.kill_and_open()
    assert offsets(home) == [0, 1]


def test_below_the_start_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(6)
    home.sync()
    run(retention.remove_before(home.log, 3))
    with pytest.raises(OffsetOutOfRange):
        cut(home, 2)
    assert cut(home, 3) == 3
    assert (home.log.start_offset, home.log.end_offset) == (3, 3)
    home.kill_and_open()
    assert (home.log.start_offset, home.log.end_offset) == (3, 3)


def test_within_the_batch_that_the_log_starts_in_is_refused(home: Home) -> None:
    home.put(*(b"%d" % i for i in range(10)))
    home.sync()
    run(retention.remove_before(home.log, 5))
    with pytest.raises(OffsetOutOfRange):
        cut(home, 7)
    assert home.log.end_offset == 10
    assert home.put(b"more").base_offset == 10


def test_damage_that_hides_where_to_cut_is_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=10_000)
    home.fill(10)
    home.stop()
    data = bytearray(home.segment().read_bytes())
    size = len(data) // 10
    data[size * 3 : size * 3 + 17] = b"\xff" * 17
    home.segment().write_bytes(data)
    home.open()
    with pytest.raises(CorruptBatch):
        cut(home, 6)
    assert home.log.end_offset == 10


# -- what is known about it --------------------------------------------------------------------------------------------


def test_producers_are_as_they_were(home: Home) -> None:
    home.send(7, 0, b"kept")
    home.send(8, 0, b"kept")
    home.send(7, 1, b"removed")
    home.send(9, 0, b"removed")
    cut(home, 2)
    for _ in range(2):
        assert sorted(home.log.producers.by_id) == [7, 8]
        assert home.log.producers.by_id[7].last_sequence == 0
        assert home.send(7, 0, b"kept").duplicate
        home.kill_and_open()
    assert not home.send(7, 1, b"anew").duplicate


def test_transactions_are_open_or_aborted_as_they_were(home: Home) -> None:
    home.send(7, 0, b"a", txn=True)
    home.end(7, commit=False)
    home.send(7, 1, b"b", txn=True)
    home.send(8, 0, b"c", txn=True)
    home.end(7, commit=False)
    home.end(8, commit=True)
    home.log._write_derived(home.log.active)
    home.sync()
    home.save_points()
    cut(home, 4)
    for number in range(4):
        assert home.log.aborted.overlapping(0, 100) == [Aborted(7, 0, 1)]
        assert home.log.producers.open == {7: 2, 8: 3}
        assert home.log.stable_offset == 2
        endings(home)[number % 3]()
    home.end(7, commit=True)
    home.end(8, commit=True)
    home.restart()
    assert home.log.aborted.overlapping(0, 100) == [Aborted(7, 0, 1)]
    assert home.log.stable_offset == home.log.end_offset == 6


def test_the_epoch_of_a_producers_coordinator_is_as_it_was(home: Home) -> None:
    """Else a coordinator that was deposed could end transactions in a log that was truncated."""
    home.send(7, 0, b"a", txn=True)
    home.end(7, commit=True, coordinator_epoch=5)
    home.send(7, 1, b"removed", txn=True)
    home.sync()
    cut(home, 2)
    for again in (home.kill_and_open, lambda: None):
        assert home.log.producers.by_id[7].coordinator_epoch == 5
        again()


def test_a_marker_of_the_removed_history_does_not_count_when_the_log_gets_there_again(tmp_path: Path) -> None:
    """The segment that had it is not written to any more: its transaction index must not speak of it."""
    home = Home(tmp_path, segment_bytes=10_000)
    home.fill(2)
    home.send(7, 0, b"a", txn=True)
    home.end(7, commit=False)
    home.log._write_derived(home.log.active)
    home.sync()
    cut(home, 2)
    home.settings = home.log.settings = home.log.settings.__class__(segment_bytes=1)
    home.fill(6)
    home.log._write_derived(home.log.active)
    home.sync()
    home.kill_and_open()
    assert home.log.aborted.overlapping(0, 100) == []


def test_a_producer_is_remembered_though_its_records_were_removed_long_ago(tmp_path: Path) -> None:
    """Retention has removed them; the snapshots that were taken since are of what is truncated."""
    home = Home(tmp_path, segment_bytes=1)
    home.send(7, 0, b"long ago")
    home.fill(10)
    home.send(7, 1, b"removed")
    home.fill(10)
    home.sync()
    run(retention.remove_before(home.log, 8))
    cut(home, 9)
    for again in (home.kill_and_open, lambda: None):
        assert home.log.producers.by_id[7].last_sequence == 0
        assert home.send(7, 0, b"long ago").duplicate
        again()


def test_a_producer_is_remembered_after_a_truncation_that_was_interrupted() -> None:
    """It has removed some of the snapshots; the next one, of a log whose beginning was deleted, needs them."""
    interrupted = 0
    for step in range(1, 200):
        disk = SimDisk()
        home = Home("/data", disk, segment_bytes=1)
        home.send(7, 0, b"long ago")
        home.fill(20)
        home.sync()
        home.save_points()
        disk.fail_at(disk.operations + step)
        with suppress(PowerCut):
            cut(home, 5)
            break
        home = Home("/data", disk.process_crash(), segment_bytes=1)
        if home.log.end_offset < 21:
            continue  # segments are removed already, and so are all snapshots behind the new end
        interrupted += 1
        home.send(7, 1, b"removed")
        home.sync()
        run(retention.remove_before(home.log, 8))
        cut(home, 9)
        assert home.log.producers.by_id[7].last_sequence == 0, step
    assert interrupted > 10


def test_a_producer_whose_records_were_compacted_is_remembered_after_a_truncation_that_was_interrupted() -> None:
    """Segments before them begin without a snapshot: a kill came before those were saved, and nobody had an id then."""
    interrupted = 0
    for step in range(1, 200):
        disk = SimDisk()
        home = Home("/data", disk, segment_bytes=1, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        home.fill(4)
        home.sync()
        home.save_points()
        home.kill()
        for base in (2, 3):
            disk.remove(f"{home.folder}/{base:020d}.snapshot")
        home.open()
        home.put(b"old", key=b"k", producer_id=7, producer_epoch=0, base_sequence=0)
        for _ in range(6):
            home.put(b"new", key=b"k")
        home.sync()
        home.save_points()
        plan = compaction.due(home.log, home.clock.ms)
        assert plan is not None
        assert run(compaction.compact(home.log, plan))
        assert 7 not in {header.producer_id for header in home.headers()}
        home.fill(20 - home.log.end_offset)
        home.sync()
        home.save_points()
        disk.fail_at(disk.operations + step)
        with suppress(PowerCut):
            cut(home, 15)
            break
        interrupted += 1
        home = Home("/data", disk.process_crash(), segment_bytes=1)
        assert home.log.producers.by_id[7].last_sequence == 0, step
    assert interrupted > 10


def test_epochs_that_began_behind_it_never_were(home: Home) -> None:
    for epoch in (0, 2, 5):
        home.log.lead(epoch)
        home.fill(3)
    home.sync()
    home.save_points()
    cut(home, 7)
    assert home.log.epochs.entries == [(0, 0), (2, 3), (5, 6)]
    cut(home, 6)
    assert home.log.epochs.entries == [(0, 0), (2, 3)]
    home.kill_and_open()
    assert home.log.epochs.entries[:2] == [(0, 0), (2, 3)]


def test_times_are_found_in_what_is_left(tmp_path: Path) -> None:
    for interval in (0, 4_096):
        home = Home(tmp_path / str(interval), index_interval_bytes=interval)
        for at in (10, 30, 20, 50, 40):
            home.put(b"v", at=at)
        cut(home, 3)
        assert home.log.find_time(15) == (1, 30)
        assert home.log.find_time(31) is None
        assert home.log.find_max_timestamp() == (1, 30)
        home.put(b"v", at=35)
        assert home.log.find_time(31) == (3, 35)


# -- recovery points ---------------------------------------------------------------------------------------------------


def test_a_point_that_was_saved_before_is_not_believed(home: Home) -> None:
    """Also one that is written afterwards: the broker has collected it before."""
    home.fill(10)
    home.sync()
    stale = home.log.recovery_point
    cut(home, 4)
    home.points.save({"log": stale}, clean=False)
    home.log.point_saved(stale)
    assert home.log.saved_point.offset <= 4
    home.kill_and_open()
    assert home.log.end_offset == 4
    home.fill(1)
    assert offsets(home) == [*range(5)]


def test_a_point_of_before_two_truncations_is_not_believed_by_the_second(home: Home) -> None:
    home.fill(10)
    home.sync()
    home.save_points()
    cut(home, 3)
    for i in range(9):  # other sizes: the old position is within a batch
        home.put(b"other history" * (i + 1))
    home.sync()
    cut(home, 11)
    home.reboot_and_open()
    assert offsets(home) == [*range(11)]
    assert home.log.durable_offset == 11


def test_a_damaged_note_costs_time_and_no_records(home: Home) -> None:
    home.fill(10)
    home.sync()
    cut(home, 4)
    home.fill(2)
    home.sync()
    home.save_points()
    home.path(TRUNCATED_FILE).write_bytes(b"\xff")
    home.reboot_and_open()
    assert offsets(home) == [*range(6)]


# -- beside others -----------------------------------------------------------------------------------------------------


class Gate:
    """Work on threads waits until it is let through."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()

    async def __call__(self, work: Callable[..., Any], /, *args: object) -> Any:
        self.asked.set()
        await self.open.wait()
        return work(*args)

    def close(self) -> None:
        pass


def with_gate(home: Home, main: Callable[[Gate], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        gate = Gate()
        home.log.world = World(home.clock, home.world.random, home.disk, gate)
        await main(gate)

    run(go())


def test_appends_are_refused_meanwhile(home: Home) -> None:
    home.fill(6)

    async def main(gate: Gate) -> None:
        commit = GroupCommit(home.log.world)
        work = asyncio.ensure_future(truncate(home.log, 3, commit))
        await gate.asked.wait()
        with pytest.raises(Unavailable):
            home.fill(1)
        with pytest.raises(Unavailable):
            home.log.append_as_is(bytes(batches.build([(None, b"v", ())], 0)))
        assert home.log.take_sync() is None
        home.log.checkpoint()
        gate.open.set()
        assert await work == 3
        home.fill(1)

    with_gate(home, main)


def test_who_waits_for_what_is_removed_is_told(home: Home) -> None:
    home.fill(6)

    async def main(gate: Gate) -> None:
        gate.open.set()
        commit = GroupCommit(home.log.world)
        home.log.on_write = commit.written
        waiting = asyncio.ensure_future(commit.durable(home.log, 6))
        await asyncio.sleep(0)
        await truncate(home.log, 3, commit)
        home.fill(3)  # another leader's records
        commit.start()
        with pytest.raises(NotLeader):
            await waiting
        await commit.durable(home.log, 6)
        await commit.stop()

    with_gate(home, main)


def test_it_waits_for_the_round_that_syncs_the_log(home: Home) -> None:
    home.fill(6)

    async def main(gate: Gate) -> None:
        commit = GroupCommit(home.log.world)
        home.log.on_write = commit.written
        home.fill(1)
        commit.start()
        durable = asyncio.ensure_future(commit.durable(home.log, 7))
        await gate.asked.wait()  # its sync is under way
        work = asyncio.ensure_future(truncate(home.log, 3, commit))
        await asyncio.sleep(0)
        gate.open.set()
        assert await work == home.log.durable_offset == 3
        await asyncio.wait([durable])
        assert home.log.recovery_point.offset == 3
        await commit.stop()

    with_gate(home, main)


def test_it_is_carried_out_though_the_caller_is_cancelled(home: Home) -> None:
    home.fill(6)

    async def main(gate: Gate) -> None:
        work = asyncio.ensure_future(truncate(home.log, 3, GroupCommit(home.log.world)))
        await gate.asked.wait()
        work.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert home.log.end_offset == 3

    with_gate(home, main)


def test_what_waits_in_memory_is_removed_too(home: Home) -> None:
    home.fill(3)
    home.restart()
    home.stop()
    home.open(tier=1)
    home.send(7, 0, b"pending")
    home.fill(2)
    assert cut(home, 5) == 3  # nobody was told of offset 3 or 4
    assert (home.log.end_offset, home.log.pending_count) == (3, 0)
    assert not home.log.producers.by_id
    home.fill(1)
    home.log.write_pending(1)
    assert offsets(home) == [0, 1, 2, 3]


def test_a_compaction_that_has_begun_is_void(tmp_path: Path) -> None:
    """It has left out the old value for the sake of one that is removed."""
    home = Home(tmp_path, segment_bytes=1, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    home.put(b"old", key=b"k")
    home.put(b"other", key=b"o")
    home.put(b"new", key=b"k")
    home.put(b"last", key=b"l")
    home.sync()
    home.save_points()
    plan = compaction.due(home.log, home.clock.ms)
    assert plan is not None
    assert len(plan.segments) == 3
    cut(home, 2)
    assert run(compaction.compact(home.log, plan)) == 0
    assert home.values() == [b"old", b"other"]
    home.kill_and_open()
    assert home.values() == [b"old", b"other"]


# -- when the disk refuses ---------------------------------------------------------------------------------------------


def on_simulated_disk(seed: int = 0) -> tuple[Home, SimDisk]:
    disk = SimDisk(seed)
    home = Home("/data", disk, segment_bytes=500)
    home.fill(20)
    home.sync()
    home.save_points()
    return home, disk


@pytest.mark.parametrize("what", ["rename .snapshot", "write truncated-to", "create .snapshot"])
def test_what_is_refused_before_it_is_cut_changes_nothing(what: str) -> None:
    home, disk = on_simulated_disk()
    kind, part = what.split()
    disk.inject(Fault(kind, part, errno.ENOSPC))
    with pytest.raises(StorageFailed):
        cut(home, 7)
    assert offsets(home) == [*range(20)]
    home.fill(1)
    assert cut(home, 7) == 7
    assert offsets(home) == [*range(7)]


@pytest.mark.parametrize("what", ["remove .log", "truncate .log", "list /data", "remove .index"])
def test_what_is_refused_later_is_finished_by_the_next_call(what: str) -> None:
    home, disk = on_simulated_disk()
    kind, part = what.split()
    disk.inject(Fault(kind, part, errno.EIO))
    with pytest.raises(StorageFailed):
        cut(home, 7)
    assert home.log.failure is None
    assert offsets(home) == [*range(7)]
    with pytest.raises(StorageFailed):
        home.fill(1)
    with pytest.raises(StorageFailed):
        home.log.check_usable()
    with pytest.raises(StorageFailed):
        run(retention.remove_before(home.log, 3))
    assert cut(home, home.log.end_offset) == 7
    home.fill(1)
    home.sync()
    home.log.close(clean=False)
    after = Home("/data", disk.power_cut(), segment_bytes=500)
    assert offsets(after) == [*range(8)]


def test_a_start_after_an_unfinished_one_has_a_beginning_of_the_old_log() -> None:
    for after in range(6):
        home, disk = on_simulated_disk()
        disk.inject(Fault("remove", ".log", errno.EIO, after=after, times=99))
        try:
            cut(home, 2)
        except StorageFailed:
            home.log.close(clean=True)
            assert home.log.failure is not None
        again = Home("/data", disk.process_crash(), segment_bytes=500)
        found = offsets(again)
        assert found == [*range(again.log.end_offset)]
        assert 2 <= again.log.end_offset <= 20


@pytest.mark.parametrize("noted", [False, True], ids=["", "noted meanwhile"])
@pytest.mark.parametrize("offset", [7, 8])
def test_what_a_start_after_a_kill_does_not_show_is_not_brought_back_by_a_power_cut(offset: int, noted: bool) -> None:
    """Whatever step was the last one; 7 is within a segment, at 8 one begins. `noted`: a checkpoint saves the recovery
    point as soon as the log is cut in memory."""
    step, finished, truncated = 0, False, 0
    while not finished:
        step += 1
        for seed in range(8):
            home, disk = on_simulated_disk(seed)
            disk.fail_at(disk.operations + step)
            if noted:
                disk.before_operation = checkpoint_once(home)
            try:
                cut(home, offset)
                finished = True
            except PowerCut:
                pass
            disk = disk.process_crash()
            again = Home("/data", disk, segment_bytes=500)
            shown = offsets(again)
            assert shown == [*range(again.log.end_offset)]
            truncated += again.log.end_offset == offset and not finished
            after = Home("/data", disk.power_cut(random.Random(seed)), segment_bytes=500)
            assert offsets(after) == shown, (step, seed)
    assert truncated > 0  # else this would say nothing


def checkpoint_once(home: Home) -> Callable[[], None]:
    """Saves the recovery points before the first disk operation behind which the log is cut in memory."""
    log = home.log
    saved = False

    def save() -> None:
        nonlocal saved
        if not saved and log.truncation is not None and log.truncation.last is not None:
            saved = True
            home.save_points()

    return save


@pytest.mark.parametrize("after", [0, 1])
def test_a_failed_sync_ends_the_log_until_it_is_restarted(after: int) -> None:
    home, disk = on_simulated_disk()
    home.fill(1)
    disk.inject(Fault("sync", ".log", errno.EIO, after=after))
    with pytest.raises(StorageFailed):
        cut(home, 20)
    assert home.log.failure is not None
    home.log.close(clean=False)
    again = Home("/data", disk.process_crash(), segment_bytes=500)
    assert offsets(again) == [*range(again.log.end_offset)]
    assert again.log.end_offset >= 20
