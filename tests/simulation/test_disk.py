"""The simulated disk keeps exactly the real one's promise: the same answers while it runs, and after a power cut all
that was synced, for sure, and nothing else.

The first half compares it with the real file system, operation by operation. The second half drives it with random
operations and checks each power cut against a model of what must be there and what may be.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import Fault, PowerCut, SimDisk
from tests.simulation.nodes import PAGE, SECTOR
from waystation.world import Disk, MemoryDisk, OsDisk

SEEDS = 300


def _disk_with(path: str, content: bytes, seed: int = 0) -> SimDisk:
    """A disk with one folder and in it one file, all of it durable."""
    disk = SimDisk(seed)
    disk.make_folder("/d")
    file = disk.open(path, create=True)
    file.write([content], 0)
    file.sync()
    file.close()
    disk.sync_folder("/d")
    return disk


def _outcomes(build: object, path: str) -> set[bytes | None]:
    """What a file is found to be after power cuts of many seeds."""
    found: set[bytes | None] = set()
    for seed in range(SEEDS):
        disk = build(seed)  # type: ignore[operator]
        found.add(disk.power_cut(random.Random(seed)).read_file(path))
    return found


# -- the same answers as the real disk ------------------------------------------------------------------------------

# A name is always a file's or always a folder's: which errno the kernel prefers otherwise is not worth imitating.
_files = st.sampled_from(["a", "b", "f/a", "f/b", "g/x"])
_folders = st.sampled_from(["f", "g"])
_steps = st.one_of(
    st.tuples(st.just("write"), _files, st.binary(min_size=1, max_size=40), st.integers(0, 9000)),
    st.tuples(st.just("truncate"), _files, st.integers(0, 9000)),
    st.tuples(st.just("allocate"), _files, st.integers(1, 9000)),
    st.tuples(st.just("replace_file"), _files, st.binary(max_size=40)),
    st.tuples(st.just("rename"), _files, _files),
    st.tuples(st.just("rename"), _folders, _folders),
    st.tuples(st.just("remove"), _files),
    st.tuples(st.just("remove_tree"), _folders),
    st.tuples(st.just("make_folder"), _folders),
)


def _perform(disk: Disk, root: str, step: tuple[object, ...]) -> object:
    """One step, and its answer: None, or the kind of error."""
    kind, name, *rest = step
    path = f"{root}/{name}"
    try:
        if kind in ("write", "truncate", "allocate"):
            file = disk.open(path, create=True)
            try:
                if kind == "write":
                    file.write([rest[0], b"|", rest[0]], rest[1])  # type: ignore[list-item, arg-type]
                else:
                    getattr(file, str(kind))(rest[0])
                file.sync()
                return file.size(), file.read(100, 50)
            finally:
                file.close()
        if kind == "rename":
            disk.rename(path, f"{root}/{rest[0]}")
        else:
            getattr(disk, str(kind))(path, *rest)
    except OSError as error:
        return type(error)
    return None


def _seen(disk: Disk, root: str) -> dict[str, object]:
    return {
        name: (disk.read_file(f"{root}/{name}"), disk.size(f"{root}/{name}"))
        for name in ("a", "b", "f/a", "f/b", "g/x")
        if disk.read_file(f"{root}/{name}") is not None
    } | {name: disk.list(f"{root}/{name}") for name in ("", "h")}


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(_steps, max_size=12))
def test_it_answers_as_the_real_disk_does(
    steps: list[tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So does the one in memory, which brokers use."""
    real: Disk = OsDisk()
    others: list[Disk] = [SimDisk(), MemoryDisk(1_000_000)]
    root = str(tmp_path_factory.mktemp("disk"))
    for disk in others:
        disk.make_folder(root)
    for step in steps:
        answer = _perform(real, root, step)
        for disk in others:
            assert _perform(disk, root, step) == answer, step
            assert _seen(disk, root) == _seen(real, root), step


def test_a_folder_is_renamed_with_all_in_it() -> None:
    disk = _disk_with("/d/a", b"one")
    disk.rename("/d", "/e")
    assert disk.read_file("/e/a") == b"one"
    assert disk.list("/d") == []
    assert disk.list("/") == ["e"]


def test_the_present_holder_of_a_lock_is_named_until_its_process_ends() -> None:
    disk = SimDisk()
    assert disk.lock("/lock", b"pid 1") is None
    assert disk.lock("/lock", b"pid 2") == b"pid 1"
    assert disk.process_crash().lock("/lock", b"pid 3") is None
    disk = SimDisk()
    disk.lock("/lock", b"pid 1")
    disk.unlock("/lock")
    assert disk.lock("/lock", b"pid 2") is None


