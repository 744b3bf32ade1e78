"""Leader epochs of a log: which epoch wrote from which offset on.

An epoch begins when a partition gets a new leader, and on a single broker after the machine went down: then records
that were read but not yet on the disk may be lost, and a consumer that asks where its epoch ended (KIP-320) learns it
instead of reading on in another history. The file `leader-epoch-checkpoint` is Kafka's: version, count, then
"epoch offset" lines.

What it says follows from the batches, but for an epoch that has begun and has no batch yet. It is saved before a
recovery point goes past a new epoch's first batch, so recovery believes it up to that point, and the batches from there
on. A file that is lost or behind is made again from the batches (`opening/recovery.py`).
"""

from __future__ import annotations

from bisect import bisect_right

from waystation.world.disk import Disk

FILE = "leader-epoch-checkpoint"
UNKNOWN = -1


class Epochs:
    """Entries (epoch, first offset), both ascending."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE}"
        self.entries: list[tuple[int, int]] = []
        self.changed = False
        self.lost = False  # nothing was there to be loaded, or not all of it

    def load(self) -> None:
        text = (self._disk.read_file(self._path) or b"").decode("ascii", "replace").split()
        if len(text) < 2:
            self.lost = True
            return
        numbers = [int(word) for word in text[2:] if word.lstrip("-").isdigit()]
        self.entries = list(zip(numbers[0::2], numbers[1::2], strict=False))
        self.lost = text[1] != str(len(self.entries)) or len(numbers) != len(text) - 2

    def save(self) -> None:
        """Durable when it returns; blocks, and may run on a thread."""
        self.changed = False  # first: the loop may change them again while this is written
        entries = list(self.entries)
        lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
        try:
            self._disk.replace_file(self._path, ("\n".join(lines) + "\n").encode())
        except OSError:
            self.changed = True
            raise

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else UNKNOWN

    def note(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` stands at `offset`, or will. An epoch that began there and has no batch is forgotten."""
        if epoch > self.latest:
            while self.entries and self.entries[-1][1] >= offset:
                del self.entries[-1]
            self.entries.append((epoch, offset))
            self.changed = True

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch not above `epoch`, where it ended), or (-1, -1) where that is not known.

        Of one that is older than all we know, everything is removed: it ended where the first that we know begins, at
        the latest. So a consumer that has read all of it goes on there, as with Kafka, and has not lost its place.
        """
        if epoch == UNKNOWN or not self.entries or epoch > self.latest:
            return (UNKNOWN, UNKNOWN) if epoch != self.latest or not self.entries else (epoch, log_end)
        i = bisect_right(self.entries, (epoch, 2**63)) - 1
        if i < 0:
            return epoch, self.entries[0][1]
        end = self.entries[i + 1][1] if i + 1 < len(self.entries) else log_end
        return self.entries[i][0], end

    def cut(self, end_offset: int) -> None:
        """The log was cut to `end_offset`: epochs that began at or after it never were."""
        kept = [entry for entry in self.entries if entry[1] < end_offset]
        if len(kept) != len(self.entries):
            self.entries = kept
            self.changed = True

    def drop_before(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: only the epoch that covers it and later ones matter."""
        i = bisect_right([start for _, start in self.entries], start_offset) - 1
        if i > 0 or (i == 0 and self.entries[0][1] < start_offset):
            self.entries = [(self.entries[i][0], start_offset), *self.entries[i + 1 :]]
            self.changed = True
