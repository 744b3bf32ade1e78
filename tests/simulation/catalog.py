"""A catalog on the simulated disk, as durable as SQLite is on a real one: one file, replaced at every change.

A change is on the disk when its call returns. One that fails may have happened or not; then what was before is written
again, as SQLite's catalog does. Turns of threads do not change within a change, as the lock of the real catalog has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.simulation.disk import SimDisk
from waystation.catalog import CatalogEntry, MemoryCatalog
from waystation.catalog.history import UpdateHistory

FILE = "catalog"


class _Content(msgspec.Struct):
    revision: int
    entries: dict[str, CatalogEntry]


class DiskCatalog(MemoryCatalog):
    """Read when it is made: one for each life of a broker."""

    def __init__(self, disk: SimDisk, root: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = f"{root}/{FILE}"
        disk.make_folder(root)
        disk.sync_folder(root)  # a process may have been killed before it could
        data = disk.read_file(self._path)
        if data is not None:
            content = msgspec.msgpack.decode(data, type=_Content)
            self._revision, self._entries = content.revision, content.entries
            self.history = UpdateHistory(self._revision)

    def store(self) -> None:
        turns, self._disk.before_operation = self._disk.before_operation, None
        try:
            self.replace(self._path, msgspec.msgpack.encode(_Content(self._revision, self._entries)))
        finally:
            self._disk.before_operation = turns

    def replace(self, path: str, data: bytes) -> None:
        self._disk.replace_file(path, data)


class HastyCatalog(DiskCatalog):
    """A deliberate bug, the one that SQLite has with `synchronous=FULL`: the name is changed but not synced."""

    def replace(self, path: str, data: bytes) -> None:
        file = self._disk.open(f"{path}.new", create=True)
        file.truncate(0)
        file.write([data], 0)
        file.sync()
        file.close()
        self._disk.rename(f"{path}.new", path)


class BlindCatalog(DiskCatalog):
    """A deliberate bug: what a writer expects is not compared with what there is."""

    def compare(self, expected: Mapping[str, int]) -> None:
        pass
