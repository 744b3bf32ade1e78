"""Reading by time: the first record that is not older, and the latest of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.kit import NOW_MS, Home, run
from waystation.log.batches import batch as batches
from waystation.log.batches.compression import compress
from waystation.log.cleaning import retention


def expected(home: Home, timestamp: int) -> tuple[int, int] | None:
    for record in home.records(home.log.start_offset):
        if record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return None


@given(
    stamps=st.lists(st.lists(st.integers(min_value=0, max_value=40), min_size=1, max_size=3), min_size=1, max_size=20),
    marks=st.sets(st.integers(min_value=0, max_value=20)),
    start=st.integers(min_value=0, max_value=20),
    segment_bytes=st.sampled_from([1, 400, 1 << 20]),
    interval=st.sampled_from([0, 300, 4096]),
    codec=st.sampled_from([0, 4]),
)
def test_the_first_record_that_is_not_older_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    stamps: list[list[int]],
    marks: set[int],
    start: int,
    segment_bytes: int,
    interval: int,
    codec: int,
) -> None:
    """Any order of times, markers in between, a start in the middle, before and after restarts of both kinds."""
    home = Home(tmp_path_factory.mktemp("times"), segment_bytes=segment_bytes, index_interval_bytes=interval)
    for i, batch in enumerate(stamps):
        records = [batches.Record(j, at, None, b"v", ()) for j, at in enumerate(batch)]
        body, count = batches.encode_records(records, 0, batch[0])
        header = batches.Header(0, 0, 0, 2, 0, codec, count - 1, batch[0], max(batch), -1, -1, -1, count)
        home.append(batches.assemble(header, compress(codec, body)))
        if i in marks:
            marker = batches.build_marker(1, 0, True, 0, 30 + i)
            home.log.append(marker, batches.read_header(marker))
    run(retention.remove_before(home.log, min(start, home.log.end_offset)))
    for _ in range(3):
        for asked in range(-1, 42):
            assert home.log.find_time(asked) == expected(home, asked), asked
        latest = max((record.timestamp for record in home.records(home.log.start_offset)), default=None)
        assert home.log.find_max_timestamp() == (None if latest is None else expected(home, latest))
        home.restart()
        home.kill_and_open()
    home.kill()


def test_the_latest_record_is_not_the_marker_behind_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.send(1, 0, b"v", txn=True)
    home.clock.ms += 60_000
    home.end(1, commit=True)
    assert home.log.find_max_timestamp() == (0, NOW_MS)
    assert home.log.find_time(NOW_MS + 1) is None
    home.restart()
    assert home.log.find_max_timestamp() == (0, NOW_MS)


def test_the_earliest_of_several_latest_records_is_given(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    for at in (5, 9, 3, 9):
        home.put(b"v", at=at)
    assert home.log.find_max_timestamp() == (1, 9)


def test_a_batch_that_does_not_open_is_found_by_its_header(tmp_path: Path) -> None:
    """A producer may send what it likes inside a batch with a right checksum; looking for times must survive it."""
    home = Home(tmp_path)
    home.put(b"before", at=10)
    garbage = batches.assemble(batches.Header(0, 0, 0, 2, 0, 4, 0, 20, 20, -1, -1, -1, 1), b"not zstd")
    home.append(garbage)
    home.put(b"after", at=30)
    assert [home.log.find_time(at) for at in (5, 15, 25)] == [(0, 10), (1, 20), (2, 30)]


def test_a_time_index_that_lost_its_first_sector_hides_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=20_000, index_interval_bytes=0)
    for i in range(60):
        home.put(b"v", at=NOW_MS + i)
    home.put(b"w" * 20_000, at=NOW_MS + 60)
    home.sync()
    index = home.path(f"{0:020d}.timeindex")
    index.write_bytes(bytes(512) + index.read_bytes()[512:])
    home.reboot_and_open()
    assert [home.log.find_time(NOW_MS + i) for i in range(61)] == [(i, NOW_MS + i) for i in range(61)]
