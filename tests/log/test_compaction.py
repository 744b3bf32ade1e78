"""Compaction: the newest value of every key stays, and readers of newest values notice nothing."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.kit import DAY_MS, NOW_MS, Home, flip, run
from tests.log.test_transactions import committed
from tests.simulation.disk import Fault, SimDisk
from waystation.errors import CorruptBatch, StorageFailed
from waystation.log.batches import batch as batches
from waystation.log.cleaning import compaction


def keyed(root: Path | str, disk: SimDisk | None = None, **options: Any) -> Home:
    """A compacted log with a batch or two to a segment, compacted whenever there is something to do."""
    fields = {"cleanup_policy": "compact", "segment_bytes": 150, "min_cleanable_dirty_ratio": 0.0, **options}
    return Home(root, disk, **fields)


def put(home: Home, key: str, value: str | None, **options: Any) -> None:
    home.put(None if value is None else value.encode(), key=key.encode(), **options)


def compact(home: Home) -> int | None:
    """One pass over what is due; None if nothing is."""
    home.sync()
    home.save_points()
    plan = compaction.due(home.log, home.clock.ms)
    return None if plan is None else run(compaction.compact(home.log, plan))


def newest(home: Home) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in home.records() if record.value is not None or record.key is None}


def table(home: Home) -> dict[bytes, bytes]:
    """What somebody has who reads the log from its beginning."""
    found: dict[bytes, bytes] = {}
    for record in home.records():
        if record.key is not None and record.value is not None:
            found[record.key] = record.value
        elif record.key is not None:
            found.pop(record.key, None)
    return found


def test_the_newest_value_of_a_key_stays_at_its_offset(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(30):
        put(home, f"k{i % 3}", f"v{i}")
    before = {record.offset: record for record in home.records()}
    assert compact(home)
    kept = home.records()
    assert [before[record.offset] for record in kept] == kept
    sealed = [record.key or b"" for record in kept if record.offset < home.log.active.base_offset]
    assert sorted(sealed) == sorted(set(sealed))
    assert table(home) == {b"k0": b"v27", b"k1": b"v28", b"k2": b"v29"}
    assert (home.log.start_offset, home.log.end_offset) == (0, 30)


def test_readers_cross_the_gaps_from_any_offset(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(40):
        put(home, f"k{i % 4 if i > 10 else i}", f"v{i}")
    compact(home)
    offsets = [record.offset for record in home.records()]
    assert len(offsets) < 30
    for restart in (lambda: None, home.restart, home.kill_and_open, home.reboot_and_open):
        restart()
        for start in range(40):
            assert [record.offset for record in home.records(start)] == [o for o in offsets if o >= start]
            data = home.log.read(start, 1)
            assert batches.read_header(data).last_offset >= start


def test_many_small_segments_become_few(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(60):
        put(home, "same", f"v{i}")
    assert len(home.log.segments) > 20
    compact(home)
    for _ in range(6):
        put(home, "same", "again")
        compact(home)
    assert len(home.log.segments) <= 6
    assert table(home) == {b"same": b"again"}
    assert [name for name in home.names if name.endswith((".swap", ".cleaned"))] == []


def test_the_segment_in_use_and_what_is_not_saved_yet_are_left_alone(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(10):
        put(home, "k", f"v{i}")
    assert compaction.due(home.log, home.clock.ms) is None  # not synced
    home.sync()
    assert compaction.due(home.log, home.clock.ms) is None  # a crash would be recovered from within these files
    home.save_points()
    plan = compaction.due(home.log, home.clock.ms)
    assert plan is not None
    assert home.log.active not in plan.segments
    other = keyed(tmp_path / "b", cleanup_policy="delete")
    for i in range(10):
        put(other, "k", f"v{i}")
    assert compact(other) is None


def test_tombstones_stay_for_their_time_and_then_go(tmp_path: Path) -> None:
    home = keyed(tmp_path, delete_retention_ms=DAY_MS)
    put(home, "gone", "value")
    put(home, "kept", "value")
    put(home, "gone", None)
    for i in range(4):
        put(home, "x", f"{i}")
    compact(home)
    assert [r.offset for r in home.records() if r.key == b"gone"] == [2]
    stamp = next(r.timestamp for r in home.records() if r.key == b"gone")
    assert stamp == NOW_MS  # the record's own time is not touched by the note of when it may go
    for passed, there in ((DAY_MS, [2]), (1, [])):
        home.clock.ms += passed - 1
        put(home, "x", "more")
        put(home, "x", "more")
        home.restart()
        compact(home)
        assert [r.offset for r in home.records() if r.key == b"gone"] == there, passed
        home.clock.ms += 1
    assert table(home) == {b"kept": b"value", b"x": b"more"}


def test_a_tombstone_does_not_let_an_older_value_come_back(tmp_path: Path) -> None:
    home = keyed(tmp_path, delete_retention_ms=0)
    put(home, "k", "old")
    for i in range(5):
        put(home, "x", f"{i}")
    put(home, "k", None)
    for i in range(5):
        put(home, "x", f"{i}")
    for _ in range(4):
        compact(home)
        assert b"k" not in table(home)
        put(home, "x", "more")
        put(home, "x", "more")
        home.clock.ms += 10
    assert all(record.key != b"k" for record in home.records())


def test_records_without_a_key_go(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    home.put(b"no key")
    for i in range(4):
        put(home, "k", f"{i}")
    compact(home)
    assert all(record.key is not None for record in home.records())


def test_aborted_records_go_and_committed_ones_become_plain(tmp_path: Path) -> None:
    home = keyed(tmp_path, segment_bytes=400)

    def send(producer: int, sequence: int, key: str, value: str) -> None:
        put(home, key, value, producer_id=producer, producer_epoch=0, base_sequence=sequence, attributes=0x10)

    put(home, "a", "plain")
    send(1, 0, "a", "aborted")
    send(2, 0, "b", "committed")
    send(1, 1, "c", "aborted")
    home.end(1, commit=False)
    home.end(2, commit=True)
    for i in range(12):
        put(home, "x", f"{i}" * 20)
    before = committed(home)
    compact(home)
    assert b"aborted" not in home.values()
    assert table(home)[b"a"] == b"plain"
    assert table(home)[b"b"] == b"committed"
    plain = next(h for h in home.headers() if h.base_offset == 2)
    assert not plain.transactional
    assert set(committed(home)) <= set(before)
    home.kill_and_open()
    for path in home.path("").glob("*.snapshot"):
        path.unlink()
    home.kill_and_open()
    assert home.log.stable_offset == home.log.end_offset
    assert table(home)[b"b"] == b"committed"


def test_an_aborted_transaction_that_is_gone_hides_nothing_of_its_producer(tmp_path: Path) -> None:
    home = keyed(tmp_path, segment_bytes=400, delete_retention_ms=0)

    def send(sequence: int, key: str, value: str) -> None:
        put(home, key, value, producer_id=1, producer_epoch=0, base_sequence=sequence, attributes=0x10)

    put(home, "a", "plain")
    send(0, "b", "aborted")
    home.end(1, commit=False)
    put(home, "d", "plain")
    for i in range(12):
        put(home, "x", f"{i}" * 20)
    send(1, "c", "committed")
    home.end(1, commit=True)
    home.clock.ms += 1
    compact(home)
    assert not any(header.control for header in home.headers() if header.base_offset < 3), "its marker went, too"
    # An answer may go from what was compacted on to what was not: who is told of the aborted transaction there waits
    # for its marker, and drops what the producer has committed since.
    assert home.log.aborted_in(0, home.log.read(0, 1000)) == []


@pytest.mark.parametrize("seed", range(10))
def test_aborted_transactions_that_are_gone_are_forgotten(tmp_path: Path, seed: int) -> None:
    home = keyed(tmp_path, segment_bytes=600)
    shown = transactions(home, random.Random(seed), 60)
    known = len(home.log.aborted)
    assert known > 5
    for i in range(12):
        put(home, f"x{i}", "x" * 60)
    assert committed(home)[: len(shown)] == shown
    compact(home)
    left = home.log.aborted.overlapping(0, 10_000)
    assert len(left) < known / 2
    assert all(one.last_offset >= home.log.cleaned_offset for one in left)
    more = transactions(home, random.Random(seed + 100), 20)
    assert committed(home)[-len(more) :] == more
    before, after = home.log.aborted.overlapping(0, 10_000), committed(home)
    home.restart()
    assert home.log.aborted.overlapping(0, 10_000) == before
    assert committed(home) == after


def transactions(home: Home, rng: random.Random, count: int) -> list[bytes]:
    """Of three producers, each committed or aborted. What readers are to be shown, in order."""
    open_now: dict[int, list[tuple[int, bytes]]] = {}
    shown: list[tuple[int, bytes]] = []
    sequences = {one: state.last_sequence + 1 for one, state in home.log.producers.by_id.items()}
    for number in range(count):
        producer = rng.randrange(3)
        if producer in open_now and rng.random() < 0.5:
            commit = rng.random() < 0.4
            home.end(producer, commit=commit)
            ended = open_now.pop(producer)
            shown += ended if commit else []
        else:
            value = b"%d" % number
            offset = home.log.end_offset
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences.get(producer, 0)}
            sequences[producer] = sequences.get(producer, 0) + 1
            put(home, f"k{offset}", value.decode(), attributes=0x10, **options)
            open_now.setdefault(producer, []).append((offset, value))
    for producer in open_now:
        home.end(producer, commit=False)
    return [value for _, value in sorted(shown)]


def test_nothing_of_an_open_transaction_is_touched(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    put(home, "a", "1")
    put(home, "a", "2")
    put(home, "a", "3", producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10)
    for i in range(10):
        put(home, "a", f"x{i}")
    compact(home)
    assert b"3" in home.values()
    assert b"x0" in home.values()
    home.end(1, commit=False)
    for _ in range(3):
        put(home, "b", "y")
    compact(home)
    assert b"3" not in home.values()
    assert table(home) == {b"a": b"x9", b"b": b"y"}


def test_records_wait_for_the_least_lag(tmp_path: Path) -> None:
    home = keyed(tmp_path, min_compaction_lag_ms=1_000)
    for i in range(10):
        put(home, "k", f"{i}")
    assert compact(home) is None
    home.clock.ms += 1_001
    assert compact(home)


def test_compaction_waits_until_enough_is_dirty_but_not_past_the_longest_lag(tmp_path: Path) -> None:
    home = keyed(tmp_path, min_cleanable_dirty_ratio=0.6, segment_bytes=1_000, max_compaction_lag_ms=DAY_MS)
    for i in range(200):
        put(home, f"k{i}", "v" * 50)
    compact(home)
    put(home, "k0", "new" * 300)
    put(home, "k0", "new" * 300)
    assert compact(home) is None
    home.clock.ms += DAY_MS + 1
    assert compact(home) is not None


def test_a_second_pass_over_what_is_clean_does_nothing(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(20):
        put(home, f"k{i % 5}", f"v{i}")
    compact(home)
    assert compact(home) is None


def test_more_keys_than_fit_the_map_take_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_KEYS", 3)
    home = keyed(tmp_path)
    for i in range(60):
        put(home, f"k{i % 10}", f"v{i}")
    expected = table(home)
    passes = 0
    while compact(home) is not None and passes < 50:
        passes += 1
        assert table(home) == expected
    assert 1 < passes < 50
    sealed = [r.key for r in home.records() if r.offset < home.log.active.base_offset]
    assert len(sealed) < 30


def test_batches_keep_their_codec_times_and_producer(tmp_path: Path) -> None:
    home = keyed(tmp_path, segment_bytes=1_000)
    for i in range(12):
        records = [(b"k%d" % (i % 2), b"old" * 20, ()), (b"u%d" % i, b"unique" * 20, (("h", b"x"),))]
        batch = batches.build(records, NOW_MS + i, codec=i % 5, producer_id=5, producer_epoch=2, base_sequence=2 * i)
        home.append(batch)
    before = {header.base_offset: header for header in home.headers()}
    compact(home)
    changed = [h for h in home.headers() if h.record_count == 1]
    assert changed
    for header in changed:
        old = before[header.base_offset]
        assert (header.codec, header.last_offset, header.base_sequence) == (
            old.codec,
            old.last_offset,
            old.base_sequence,
        )
        assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (5, 2, old.max_timestamp)
    assert home.log.find_time(NOW_MS + 5) is not None
    unique = [record for record in home.records() if (record.key or b"").startswith(b"u")]
    assert [(r.timestamp - NOW_MS, r.headers) for r in unique] == [(i, (("h", b"x"),)) for i in range(12)]


def test_the_brokers_time_survives_compaction(tmp_path: Path) -> None:
    home = keyed(tmp_path, message_timestamp_type="LogAppendTime")
    for i in range(10):
        home.clock.ms = NOW_MS + i
        home.append(batches.build([(b"k", b"v", ()), (b"u%d" % i, b"v", ())], 5))
    compact(home)
    assert [r.timestamp - NOW_MS for r in home.records() if r.key != b"k"] == list(range(10))


def test_the_indexes_of_a_compacted_segment_are_its_own(tmp_path: Path) -> None:
    home = keyed(tmp_path, segment_bytes=3_000, index_interval_bytes=0)
    for i in range(100):
        put(home, f"k{i if i % 3 == 0 else 'x'}", f"v{i}", at=NOW_MS + i)
    compact(home)
    expected = home.records()
    for restart in (lambda: None, home.restart, home.kill_and_open):
        restart()
        for record in expected:
            found = home.log.read(record.offset, 1)
            assert batches.read_header(found).base_offset == record.offset
            assert home.log.find_time(record.timestamp) == (record.offset, record.timestamp)


def test_rot_stops_compaction_and_loses_nothing(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(20):
        put(home, f"k{i % 3}", f"v{i}")
    home.restart()
    home.sync()
    home.save_points()
    flip(home.segment(home.log.segments[2].base_offset), 75)
    before = {path.name: path.read_bytes() for path in home.path("").glob("*.log")}
    with pytest.raises(CorruptBatch, match="not compacted"):
        compact(home)
    assert {path.name: path.read_bytes() for path in home.path("").glob("*.log")} == before


def test_a_batch_that_does_not_open_stays_as_it_is(tmp_path: Path) -> None:
    """It came while the topic was not compacted, when nobody looks inside."""
    home = keyed(tmp_path)
    garbage = batches.assemble(batches.Header(0, 0, 0, 2, 0, 4, 0, NOW_MS, NOW_MS, -1, -1, -1, 1), b"not zstd")
    home.append(garbage)
    for i in range(8):
        put(home, "k", f"{i}")
    assert compact(home)
    assert home.headers()[0].size == len(garbage)


def test_an_empty_batch_goes(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    empty = batches.assemble(batches.Header(0, 0, 0, 2, 0, 0, 2, NOW_MS, NOW_MS, -1, -1, -1, 0), b"")
    home.append(empty)
    for i in range(8):
        put(home, "k", f"{i}")
    assert home.records()[0].offset == 3
    compact(home)
    assert home.headers()[0].record_count == 1


def test_a_log_with_nothing_left_but_gaps_can_be_read_and_goes_on(tmp_path: Path) -> None:
    home = keyed(tmp_path, delete_retention_ms=0, segment_bytes=1)
    put(home, "k", "v")
    put(home, "k", None)
    put(home, "last", "v")
    compact(home)
    home.clock.ms += 10
    put(home, "last", "w")
    compact(home)
    assert home.log.segments[0].size == 0
    for restart in (lambda: None, home.restart, home.kill_and_open):
        restart()
        assert table(home) == {b"last": b"w"}
        assert batches.read_header(home.log.read(0, 1)).base_offset >= 2


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.integers(min_value=0, max_value=4), st.none() | st.integers(min_value=0, max_value=3)), max_size=60
    ),
    compactions=st.sets(st.integers(min_value=0, max_value=60), max_size=5),
    restarts=st.sets(st.integers(min_value=0, max_value=60), max_size=3),
    segment_bytes=st.sampled_from([1, 200, 600]),
    retention=st.sampled_from([0, 500, DAY_MS]),
    codec=st.sampled_from([0, 0, 2]),
)
def test_compaction_never_changes_what_a_reader_of_newest_values_sees(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int | None]],
    compactions: set[int],
    restarts: set[int],
    segment_bytes: int,
    retention: int,
    codec: int,
) -> None:
    home = keyed(tmp_path_factory.mktemp("c"), segment_bytes=segment_bytes, delete_retention_ms=retention)
    model: dict[bytes, bytes] = {}
    for number, (key, value) in enumerate(steps):
        home.clock.ms += 100
        if value is None:
            model.pop(b"k%d" % key, None)
        else:
            model[b"k%d" % key] = b"v%d" % value
        put(home, f"k{key}", None if value is None else f"v{value}", codec=codec)
        if number in compactions:
            compact(home)
            assert table(home) == model
        if number in restarts:
            home.kill_and_open() if number % 2 else home.restart()
            assert table(home) == model
    compact(home)
    assert table(home) == model
    assert home.log.end_offset == len(steps)
    home.kill()


# -- crashes -----------------------------------------------------------------------------------------------------------


def prepared(seed: int) -> tuple[SimDisk, Home]:
    disk = SimDisk(seed)
    home = keyed("/data", disk, segment_bytes=400)
    for i in range(40):
        put(home, f"k{i % 7}", f"v{i}" * 5)
        if i % 9 == 0:
            put(home, f"k{i % 7}", None)
    home.sync()
    home.save_points()
    return disk, home


def crash_in_compaction(disk: SimDisk, home: Home, step: int, *, power: bool) -> None:
    """A compaction that ends with its so many'th operation on the disk, and a restart."""
    disk.fail_at(disk.operations + step)
    try:
        compact(home)
    except BaseException as cut:
        if type(cut).__name__ != "PowerCut":
            raise
    home.disk = disk.power_cut() if power else disk.process_crash()
    home.world = type(home.world)(home.clock, home.world.random, home.disk, home.world.offload)
    home.open()


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_a_crash_at_any_step_of_a_swap_loses_nothing(power: bool) -> None:
    disk, home = prepared(1)
    expected = table(home)
    start = disk.operations
    compact(home)
    steps = disk.operations - start
    assert steps > 20
    assert table(home) == expected
    for step in range(1, steps + 1):
        disk, home = prepared(step)
        crash_in_compaction(disk, home, step, power=power)
        assert table(home) == expected, step
        assert not [name for name in home.names if name.endswith((".swap", ".cleaned", ".new"))], step
        put(home, "k0", "after")
        compact(home)
        assert table(home) == {**expected, b"k0": b"after"}, step


