"""What the store says of the nodes' disks, followed as a part of the catalog. A leader that lets a replica in compares
with it. It decides nothing; on the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from waystation.catalog import Catalog, Update
from waystation.cluster.state import DISKS, DiskState, disk_key, node_of, read_disk
from waystation.cluster.writes import Known


class DiskView:
    prefixes: tuple[str, ...] = (DISKS,)

    def __init__(self) -> None:
        self._disks: dict[int, Known[DiskState]] = {}

    @property
    def disks(self) -> Mapping[int, Known[DiskState]]:
        return self._disks

    def load(self, catalog: Catalog) -> None:
        """Blocks; before the follower starts, after it has begun."""
        for key, entry in catalog.read(DISKS).entries.items():
            self._disks[node_of(key)] = Known(key, read_disk(entry.value), entry.revision)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            known = self._disks.get(node_of(key))
            if known is not None and known.revision >= update.revision:
                continue
            if value is None:
                self._disks.pop(node_of(key), None)
            else:
                self._disks[node_of(key)] = Known(key, read_disk(value), update.revision)

    def known_keys(self) -> Iterable[str]:
        return [disk_key(node_id) for node_id in self._disks]