def test_a_boot_lasts_until_the_power_goes() -> None:
    first = SimDisk(1)
    second = first.process_crash()
    third = second.power_cut()
    assert first.boot_id() == second.boot_id() != third.boot_id()
    assert first.volume_id("/") == second.volume_id("/") == third.volume_id("/")


def test_a_copy_is_on_another_volume_during_the_same_boot() -> None:
    first = SimDisk(1)
    second = first.moved()
    assert first.boot_id() == second.boot_id()
    assert first.volume_id("/") != second.volume_id("/")


def test_what_the_world_promises_is_what_it_implements(tmp_path: Path) -> None:
    disks: list[Disk] = [SimDisk(), OsDisk()]  # mypy checks the protocol, this line is enough
    assert [disk.list(str(tmp_path)) for disk in disks] == [[], []]


# -- what a power cut leaves ----------------------------------------------------------------------------------------


def test_synced_bytes_survive_and_later_ones_are_old_or_new() -> None:
    old, new = b"o" * 100, b"n" * 100

    def build(seed: int) -> SimDisk:
        disk = _disk_with("/d/f", old, seed)
        disk.open("/d/f").write([new], 0)
        return disk

    assert _outcomes(build, "/d/f") == {old, new}


def test_an_unsynced_tail_is_lost_torn_or_zeros_behind_what_was_synced() -> None:
    old = b"o" * 1000

    def build(seed: int) -> SimDisk:
        disk = _disk_with("/d/f", old, seed)
        disk.open("/d/f").write([b"n" * 20_000], 1000)
        return disk

    found = _outcomes(build, "/d/f")
    assert all(content is not None and content.startswith(old) for content in found)
    tails = {bytes(content)[1000:] for content in found if content is not None}
    assert b"" in tails
    assert b"n" * 20_000 in tails
    assert any(set(tail) == {0} for tail in tails), "the size made it, the data did not"
    assert any(set(tail) == {0, ord("n")} for tail in tails), "torn"
    assert len({len(tail) for tail in tails}) > 10, "sizes in between"


def test_a_page_is_torn_at_sectors_only() -> None:
    old, new = b"o" * PAGE, b"n" * PAGE

    def build(seed: int) -> SimDisk:
        disk = _disk_with("/d/f", old, seed)
        disk.open("/d/f").write([new], 0)
        return disk

    found = _outcomes(build, "/d/f")
    assert len(found) > 10
    for content in found:
        assert content is not None
        for start in range(0, PAGE, SECTOR):
            assert len(set(content[start : start + SECTOR])) == 1


def test_a_middle_state_may_be_what_reached_the_platter() -> None:
    def build(seed: int) -> SimDisk:
        disk = _disk_with("/d/f", b"0", seed)
        file = disk.open("/d/f")
        for value in range(1, 10):
            file.write([str(value).encode()], 0)
        return disk

    found = _outcomes(build, "/d/f")
    assert {b"0", b"9"} < found


def test_preallocated_room_reads_as_zeros_and_costs_nothing() -> None:
    disk = _disk_with("/d/f", b"data")
    file = disk.open("/d/f")
    file.allocate(1 << 40)
    file.sync()
    after = disk.power_cut()
    assert after.size("/d/f") == 1 << 40
    assert after.open("/d/f").read(8, 0) == b"data\0\0\0\0"
    assert after.open("/d/f").read(8, (1 << 40) - 4) == b"\0\0\0\0"


def test_a_truncation_is_safe_after_sync_and_may_come_undone_before() -> None:
    content = b"x" * 10_000

    def build(seed: int, sync: bool = False) -> SimDisk:
        disk = _disk_with("/d/f", content, seed)
        file = disk.open("/d/f")
        file.truncate(5)
        if sync:
            file.sync()
        return disk

    assert {b"x" * 5, content} < _outcomes(build, "/d/f")
    assert _outcomes(lambda seed: build(seed, True), "/d/f") == {b"x" * 5}


def test_a_truncated_tail_does_not_come_back_when_the_file_grows_over_it() -> None:
    disk = _disk_with("/d/f", b"x" * 10_000)
    file = disk.open("/d/f")
    file.truncate(5)
    file.truncate(10_000)
    assert file.read(10_000, 0) == b"x" * 5 + bytes(9_995)
    file.sync()
    assert disk.power_cut().read_file("/d/f") == b"x" * 5 + bytes(9_995)


def test_a_new_name_is_safe_only_after_its_folder_was_synced() -> None:
    def build(seed: int, sync: bool = False) -> SimDisk:
        disk = SimDisk(seed)
        disk.make_folder("/d")
        file = disk.open("/d/f", create=True)
        file.write([b"data"], 0)
        file.sync()
        if sync:
            disk.sync_folder("/d")
        return disk

    assert _outcomes(build, "/d/f") == {None, b"data"}
    assert _outcomes(lambda seed: build(seed, True), "/d/f") == {b"data"}


