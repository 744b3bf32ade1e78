"""Where recovery may start: one small file for all logs of a broker.

`recovery-points` says, for each log, up to where its data is known to be on the disk, whether the broker stopped
cleanly, and during which boot of the machine and on which volume it was written: the same boot vouches for what is in
the page cache, but not for a copy that was restored elsewhere. After a crash only what lies behind the points is read
and checked; after a clean stop, nothing is. The file is replaced atomically; losing it costs time, never data.

A truncation takes back what a point has said, and it must not wait for a file that all logs share. So each log that was
ever truncated has a file of its own, `truncated-to`: how often it was truncated, and a point that all of these
truncations have left true. A point that was noted before the latest truncation counts only as far as this file says. It
is durable before the truncation removes anything.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from waystation.log.sync import RecoveryPoint
from waystation.wire.crc32c import crc32c
from waystation.world.disk import Disk

FILE = "recovery-points"
TRUNCATED_FILE = "truncated-to"


class _Content(msgspec.Struct):
    clean: bool
    boot: str
    points: dict[str, tuple[int, int, int]]
    volume: str = ""  # not known: an older broker wrote the file
    truncations: dict[str, int] = {}  # of logs that were truncated at least once


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
        self._truncations: dict[str, int] = {}
        self.changing = asyncio.Lock()
        """Held from looking at the logs until their points are saved, and while one is dropped: or what was seen before
        it was dropped would be saved after that."""

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
        self._truncations = content.truncations

    def of(self, name: str) -> RecoveryPoint | None:
        point = self._points.get(name)
        return None if point is None else RecoveryPoint(*point, self._truncations.get(name, 0))

    def forget(self, name: str) -> None:
        """The log's files were rewritten: the next start reads its last segment from the beginning.

        The offset is kept, so that none is given twice. Durable when it returns; blocks.
        """
        if name in self._points:
            offset, segment, _ = self._points[name]
            self._points[name] = (offset, segment, -1)
            self._write()

    def forget_all(self) -> None:
        """The same of every log."""
        self._points = {name: (offset, segment, -1) for name, (offset, segment, _) in self._points.items()}
        self._write()

    def drop(self, name: str) -> None:
        """The log's files are about to be removed, and another log may get its name: nothing that was noted is true of
        that one, and nobody is to miss this one. Durable when it returns; blocks."""
        if self._disk.read_file(self._path) is None:
            return
        self._points = {other: point for other, point in self._points.items() if other != name}
        self._truncations = {other: count for other, count in self._truncations.items() if other != name}
        self._write()

    def discard(self) -> None:
        """Removes the file: what it says is no longer true, and there is no room to say what is."""
        self._disk.remove(self._path)
        self._points, self._truncations, self.clean = {}, {}, False

    def save(self, points: dict[str, RecoveryPoint], *, clean: bool) -> None:
        """Durable when it returns; blocks."""
        self._boot = self._disk.boot_id()
        self._volume = self._disk.volume_id(self._folder)
        self._points = {name: (point.offset, point.segment, point.position) for name, point in points.items()}
        self._truncations = {name: point.truncations for name, point in points.items() if point.truncations}
        self.clean = clean
        self._write()

    def _write(self) -> None:
        body = msgspec.json.encode(_Content(self.clean, self._boot, self._points, self._volume, self._truncations))
        self._disk.replace_file(self._path, crc32c(body).to_bytes(4, "big") + body)


# -- of a log that was truncated ---------------------------------------------------------------------------------------


def save_truncated(disk: Disk, folder: str, point: RecoveryPoint) -> None:
    """Durable when it returns; blocks."""
    text = f"{point.truncations} {point.offset} {point.segment} {point.position}\n"
    disk.replace_file(f"{folder}/{TRUNCATED_FILE}", text.encode())


def trusted_point(
    disk: Disk, folder: str, point: RecoveryPoint | None, truncated: bool
) -> tuple[RecoveryPoint | None, int]:
    """What of a saved point still counts, and how often the log in `folder` was truncated; `truncated`: whether it has
    the file that says so."""
    truncations = 0 if point is None else point.truncations
    if not truncated:
        return point, truncations
    words = (disk.read_file(f"{folder}/{TRUNCATED_FILE}") or b"").split()
    if len(words) != 4 or not all(word.isdigit() for word in words):
        return None, truncations + 1  # damaged: whatever was noted before may have been taken back
    count, offset, segment, position = map(int, words)
    if point is None or truncations >= count:
        return point, max(truncations, count)
    if offset <= point.offset:
        known = point.position >= 0  # else the files were rewritten (`RecoveryPoints.forget`)
        return RecoveryPoint(offset, segment, position if known else -1, count), count
    return replace(point, truncations=count), count
