"""Files that spare recovery from reading the whole log: snapshots of the producers' state, transaction indexes.

What they say follows from the log, so losing them costs time; but before a part of the log is removed (retention,
compaction), a snapshot that covers it must be on the disk, or the producers that wrote it would be forgotten.

A snapshot also says that all transactions that were aborted before it are in the transaction indexes. So the files are
saved in the order in which they were noted, one set at a time, on a thread; the log notes them on the loop.
"""

from __future__ import annotations

import asyncio

import msgspec

from waystation.log.segments.segment import file_name
from waystation.world.disk import Disk

SNAPSHOTS = 2
"""Kept: should the newest be damaged, the one before it spares most of the reading. Those at the beginning of a segment
are kept as long as it is, for a truncation: what was removed before it, they alone remember."""


class Files(msgspec.Struct, frozen=True):
    """A set to be saved."""

    disk: Disk
    folder: str
    contents: dict[str, bytes | None]  # by name; None: there is no such file any more
    snapshot_offset: int

    def save(self) -> None:
        """Durable when it returns; blocks."""
        for name, content in self.contents.items():
            path = f"{self.folder}/{name}"
            if content is None:
                self.disk.remove(path)
            else:
                self.disk.replace_file(path, content)
        names = self.disk.list(self.folder)
        for name in [name for name in names if name.endswith(".snapshot")][:-SNAPSHOTS]:
            if name.replace(".snapshot", ".log") not in names:
                self.disk.remove(f"{self.folder}/{name}")


class Derived:
    """One log's. For the loop's thread."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._waiting: dict[str, bytes | None] = {}
        self._saving = False
        self._settled: asyncio.Future[None] | None = None
        self.noted_offset = -1  # of the newest snapshot
        self.saved_offset = -1  # of the newest that is on the disk

    def note(self, name: str, content: bytes | None) -> None:
        """What waits under this name is replaced in its place: a snapshot that waits behind it needs what it says."""
        self._waiting[name] = content

    def note_snapshot(self, offset: int, name: str, content: bytes) -> None:
        self.note(name, content)
        self.noted_offset = offset

    def restored(self, snapshot_offset: int) -> None:
        """Recovery has found this one on the disk."""
        self.noted_offset = self.saved_offset = snapshot_offset

    @property
    def waits(self) -> bool:
        """Whether there is a set to be saved, and nobody saves one."""
        return bool(self._waiting) and not self._saving

    async def pause(self) -> None:
        """Returns when nobody saves a set; nobody does until `resume`."""
        while await self.settled():
            pass
        self._saving = True

    def resume(self) -> None:
        self._saving = False
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    def snapshots_until(self, offset: int) -> dict[str, bytes | None]:
        """Those that wait, up to this one."""
        last = file_name(offset, "snapshot")
        return {name: content for name, content in self._waiting.items() if name.endswith(".snapshot") and name <= last}

    def cut(self, snapshot_offset: int) -> None:
        """The log was cut to `snapshot_offset`, and a snapshot of that offset is on the disk: forgets all else."""
        self._waiting.clear()
        self.restored(snapshot_offset)

    def forget(self) -> None:
        """Nothing of the log is left, and no snapshot is on the disk."""
        self._waiting.clear()
        self.restored(-1)

    def take(self) -> Files | None:
        """What is to be saved now; None if nothing is, or while another set is being saved."""
        if not self.waits:
            return None
        self._saving = True
        files = Files(self._disk, self._folder, self._waiting, self.noted_offset)
        self._waiting = {}
        return files

    async def settled(self) -> bool:
        """Returns when nobody saves a set any more; False: nobody does."""
        if not self._saving:
            return False
        if self._settled is None:
            self._settled = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._settled)
        return True

    def done(self, files: Files, *, saved: bool) -> None:
        """The set that was taken is saved, or has to wait for another time."""
        self.resume()
        if saved:
            self.saved_offset = files.snapshot_offset
        else:
            self._waiting = {**files.contents, **self._waiting}
