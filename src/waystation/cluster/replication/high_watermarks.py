"""`high-watermarks` of a data folder: how far each partition was acknowledged, written down now and then.

So that a restart does not begin at zero. What it says may be too low, which is safe; never too high: it was true when
it was written, and a high watermark does not go back. One per broker in a cluster; on the loop, `save` on a thread.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from waystation.observe.events import event_logger
from waystation.world.disk import Disk

FILE = "high-watermarks"

logger = event_logger("waystation.cluster")


class HighWatermarks:
    """By `TOPIC/INDEX`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{FILE}"
        self._known: dict[str, int] = {}

    def load(self) -> None:
        """Blocks. A file that cannot be read counts for nothing."""
        data = self._disk.read_file(self._path)
        if data is None:
            return
        try:
            self._known = msgspec.json.decode(data, type=dict[str, int])
        except msgspec.DecodeError as error:
            logger.warning(
                "high_watermarks.damaged", "{file} cannot be read, starting without: {error}", file=FILE, error=error
            )

    def of(self, topic_id: UUID, index: int) -> int:
        return self._known.get(f"{topic_id}/{index}", 0)

    def forget(self, topic_id: UUID, index: int) -> None:
        """The replica is removed: one that comes later begins from nothing."""
        self._known.pop(f"{topic_id}/{index}", None)

    def note(self, found: dict[str, int]) -> bool:
        """Whether that is news."""
        if found == self._known:
            return False
        self._known = found
        return True

    def save(self) -> None:
        """Durable when it returns. Blocks."""
        self._disk.replace_file(self._path, msgspec.json.encode(self._known))
