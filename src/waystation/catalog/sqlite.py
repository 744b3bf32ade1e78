"""The catalog in one SQLite file (rollback journal: no other file stays beside it). A change that returned is durable.

One table has all entries, each with its revision, and another the revision of the last write. Only one process has the
file (the data folder is locked), so the history that watches need is in memory.

A commit in this mode is the removal of the journal. `synchronous=FULL` does not make that removal durable: after a
power cut the journal is back, and SQLite undoes the change with it. `EXTRA` syncs the folder too. A process that was
killed between the two leaves a change that the next start sees and a power cut would still undo, so opening syncs the
folder.

In an encrypted folder the values are sealed, each bound to its key; the keys (names) are not. Opening seals what is
still plain, and what an earlier folder key has sealed.

`format` holds the version of the whole data folder, plus 1000 if it is encrypted: then versions before encryption
refuse it, too. A newer one is refused before anything is touched; an older one is brought up step by step
(`sqlite_upgrades.py`), each step in one transaction.
"""

from __future__ import annotations

import base64
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NoReturn

import msgspec

from waystation.catalog.catalog import (
    FORMAT_VERSION,
    Catalog,
    CatalogChange,
    CatalogEntry,
    Snapshot,
    Update,
    Watch,
    check_expected,
    real_changes,
)
from waystation.catalog.history import UpdateHistory
from waystation.catalog.sqlite_upgrades import ENTRIES, UPGRADES
from waystation.encryption.key_ring import KeyRing
from waystation.errors import Corrupt, NewerFormat, StorageFailed, WriteInDoubt
from waystation.world.disk import OsDisk
from waystation.world.random import Random

FILE = "catalog.sqlite"
ENCRYPTED = 1000
"""Added to the version in `format`."""
_SEALED = b"\0WSV1"

_SCHEMA = f"""
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE cluster (id TEXT NOT NULL);
{";".join(ENTRIES)};
"""


def new_cluster_id(random: Random) -> str:
    """As Kafka's are."""
    return base64.urlsafe_b64encode(random.token(16)).decode().rstrip("=")


class _Undo(msgspec.Struct, frozen=True):
    """What was there before a write that may have been made though it failed."""

    revision: int
    entries: dict[str, CatalogEntry | None]


def has_entries(folder: str, prefix: str) -> bool:
    """Whether a folder's catalog has entries whose keys begin like this, as far as it can be read. It changes nothing:
    the folder may be that of a broker that runs, or be none."""
    path = f"{folder}/{FILE}"
    if not os.path.exists(path):
        return False
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as db:
            found = db.execute("SELECT 1 FROM entries WHERE key >= ? AND key < ?", (prefix, prefix + "\x7f")).fetchone()
    except sqlite3.Error:
        return False
    return found is not None


def is_encrypted(folder: str) -> bool:
    """Whether a folder's catalog says that the folder is encrypted, as far as it can be read. It changes nothing."""
    path = f"{folder}/{FILE}"
    if not os.path.exists(path):
        return False
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as db:
            row = db.execute("SELECT version FROM format").fetchone()
    except sqlite3.Error:
        return False
    return row is not None and int(row[0]) // ENCRYPTED == 1


