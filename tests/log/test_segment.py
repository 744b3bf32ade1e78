"""One segment file: finding, indexes that are lost or lie, room ahead, and what has been verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.log.kit import NOW_MS, flip
from waystation.errors import CorruptBatch
from waystation.log.batches import batch as batches
from waystation.log.segments.segment import FIRST_ALLOCATION, Segment
from waystation.world import OsDisk
from waystation.world.disk import OsFile

BASE = 1_000
CHUNK = 64 * 1024
"""Bytes that a walk reads at once."""


def new(folder: Path, interval: int = 300) -> Segment:
    return Segment(OsDisk(), str(folder), BASE, index_interval_bytes=interval)


def write(segment: Segment, offset: int, count: int = 1, *, at: int = NOW_MS, size: int = 40) -> None:
    batch = batches.build([(None, b"x" * size, ())] * count, at)
    batches.place(batch, offset, 0)
    segment.append(batch, batches.read_header(batch))


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Offsets 1000, 1003, 1006 … 1297 start batches of two records: every third offset is a gap."""
    made = new(tmp_path)
    made.create(NOW_MS)
    for i in range(100):
        write(made, BASE + 3 * i, 2, at=NOW_MS + i)
    return made


@pytest.fixture
def sparse(tmp_path: Path) -> Segment:
    """40 batches of one record in some 290 KiB, of which the index has none: a search passes several of the chunks that
    are read at once, and a batch that is larger than one. Every third offset begins one."""
    made = new(tmp_path, 2**30)
    made.create(NOW_MS)
    for i in range(40):
        write(made, BASE + 3 * i, at=NOW_MS + i, size=100_000 if i == 20 else 5_000)
    return made


def reopened(segment: Segment) -> Segment:
    """As the next process takes it for one that is followed by others."""
    again = new(Path(segment.folder))
    again.restore_sealed(segment.size, segment.last_offset)
    return again


def found(segment: Segment, offset: int) -> int | None:
    position = segment.find(offset)
    return None if position is None else position[1].base_offset


def test_an_offset_is_found_in_its_batch_or_the_first_behind_it(segment: Segment) -> None:
    for one in (segment, reopened(segment)):
        assert found(one, BASE) == BASE
        assert found(one, BASE + 1) == BASE
        assert found(one, BASE + 2) == BASE + 3
        assert found(one, BASE + 298) == BASE + 297
        assert found(one, BASE + 299) is None
        assert found(one, 0) == BASE
        assert found(one, 2**62) is None


def test_every_batch_is_found_with_and_without_its_index(segment: Segment) -> None:
    segment.write_indexes()
    for name in (None, "index", "timeindex"):
        if name is not None:
            Path(segment.path(name)).unlink(missing_ok=True)
        again = reopened(segment)
        assert [found(again, BASE + 3 * i) for i in range(100)] == [BASE + 3 * i for i in range(100)]
        assert again.latest_timestamp() == NOW_MS + 99
        assert again.last_offset == BASE + 298


@pytest.mark.parametrize("name", ["index", "timeindex"])
@pytest.mark.parametrize("kept", [0, 1, 5, 12, 24, 48])
def test_an_index_that_lost_its_end_is_completed(segment: Segment, name: str, kept: int) -> None:
    segment.write_indexes()
    path = Path(segment.path(name))
    path.write_bytes(path.read_bytes()[:kept])
    again = reopened(segment)
    assert [found(again, BASE + 3 * i) for i in range(100)] == [BASE + 3 * i for i in range(100)]
    assert again.latest_timestamp() == NOW_MS + 99
    assert (again.index.offsets[-1], again.index.positions[-1]) == (
        segment.index.offsets[-1],
        segment.index.positions[-1],
    )


@pytest.mark.parametrize("name", ["index", "timeindex"])
@pytest.mark.parametrize("damage", [b"\0" * 24, b"\xff" * 24, b"noise noise noise noise "])
def test_an_index_with_a_torn_page_does_no_harm(segment: Segment, name: str, damage: bytes) -> None:
    segment.write_indexes()
    path = Path(segment.path(name))
    data = path.read_bytes()
    for content in (damage + data[24:], data[:24] + damage + data[48:], data[:-24] + damage):
        path.write_bytes(content)
        again = reopened(segment)
        for i in range(100):
            assert found(again, BASE + 3 * i) == BASE + 3 * i
        assert again.latest_timestamp() >= NOW_MS + 99


