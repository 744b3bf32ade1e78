"""Reading at a revision, writing by comparing, and watching: what every catalog promises."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import Fault, SimDisk
from waystation.catalog import ABSENT, Catalog, CatalogChange, CatalogEntry, Compacted, MemoryCatalog, Update
from waystation.catalog.sqlite import SqliteCatalog
from waystation.errors import Conflict, RevisionConflict, StorageFailed, WriteInDoubt
from waystation.world import SystemRandom


class Reopening:
    """A catalog that can be opened again, as after a restart."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.disk = SimDisk(1)
        self.catalog = self.open()

    def open(self) -> Any:
        if self.kind == "sqlite":
            return SqliteCatalog(str(self.folder), SystemRandom())
        return DiskCatalog(self.disk, "/data") if self.kind == "simulated" else MemoryCatalog()

    def again(self) -> Any:
        self.catalog.close()
        self.catalog = self.open()
        return self.catalog


@pytest.fixture(params=["sqlite", "memory", "simulated"])
def any_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    catalog = Reopening(request.param, tmp_path).catalog
    yield catalog
    catalog.close()


@pytest.fixture(params=["sqlite", "simulated"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopening]:
    opened = Reopening(request.param, tmp_path)
    yield opened
    opened.catalog.close()


def watching(catalog: Catalog, after: int) -> Any:
    return catalog.watch(after, lambda: None)


# -- reading and writing ---------------------------------------------------------------------------------------------


def test_a_write_raises_the_revision_by_one_and_gives_it_to_its_keys(any_catalog: Catalog) -> None:
    first = any_catalog.revision()
    assert any_catalog.write({"a/1": b"x", "a/2": b"y"}) == first + 1
    assert any_catalog.write({"a/2": b"z"}) == first + 2
    found = any_catalog.read("a/")
    assert found.revision == first + 2 == any_catalog.revision()
    assert found.entries == {"a/1": CatalogEntry(b"x", first + 1), "a/2": CatalogEntry(b"z", first + 2)}
    assert any_catalog.get("a/1") == CatalogEntry(b"x", first + 1)
    assert any_catalog.get("a/") is None


def test_a_read_has_what_begins_with_the_prefix_and_nothing_else(any_catalog: Catalog) -> None:
    keys = ["a", "a/", "a/1", "a/größe", "a/\U0010ffff", "a0", "b/1", "a/1/2", "A/1", "a.1"]
    any_catalog.write(dict.fromkeys(keys, b""))
    assert list(any_catalog.read("a/").entries) == sorted(key for key in keys if key.startswith("a/"))
    assert list(any_catalog.read("a/1").entries) == ["a/1", "a/1/2"]
    assert list(any_catalog.read().entries) == sorted(keys)
    assert any_catalog.read("c").entries == {}


def test_deleting_what_is_not_there_is_no_change(any_catalog: Catalog) -> None:
    revision = any_catalog.write({"a": b"1"})
    watch = watching(any_catalog, revision)
    assert any_catalog.write({"b": None}) == revision
    assert any_catalog.write({}) == revision
    assert watch.take() == []
    assert any_catalog.write({"a": None, "b": None}) == revision + 1
    assert watch.take() == [Update(revision + 1, (CatalogChange("a", None),))]


def test_of_two_who_read_the_same_revision_one_writes_and_the_other_is_told(any_catalog: Catalog) -> None:
    revision = any_catalog.write({"a": b"1", "other": b"1"})
    watch = watching(any_catalog, revision)
    assert any_catalog.write({"a": b"mine"}, {"a": revision}) == revision + 1
    with pytest.raises(RevisionConflict, match="somebody else") as told:
        any_catalog.write({"a": b"theirs", "other": b"theirs", "new": b""}, {"other": revision, "a": revision})
    assert isinstance(told.value, Conflict)
    assert any_catalog.read().revision == revision + 1
    assert {key: entry.value for key, entry in any_catalog.read().entries.items()} == {"a": b"mine", "other": b"1"}
    assert [update.revision for update in watch.take()] == [revision + 1]


def test_a_key_can_be_expected_to_be_absent_and_another_than_those_written(any_catalog: Catalog) -> None:
    any_catalog.write({"name/t": b"1"}, {"name/t": ABSENT})
    with pytest.raises(RevisionConflict):
        any_catalog.write({"name/t": b"2"}, {"name/t": ABSENT})
    with pytest.raises(RevisionConflict):
        any_catalog.write({"x": b"2"}, {"gone": 1})
    with pytest.raises(RevisionConflict):
        any_catalog.write({"x": b"2"}, {"name/t": ABSENT})
    any_catalog.write({"name/t": None})
    any_catalog.write({"x": b"2"}, {"name/t": ABSENT})
    assert list(any_catalog.read().entries) == ["x"]


def test_of_many_threads_that_compare_exactly_one_wins_each_round(any_catalog: Catalog) -> None:
    revision = any_catalog.write({"a": b""})

    def attempt(number: int) -> bool:
        try:
            any_catalog.write({"a": b"%d" % number}, {"a": revision})
        except RevisionConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for turn in range(10):
            assert sum(pool.map(attempt, range(8))) == 1
            assert any_catalog.revision() == revision + 1, turn
            revision += 1


def test_revisions_survive_a_restart(kept: Reopening) -> None:
    kept.catalog.write({"a": b"1"})
    revision = kept.catalog.write({"b": b"1"})
    again = kept.again()
    assert (again.revision(), again.get("b")) == (revision, CatalogEntry(b"1", revision))
    with pytest.raises(RevisionConflict):
        again.write({"a": b"2"}, {"a": revision})
    assert again.write({"a": b"2"}, {"a": revision - 1}) == revision + 1


# -- watching --------------------------------------------------------------------------------------------------------


def test_a_watch_gives_every_write_whole_once_and_in_order(any_catalog: Catalog) -> None:
    first = any_catalog.write({"a": b"0"})
    woken: list[int] = []
    early = any_catalog.watch(first - 1, lambda: woken.append(1))
    late = watching(any_catalog, first)
    any_catalog.write({"a": b"1", "b": b"1"})
    any_catalog.write({"a": None})
    expected = [
        Update(first + 1, (CatalogChange("a", b"1"), CatalogChange("b", b"1"))),
        Update(first + 2, (CatalogChange("a", None),)),
    ]
    assert late.take() == expected
    assert early.take() == [Update(first, (CatalogChange("a", b"0"),)), *expected]
    assert early.take() == late.take() == []
    assert len(woken) == 2
    early.close()
    any_catalog.write({"c": b""})
    assert len(woken) == 2
    assert len(late.take()) == 1


def test_a_watch_that_is_too_far_behind_is_told_to_read_again(any_catalog: Any) -> None:
    any_catalog.history.max_bytes = 10_000
    revision = any_catalog.write({"a": b""})
    behind, close = watching(any_catalog, revision), watching(any_catalog, revision)
    for _ in range(100):
        any_catalog.write({"a": bytes(500)})
        assert len(close.take()) == 1
    with pytest.raises(Compacted):
        behind.take()
    found = any_catalog.read()
    assert watching(any_catalog, found.revision).take() == []
    assert any_catalog.history._bytes <= 10_000


def test_the_history_begins_when_the_catalog_is_opened(kept: Reopening) -> None:
    revision = kept.catalog.write({"a": b"1"})
    again = kept.again()
    assert watching(again, revision).take() == []
    with pytest.raises(Compacted):
        watching(again, revision - 1).take()


# -- a disk that fails in the middle ---------------------------------------------------------------------------------


class FailingCommits:
    """A connection whose commits fail: some were made, as when the folder cannot be synced, others were not."""

    def __init__(self, db: sqlite3.Connection, outcomes: list[bool]) -> None:
        self._db = db
        self.outcomes = outcomes

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement != "COMMIT" or not self.outcomes:
            return self._db.execute(statement, *arguments)
        self._db.execute("COMMIT" if self.outcomes.pop(0) else "ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def fail(kept: Reopening, *made: bool) -> None:
    """The next writes to the disk fail; whether they were made all the same."""
    if kept.kind == "sqlite":
        kept.catalog._db = FailingCommits(kept.catalog._db, list(made))
        return
    [same] = set(made)
    kept.disk.inject(Fault("sync_folder" if same else "rename", "/data", 5, times=len(made)))


@pytest.mark.parametrize("made", [True, False])
def test_a_write_that_failed_has_not_happened_after_a_restart(kept: Reopening, made: bool) -> None:
    revision = kept.catalog.write({"a": b"before", "deleted": b"before"})
    watch = watching(kept.catalog, revision)
    fail(kept, made)
    with pytest.raises(StorageFailed) as told:
        kept.catalog.write({"a": b"after", "b": b"after", "deleted": None})
    assert not isinstance(told.value, WriteInDoubt)
    before = {"a": CatalogEntry(b"before", revision), "deleted": CatalogEntry(b"before", revision)}
    assert (kept.catalog.read().entries, kept.catalog.revision(), watch.take()) == (before, revision, [])
    again = kept.again()
    assert (again.read().entries, again.revision()) == (before, revision)


def test_a_write_that_may_have_happened_is_undone_before_the_next_one(kept: Reopening) -> None:
    revision = kept.catalog.write({"a": b"before"})
    watch = watching(kept.catalog, revision)
    fail(kept, True, True)
    with pytest.raises(WriteInDoubt):
        kept.catalog.write({"a": b"after", "b": b"after"})
    assert (kept.catalog.revision(), watch.take()) == (revision, [])
    assert kept.catalog.write({"c": b"next"}, {"a": revision, "b": ABSENT}) == revision + 1
    expected = {"a": CatalogEntry(b"before", revision), "c": CatalogEntry(b"next", revision + 1)}
    assert kept.catalog.read().entries == expected
    assert kept.again().read().entries == expected