def test_a_removed_file_may_come_back_until_its_folder_was_synced() -> None:
    def build(seed: int, sync: bool = False) -> SimDisk:
        disk = _disk_with("/d/f", b"data", seed)
        disk.remove("/d/f")
        if sync:
            disk.sync_folder("/d")
        return disk

    assert _outcomes(build, "/d/f") == {None, b"data"}
    assert _outcomes(lambda seed: build(seed, True), "/d/f") == {None}


def test_name_changes_of_a_folder_survive_in_order() -> None:
    counts: set[int] = set()
    for seed in range(SEEDS):
        disk = SimDisk(seed)
        disk.make_folder("/d")
        for number in range(5):
            disk.open(f"/d/{number}", create=True).close()
        names = disk.power_cut(random.Random(seed)).list("/d")
        assert names == [str(number) for number in range(len(names))]
        counts.add(len(names))
    assert {0, 5} < counts


def test_a_rename_between_folders_is_all_or_nothing() -> None:
    outcomes: set[tuple[bool, bool]] = set()
    for seed in range(SEEDS):
        disk = _disk_with("/d/f", b"data", seed)
        disk.make_folder("/e")
        disk.rename("/d/f", "/e/f")
        disk.open("/d/other", create=True)
        after = disk.power_cut(random.Random(seed))
        outcomes.add((after.read_file("/d/f") == b"data", after.read_file("/e/f") == b"data"))
    assert outcomes == {(True, False), (False, True)}


def test_syncing_one_folder_promises_nothing_for_another() -> None:
    def build(seed: int) -> SimDisk:
        disk = SimDisk(seed)
        disk.make_folder("/d")
        disk.make_folder("/e")
        disk.open("/d/f", create=True).close()
        disk.sync_folder("/e")
        return disk

    assert _outcomes(build, "/d/f") == {None, b""}


def test_replacing_a_file_leaves_the_old_or_the_new_content_wherever_the_power_goes() -> None:
    old, new = b"o" * 9_000, b"n" * 7_000
    found: set[bytes | None] = set()
    for seed in range(SEEDS):
        disk = _disk_with("/d/f", old, seed)
        disk.fail_at(disk.operations + 1 + seed % 6)
        try:
            disk.replace_file("/d/f", new)
        except PowerCut:
            pass
        found.add(disk.power_cut(random.Random(seed)).read_file("/d/f"))
    assert found == {old, new}
    disk = _disk_with("/d/f", old)
    disk.replace_file("/d/f", new)
    assert disk.power_cut().read_file("/d/f") == new


def test_a_killed_process_loses_nothing_that_it_wrote_and_the_power_may_still_go() -> None:
    disk = _disk_with("/d/f", b"old")
    disk.open("/d/f").write([b"new"], 0)
    disk.open("/d/g", create=True).write([b"more"], 0)
    after = disk.process_crash()
    assert after.read_file("/d/f") == b"new"
    assert after.read_file("/d/g") == b"more"
    found = set()
    for seed in range(SEEDS):
        disk = _disk_with("/d/f", b"old", seed)
        disk.open("/d/f").write([b"new"], 0)
        found.add(disk.process_crash().power_cut(random.Random(seed)).read_file("/d/f"))
    assert found == {b"old", b"new"}


def test_the_hardest_power_cut_leaves_what_was_synced_and_nothing_else() -> None:
    disk = SimDisk()
    disk.make_folder("/d")
    disk.replace_file("/d/a", b"synced")
    disk.replace_file("/d/b", b"synced, too")
    file = disk.open("/d/a")
    file.truncate(2)
    file.close()
    disk.remove("/d/b")
    disk.open("/d/c", create=True).close()
    assert disk.content() == {"/d/a": b"sy", "/d/c": b""}
    after = disk.process_crash().power_cut(only_synced=True)
    assert after.content() == {"/d/a": b"synced", "/d/b": b"synced, too"}


def test_nothing_works_on_a_disk_without_power() -> None:
    disk = _disk_with("/d/f", b"data")
    file = disk.open("/d/f")
    told: list[str] = []
    disk.on_power_off = lambda: told.append("off")
    disk.fail_at(disk.operations + 2)
    file.write([b"1"], 0)
    with pytest.raises(PowerCut):
        file.sync()
    for operation in (
        file.sync,
        file.size,
        lambda: disk.list("/d"),
        lambda: disk.remove("/d/f"),
        lambda: file.read(1, 0),
    ):
        with pytest.raises(PowerCut):
            operation()
    file.close()
    assert told == ["off"]


# -- faults ---------------------------------------------------------------------------------------------------------


def test_an_injected_fault_strikes_the_chosen_operations() -> None:
    disk = _disk_with("/d/f", b"data")
    disk.inject(Fault("read", "/d/f", after=1))
    file = disk.open("/d/f")
    assert file.read(4, 0) == b"data"
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.read(4, 0)
    assert caught.value.errno == errno.EIO
    assert file.read(4, 0) == b"data"


