"""A log on real files with a clock that stands still, its restarts and its accidents."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from waystation.config import TopicSettings
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import TRANSACTIONAL, Header, Record
from waystation.log.log import Appended, Log
from waystation.log.opening.recovery import Trust, lead_alone, open_log
from waystation.log.points import RecoveryPoints
from waystation.world import Disk, InlineOffload, OsDisk, SystemRandom, World

T = TypeVar("T")

NOW_MS = 1_772_366_400_000
DAY_MS = 86_400_000


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class HandClock:
    """Moves when it is moved."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class BootingDisk(OsDisk):
    """The real disk of a machine that can be said to have been restarted, and to have its files elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.boots = 1
        self.moves = 0

    def volume_id(self, path: str) -> str:
        return f"{super().volume_id(path)}, moved {self.moves} times"

    def boot_id(self) -> str:
        return f"boot {self.boots}"


class Home:
    """A folder with one log, and the machine around it."""

    def __init__(self, root: Path | str, disk: Disk | None = None, **settings: Any) -> None:
        self.root = str(root)
        self.disk: Disk = BootingDisk() if disk is None else disk
        self.clock = HandClock()
        self.world = World(self.clock, SystemRandom(), self.disk, InlineOffload())
        self.settings = TopicSettings(**settings)
        self.disk.make_folder(self.root)
        self.log: Log
        self.open()

    @property
    def folder(self) -> str:
        return f"{self.root}/log"

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def segment(self, base: int = 0) -> Path:
        return self.path(f"{base:020d}.log")

    @property
    def names(self) -> list[str]:
        return self.disk.list(self.folder)

    # -- lives -----------------------------------------------------------------------------------------------------

    def open(self, *, tier: int = 0) -> Log:
        self.points = RecoveryPoints(self.disk, self.root)
        self.points.load()
        trust = Trust(self.points.of("log"), self.points.clean, self.points.same_boot)
        self.log = open_log(self.world, self.folder, self.settings, trust, tier=tier)
        lead_alone(self.log, trust)
        self.save_points()
        return self.log

    def save_points(self, *, clean: bool = False) -> None:
        self.points.save({"log": self.log.recovery_point}, clean=clean)
        self.log.point_saved(self.log.recovery_point)

    def sync(self) -> None:
        """What a commit round does for this log."""
        job = self.log.take_sync()
        if job is not None:
            try:
                job.run()
            except OSError as error:
                job.error = error
            self.log.synced(job)

    def stop(self) -> None:
        self.log.close(clean=True)
        self.save_points(clean=self.log.failure is None)

    def kill(self) -> None:
        """The process is gone; the kernel keeps what it was given."""
        self.log.close(clean=False)

    def restart(self) -> Log:
        self.stop()
        return self.open()

    def kill_and_open(self) -> Log:
        self.kill()
        return self.open()

    def reboot_and_open(self) -> Log:
        """As after a power cut; what that did to the files is the test's to do before."""
        self.kill()
        if not isinstance(self.disk, BootingDisk):
            raise TypeError("a simulated disk is rebooted by its power cut")
        self.disk.boots += 1
        return self.open()

    # -- work ------------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray) -> Appended:
        return self.log.append(batch, batches.check_batch(batch))

    def put(self, *values: bytes | None, key: bytes | None = None, at: int | None = None, **options: Any) -> Appended:
        """Appends the values as one batch."""
        timestamp = self.clock.ms if at is None else at
        return self.append(batches.build([(key, value, ()) for value in values], timestamp, **options))

    def send(self, producer_id: int, sequence: int, *values: bytes, epoch: int = 0, txn: bool = False) -> Appended:
        """Appends the values as a producer with an id does."""
        return self.put(
            *values,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if txn else 0,
        )

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> Appended:
        marker = batches.build_marker(producer_id, epoch, commit, coordinator_epoch, self.clock.ms)
        return self.log.append(marker, batches.read_header(marker))

    def fill(self, count: int, size: int = 100) -> None:
        """Batches of one record, told apart by their content."""
        for _ in range(count):
            self.put(b"%d:" % self.log.end_offset + b"x" * size)

    # -- what is seen ----------------------------------------------------------------------------------------------

    def headers(self, offset: int = 0) -> list[Header]:
        return [header for _, header in self.log.batches_from(offset)]

    def records(self, offset: int = 0) -> list[Record]:
        found = records_in(self.log.batches_from(offset))
        return [record for record in found if record.offset >= max(offset, self.log.start_offset)]

    def values(self, offset: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records(offset)]


def records_in(found: Iterable[tuple[bytes, Header]]) -> list[Record]:
    return [record for data, header in found if not header.control for record in batches.records_of(data, header)]


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
