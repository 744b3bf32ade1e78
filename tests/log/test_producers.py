"""Idempotence: duplicates get their first answer, gaps are refused, and a restart changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.kit import DAY_MS, Home, run
from tests.simulation.disk import SimDisk
from waystation.errors import OutOfOrderSequence, ProducerEpochStale
from waystation.log.cleaning import compaction, retention
from waystation.log.producers import REMEMBERED_BATCHES, Producers

LAST = 2**31 - 1


def stay(home: Home) -> None:
    pass


def lose_snapshots(home: Home) -> None:
    home.kill()
    for path in home.path("").glob("*.snapshot"):
        path.unlink()
    home.open()


def garble_snapshots(home: Home) -> None:
    home.stop()
    for path in home.path("").glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1])
    home.open()


@pytest.fixture(
    params=[stay, Home.restart, Home.kill_and_open, Home.reboot_and_open, lose_snapshots, garble_snapshots],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def accident(request: pytest.FixtureRequest) -> Callable[[Home], object]:
    """What happens between two requests of a producer."""
    happens: Callable[[Home], object] = request.param
    return happens


def test_a_repeated_batch_gets_its_first_answer(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.put(b"another's")
    first = [home.send(7, 3 * i, b"a", b"b", b"c") for i in range(8)]
    accident(home)
    for i in range(8 - REMEMBERED_BATCHES, 8):
        again = home.send(7, 3 * i, b"a", b"b", b"c")
        assert again.duplicate
        assert (again.base_offset, again.last_offset) == (first[i].base_offset, first[i].last_offset)
    assert home.log.end_offset == 25
    with pytest.raises(OutOfOrderSequence):  # too long ago to know its offset
        home.send(7, 0, b"a", b"b", b"c")


def test_a_gap_or_another_cut_of_the_same_records_is_refused(
    tmp_path: Path, accident: Callable[[Home], object]
) -> None:
    home = Home(tmp_path)
    home.send(7, 0, b"a", b"b")
    accident(home)
    for sequence, values in ((3, [b"x"]), (1, [b"b"]), (0, [b"a"]), (0, [b"a", b"b", b"c"]), (LAST, [b"x"])):
        with pytest.raises(OutOfOrderSequence):
            home.send(7, sequence, *values)
    assert home.log.end_offset == 2
    assert not home.send(7, 2, b"c").duplicate


def test_sequence_numbers_go_round(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.send(7, LAST - 3, b"a", b"b")
    spanning = home.send(7, LAST - 1, b"c", b"d", b"e")  # LAST - 1, LAST, 0
    accident(home)
    assert home.send(7, LAST - 1, b"c", b"d", b"e").base_offset == spanning.base_offset
    with pytest.raises(OutOfOrderSequence):
        home.send(7, 0, b"e")
    assert home.send(7, 1, b"f").base_offset == 5
    exact = home.send(9, LAST, b"z")
    accident(home)
    assert home.send(9, 0, b"next").base_offset == exact.base_offset + 1


def test_a_newer_epoch_fences_the_older_and_begins_at_zero(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.send(7, 0, b"a")
    with pytest.raises(OutOfOrderSequence):
        home.send(7, 1, b"b", epoch=1)
    home.send(7, 0, b"b", epoch=1)
    accident(home)
    with pytest.raises(ProducerEpochStale):
        home.send(7, 1, b"c")
    assert home.send(7, 0, b"b", epoch=1).duplicate
    assert not home.send(7, 1, b"c", epoch=1).duplicate


def test_an_epoch_that_a_marker_has_begun_begins_at_zero(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.send(7, 0, b"a", txn=True)
    home.end(7, commit=True, epoch=1)
    accident(home)
    with pytest.raises(OutOfOrderSequence):  # what is before it was refused, and comes again
        home.send(7, 1, b"c", txn=True, epoch=1)
    assert not home.send(7, 0, b"b", txn=True, epoch=1).duplicate
    assert not home.send(7, 1, b"c", txn=True, epoch=1).duplicate


def test_a_producer_that_is_not_known_may_begin_anywhere(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.send(7, 1_000, b"a").base_offset == 0
    assert home.send(7, 1_001, b"b").base_offset == 1


def test_what_was_refused_left_no_trace(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.send(7, 0, b"a")
    with pytest.raises(OutOfOrderSequence):
        home.send(7, 5, b"x")
    home.kill_and_open()
    assert home.values() == [b"a"]
    assert home.log.producers.by_id[7].last_sequence == 0


def test_producers_are_remembered_when_their_records_are_gone(tmp_path: Path) -> None:
    """Retention takes the segments, compaction the batches; the next start has only the snapshot."""
    home = Home(tmp_path, segment_bytes=1, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for i in range(6):
        home.send(7, i, b"v%d" % i)
    home.kill_and_open()  # before any snapshot was saved
    run(retention.remove_before(home.log, 3))
    home.kill_and_open()
    assert [home.send(7, i, b"v%d" % i).duplicate for i in range(1, 6)] == [True] * 5
    home.sync()
    home.save_points()
    plan = compaction.due(home.log, home.clock.ms)
    assert plan is not None
    run(compaction.compact(home.log, plan))
    home.kill_and_open()
    assert [home.send(7, i, b"v%d" % i).duplicate for i in range(1, 6)] == [True] * 5


def test_an_idle_producer_is_forgotten_a_busy_one_is_not_however_old_its_records(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.send(7, 0, b"idle")
    home.clock.ms += DAY_MS
    home.put(b"import", at=5, producer_id=8, producer_epoch=0, base_sequence=0)
    home.send(9, 0, b"open", txn=True)
    home.clock.ms += 1_000
    home.log.producers.expire(home.clock.ms - DAY_MS)
    assert set(home.log.producers.by_id) == {8, 9}
    home.restart()
    assert set(home.log.producers.by_id) == {8, 9}
    assert home.put(b"import", at=5, producer_id=8, producer_epoch=0, base_sequence=0).duplicate


def snapshots(home: Home) -> list[int]:
    return [int(name.partition(".")[0]) for name in home.names if name.endswith(".snapshot")]


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for i in range(12):
        home.send(7, i, b"v")
        home.log._write_derived(home.log.active)
        home.sync()
    assert snapshots(home) == [11, 12]


def test_the_snapshot_at_the_beginning_of_a_segment_is_kept_as_long_as_the_segment(tmp_path: Path) -> None:
    """What is before it may be removed by retention; then a truncation has nothing else to begin with."""
    home = Home(tmp_path, segment_bytes=1)
    for i in range(12):
        home.send(7, i, b"v")
        home.sync()
    assert snapshots(home) == [*range(1, 12)]
    run(retention.remove_before(home.log, 9))
    assert snapshots(home) == [9, 10, 11]


def test_a_snapshot_is_saved_behind_the_transaction_index_that_it_needs() -> None:
    """Also if both wait when the next snapshot is taken: the index is not saved behind the first one."""
    disk = SimDisk()
    home = Home("/data", disk)
    home.send(7, 0, b"v", txn=True)
    home.end(7, commit=False)
    home.log._write_derived(home.log.active)
    home.send(8, 0, b"v")
    home.log._write_derived(home.log.active)
    home.sync()
    renamed = [path.rpartition(" -> ")[2] for kind, path, _, _ in disk.history if kind == "rename"]
    saved = [path.rpartition(".")[2] for path in renamed if path.endswith(("txnindex", "snapshot"))]
    assert saved == ["txnindex", "snapshot", "snapshot"]


def test_a_snapshot_of_a_history_that_never_was_is_not_believed(tmp_path: Path) -> None:
    """The power cut took records that a snapshot had counted; then others took their offsets."""
    home = Home(tmp_path)
    home.send(7, 0, b"kept")
    home.sync()
    home.save_points()
    size = home.log.active.size
    home.send(7, 1, b"lost")
    home.log._write_derived(home.log.active)
    files = home.log.derived.take()
    assert files is not None
    files.save()
    home.kill()
    with home.segment().open("r+b") as file:
        file.truncate(size)
    home.reboot_and_open()
    assert home.log.end_offset == 1
    home.put(b"other")
    home.put(b"other")
    home.kill_and_open()
    assert home.log.producers.by_id[7].last_sequence == 0
    assert home.send(7, 1, b"lost").base_offset == 3


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 40])
def test_bytes_that_are_no_snapshot_are_none(data: bytes) -> None:
    assert Producers.restore(data) is None
    whole = Producers().snapshot(5)
    assert Producers.restore(whole + data) is None or not data
    assert Producers.restore(whole[:-1]) is None
