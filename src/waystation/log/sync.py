"""What a commit round does for one log, and what is known once it is done.

A job is made on the loop (`Log.take_sync`), runs on a thread, and is handed back on the loop (`Log.synced`).

A job opens everything that it will sync before it syncs anything. What cannot be opened (no file handles left, no
memory) is as dirty afterwards as before: nothing is lost, and the job can be done again. Only the answer of fsync
itself says that the page cache is not to be trusted any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.log.segments.derived import Files
from waystation.log.segments.segment import Segment

if TYPE_CHECKING:
    from waystation.log.log import Log


class RecoveryPoint(msgspec.Struct, frozen=True):
    """Everything before `offset` is known to be on the disk, intact; it ends at `position` of segment `segment`.

    `truncations`: how often the log had been truncated when this was true. See `points.py`.
    """

    offset: int
    segment: int
    position: int
    truncations: int = 0


class SyncJob(msgspec.Struct):
    """One log's share of a round; `run` blocks."""

    log: Log
    segments: list[Segment]
    folder: str | None
    point: RecoveryPoint
    files: Files | None
    size: int  # bytes that were appended since the job before
    error: OSError | None = None
    unopened: OSError | None = None  # nothing was synced, and nothing is lost: it is to be done again
    unsaved: OSError | None = None  # the data is durable, what helps recovery is not (a full disk)
    of_round: bool = True  # False: beside a round, for the sake of a snapshot; the epochs are the round's

    def run(self) -> None:
        """Raises what fsync raised; whatever else went wrong is noted."""
        try:
            files = [segment.file for segment in self.segments]
            folder = None if self.folder is None else self.log.world.disk.open_folder(self.folder)
        except OSError as error:
            self.unopened = error
            return
        try:
            for file in files:
                file.sync()
            if folder is not None:
                folder.sync()
        finally:
            if folder is not None:
                folder.close()
        try:
            self._save()
        except OSError as error:
            self.unsaved = error

    def _save(self) -> None:
        if self.of_round and self.log.epochs.changed:
            self.log.epochs.save()
        if self.files is not None:
            self.files.save()
