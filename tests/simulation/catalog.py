"""A catalog on the simulated disk, as durable as SQLite is on a real one: one file, replaced at every change.

A change is on the disk when its call returns. One that fails may have happened or not, and what is read afterwards is
what the disk has. Turns of threads do not change within a change, as the lock of the real catalog has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.disk import SimDisk
from waystation.catalog.catalog import BindingRow, DeletedTopic, ExchangeRow, TopicRow
from waystation.catalog.memory import MemoryCatalog
from waystation.errors import StorageFailed

FILE = "catalog"


class _Content(msgspec.Struct):
    topics: list[TopicRow]
    deleted: list[DeletedTopic]
    exchanges: list[ExchangeRow]
    bindings: list[BindingRow]
    settings: dict[str, str]
    definitions: dict[str, dict[str, bytes]]


def _durably(change: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(change)
    def changed(self: DiskCatalog, *args: Any, **options: Any) -> None:
        change(self, *args, **options)
        self.save()

    return changed


class DiskCatalog(MemoryCatalog):
    """Read when it is made: one for each life of a broker."""

    def __init__(self, disk: SimDisk, root: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = f"{root}/{FILE}"
        disk.make_folder(root)
        disk.sync_folder(root)  # a process may have been killed before it could
        self._load()

    save_topic = _durably(MemoryCatalog.save_topic)
    delete_topic = _durably(MemoryCatalog.delete_topic)
    forget_deleted_topic = _durably(MemoryCatalog.forget_deleted_topic)
    save_exchange = _durably(MemoryCatalog.save_exchange)
    save_binding = _durably(MemoryCatalog.save_binding)
    delete_routes = _durably(MemoryCatalog.delete_routes)
    save_settings = _durably(MemoryCatalog.save_settings)
    save_definition = _durably(MemoryCatalog.save_definition)
    delete_definition = _durably(MemoryCatalog.delete_definition)

    def save(self) -> None:
        content = _Content(
            self.topics(),
            self.deleted_topics(),
            self.exchanges(),
            self.bindings(),
            self._settings,
            self._definitions,
        )
        turns, self._disk.before_operation = self._disk.before_operation, None
        try:
            self.replace(self._path, msgspec.msgpack.encode(content))
        except OSError as error:
            self._load()
            raise StorageFailed(f"the catalog cannot be written: {error}") from error
        finally:
            self._disk.before_operation = turns

    def replace(self, path: str, data: bytes) -> None:
        self._disk.replace_file(path, data)

    def _load(self) -> None:
        data = self._disk.read_file(self._path)
        content = _Content([], [], [], [], {}, {}) if data is None else msgspec.msgpack.decode(data, type=_Content)
        self._topics = {row.id: row for row in content.topics}
        self._deleted = {row.id: row for row in content.deleted}
        self._exchanges = {row.name: row for row in content.exchanges}
        self._bindings = dict.fromkeys(content.bindings)
        self._settings = content.settings
        self._definitions = content.definitions


class HastyCatalog(DiskCatalog):
    """A deliberate bug, the one that SQLite has with `synchronous=FULL`: the name is changed but not synced."""

    def replace(self, path: str, data: bytes) -> None:
        file = self._disk.open(f"{path}.new", create=True)
        file.truncate(0)
        file.write([data], 0)
        file.sync()
        file.close()
        self._disk.rename(f"{path}.new", path)