class SqliteCatalog(Catalog):
    """One connection, guarded by a lock: changes are rare."""

    def __init__(self, folder: str, random: Random, keys: KeyRing | None = None) -> None:
        path = f"{folder}/{FILE}"
        if os.path.exists(path):
            _refuse_unreadable(folder, keys)
        else:
            _refuse_orphans(folder)
        self._lock = threading.Lock()
        self._keys = keys
        self._sealing = None if keys is None else keys.new_data_key()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._db.execute("PRAGMA synchronous=EXTRA")
            version = self._version()
            # Again: a crashed change of the newer version may have hidden it the first time.
            _refuse(folder, version, keys)
            if version is None:
                _refuse_orphans(folder)
                self._create(random)
            self._upgrade()
            self._seal_all()
            OsDisk().sync_folder(folder)
            self._revision = self._stored_revision()
            self.history = UpdateHistory(self._revision)
            self._undo: _Undo | None = None
        except BaseException:
            self._db.close()
            raise

    def _version(self) -> int | None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'format'").fetchone():
            return None
        row = self._db.execute("SELECT version FROM format").fetchone()
        return None if row is None else int(row[0])

    def _create(self, random: Random) -> None:
        cluster_id = new_cluster_id(random)
        self._db.executescript(
            f"BEGIN; {_SCHEMA} INSERT INTO format VALUES ({FORMAT_VERSION});"
            f" INSERT INTO cluster VALUES ('{cluster_id}'); COMMIT;"
        )

    def _upgrade(self) -> None:
        while (version := self._version() or FORMAT_VERSION) % ENCRYPTED < FORMAT_VERSION:
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                UPGRADES[version % ENCRYPTED](self._db)
                self._db.execute("UPDATE format SET version = ?", (version + 1,))

    def _seal_all(self) -> None:
        """What is plain is overwritten in the file, what is left of it in unused pages too, and only then the folder is
        marked. A crash in between: the next start begins again."""
        if self._keys is None:
            return
        version = self._version() or FORMAT_VERSION
        found = self._db.execute("SELECT key, value FROM entries").fetchall()
        old = [(key, self._open(key, value)) for key, value in found if self._sealed_with(value) != self._keys.active]
        if old:
            self._db.execute("PRAGMA secure_delete=ON")
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                sealed = [(self._seal(key, value), key) for key, value in old]
                self._db.executemany("UPDATE entries SET value = ? WHERE key = ?", sealed)
        if version < ENCRYPTED:
            self._db.execute("VACUUM")
            with self._lock, self._db:
                self._db.execute("UPDATE format SET version = ?", (version + ENCRYPTED,))

    def _sealed_with(self, value: bytes) -> int | None:
        """The number of a folder key."""
        if not value.startswith(_SEALED):
            return None
        return int.from_bytes(value[len(_SEALED) : len(_SEALED) + 4], "big")

    def _seal(self, key: str, value: bytes) -> bytes:
        if self._sealing is None:
            return value
        return b"".join((_SEALED, *self._sealing.seal(value, _associated(key))))

    def _open(self, key: str, value: bytes) -> bytes:
        if self._keys is None or not value.startswith(_SEALED):
            return value
        try:
            return self._keys.open(memoryview(value)[len(_SEALED) :], _associated(key))
        except Corrupt as error:
            raise Corrupt(f"the entry {key[:100]!r} of {FILE} cannot be opened: {error}") from error

    def cluster_id(self) -> str:
        return str(self._db.execute("SELECT id FROM cluster").fetchone()[0])

    def revision(self) -> int:
        return self._revision

    def get(self, key: str) -> CatalogEntry | None:
        with self._lock:
            return self._there([key]).get(key)

    def read(self, prefix: str = "") -> Snapshot:
        where, bounds = ("", ()) if not prefix else (" WHERE key >= ? AND key < ?", (prefix, _after_all(prefix)))
        with self._lock:
            found = self._db.execute(f"SELECT key, value, revision FROM entries{where} ORDER BY key", bounds).fetchall()
            entries = {key: CatalogEntry(self._open(key, value), revision) for key, value, revision in found}
            return Snapshot(self._revision, entries)

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        with self._lock:
            made = self._write(changes, expected or {})
            if made:
                self._revision += 1
                self.history.add(Update(self._revision, made))
            return self._revision

    def _write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int]) -> tuple[CatalogChange, ...]:
        """One transaction: all of it durable at the end, or none of it."""
        there: dict[str, CatalogEntry] = {}
        try:
            self._settle()
            there = self._there({**changes, **expected})
            check_expected(expected, there)
            made = real_changes(changes, there)
            if made:
                self._put(self._revision + 1, [(key, value, self._revision + 1) for key, value in made])
        except sqlite3.Error as error:
            before = {key: there.get(key) for key in changes}
            self._failed(_Undo(self._revision, before), error)
        return made

    def _there(self, keys: Iterable[str]) -> dict[str, CatalogEntry]:
        found: dict[str, CatalogEntry] = {}
        for key in keys:
            row = self._db.execute("SELECT value, revision FROM entries WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found[key] = CatalogEntry(self._open(key, row[0]), row[1])
        return found

    def _put(self, revision: int, entries: Iterable[tuple[str, bytes | None, int]]) -> None:
        entries = list(entries)
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            "DELETE FROM entries WHERE key = ?", [(key,) for key, value, _ in entries if value is None]
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO entries (key, value, revision) VALUES (?, ?, ?)",
            [(key, self._seal(key, value), revised) for key, value, revised in entries if value is not None],
        )
        self._db.execute("UPDATE revision SET number = ?", (revision,))
        self._db.execute("COMMIT")

    def _failed(self, undo: _Undo, error: sqlite3.Error) -> NoReturn:
        """A commit that fails may have been made: the disk refused to sync it. Then what was there is put back, now or
        before the next write; until then a restart may show the change."""
        text = f"the catalog cannot be written: {error}"
        try:
            self._roll_back()
            self._undo = self._undo or undo
            self._settle()
        except sqlite3.Error:
            raise WriteInDoubt(f"{text}; a restart may show the change") from error
        raise StorageFailed(text) from error

    def _settle(self) -> None:
        """Puts back what a write replaced that failed and was made all the same."""
        undo = self._undo
        if undo is None:
            return
        try:
            if self._stored_revision() != undo.revision:
                entries = undo.entries.items()
                self._put(undo.revision, [(key, *(entry or (None, undo.revision))) for key, entry in entries])
        except sqlite3.Error:
            self._roll_back()
            raise
        self._undo = None

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _stored_revision(self) -> int:
        return int(self._db.execute("SELECT number FROM revision").fetchone()[0])

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        return self.history.watch(after, wake)

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _after_all(prefix: str) -> str:
    """The first key that is after all those that begin like this."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _read_only(path: str) -> str:
    """The file as SQLite's URI, by which it is opened without being touched: three characters mean something there."""
    escaped = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"


