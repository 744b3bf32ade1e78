"""A data folder that the version before wrote is taken over whole.

`data/format-4.tar.xz` was written by a broker of format 4: topics with records, one that was deleted and whose files a
crash has left, settings changed at run time, a namespace with limits, queues with messages, exchanges and bindings of
all kinds, a policy, a queue on a topic, and an offset of a group.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, values
from waystation.broker.broker import Broker
from waystation.catalog import BindingRow, DeletedTopic, ExchangeRow
from waystation.catalog.sqlite import FILE, SqliteCatalog
from waystation.catalog.sqlite_upgrades import UPGRADES
from waystation.message import Message
from waystation.world import SystemRandom

WRITTEN_BY_4 = Path(__file__).parent / "data" / "format-4.tar.xz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    with tarfile.open(WRITTEN_BY_4) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # not in Python 3.11.2
        archive.extractall(data)
    return data


def rows_of_4(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("SELECT version FROM format").fetchone() == (4,)
        tables = ("topics", "deleted_topics", "exchanges", "bindings", "settings", "definitions", "cluster")
        return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def test_every_row_of_format_4_is_an_entry_of_format_5(folder: Path) -> None:
    before = rows_of_4(folder)
    for _ in range(2):
        with closing(SqliteCatalog(str(folder), SystemRandom())) as catalog:
            topics = {str(row.id): row for row in catalog.topics()}
            assert {(i, row.name, row.partitions, int(row.internal)) for i, row in topics.items()} == {
                row[:4] for row in before["topics"]
            }
            assert {(str(row.id), row.name) for row in catalog.deleted_topics()} == set(before["deleted_topics"])
            assert {(row.name, row.kind, row.alternate) for row in catalog.exchanges()} == {
                row[:3] for row in before["exchanges"]
            }
            assert {(r.exchange, r.target, r.key, r.arguments) for r in catalog.bindings()} == set(before["bindings"])
            assert catalog.settings() == {str(name): value for name, value in before["settings"]}
            for kind, name, value in before["definitions"]:
                assert catalog.definitions(str(kind))[str(name)] == value
            assert [(catalog.cluster_id(),)] == before["cluster"]
            assert {entry.revision for entry in catalog.read().entries.values()} == {catalog.revision()} == {1}
    with closing(sqlite3.connect(folder / FILE)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"format", "cluster", "entries", "revision"}


def test_an_upgrade_that_is_cut_off_leaves_format_4_and_is_made_at_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of_4(folder)
    real = UPGRADES[4]

    def cut(db: sqlite3.Connection) -> None:
        real(db)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(UPGRADES, 4, cut)
        with pytest.raises(KeyboardInterrupt):
            SqliteCatalog(str(folder), SystemRandom())
    assert rows_of_4(folder) == before
    with closing(SqliteCatalog(str(folder), SystemRandom())) as catalog:
        assert len(catalog.topics()) == len(before["topics"])


def test_a_broker_goes_on_with_a_folder_of_format_4(folder: Path) -> None:
    async def look(broker: Broker) -> None:
        assert sorted(topic.name for topic in broker.topics if not topic.internal) == ["audit", "orders"]
        orders = broker.topics.get("orders")
        assert (len(orders.partitions), orders.overrides) == (3, {"retention.ms": "-1"})
        found = [value for partition in range(3) for value in values(broker, "orders", partition)]
        assert set(found) == {b"order %d" % number for number in range(5)}
        assert broker.settings.changed == {"num.partitions": "4", "log.retention.ms": "123456789"}
        [committed] = broker.groups.fetch_offsets("g", [("orders", 0)], require_stable=True)
        assert committed.offset == 1
        assert broker.namespaces.get("shop").limits.max_queues == 7
        assert broker.queues.describe("jobs").ready == 2
        assert broker.policies.find("/", "p") is not None
        assert broker.topic_queues.names() == ["readers"]
        hello = Message(b"")
        assert broker.routing.route("events", hello, "eu.new") == ["queue:jobs"]
        assert broker.routing.route("events", hello, "größe/%.x") == ["topic:orders"]
        assert broker.routing.route("shop/mails", Message(b"", headers={"a": 1, "b": "two"})) == ["queue:shop/mail"]
        assert broker.catalog.deleted_topics() == []
        assert not list((folder / "topics").glob("gone.*"))
        assert broker.topics.folders.lost() == []

    async def main() -> None:
        with closing(SqliteCatalog(str(folder), SystemRandom())) as catalog:
            assert [row.name for row in catalog.deleted_topics()] == ["gone"]
            assert BindingRow("amq.fanout", "queue:jobs") in catalog.bindings()
            assert ExchangeRow("rest", "fanout") in catalog.exchanges()
            assert all(isinstance(row, DeletedTopic) for row in catalog.deleted_topics())
        async with broker_on(folder) as broker:
            await look(broker)
            await broker.topics.create("new", 1)
            await broker.topics.alter("orders", {"retention.ms": "5000000000"})
            await broker.topics.delete("audit")
            await broker.routing.unbind("events", "queue:jobs", "eu.#")
        async with broker_on(folder) as broker:
            assert broker.topics.get("orders").overrides == {"retention.ms": "5000000000"}
            assert "new" in broker.topics
            assert "audit" not in broker.topics
            assert broker.routing.route("events", Message(b""), "eu.new") == []

    asyncio.run(main())