def test_an_index_of_another_history_is_thrown_away(segment: Segment, tmp_path: Path) -> None:
    segment.write_indexes()
    cut = segment.find(BASE + 150)
    assert cut is not None
    segment.file.truncate(cut[0])
    again = new(tmp_path)
    again.restore(cut[0], BASE + 150)
    assert not Path(segment.path("index")).exists()
    write(again, BASE + 150, 7, at=NOW_MS - 5, size=70)
    assert found(again, BASE + 149) == BASE + 150
    assert again.latest_timestamp() == NOW_MS + 49
    assert list(again.index.positions) == [p for p in segment.index.positions if p < cut[0]] + [cut[0]]


def test_a_restored_segment_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """The same batches with and without a restart in between make the same indexes."""
    straight, halting = tmp_path / "a", tmp_path / "b"
    for folder in (straight, halting):
        folder.mkdir()
    one = new(straight)
    one.create(NOW_MS)
    two = new(halting)
    two.create(NOW_MS)
    for i in range(60):
        for segment in (one, two):
            write(segment, BASE + i, at=NOW_MS + i, size=(i * 37) % 200)
        if i % 7 == 3:
            two.seal()
            two.write_indexes()
            two.close()
            two = new(halting)
            two.restore(one.size, BASE + i + 1)
    assert two.index.to_bytes() == one.index.to_bytes()
    assert (two.size, two.last_offset, two.max_timestamp) == (one.size, one.last_offset, one.max_timestamp)
    assert two.first_timestamp == one.first_timestamp


def test_room_is_allocated_ahead_and_given_back(tmp_path: Path) -> None:
    segment = new(tmp_path)
    segment.create(NOW_MS)
    write(segment, BASE)
    path = Path(segment.path())
    assert path.stat().st_size == FIRST_ALLOCATION
    assert list(segment.walk(0))[-1][1].base_offset == BASE
    segment.seal()
    assert path.stat().st_size == segment.size
    write(segment, BASE + 1)
    assert [header.base_offset for _, header in segment.walk(0)] == [BASE, BASE + 1]


def test_allocation_grows_with_the_file_and_never_shrinks_it(tmp_path: Path) -> None:
    segment = new(tmp_path)
    segment.create(NOW_MS)
    sizes = []
    for i in range(300):
        write(segment, BASE + i, size=10_000)
        sizes.append(Path(segment.path()).stat().st_size)
        assert sizes[-1] >= segment.size
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 12


def test_a_batch_larger_than_the_window_of_a_walk_is_stepped_over(tmp_path: Path) -> None:
    segment = new(tmp_path)
    segment.create(NOW_MS)
    for i, size in enumerate((10, 200_000, 10, 70_000, 70_000, 10)):
        write(segment, BASE + i, size=size)
    assert [header.base_offset - BASE for _, header in segment.walk(0)] == [0, 1, 2, 3, 4, 5]
    assert found(reopened(segment), BASE + 4) == BASE + 4


