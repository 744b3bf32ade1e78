"""Putting a compacted file in the place of the segments that it was made from, so that any step may be the last one.

The file is complete and durable as `BASE-END.cleaned`. Then, one after another:

1. It is renamed to `BASE-END.swap`, and that name is made durable. All the segments are still there, so this file is
   not needed: recovery removes it.
2. Readers turn to the new file, under that name.
3. `BASE.log` is removed, and that is made durable. From here on recovery finishes the swap.
4. Whatever else there is of the segments BASE to END is removed, and the new file gets the name `BASE.log`. The log
   forgets the aborted transactions that ended there: until now a crash could have brought them back.

Where the disk refuses step 1, the swap is withdrawn; where it refuses 3 or 4, readers go on with the new file and the
rest is tried again. Until one of the two is done the log has a `swap`, and nobody compacts it or removes its segments:
a swap that is carried out over files that are newer than it would bring back what they replaced.

Whoever calls `swap_in` or `settle` holds the log's `moving_start`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.log.segments.segment import Segment, file_name
from waystation.observe.events import event_logger
from waystation.world.disk import Disk
from waystation.world.uncancelled import to_its_end

if TYPE_CHECKING:
    from waystation.log.log import Log

logger = event_logger("waystation.log")

SWAP = ".swap"
CLEANED = ".cleaned"
REFUSED = ".refused"


class SwapFile(msgspec.Struct, frozen=True):
    """A file that stands for the segments with bases from `base` to `end`."""

    disk: Disk
    folder: str
    base: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.base}-{self.end}{SWAP}"

    @property
    def cleaned(self) -> str:
        return f"{self.folder}/{self.base}-{self.end}{CLEANED}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def announce(self) -> None:
        """Step 1; blocks."""
        self.disk.rename(self.cleaned, self.path)
        self.disk.sync_folder(self.folder)

    def withdraw(self) -> None:
        """Undoes step 1; blocks."""
        self.disk.remove(self.path)
        self.disk.remove(self.cleaned)

    def clear(self) -> None:
        """Step 3 and the removals of step 4; blocks, may be repeated.

        The transaction indexes go too: of aborted transactions, compaction leaves nothing.
        """
        first = file_name(self.base, "log")
        self.disk.remove(f"{self.folder}/{first}")
        self.disk.sync_folder(self.folder)
        for name in self.disk.list(self.folder):
            stem, _, suffix = name.partition(".")
            of_a_segment = suffix in ("index", "timeindex", "txnindex", "log") and stem.isdigit()
            if of_a_segment and self.base <= int(stem) <= self.end and name != first:
                self.disk.remove(f"{self.folder}/{name}")

    def take_place(self) -> None:
        """The end of step 4."""
        self.disk.rename(self.path, f"{self.folder}/{file_name(self.base, 'log')}")


class Swap(msgspec.Struct):
    """A swap under way. Once it has `begun`, readers use the new file and there is only the way forward."""

    file: SwapFile
    group: list[Segment]
    made: Segment
    begun: bool = False


async def swap_in(log: Log, group: list[Segment], made: Segment, truncations: int) -> bool:
    """Puts `made`, which is complete as a `.cleaned` file, in the place of the group; False if that has changed.

    So it has if the log was truncated since `truncations` of them: a record may have been left out for the sake of a
    newer one that is not there any more.
    """
    file = SwapFile(log.world.disk, log.folder, group[0].base_offset, group[-1].base_offset)
    if log.truncations != truncations or any(segment not in log.segments for segment in group):
        await log.world.offload(file.withdraw)  # retention or a truncation was here
        return False
    log.swap = Swap(file, group, made)
    await to_its_end(_carry_out(log, log.swap))
    return True


async def settle(log: Log) -> None:
    """Ends a swap that the disk has interrupted. OSError: the disk still refuses."""
    if log.swap is not None:
        await to_its_end(_go_on(log, log.swap))


async def _carry_out(log: Log, swap: Swap) -> None:
    try:
        await log.world.offload(swap.file.announce)
    except OSError:
        await _go_on(log, swap)
        raise
    for old in swap.group:
        old.close()
    swap.made.stored_as = swap.file.name
    swap.begun = True
    others = [segment for segment in log.segments if segment not in swap.group]
    log.adopt(sorted([*others, swap.made], key=lambda segment: segment.base_offset))
    await _go_on(log, swap)


async def _go_on(log: Log, swap: Swap) -> None:
    if not swap.begun:
        await log.world.offload(swap.file.withdraw)
        log.swap = None
        return
    await log.world.offload(swap.file.clear)
    swap.file.take_place()  # on the loop: a reader would not find the file between its two names
    swap.made.stored_as = None
    log.swap = None
    log.aborted.drop_between(swap.made.base_offset, swap.made.last_offset + 1)
    try:
        swap.made.write_indexes()
    except OSError as error:  # they are made again when they are needed
        logger.warning(
            "index.unwritable", "{file}: its indexes cannot be written: {error}", file=swap.made.path(), error=error
        )
    await log.world.offload(log.world.disk.sync_folder, log.folder)