def test_after_a_failed_sync_the_next_one_succeeds_and_yet_bytes_are_lost() -> None:
    def build(seed: int) -> SimDisk:
        disk = _disk_with("/d/f", b"o" * PAGE * 2, seed)
        file = disk.open("/d/f")
        file.write([b"n" * PAGE * 2], 0)
        disk.inject(Fault("sync"))
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        assert file.read(1, 0) == b"n"
        file.sync()
        return disk

    assert {b"o" * PAGE * 2, b"n" * PAGE * 2} < _outcomes(build, "/d/f")


def test_a_full_disk_takes_what_fits_and_goes_on_when_there_is_room() -> None:
    disk = SimDisk(capacity=10_000)
    file = disk.open("/f", create=True)
    file.write([b"x" * 9_000], 0)
    with pytest.raises(OSError, match="No space left") as caught:
        file.write([b"y" * 2_000], 9_000)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 10_000
    assert disk.free_bytes("/") == 0
    file.write([b"z"], 5)  # in place: needs no room
    with pytest.raises(OSError, match="No space left"):
        file.allocate(20_000)
    disk.capacity = 20_000
    file.write([b"y" * 2_000], 9_000)
    disk.remove("/f")
    assert disk.free_bytes("/") == 20_000


def test_a_flipped_bit_is_flipped_for_good() -> None:
    disk = _disk_with("/d/f", b"data")
    disk.flip_bit("/d/f", 1, 1)
    assert disk.read_file("/d/f") == b"dcta"
    assert disk.power_cut().read_file("/d/f") == b"dcta"


# -- anything at all ------------------------------------------------------------------------------------------------


class _Model:
    """What may be found: for each byte the values it had since the last sync, for each name the contents it had."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.disk.make_folder("/d")
        self.file = self.disk.open("/d/f", create=True)
        self.file.sync()
        self.disk.sync_folder("/d")
        self.now = bytearray()
        self.was: list[bytearray] = [bytearray()]  # every content since the last sync that returned

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        choice = self.rng.randrange(10)
        if choice == 0:
            self.file.sync()
            self.was = [bytearray(self.now)]
            return
        if choice == 1:
            size = self.rng.randrange(12_000)
            self._goes_to(self.now[:size].ljust(size, b"\0"))
            self.file.truncate(size)
        else:
            position = self.rng.randrange(10_000) if self.rng.random() < 0.5 else len(self.now)
            data = self.rng.randbytes(self.rng.choice((1, 10, 600, 5_000)))
            after = self.now.ljust(position, b"\0")
            after[position : position + len(data)] = data
            self._goes_to(after)
            self.file.write([data], position)

    def _goes_to(self, content: bytearray) -> None:
        self.now = content
        self.was.append(bytearray(content))

    def check(self, found: bytes) -> None:
        sizes = [len(content) for content in self.was]
        assert min(sizes) <= len(found) <= max(sizes)
        allowed = [content.ljust(len(found), b"\0") for content in self.was]
        for start in range(0, len(found), SECTOR):
            sector = found[start : start + SECTOR]
            assert self._explains(sector, [content[start : start + SECTOR] for content in allowed]), start

    def _explains(self, sector: bytes, contents: list[bytearray]) -> bool:
        """A sector is some state it had, or of a write that was cut in two, or zeros past an end in between."""
        if any(sector == content for content in contents):
            return True
        return all(any(byte in (content[at], 0) for content in contents) for at, byte in enumerate(sector))


@pytest.mark.parametrize("group", range(4))
def test_a_power_cut_leaves_only_what_was_written_and_all_that_was_synced(group: int) -> None:
    for seed in range(group * 60, group * 60 + 60):
        model = _Model(seed)
        model.disk.fail_at(model.disk.operations + model.rng.randrange(1, 30))
        with pytest.raises(PowerCut):
            model.work(100)
        found = model.disk.power_cut(model.rng).read_file("/d/f")
        assert found is not None
        model.check(found)


def test_one_seed_always_ends_the_same() -> None:
    def run(seed: int) -> tuple[dict[str, bytes], object, dict[str, bytes]]:
        model = _Model(seed)
        model.work(60)
        before = model.disk.content()
        return before, model.disk.history, model.disk.power_cut(random.Random(seed)).content()

    runs = [run(seed) for seed in range(20)]
    assert runs == [run(seed) for seed in range(20)]
    assert runs[0] != runs[1]


def test_every_open_file_is_counted_until_it_is_closed() -> None:
    disk = _disk_with("/d/f", b"")
    file = disk.open("/d/f")
    assert [*disk.open_files.values()] == ["/d/f"]
    file.close()
    file.close()
    assert not disk.open_files
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)
