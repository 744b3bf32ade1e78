"""What stands for the log of a partition that other brokers have, and this one has not: a null object.

It has no records, and no files: nobody has to ask whether there is a log. Whoever wants to write or read is told to ask
another broker. Only `topics/topics.py` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from waystation.config import TopicSettings
from waystation.errors import NotLeader
from waystation.log.batches.batch import Header
from waystation.log.log import Appended, Log
from waystation.log.sync import SyncJob
from waystation.world import World


class NoLog(Log):
    """Never given to the group commit, and never tended."""

    def __init__(self, world: World, folder: str, settings: TopicSettings) -> None:
        super().__init__(world, folder, settings)

    def _elsewhere(self) -> NoReturn:
        raise NotLeader(f"this broker has no replica of {self.folder}; refresh metadata and ask one that has")

    def check_usable(self) -> None:
        self._elsewhere()

    def append(self, batch: bytearray | memoryview, header: Header) -> Appended:
        self._elsewhere()

    def append_as_is(self, data: bytes | bytearray | memoryview, *, gaps: bool = False) -> Appended:
        self._elsewhere()

    def begin_epoch(self, epoch: int) -> None:
        self._elsewhere()

    def read(self, offset: int, max_bytes: int, before_offset: int | None = None) -> bytes:
        self._elsewhere()

    def read_within(self, offset: int, max_bytes: int, before_offset: int | None, first_bytes: int) -> bytes | None:
        self._elsewhere()

    def batches_from(self, offset: int) -> Iterator[tuple[bytes, Header]]:
        self._elsewhere()

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        self._elsewhere()

    def find_max_timestamp(self) -> tuple[int, int] | None:
        self._elsewhere()

    def step_back(self, before: int, max_bytes: int) -> int:
        return 0

    def take_sync(self) -> SyncJob | None:
        return None

    def checkpoint(self) -> None:
        """There is nothing to write down."""

    def close(self, *, clean: bool) -> None:
        """There is nothing to close."""
