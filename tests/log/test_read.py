"""Reading by offset: limits, borders between segments, gaps, and the ends of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.kit import NOW_MS, Home, flip, run
from tests.simulation.disk import Fault, SimDisk
from waystation.errors import CorruptBatch, OffsetOutOfRange, StorageFailed
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header, Record
from waystation.log.cleaning import retention


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Batches of two records at 0, 2 … 38, four to a segment."""
    made = Home(tmp_path, segment_bytes=1_100, index_interval_bytes=300)
    for i in range(20):
        made.put(b"%d-a" % i + b"x" * 80, b"%d-b" % i + b"y" * 80)
    return made


def offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in batches.scan(data)]


def test_reading_starts_with_the_batch_that_holds_the_offset(home: Home) -> None:
    assert len(home.log.segments) > 3
    for offset in range(40):
        assert offsets(home.log.read(offset, 1)) == [offset - offset % 2]


def test_at_least_one_batch_is_read_however_small_the_limit(home: Home) -> None:
    whole = home.log.read(0, 1)
    for limit in (0, 1, 60, 61, len(whole) - 1, len(whole)):
        assert home.log.read(0, limit) == whole
    assert len(home.log.read(0, len(whole) + 10)) == len(whole) + 10
    assert offsets(home.log.read(0, 2 * len(whole))) == [0, 2]


def test_a_read_ends_with_its_segment(home: Home) -> None:
    border = home.log.segments[1].base_offset
    assert offsets(home.log.read(0, 1 << 20))[-1] == border - 2
    assert offsets(home.log.read(border - 1, 1 << 20)) == [border - 2]
    assert offsets(home.log.read(border, 1 << 20))[0] == border


def test_at_the_end_there_is_nothing_and_beyond_it_an_error(home: Home) -> None:
    assert home.log.read(40, 1_000) == b""
    for offset in (-1, 41, 2**62):
        with pytest.raises(OffsetOutOfRange, match=r"0\.\.40"):
            home.log.read(offset, 1_000)


def test_nothing_at_or_behind_the_limit_is_ever_read(home: Home) -> None:
    for limit in range(41):
        for start in range(0, 40, 3):
            data = home.log.read(start, 1 << 20, limit)
            for _, header in batches.scan(data):
                assert header.last_offset < limit
            if start < limit - limit % 2:
                assert data


def test_a_limit_before_the_offset_gives_nothing(home: Home) -> None:
    assert home.log.read(10, 1_000, 4) == b""
    assert home.log.read(10, 1_000, 10) == b""
    assert home.log.read(10, 1_000, 11) == b""  # in the middle of the batch that holds 10


def test_a_log_whose_start_moved_past_its_last_segment_is_empty_and_goes_on(home: Home) -> None:
    run(retention.remove_before(home.log, 40))
    assert (home.log.start_offset, home.log.end_offset) == (40, 40)
    assert home.log.read(40, 100) == b""
    with pytest.raises(OffsetOutOfRange):
        home.log.read(39, 100)
    assert home.log.find_time(0) is None
    assert home.log.find_max_timestamp() is None
    home.put(b"next")
    assert home.values(40) == [b"next"]
    for _ in range(2):
        home.restart()
        assert (home.log.start_offset, home.values(40)) == (40, [b"next"])
        home.kill_and_open()
        assert (home.log.start_offset, home.values(40)) == (40, [b"next"])


def test_a_batch_that_begins_before_the_start_is_still_sent_whole(home: Home) -> None:
    run(retention.remove_before(home.log, 11))
    assert offsets(home.log.read(11, 1)) == [10]
    assert home.records(11)[0].offset == 11