def test_a_search_reads_what_lies_between_two_entries_of_the_index(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = OsFile.read

    def counted(self: OsFile, size: int, position: int) -> bytes:
        sizes.append(size)
        return plain(self, size, position)

    monkeypatch.setattr(OsFile, "read", counted)
    for i in range(100):
        assert found(segment, BASE + 3 * i) == BASE + 3 * i
    assert max(sizes) <= 300 + batches.HEADER_SIZE, "the interval of the index, and the header behind it"
    assert len(sizes) == 100, "in one read"


@pytest.mark.parametrize("field", [0, 7, 8, 11, 16, 23, 26], ids=lambda at: f"byte {at} of a header")
def test_whatever_is_damaged_an_offset_is_found_as_by_looking_at_every_batch(segment: Segment, field: int) -> None:
    """To find one, batches before it are stepped over with a glance; where that has to stop, it must stop."""
    positions = [position for position, _ in segment.walk(0)]
    check_with_damage(segment, field, [positions[0], positions[13], positions[-1]], range(BASE - 1, BASE + 302))


@pytest.mark.parametrize("field", [0, 7, 8, 11, 16, 23, 26], ids=lambda at: f"byte {at} of a header")
def test_so_it_is_found_behind_chunks_of_which_the_index_knows_nothing(sparse: Segment, field: int) -> None:
    positions = [position for position, _ in sparse.walk(0)]
    assert sparse.index.floor(120) == 0
    assert positions[-1] > 4 * CHUNK
    across = max(one for one in positions if one < CHUNK)  # it begins in one chunk and ends in the next
    behind = min(one for one in positions if one > CHUNK)
    victims = [positions[0], positions[5], across, behind, positions[20], positions[21], positions[-1]]
    check_with_damage(sparse, field, victims, range(BASE - 1, BASE + 122))


def test_an_offset_that_comes_again_behind_a_chunk_ends_the_search(sparse: Segment) -> None:
    """Each batch has an offset of this segment, so only what was passed in the chunks before says that it is wrong."""
    path, content = Path(sparse.path()), Path(sparse.path()).read_bytes()
    for position, header in list(sparse.walk(0))[1:]:
        before = header.base_offset - 3
        path.write_bytes(content[:position] + before.to_bytes(8, "big") + content[position + 8 :])
        assert found(sparse, before) == before
        assert [found(sparse, offset) for offset in range(before + 1, BASE + 122)] == [None] * (BASE + 121 - before)


def check_with_damage(segment: Segment, field: int, victims: Sequence[int], offsets: Iterable[int]) -> None:
    check_found(segment, offsets)
    for victim in victims:
        flip(Path(segment.path()), victim + field)
        check_found(segment, offsets)
        flip(Path(segment.path()), victim + field)


def check_found(segment: Segment, offsets: Iterable[int]) -> None:
    for offset in offsets:
        looked_at = segment.walk(segment.index.floor(offset - BASE))
        assert segment.find(offset) == next((one for one in looked_at if one[1].last_offset >= offset), None)


def test_rot_is_found_on_the_first_read_wherever_the_reading_starts(segment: Segment) -> None:
    victim = segment.find(BASE + 150)
    assert victim is not None
    flip(Path(segment.path()), victim[0] + 70)
    again = reopened(segment)
    assert len(again.read(0, segment.size)) == victim[0]  # up to the damage
    with pytest.raises(CorruptBatch, match=str(victim[0])):
        again.read(victim[0], 10_000)
    behind = victim[0] + victim[1].size
    assert len(again.read(behind, 10_000)) > 0
    with pytest.raises(CorruptBatch):  # what was verified behind it does not vouch for it
        again.read(victim[0], 10_000)
    assert len(again.read(0, segment.size)) == victim[0]


@pytest.mark.parametrize("order", [(0, 50, 99), (99, 50, 0), (50, 51, 0, 99), (98, 99, 0, 1, 2)])
def test_whatever_is_read_first_rot_never_counts_as_verified(segment: Segment, order: tuple[int, ...]) -> None:
    """Batch 70 is bad. Reads of one batch each, in any order, then a read over everything."""
    positions = [position for position, _ in segment.walk(0)] + [segment.size]
    flip(Path(segment.path()), positions[70] + 65)
    again = reopened(segment)
    for i in order:
        assert again.read(positions[i], positions[i + 1] - positions[i])
    for start in (0, 40, 69):
        assert again.read(positions[start], segment.size) == segment.file.read(
            positions[70] - positions[start], positions[start]
        )
    with pytest.raises(CorruptBatch):
        again.read(positions[70], 1_000)


def test_what_this_process_appended_is_not_checked_again(tmp_path: Path) -> None:
    segment = new(tmp_path)
    segment.create(NOW_MS)
    for i in range(5):
        write(segment, BASE + i)
    assert segment.verified == (0, segment.size)
    whole = segment.read(0, segment.size)
    assert segment.read(0, segment.size - 10) == whole[:-10]  # also a piece that ends in the middle


def test_a_read_that_holds_no_whole_batch_is_empty_and_harmless(segment: Segment) -> None:
    again = reopened(segment)
    for size in (1, 60, 100):
        assert again.read(0, size) == b""
    assert again.verified[0] == again.verified[1]
    assert len(again.read(0, 10_000)) > 0


def test_reading_the_times_of_many_segments_leaves_no_file_open(segment: Segment) -> None:
    again = reopened(segment)
    assert again.latest_timestamp() == NOW_MS + 99
    assert again._file is None


def test_markers_do_not_count_as_the_latest_record(tmp_path: Path) -> None:
    segment = new(tmp_path)
    segment.create(NOW_MS)
    write(segment, BASE, at=NOW_MS)
    marker = batches.build_marker(1, 0, True, 0, NOW_MS + 500)
    batches.place(marker, BASE + 1, 0)
    segment.append(marker, batches.read_header(marker))
    assert segment.latest_timestamp() == NOW_MS
    segment.write_indexes()
    assert reopened(segment).latest_timestamp() == NOW_MS
    assert reopened(segment).last_offset == BASE + 1