def test_a_crash_at_any_step_of_a_swap_shows_nothing_of_an_aborted_transaction() -> None:
    def home_on(disk: SimDisk) -> tuple[Home, list[bytes]]:
        home = keyed("/data", disk, segment_bytes=600)
        shown = transactions(home, random.Random(1), 40)
        for _ in range(12):
            put(home, "x", "x" * 60)
        home.sync()
        home.save_points()
        return home, shown

    disk = SimDisk(1)
    home, _ = home_on(disk)
    start = disk.operations
    compact(home)
    for step in range(1, disk.operations - start + 1):
        disk = SimDisk(step)
        home, shown = home_on(disk)
        crash_in_compaction(disk, home, step, power=True)
        assert [value for value in committed(home) if value != b"x" * 60] == shown, step
        compact(home)
        assert [value for value in committed(home) if value != b"x" * 60] == shown, step


def test_a_full_disk_during_compaction_leaves_everything_and_no_rest() -> None:
    disk, home = prepared(1)
    expected = table(home)
    for after in range(0, 30, 3):
        fault = disk.inject(Fault("write", ".cleaned", errno.ENOSPC, after=after, times=1))
        try:
            compact(home)
        except OSError:
            pass
        fault.times = 0
        assert table(home) == expected
        assert not [name for name in home.names if name.endswith(".cleaned")]
        put(home, "x", "more")
        expected[b"x"] = b"more"


def test_a_failed_log_is_not_compacted(tmp_path: Path) -> None:
    home = keyed(tmp_path)
    for i in range(20):
        put(home, "k", f"{i}")
    home.sync()
    home.save_points()
    home.log.fail(StorageFailed("broken"))
    assert compaction.due(home.log, home.clock.ms) is None
