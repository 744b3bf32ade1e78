"""Catalogs as earlier versions wrote them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from waystation.catalog.sqlite import SqliteCatalog
from waystation.world import SystemRandom

VERSION_3 = """
BEGIN TRANSACTION;
CREATE TABLE bindings (
    exchange TEXT NOT NULL, target TEXT NOT NULL, key TEXT NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (exchange, target, key, arguments)
) WITHOUT ROWID;
INSERT INTO "bindings" VALUES('events','topic:orders','eu.#',X'80');
CREATE TABLE cluster (id TEXT NOT NULL);
INSERT INTO "cluster" VALUES('a4BOACuXz6FsnKOoB0jZhw');
CREATE TABLE definitions (kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, name))
WITHOUT ROWID;
INSERT INTO "definitions" VALUES('namespace','shop',X'80');
CREATE TABLE exchanges (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, alternate TEXT, auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL,
    arguments BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO "exchanges" VALUES('events','topic',NULL,0,0,X'80');
CREATE TABLE format (version INTEGER NOT NULL);
INSERT INTO "format" VALUES(3);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "settings" VALUES('num.partitions','4');
CREATE TABLE topics (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, internal INTEGER NOT NULL,
    overrides TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "topics" VALUES('3f2a9c41-0000-4000-8000-000000000001','orders',3,0,'{"retention.ms": "-1"}');
COMMIT;
"""
"""What the last release of format 3 has written, as its `.dump`."""


def make_version_3(path: Path) -> None:
    """Makes of a catalog one of version 3, with its topics and its cluster id."""
    with closing(SqliteCatalog(str(path.parent), SystemRandom())) as catalog:
        topics, cluster = catalog.topics(), catalog.cluster_id()
    path.unlink()
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(VERSION_3)
        for table in ("topics", "bindings", "definitions", "exchanges", "settings"):
            db.execute(f"DELETE FROM {table}")
        db.execute("UPDATE cluster SET id = ?", (cluster,))
        rows = [(str(row.id), row.name, row.partitions, int(row.internal), json.dumps(row.overrides)) for row in topics]
        db.executemany("INSERT INTO topics (id, name, partitions, internal, overrides) VALUES (?, ?, ?, ?, ?)", rows)
