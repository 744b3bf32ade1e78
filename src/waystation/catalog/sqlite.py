"""The catalog in one SQLite file (rollback journal: no other file stays beside it). A change that returned is durable.

A commit in this mode is the removal of the journal. `synchronous=FULL` does not make that removal durable: after a
power cut the journal is back, and SQLite undoes the change with it. `EXTRA` syncs the folder too. A process that was
killed between the two leaves a change that the next start sees and a power cut would still undo, so opening syncs the
folder.

`format` holds the version of the whole data folder. A newer one is refused before anything is touched; an older one is
brought up step by step (`_UPGRADES`), each step in one transaction.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from waystation.catalog.catalog import FORMAT_VERSION, BindingRow, DeletedTopic, ExchangeRow, TopicRow
from waystation.errors import Corrupt, NewerFormat, StorageFailed
from waystation.world.disk import OsDisk
from waystation.world.random import Random

FILE = "catalog.sqlite"

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

_SCHEMA = f"""
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE cluster (id TEXT NOT NULL);
CREATE TABLE topics (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, internal INTEGER NOT NULL,
    overrides TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{";".join(_ROUTING)};
{_DEFINITIONS};
{_DELETED_TOPICS};
"""


def _add_routing(db: sqlite3.Connection) -> None:
    for statement in _ROUTING:
        db.execute(statement)


def _add_definitions(db: sqlite3.Connection) -> None:
    db.execute(_DEFINITIONS)


def _add_deleted_topics(db: sqlite3.Connection) -> None:
    db.execute(_DELETED_TOPICS)


_UPGRADES: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _add_routing,
    2: _add_definitions,
    3: _add_deleted_topics,
}
"""From version N to N + 1."""


class SqliteCatalog:
    """One connection, guarded by a lock: changes are rare."""

    def __init__(self, folder: str, random: Random) -> None:
        path = Path(folder) / FILE
        if path.exists():
            _refuse_newer(path)
        else:
            _refuse_orphans(path.parent)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._db.execute("PRAGMA synchronous=EXTRA")
            version = self._version()
            _refuse(path, version)  # again: a crashed change of the newer version may have hidden it the first time
            if version is None:
                _refuse_orphans(path.parent)
                self._create(random)
            self._upgrade()
            OsDisk().sync_folder(folder)
        except BaseException:
            self._db.close()
            raise

    def _version(self) -> int | None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'format'").fetchone():
            return None
        row = self._db.execute("SELECT version FROM format").fetchone()
        return None if row is None else int(row[0])

    def _create(self, random: Random) -> None:
        cluster_id = base64.urlsafe_b64encode(random.token(16)).decode().rstrip("=")
        self._db.executescript(
            f"BEGIN; {_SCHEMA} INSERT INTO format VALUES ({FORMAT_VERSION});"
            f" INSERT INTO cluster VALUES ('{cluster_id}'); COMMIT;"
        )

    def _upgrade(self) -> None:
        while (version := self._version() or FORMAT_VERSION) < FORMAT_VERSION:
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                _UPGRADES[version](self._db)
                self._db.execute("UPDATE format SET version = ?", (version + 1,))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction: all of it durable at the end, or none of it and StorageFailed."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise StorageFailed(f"the catalog cannot be written: {error}") from error

    def cluster_id(self) -> str:
        return str(self._db.execute("SELECT id FROM cluster").fetchone()[0])

    def topics(self) -> list[TopicRow]:
        rows = self._db.execute("SELECT name, id, partitions, internal, overrides FROM topics ORDER BY name").fetchall()
        return [
            TopicRow(name, UUID(topic_id), partitions, bool(internal), json.loads(overrides))
            for name, topic_id, partitions, internal, overrides in rows
        ]

    def save_topic(self, row: TopicRow) -> None:
        with self._changing():
            self._db.execute(
                "INSERT INTO topics (id, name, partitions, internal, overrides) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET partitions = excluded.partitions, overrides = excluded.overrides",
                (str(row.id), row.name, row.partitions, int(row.internal), json.dumps(row.overrides)),
            )
            self._db.execute("DELETE FROM deleted_topics WHERE id = ?", (str(row.id),))

    def delete_topic(self, topic_id: UUID) -> None:
        with self._changing():
            self._db.execute(
                "INSERT OR IGNORE INTO deleted_topics (id, name) SELECT id, name FROM topics WHERE id = ?",
                (str(topic_id),),
            )
            self._db.execute("DELETE FROM topics WHERE id = ?", (str(topic_id),))

    def deleted_topics(self) -> list[DeletedTopic]:
        rows = self._db.execute("SELECT name, id FROM deleted_topics ORDER BY name").fetchall()
        return [DeletedTopic(name, UUID(topic_id)) for name, topic_id in rows]

    def forget_deleted_topic(self, topic_id: UUID) -> None:
        with self._changing():
            self._db.execute("DELETE FROM deleted_topics WHERE id = ?", (str(topic_id),))

    def exchanges(self) -> list[ExchangeRow]:
        rows = self._db.execute(
            "SELECT name, kind, alternate, auto_delete, internal, arguments FROM exchanges"
        ).fetchall()
        return [
            ExchangeRow(name, kind, alternate, bool(auto_delete), bool(internal), arguments)
            for name, kind, alternate, auto_delete, internal, arguments in rows
        ]

    def save_exchange(self, row: ExchangeRow) -> None:
        with self._changing():
            self._db.execute(
                "INSERT OR REPLACE INTO exchanges (name, kind, alternate, auto_delete, internal, arguments)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (row.name, row.kind, row.alternate, int(row.auto_delete), int(row.internal), row.arguments),
            )

    def bindings(self) -> list[BindingRow]:
        rows = self._db.execute("SELECT exchange, target, key, arguments FROM bindings").fetchall()
        return [BindingRow(*row) for row in rows]

    def save_binding(self, row: BindingRow) -> None:
        with self._changing():
            self._db.execute(
                "INSERT OR IGNORE INTO bindings (exchange, target, key, arguments) VALUES (?, ?, ?, ?)", _columns(row)
            )

    def delete_routes(self, exchanges: Iterable[str], bindings: Iterable[BindingRow]) -> None:
        with self._changing():
            self._db.executemany("DELETE FROM exchanges WHERE name = ?", [(name,) for name in exchanges])
            self._db.executemany(
                "DELETE FROM bindings WHERE exchange = ? AND target = ? AND key = ? AND arguments = ?",
                [_columns(row) for row in bindings],
            )

    def settings(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT name, value FROM settings").fetchall())

    def save_settings(self, settings: dict[str, str]) -> None:
        with self._changing():
            self._db.execute("DELETE FROM settings")
            self._db.executemany("INSERT INTO settings VALUES (?, ?)", list(settings.items()))

    def definitions(self, kind: str) -> dict[str, bytes]:
        return dict(
            self._db.execute("SELECT name, value FROM definitions WHERE kind = ? ORDER BY name", (kind,)).fetchall()
        )

    def save_definition(self, kind: str, name: str, value: bytes) -> None:
        with self._changing():
            self._db.execute(
                "INSERT OR REPLACE INTO definitions (kind, name, value) VALUES (?, ?, ?)", (kind, name, value)
            )

    def delete_definition(self, kind: str, name: str) -> None:
        with self._changing():
            self._db.execute("DELETE FROM definitions WHERE kind = ? AND name = ?", (kind, name))

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _columns(row: BindingRow) -> tuple[str, str, str, bytes]:
    return row.exchange, row.target, row.key, row.arguments


def _refuse_newer(path: Path) -> None:
    """Looks without touching anything."""
    db = sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True)
    try:
        row = db.execute("SELECT version FROM format").fetchone()
    except sqlite3.OperationalError:
        return  # an unfinished first start
    except sqlite3.DatabaseError as error:
        raise Corrupt(f"{path} is damaged ({error}); it was left untouched. Put it back from a backup.") from error
    finally:
        db.close()
    _refuse(path, None if row is None else int(row[0]))


def _refuse(path: Path, version: int | None) -> None:
    if version is not None and version > FORMAT_VERSION:
        raise NewerFormat(
            f"{path.parent} was written by a newer version of Waystation (format {version}, this one knows"
            f" {FORMAT_VERSION}); it was left untouched. Upgrade Waystation to use it."
        )


def _refuse_orphans(folder: Path) -> None:
    """A new catalog would know none of the topics in the folder: all of them would be set aside, queues and offsets
    too, and new ones would take their names."""
    topics = folder / "topics"
    if topics.is_dir() and any(topics.iterdir()):
        raise Corrupt(
            f"{folder} holds the files of topics, but its {FILE} is gone; nothing was touched."
            f" Put {FILE} back from a backup; an older one will do. Without a backup, move everything in {topics} to"
            f" {folder / 'lost+found'} and run `waystation lost restore {folder} --all`."
        )
