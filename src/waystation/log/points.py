"""Where recovery may start: one small file for all logs of a broker.

`recovery-points` says, for each log, up to where its data is known to be on the disk, whether the broker stopped
cleanly, and during which boot of the machine and on which volume it was written: the same boot vouches for what is in
the page cache, but not for a copy that was restored elsewhere. After a crash only what lies behind the points is read
and checked; after a clean stop, nothing is. The file is replaced atomically; losing it costs time, never data.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from waystation.log.sync import RecoveryPoint
from waystation.world.disk import Disk

FILE = "recovery-points"


class _Content(msgspec.Struct):
    clean: bool
    boot: str
    points: dict[str, tuple[int, int, int]]
    volume: str = ""  # not known: an older broker wrote the file


class RecoveryPoints:
    """Read once at start, replaced at checkpoints and at a clean stop."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{FILE}"
        self.clean = False
        self.same_boot = False  # and the same volume
        self._boot = ""
        self._volume = ""
        self._points: dict[str, tuple[int, int, int]] = {}

    def load(self) -> None:
        data = self._disk.read_file(self._path)
        if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            self.same_boot = True  # not known: then nothing that stands behind a damaged batch may be cut away
            return
        content = msgspec.json.decode(data[4:], type=_Content)
        self.clean = content.clean
        self._boot = content.boot
        self._volume = content.volume
        same_volume = content.volume in ("", self._disk.volume_id(self._folder))
        self.same_boot = bool(content.boot) and content.boot == self._disk.boot_id() and same_volume
        self._points = content.points

    def of(self, name: str) -> RecoveryPoint | None:
        point = self._points.get(name)
        return None if point is None else RecoveryPoint(*point)

    def forget(self, name: str) -> None:
        """The log's files were rewritten: the next start reads its last segment from the beginning.

        The offset is kept, so that none is given twice. Durable when it returns; blocks.
        """
        if name in self._points:
            offset, segment, _ = self._points[name]
            self._points[name] = (offset, segment, -1)
            self._write()

    def discard(self) -> None:
        """Removes the file: what it says is no longer true, and there is no room to say what is."""
        self._disk.remove(self._path)
        self._points, self.clean = {}, False

    def save(self, points: dict[str, RecoveryPoint], *, clean: bool) -> None:
        """Durable when it returns; blocks."""
        self._boot = self._disk.boot_id()
        self._volume = self._disk.volume_id(self._folder)
        self._points = {name: (point.offset, point.segment, point.position) for name, point in points.items()}
        self.clean = clean
        self._write()

    def _write(self) -> None:
        body = msgspec.json.encode(_Content(self.clean, self._boot, self._points, self._volume))
        self._disk.replace_file(self._path, crc32c(body).to_bytes(4, "big") + body)
