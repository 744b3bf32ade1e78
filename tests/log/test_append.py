"""Appending: offsets, rolling, the broker's time, and what is on the disk afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.kit import DAY_MS, NOW_MS, Home
from waystation.log.batches import batch as batches


def bases(home: Home) -> list[int]:
    return [segment.base_offset for segment in home.log.segments]


def test_offsets_are_given_in_order_and_never_twice(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert [home.put(*[b"v"] * n).base_offset for n in (1, 3, 2)] == [0, 1, 4]
    assert (home.log.start_offset, home.log.end_offset, home.log.written_offset) == (0, 6, 6)
    assert [record.offset for record in home.records()] == [0, 1, 2, 3, 4, 5]
    home.restart()
    assert home.put(b"v").base_offset == 6
    home.kill_and_open()
    assert home.put(b"v").base_offset == 7


def test_a_segment_is_full_at_exactly_its_size(tmp_path: Path) -> None:
    size = len(batches.build([(None, b"v", ())], NOW_MS))
    home = Home(tmp_path, segment_bytes=3 * size)
    for _ in range(7):
        home.put(b"v")
    assert bases(home) == [0, 3, 6]
    assert [segment.size for segment in home.log.segments] == [3 * size, 3 * size, size]
    assert home.segment(0).stat().st_size == 3 * size
    assert len(home.values()) == 7


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1024)
    home.put(b"x" * 5_000)
    home.put(b"small")
    home.put(b"x" * 5_000)
    assert bases(home) == [0, 1, 2]
    assert [len(value or b"") for value in home.values()] == [5_000, 5, 5_000]


def test_a_segment_is_rolled_when_its_records_span_too_long(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_ms=DAY_MS)
    home.put(b"a", at=NOW_MS)
    home.put(b"b", at=NOW_MS + DAY_MS)
    assert bases(home) == [0]
    home.put(b"c", at=NOW_MS + DAY_MS + 1)
    assert bases(home) == [0, 2]


@pytest.mark.parametrize("restart", [False, True])
def test_records_of_the_past_do_not_make_a_segment_each(tmp_path: Path, restart: bool) -> None:
    home = Home(tmp_path, segment_ms=DAY_MS)
    for i in range(20):
        home.put(b"old", at=NOW_MS - 1_000 * DAY_MS + i)
        if restart:
            home.restart()
        home.put(b"new", at=NOW_MS + i)
    assert bases(home) == [0, 1]


def test_records_without_a_time_roll_by_the_clock(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_ms=DAY_MS)
    home.put(b"a", at=-1)
    home.put(b"b", at=-1)
    home.clock.ms += DAY_MS + 1
    home.put(b"c", at=-1)
    assert bases(home) == [0, 2]


def test_segments_of_many_logs_do_not_all_roll_at_once(tmp_path: Path) -> None:
    rolled = set()
    for number in range(12):
        home = Home(tmp_path / str(number), segment_ms=DAY_MS, segment_jitter_ms=DAY_MS // 2)
        for i in range(100):
            home.put(b"v", at=NOW_MS + i * DAY_MS // 50)
        rolled.add(bases(home)[1])
        home.kill()
    assert len(rolled) > 3
    assert all(24 <= offset <= 51 for offset in rolled)


def test_a_compacted_topic_rolls_in_time_for_its_compaction(tmp_path: Path) -> None:
    home = Home(tmp_path, cleanup_policy="compact", max_compaction_lag_ms=1_000)
    home.put(b"a", key=b"k", at=NOW_MS)
    home.put(b"b", key=b"k", at=NOW_MS + 1_001)
    assert bases(home) == [0, 1]


def test_settings_changed_at_run_time_hold_for_the_next_append(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.fill(5)
    home.log.settings = type(home.settings)(segment_bytes=1)
    home.fill(2)
    assert bases(home) == [0, 5, 6]


def test_the_brokers_time_is_given_to_records_but_not_to_markers(tmp_path: Path) -> None:
    home = Home(tmp_path, message_timestamp_type="LogAppendTime")
    assert home.put(b"v", at=5).append_time_ms == NOW_MS
    home.send(1, 0, b"w", txn=True)
    assert home.end(1, commit=True).append_time_ms == -1
    assert [record.timestamp for record in home.records()] == [NOW_MS, NOW_MS]
    assert batches.check_batch(home.log.read(0, 1)).max_timestamp == NOW_MS


def test_a_repeated_batch_is_told_the_time_that_it_got(tmp_path: Path) -> None:
    home = Home(tmp_path, message_timestamp_type="LogAppendTime")
    first = home.send(1, 0, b"v")
    home.clock.ms += 50
    again = home.send(1, 0, b"v")
    assert again.duplicate
    assert (again.base_offset, again.append_time_ms) == (first.base_offset, first.append_time_ms)


def test_producers_timestamps_are_kept_otherwise(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.put(b"v", at=5).append_time_ms == -1
    assert home.records()[0].timestamp == 5


def test_what_is_stored_is_what_was_sent_but_for_offset_and_epoch(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.put(b"first")
    sent = batches.build([(b"k", b"v", (("h", b"x"),))], NOW_MS, codec=4)
    stored = bytearray(sent)
    home.append(stored)
    found = home.log.read(1, 1)
    assert found == bytes(stored)
    assert found[16:] == bytes(sent[16:])
    assert batches.read_header(found).base_offset == 1


def test_a_log_that_begins_beyond_32_bits_is_a_log_like_others(tmp_path: Path) -> None:
    """Offsets in the indexes are relative to their segment."""
    home = Home(tmp_path, segment_bytes=1_000, index_interval_bytes=0)
    home.stop()
    far = 2**40
    home.segment().unlink()
    home.path("log-start").write_text(str(far))
    home.open()
    home.fill(20)
    assert [record.offset for record in home.records(far)] == list(range(far, far + 20))
    home.kill_and_open()
    assert (home.log.start_offset, home.log.end_offset) == (far, far + 20)
    assert [home.records(far + i)[0].offset for i in range(20)] == [far + i for i in range(20)]


def test_offsets_that_would_not_fit_the_index_begin_a_new_segment(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.put(b"v")
    batch = batches.build([(None, b"w", ())], NOW_MS)
    wide = batches.assemble(batches.read_header(batch)._replace(last_offset_delta=2**31 - 2), bytes(batch[61:]))
    home.log.append(wide, batches.read_header(wide))
    assert bases(home) == [0]
    home.put(b"x")
    assert bases(home) == [0, 2**31]
    assert home.values() == [b"v", b"w", b"x"]
    home.restart()
    assert home.log.end_offset == 2**31 + 1
    assert home.values(5) == [b"x"]


def test_growth_can_be_seen_without_reading(tmp_path: Path) -> None:
    home = Home(tmp_path)
    told = []
    home.log.on_readable = lambda: told.append(home.log.written_offset)
    home.put(b"a")
    home.put(b"b", b"c")
    assert told == [1, 3]
    assert home.log.appended_bytes == home.log.size_bytes


def test_a_log_that_nobody_writes_to_lets_go_of_its_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.put(b"a")
    home.log.checkpoint()
    home.log.checkpoint()
    assert home.log.active._file is not None  # not synced yet
    home.sync()
    home.log.checkpoint()
    assert home.log.active._file is None
    home.put(b"b")
    home.log.checkpoint()
    assert home.log.active._file is not None
    assert home.values() == [b"a", b"b"]