def _associated(key: str) -> bytes:
    return f"waystation: entry {key}".encode()


def _refuse_unreadable(folder: str, keys: KeyRing | None) -> None:
    """Looks without touching anything."""
    path = f"{folder}/{FILE}"
    db = sqlite3.connect(_read_only(path), uri=True)
    try:
        row = db.execute("SELECT version FROM format").fetchone()
    except sqlite3.OperationalError:
        return  # an unfinished first start
    except sqlite3.DatabaseError as error:
        raise Corrupt(f"{path} is damaged ({error}); it was left untouched. Put it back from a backup.") from error
    finally:
        db.close()
    _refuse(folder, None if row is None else int(row[0]), keys)


def _refuse(folder: str, version: int | None, keys: KeyRing | None) -> None:
    if version is None:
        return
    if version // ENCRYPTED == 1 and keys is None:
        raise Corrupt(
            f"{folder} is encrypted, but there is no key to open it with: its file of keys (encryption.keys) is"
            " missing. It was left untouched. Put that file back from a backup"
        )
    if version // ENCRYPTED > 1 or version % ENCRYPTED > FORMAT_VERSION:
        raise NewerFormat(
            f"{folder} was written by a newer version of Waystation (format {version % ENCRYPTED}, this one knows"
            f" {FORMAT_VERSION}); it was left untouched. Upgrade Waystation to use it."
        )


def _refuse_orphans(folder: str) -> None:
    """A new catalog would know none of the topics in the folder: all of them would be set aside, queues and offsets
    too, and new ones would take their names."""
    topics = f"{folder}/topics"
    if os.path.isdir(topics) and os.listdir(topics):
        raise Corrupt(
            f"{folder} has the files of topics, but its {FILE} is missing; nothing was touched."
            f" Put {FILE} back from a backup; an older one will do. Without a backup, move everything in {topics} to"
            f" {folder}/lost+found and run `waystation lost restore {folder} --all`."
        )
