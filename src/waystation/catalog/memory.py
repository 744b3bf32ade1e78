"""A catalog that lives as long as the object: for simulations and brokers that leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from waystation.catalog.catalog import Catalog, CatalogEntry, Snapshot, Update, Watch, check_expected, real_changes
from waystation.catalog.history import UpdateHistory
from waystation.errors import StorageFailed, WriteInDoubt


class MemoryCatalog(Catalog):
    """Who keeps it elsewhere too says so in `store`."""

    def __init__(self, cluster_id: str = "waystation-in-memory01") -> None:
        self._cluster_id = cluster_id
        self._lock = threading.Lock()
        self._revision = 0
        self._entries: dict[str, CatalogEntry] = {}
        self.history = UpdateHistory(0)

    def cluster_id(self) -> str:
        return self._cluster_id

    def revision(self) -> int:
        return self._revision

    def get(self, key: str) -> CatalogEntry | None:
        return self._entries.get(key)

    def read(self, prefix: str = "") -> Snapshot:
        with self._lock:
            found = sorted(item for item in self._entries.items() if item[0].startswith(prefix))
            return Snapshot(self._revision, dict(found))

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        with self._lock:
            self.compare(expected or {})
            made = real_changes(changes, self._entries)
            if not made:
                return self._revision
            before = self._revision, {change.key: self._entries.get(change.key) for change in made}
            self._set(self._revision + 1, {key: None if value is None else bytes(value) for key, value in made})
            try:
                self.store()
            except OSError as error:
                self._undo(*before, error)
            self.history.add(Update(self._revision, made))
            return self._revision

    def compare(self, expected: Mapping[str, int]) -> None:
        check_expected(expected, self._entries)

    def store(self) -> None:
        """Makes it durable; OSError if that fails, and then it may be so or not."""

    def _set(self, revision: int, values: Mapping[str, bytes | None]) -> None:
        for key, value in values.items():
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = CatalogEntry(value, revision)
        self._revision = revision

    def _undo(self, revision: int, entries: Mapping[str, CatalogEntry | None], error: OSError) -> None:
        """Raises. What is stored is made to say what it said before; a later write does it if this fails."""
        self._revision = revision
        for key, entry in entries.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
        try:
            self.store()
        except OSError:
            raise WriteInDoubt(f"the catalog cannot be written, and a restart may show the change: {error}") from error
        raise StorageFailed(f"the catalog cannot be written: {error}") from error

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        return self.history.watch(after, wake)

    def close(self) -> None:
        pass
