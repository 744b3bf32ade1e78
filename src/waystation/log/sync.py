"""What a commit round does for one log, and what is known once it is done.

A job is made on the loop (`Log.take_sync`), runs on a thread, and is handed back on the loop (`Log.synced`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waystation.log.derived import Files
from waystation.log.segment import Segment

if TYPE_CHECKING:
    from waystation.log.log import Log


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Everything before `offset` is known to be on the disk, intact; it ends at `position` of segment `segment`."""

    offset: int
    segment: int
    position: int


@dataclass(slots=True)
class SyncJob:
    """One log's share of a round; `run` blocks."""

    log: Log
    segments: list[Segment]
    folder: str | None
    point: RecoveryPoint
    files: Files | None
    size: int  # bytes that were appended since the job before
    error: OSError | None = field(default=None)
    unsaved: OSError | None = field(default=None)  # the data is durable, what helps recovery is not (a full disk)

    def run(self) -> None:
        for segment in self.segments:
            segment.file.sync()
        if self.folder is not None:
            self.log.world.disk.sync_folder(self.folder)
        try:
            self._save()
        except OSError as error:
            self.unsaved = error

    def _save(self) -> None:
        if self.log.epochs.changed:
            self.log.epochs.save()
        if self.files is not None:
            self.files.save()
