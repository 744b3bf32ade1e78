"""The broker itself, as operators see and change it: its settings, its disk, its loggers. `Access.cluster`.

Only loggers of this package are touched: the process may be somebody else's program with a broker inside.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from waystation.broker.access.family import Family
from waystation.config import BrokerSettings

if TYPE_CHECKING:
    pass

LOGGER = "waystation"
"""The logger above all others of the broker."""
UNKNOWN = -1


class ClusterAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    def settings(self) -> BrokerSettings:
        """As they are now; topics and groups have their own over these."""
        self._ask("describe", "cluster", "")
        return self._broker.settings

    async def alter_settings(self, changes: dict[str, str | None]) -> None:
        """Changes settings at run time, all of them or none; they survive a restart. None: back to the default."""
        self._ask("alter", "cluster", "")
        await self._broker.alter_settings(changes)

    def check_alter(self) -> None:
        """Raises if the principal may not change the broker: for changes that are validated only, or refused."""
        self._ask("alter", "cluster", "")

    async def disk_room(self) -> tuple[int, int]:
        """Total and free bytes of the disk; -1 where the folder is not on a disk of this machine (a simulated one)."""
        self._ask("describe", "cluster", "")
        return await self._broker.world.offload(self._disk_room)

    def _disk_room(self) -> tuple[int, int]:
        root = self._broker.root
        try:
            return shutil.disk_usage(root).total, self._broker.world.disk.free_bytes(root)
        except OSError:
            return UNKNOWN, UNKNOWN

    def log_levels(self) -> dict[str, int]:
        """The loggers that exist by now, and the level that holds for each: its own or an ancestor's."""
        self._ask("describe", "cluster", "")
        names = [name for name in logging.root.manager.loggerDict if name.startswith(f"{LOGGER}.")]
        return {name: logging.getLogger(name).getEffectiveLevel() for name in (LOGGER, *sorted(names))}

    def alter_log_levels(self, levels: Iterable[tuple[str, int]]) -> None:
        """Until the process ends. `logging.NOTSET`: as its ancestor's."""
        self._ask("alter", "cluster", "")
        for name, level in levels:
            logging.getLogger(name).setLevel(level)
