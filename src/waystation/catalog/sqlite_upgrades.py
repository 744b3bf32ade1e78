"""How a `catalog.sqlite` of an older version becomes one of the next. Each step is one transaction of the caller's.

Until version 4 each kind of thing had a table of its own; version 5 has one of entries with revisions. The tables of
then are written down here as they were made, since a folder of version 1 passes through all of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from uuid import UUID

from waystation.catalog import rows
from waystation.catalog.rows import BindingRow, DeletedTopic, ExchangeRow, TopicRow

ENTRIES = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE revision (number INTEGER NOT NULL)",
    "INSERT INTO revision VALUES (0)",
)

_ROUTING = (
    """
CREATE TABLE exchanges (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, alternate TEXT, auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL,
    arguments BLOB NOT NULL
) WITHOUT ROWID""",
    """
CREATE TABLE bindings (
    exchange TEXT NOT NULL, target TEXT NOT NULL, key TEXT NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (exchange, target, key, arguments)
) WITHOUT ROWID""",
)

_DEFINITIONS = """
CREATE TABLE definitions (kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, name))
WITHOUT ROWID"""

_DELETED_TOPICS = "CREATE TABLE deleted_topics (id TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID"

_OLD_TABLES = ("topics", "deleted_topics", "exchanges", "bindings", "settings", "definitions")


def _add_routing(db: sqlite3.Connection) -> None:
    for statement in _ROUTING:
        db.execute(statement)


def _add_definitions(db: sqlite3.Connection) -> None:
    db.execute(_DEFINITIONS)


def _add_deleted_topics(db: sqlite3.Connection) -> None:
    db.execute(_DELETED_TOPICS)


def _make_entries(db: sqlite3.Connection) -> None:
    """All of it gets revision 1: nobody has compared with an earlier one."""
    for statement in ENTRIES:
        db.execute(statement)
    db.executemany("INSERT INTO entries (key, value, revision) VALUES (?, ?, 1)", _old_entries(db))
    db.execute("UPDATE revision SET number = 1")
    for table in _OLD_TABLES:
        db.execute(f"DROP TABLE {table}")


def _old_entries(db: sqlite3.Connection) -> Iterator[tuple[str, bytes]]:
    for name, topic, partitions, internal, overrides in db.execute(
        "SELECT name, id, partitions, internal, overrides FROM topics"
    ):
        row = TopicRow(name, UUID(topic), partitions, bool(internal), json.loads(overrides))
        yield rows.topic_key(row.id), rows.encode(row)
        yield rows.topic_name_key(name), str(row.id).encode()
    for name, topic in db.execute("SELECT name, id FROM deleted_topics"):
        yield rows.deleted_topic_key(UUID(topic)), rows.encode(DeletedTopic(name, UUID(topic)))
    for name, kind, alternate, auto_delete, internal, arguments in db.execute(
        "SELECT name, kind, alternate, auto_delete, internal, arguments FROM exchanges"
    ):
        exchange = ExchangeRow(name, kind, alternate, bool(auto_delete), bool(internal), arguments)
        yield rows.exchange_key(name), rows.encode(exchange)
    for columns in db.execute("SELECT exchange, target, key, arguments FROM bindings"):
        binding = BindingRow(*columns)
        yield rows.binding_key(binding), rows.encode(binding)
    for name, value in db.execute("SELECT name, value FROM settings"):
        yield rows.setting_key(name), value.encode()
    for kind, name, definition in db.execute("SELECT kind, name, value FROM definitions"):
        yield rows.definition_key(kind, name), definition


UPGRADES: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _add_routing,
    2: _add_definitions,
    3: _add_deleted_topics,
    4: _make_entries,
}
"""From version N to N + 1."""
