"""The two sparse indexes: their bytes, and what a look-up may answer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.log.segments.index import OffsetIndex, TimeIndex

gaps = st.lists(
    st.tuples(st.integers(min_value=1, max_value=50), st.integers(min_value=61, max_value=9_000)), max_size=20
)


@given(steps=gaps, asked=st.integers(min_value=-5, max_value=1_200))
def test_the_floor_is_the_last_batch_that_starts_at_or_before_the_offset(
    steps: list[tuple[int, int]], asked: int
) -> None:
    index = OffsetIndex()
    entries = []
    offset = position = 0
    for offsets, size in steps:
        index.add(offset, position)
        entries.append((offset, position))
        offset, position = offset + offsets, position + size
    expected = max((at for first, at in entries if first <= asked), default=0)
    assert index.floor(asked) == expected


@given(steps=gaps)
def test_an_offset_index_reads_back_from_big_endian_pairs(steps: list[tuple[int, int]]) -> None:
    index = OffsetIndex()
    offset = position = 0
    for offsets, size in steps:
        offset, position = offset + offsets, position + size
        index.add(offset, position)
    data = index.to_bytes()
    assert list(struct.iter_unpack(">II", data)) == list(zip(index.offsets, index.positions, strict=True))
    again = OffsetIndex.from_bytes(data)
    assert again is not None
    assert (again.offsets, again.positions) == (index.offsets, index.positions)


def test_offsets_and_positions_use_all_of_their_32_bits() -> None:
    index = OffsetIndex()
    index.add(2**31 - 1, 2**31)
    index.add(2**32 - 1, 2**32 - 1)
    again = OffsetIndex.from_bytes(index.to_bytes())
    assert again is not None
    assert again.floor(2**40) == 2**32 - 1


@pytest.mark.parametrize("data", [b"\0", struct.pack(">IIII", 5, 100, 4, 200), struct.pack(">IIII", 4, 200, 5, 100)])
def test_bytes_that_cannot_be_an_offset_index_are_none(data: bytes) -> None:
    assert OffsetIndex.from_bytes(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 11,
        struct.pack(">qIqI", 5, 1, 4, 2),
        struct.pack(">qIqI", 5, 2, 6, 1),
        struct.pack(">qIqI", 5, 2, 6, 2),
        b"\0" * 24,
    ],
)
def test_bytes_that_cannot_be_a_time_index_are_none(data: bytes) -> None:
    assert TimeIndex.from_bytes(data) is None


@given(
    stamps=st.lists(st.integers(min_value=0, max_value=30), min_size=1, max_size=30),
    asked=st.integers(min_value=-1, max_value=32),
    kept=st.integers(min_value=0, max_value=400),
)
def test_no_record_before_the_time_floor_is_new_enough_even_if_the_end_of_the_file_is_lost(
    stamps: list[int], asked: int, kept: int
) -> None:
    index = TimeIndex()
    latest, at = -1, 0
    for offset, stamp in enumerate(stamps):
        if stamp > latest:
            latest, at = stamp, offset
        if offset % 3 == 0:
            index.add(latest, at)
    index.close(latest, len(stamps) - 1)
    data = index.to_bytes()
    torn = TimeIndex.from_bytes(data[: kept - kept % 12])
    assert torn is not None
    for one in (index, torn):
        assert all(stamp < asked for stamp in stamps[: one.floor(asked)])
    assert len(torn) == 0 or all(stamp <= torn.timestamps[-1] for stamp in stamps[: torn.offsets[-1] + 1])


def test_a_closed_time_index_says_how_far_it_reaches() -> None:
    index = TimeIndex()
    index.add(100, 3)
    index.close(100, 9)
    index.close(100, 9)
    assert (list(index.timestamps), list(index.offsets)) == ([100, 100], [3, 9])
    index.add(101, 12)
    assert index.floor(101) == 9


def test_a_first_entry_of_zeros_may_be_a_hole() -> None:
    index = TimeIndex()
    assert not index.says_1970
    index.close(0, 0)
    index.add(7, 1)
    assert index.says_1970
    for timestamp, offset in ((-1, 0), (0, 2), (5, 0)):
        other = TimeIndex()
        other.close(timestamp, offset)
        assert not other.says_1970
