"""The catalog file: what it remembers, what it refuses, and that refusing touches nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.catalog.old_catalogs import VERSION_3
from waystation.catalog import BindingRow, Catalog, DeletedTopic, ExchangeRow, MemoryCatalog, TopicRow
from waystation.catalog import sqlite as module
from waystation.catalog.catalog import FORMAT_VERSION
from waystation.catalog.sqlite import FILE, SqliteCatalog
from waystation.errors import Corrupt, NewerFormat, RevisionConflict, StorageFailed
from waystation.world import SystemRandom

ORDERS = TopicRow("orders", UUID(int=1), 3, overrides={"retention.ms": "5"})


@contextmanager
def catalog(folder: Path) -> Iterator[SqliteCatalog]:
    opened = SqliteCatalog(str(folder), SystemRandom())
    try:
        yield opened
    finally:
        opened.close()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def set_version(folder: Path, version: int) -> None:
    with sqlite3.connect(folder / FILE) as db:
        db.execute("UPDATE format SET version = ?", (version,))
    db.close()


@pytest.fixture(params=["sqlite", "memory"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    if request.param == "memory":
        yield MemoryCatalog()
    else:
        with catalog(tmp_path) as opened:
            yield opened


def test_topics_are_added_replaced_and_deleted(either: Catalog) -> None:
    other = TopicRow("__internal", uuid4(), 1, internal=True)
    either.save_topic(ORDERS)
    either.save_topic(other)
    assert sorted(either.topics(), key=lambda row: row.name) == [other, ORDERS]
    grown = TopicRow("orders", ORDERS.id, 5, overrides={})
    either.save_topic(grown)
    assert grown in either.topics()
    assert len(either.topics()) == 2
    either.delete_topic(ORDERS.id)
    either.delete_topic(ORDERS.id)
    assert either.topics() == [other]
    assert len(either.cluster_id()) == 22


def test_a_deletion_is_remembered_until_the_files_are_gone(either: Catalog) -> None:
    either.save_topic(ORDERS)
    assert either.deleted_topics() == []
    either.delete_topic(ORDERS.id)
    either.delete_topic(uuid4())
    assert either.deleted_topics() == [DeletedTopic("orders", ORDERS.id)]
    again = TopicRow("orders", uuid4(), 1)
    either.save_topic(again)
    either.delete_topic(again.id)
    assert {row.id for row in either.deleted_topics()} == {ORDERS.id, again.id}
    either.save_topic(ORDERS)  # a deletion that is taken back
    assert either.deleted_topics() == [DeletedTopic("orders", again.id)]
    either.forget_deleted_topic(again.id)
    either.forget_deleted_topic(again.id)
    assert either.deleted_topics() == []
    assert either.topics() == [ORDERS]


def test_exchanges_and_bindings_are_added_replaced_and_deleted(either: Catalog) -> None:
    assert (either.exchanges(), either.bindings()) == ([], [])
    plain = ExchangeRow("orders", "topic")
    rich = ExchangeRow("audit", "fanout", alternate="", auto_delete=True, internal=True, arguments=b"\x81\xa1a\x01")
    for row in (plain, rich):
        either.save_exchange(row)
    assert sorted(either.exchanges(), key=lambda row: row.name) == [rich, plain]
    changed = ExchangeRow("orders", "topic", alternate="audit")
    either.save_exchange(changed)
    one = BindingRow("orders", "queue:jobs", "eu.#")
    other = BindingRow("orders", "queue:jobs", "eu.#", b"\x81\xa1a\x01")
    for binding in (one, other, one):
        either.save_binding(binding)
    assert sorted(either.bindings(), key=lambda row: row.arguments) == [one, other]
    either.delete_routes(["audit", "never was"], [one, BindingRow("orders", "queue:jobs")])
    assert (either.exchanges(), either.bindings()) == ([changed], [other])


def test_settings_are_replaced_as_a_whole(either: Catalog) -> None:
    assert either.settings() == {}
    either.save_settings({"a": "1", "b": "2"})
    either.save_settings({"b": "3"})
    assert either.settings() == {"b": "3"}


def test_definitions_are_kept_by_kind_and_name(either: Catalog) -> None:
    assert either.definitions("policy") == {}
    either.save_definition("policy", "größe", b"\x00\xff")
    either.save_definition("policy", "a", b"")
    either.save_definition("namespace", "a", b"other")
    either.save_definition("policy", "a", b"again")
    assert list(either.definitions("policy").items()) == [("a", b"again"), ("größe", b"\x00\xff")]
    either.delete_definition("policy", "a")
    either.delete_definition("policy", "a")
    either.delete_definition("never was", "a")
    assert either.definitions("policy") == {"größe": b"\x00\xff"}
    assert either.definitions("namespace") == {"a": b"other"}


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    with catalog(tmp_path) as first:
        cluster = first.cluster_id()
        first.save_topic(ORDERS)
        first.save_settings({"num.partitions": "4"})
        first.save_exchange(ExchangeRow("orders", "direct"))
        first.save_definition("namespace", "shop", b"\x80")
        first.save_binding(BindingRow("orders", "queue:jobs", "größe", b"\x80"))
    with catalog(tmp_path) as second:
        assert second.exchanges() == [ExchangeRow("orders", "direct")]
        assert second.definitions("namespace") == {"shop": b"\x80"}
        assert second.bindings() == [BindingRow("orders", "queue:jobs", "größe", b"\x80")]
        assert (second.cluster_id(), second.topics(), second.settings()) == (cluster, [ORDERS], {"num.partitions": "4"})
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_two_folders_are_two_clusters(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with catalog(tmp_path / name) as opened:
            ids.add(opened.cluster_id())
    assert len(ids) == 2


def test_a_name_belongs_to_one_topic(tmp_path: Path) -> None:
    with catalog(tmp_path) as opened:
        opened.save_topic(ORDERS)
        with pytest.raises(RevisionConflict):
            opened.save_topic(TopicRow("orders", uuid4(), 1))
        assert opened.topics() == [ORDERS]


@pytest.mark.parametrize("name", ["data", "with space", "a%20b#c?d", "größe"])
def test_a_newer_format_is_refused_and_left_byte_for_byte(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with catalog(folder) as opened:
        opened.save_topic(ORDERS)
    set_version(folder, FORMAT_VERSION + 1)
    before = content(folder)
    for _ in range(2):
        with (
            pytest.raises(NewerFormat, match=f"format {FORMAT_VERSION + 1}, this one knows {FORMAT_VERSION}"),
            catalog(folder),
        ):
            pass
    assert content(folder) == before


def test_a_newer_format_behind_a_crashed_change_is_refused_too(tmp_path: Path) -> None:
    with catalog(tmp_path):
        pass
    set_version(tmp_path, FORMAT_VERSION + 1)
    # A hot journal: a reader that may not write cannot look past it.
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    db.execute("PRAGMA cache_size=1")
    db.execute("BEGIN")
    db.execute("CREATE TABLE filler (x)")
    db.executemany("INSERT INTO filler VALUES (?)", [("y" * 3_000,) for _ in range(50)])
    journal = (tmp_path / f"{FILE}-journal").read_bytes()
    main = (tmp_path / FILE).read_bytes()
    db.close()
    (tmp_path / FILE).write_bytes(main)
    (tmp_path / f"{FILE}-journal").write_bytes(journal)
    with pytest.raises(NewerFormat), catalog(tmp_path):
        pass


def test_an_older_format_is_brought_up_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with catalog(tmp_path) as opened:
        opened.save_topic(ORDERS)
    steps: list[int] = []

    def second(db: sqlite3.Connection) -> None:
        steps.append(1)
        db.execute("ALTER TABLE entries ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody'")

    set_version(tmp_path, 1)
    monkeypatch.setattr(module, "FORMAT_VERSION", FORMAT_VERSION + 1)
    further = {version: lambda db, n=version: steps.append(n) for version in range(2, FORMAT_VERSION + 1)}
    monkeypatch.setattr(module, "UPGRADES", {1: second, **further})
    for _ in range(2):
        with catalog(tmp_path) as opened:
            assert opened.topics() == [ORDERS]
    assert steps == list(range(1, FORMAT_VERSION + 1))
    monkeypatch.undo()
    with pytest.raises(NewerFormat), catalog(tmp_path):
        pass


OLDER = {
    1: ("DROP TABLE exchanges", "DROP TABLE bindings", "DROP TABLE definitions"),
    2: ("DROP TABLE definitions",),
    3: (),
}
"""What each version did not have yet of what version 3 has."""


@pytest.mark.parametrize("version", OLDER)
def test_a_folder_of_an_older_version_keeps_what_it_had_and_gains_the_rest(tmp_path: Path, version: int) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(";".join((VERSION_3, *OLDER[version], f"UPDATE format SET version = {version}")))
    db.close()
    for again in (False, True):
        with catalog(tmp_path) as opened:
            assert [(row.name, row.partitions) for row in opened.topics()] == [("orders", 3)]
            assert opened.settings() == {"num.partitions": "4"}
            assert (ExchangeRow("events", "topic") in opened.exchanges()) == (version > 1 or again)
            assert (BindingRow("events", "queue:jobs") in opened.bindings()) == again
            assert opened.definitions("namespace") == ({"shop": b"\x80"} if version > 2 or again else {})
            opened.save_exchange(ExchangeRow("events", "topic"))
            opened.save_binding(BindingRow("events", "queue:jobs"))
            opened.save_definition("namespace", "shop", b"\x80")


def test_a_folder_of_version_3_gains_the_table_of_deleted_topics(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(VERSION_3)
    db.close()
    orders = TopicRow("orders", UUID("3f2a9c41-0000-4000-8000-000000000001"), 3, overrides={"retention.ms": "-1"})
    with catalog(tmp_path) as opened:
        assert (opened.topics(), opened.deleted_topics()) == ([orders], [])
        assert opened.exchanges() == [ExchangeRow("events", "topic")]
        assert opened.bindings() == [BindingRow("events", "topic:orders", "eu.#")]
        assert (opened.settings(), opened.definitions("namespace")) == ({"num.partitions": "4"}, {"shop": b"\x80"})
        assert opened.cluster_id() == "a4BOACuXz6FsnKOoB0jZhw"
        opened.delete_topic(orders.id)
    with catalog(tmp_path) as opened:
        assert (opened.topics(), opened.deleted_topics()) == ([], [DeletedTopic("orders", orders.id)])


def test_an_upgrade_that_fails_leaves_the_old_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with catalog(tmp_path) as opened:
        opened.save_topic(ORDERS)

    def fails(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM entries")
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT_VERSION", FORMAT_VERSION + 1)
        patch.setattr(module, "UPGRADES", {FORMAT_VERSION: fails})
        with pytest.raises(RuntimeError), catalog(tmp_path):
            pass
    with catalog(tmp_path) as opened:
        assert opened.topics() == [ORDERS]


def test_an_unfinished_first_start_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with catalog(tmp_path) as opened:
        assert opened.topics() == []


def test_a_file_that_is_no_catalog_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is not a database, it is a letter" * 100)
    before = content(tmp_path)
    with pytest.raises(Corrupt, match="backup"), catalog(tmp_path):
        pass
    assert content(tmp_path) == before


def test_topics_without_a_catalog_are_not_taken_for_rubbish(tmp_path: Path) -> None:
    (tmp_path / "topics" / "orders.00000001" / "0").mkdir(parents=True)
    with pytest.raises(Corrupt, match="topics"), catalog(tmp_path):
        pass
    (tmp_path / FILE).unlink(missing_ok=True)
    with pytest.raises(Corrupt, match="topics"), catalog(tmp_path):
        pass
    assert (tmp_path / "topics" / "orders.00000001" / "0").exists()


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    with catalog(tmp_path) as opened:
        opened.save_settings({"a": "1"})
        with pytest.raises(StorageFailed):
            opened.write({"settings/b": b"1", "settings/c": object()})  # type: ignore[dict-item]
        assert opened.settings() == {"a": "1"}
        opened.save_settings({"c": "2"})
        assert opened.settings() == {"c": "2"}