def test_an_empty_log_reads_as_empty(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for _ in range(3):
        assert home.log.read(0, 100) == b""
        assert home.values() == []
        with pytest.raises(OffsetOutOfRange):
            home.log.read(1, 100)
        home.restart()


def test_a_reader_of_everything_sees_every_batch_once(home: Home) -> None:
    for start in range(0, 40, 7):
        assert [header.base_offset for header in home.headers(start)] == list(range(start - start % 2, 40, 2))


def test_rot_is_an_error_at_its_offset_and_nowhere_else(home: Home) -> None:
    home.stop()
    (position, _) = next(home_segment_batches(home, 12))
    flip(home.segment(home_base(home, 12)), position + 80)
    home.open()
    assert [r.offset for r in home_records_until_error(home)] == list(range(12))
    for offset in (12, 13):
        with pytest.raises(CorruptBatch, match=f"{home_base(home, 12):020d}.log is corrupt at position {position}"):
            home.log.read(offset, 1)
    assert offsets(home.log.read(14, 1)) == [14]


@pytest.mark.parametrize("field", [8, 9, 11, 16])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_header_that_cannot_be_walked_over_is_an_error_not_an_end(home: Home, field: int, indexed: bool) -> None:
    """Length or magic is wrong: nothing behind it in the segment can be reached without an index."""
    home.stop()
    base = home_base(home, 12)
    (position, _) = next(home_segment_batches(home, 12))
    flip(home.segment(base), position + field, 3)
    if not indexed:
        for name in home.path("").glob("*index"):
            name.unlink()
    home.open()
    with pytest.raises(CorruptBatch):
        home.log.read(12, 1)
    with pytest.raises(CorruptBatch):
        list(home.log.batches_from(0))
    following = home.log.segments[home.log._bases.index(base) + 1].base_offset
    assert offsets(home.log.read(following, 1)) == [following]


@pytest.mark.parametrize("field", [8, 16, 80])
def test_rot_in_the_last_batch_of_a_cleanly_stopped_log_is_an_error_too(home: Home, field: int) -> None:
    home.stop()
    base = home.log.active.base_offset
    (position, _) = next(home_segment_batches(home, 38))
    flip(home.segment(base), position + field, 2)
    home.open()
    assert home.log.end_offset == 40
    with pytest.raises(CorruptBatch):
        home.log.read(38, 1)
    assert home.put(b"next").base_offset == 40
    assert home.values(40) == [b"next"]


def test_a_disk_that_cannot_be_read_is_told_apart_from_rot() -> None:
    disk = SimDisk()
    home = Home("/data", disk)
    home.fill(5)
    home.restart()
    disk.inject(Fault("read", ".log", errno.EIO, times=1_000))
    with pytest.raises(StorageFailed, match=os.strerror(errno.EIO)):
        home.log.read(0, 100)
    with pytest.raises(StorageFailed):
        home.log.find_time(NOW_MS)


def test_an_index_that_could_not_be_read_whole_is_read_again() -> None:
    disk = SimDisk()
    home = Home("/data", disk, segment_bytes=2_000)
    home.fill(40)
    home.restart()
    for suffix in ("index", "timeindex"):
        disk.remove(home.log.segments[0].path(suffix))
    fault = disk.inject(Fault("open", "00000000000000000000.log", errno.EMFILE, times=1))
    with pytest.raises(StorageFailed):
        home.log.find_time(NOW_MS)
    assert fault.times == 0
    assert home.log.find_time(NOW_MS) == (0, NOW_MS)
    assert home.log.segments[0].latest_timestamp() == NOW_MS


def test_reading_through_a_long_log_keeps_few_files_open(tmp_path: Path) -> None:
    home = Home(tmp_path, segment_bytes=1)
    home.fill(40)
    home.restart()
    assert len(home.values()) == 40
    assert home.log.find_time(NOW_MS) == (0, NOW_MS)
    opened = [segment for segment in home.log.segments if segment._file is not None]
    assert len(opened) <= 2


@given(
    sizes=st.lists(st.integers(min_value=0, max_value=400), min_size=1, max_size=25),
    segment_bytes=st.sampled_from([1, 300, 1_000, 1 << 20]),
    interval=st.sampled_from([0, 200, 4096]),
    limit=st.integers(min_value=0, max_value=3_000),
)
def test_reading_in_pieces_of_any_size_gives_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], segment_bytes: int, interval: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    home = Home(folder, segment_bytes=segment_bytes, index_interval_bytes=interval)
    for i, size in enumerate(sizes):
        home.put(*[b"%d" % i + b"x" * size] * (1 + i % 3))
    expected = home.records()
    for _ in range(2):
        seen: list[Record] = []
        offset = 0
        while offset < home.log.end_offset:
            data = home.log.read(offset, limit)
            for at, header in batches.scan(data):
                seen += batches.records_of(data[at : at + header.size], header)
                offset = header.last_offset + 1
        assert seen == expected
        home.restart()
    home.kill()


def home_base(home: Home, offset: int) -> int:
    return max(segment.base_offset for segment in home.log.segments if segment.base_offset <= offset)


def home_segment_batches(home: Home, offset: int) -> Iterator[tuple[int, Header]]:
    """Position and header of the batch with this base offset, straight from the file."""
    data = home.segment(home_base(home, offset)).read_bytes()
    return ((at, header) for at, header in batches.scan(data) if header.base_offset == offset)


def home_records_until_error(home: Home) -> list[Record]:
    seen: list[Record] = []
    try:
        for data, header in home.log.batches_from(0):
            seen += batches.records_of(data, header)
    except CorruptBatch:
        pass
    return seen
