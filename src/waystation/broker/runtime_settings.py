"""Broker settings that are changed at run time: written to the catalog, and in force when the catalog tells them.

All changes of one call are in force or none. Two who change the same setting at once: one wins, the other is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from waystation.catalog import ABSENT, Catalog, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.catalog.follower import CatalogFollower
from waystation.config import BrokerSettings
from waystation.errors import Conflict, InvalidSetting, RevisionConflict
from waystation.observe.events import event_logger

logger = event_logger("waystation.settings")


class RuntimeSettings:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.SETTINGS,)

    def __init__(self, settings: BrokerSettings, follower: CatalogFollower, on_change: Callable[[], None]) -> None:
        self._settings = settings
        self._follower = follower
        self._on_change = on_change
        self._revisions: dict[str, int] = {}  # by key
        self._changes = ChangeQueue()

    def load(self, catalog: Catalog) -> None:
        """Blocks: before the protocols start."""
        found = catalog.read(rows.SETTINGS).entries
        self._settings.load({rows.setting_name(key): entry.value.decode() for key, entry in found.items()})
        self._revisions = {key: entry.revision for key, entry in found.items()}

    async def alter(self, changes: Mapping[str, str | None]) -> None:
        """Durable and in force when it returns. None takes a change back."""
        await self._changes.to_the_end(self._alter(changes))

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    async def _alter(self, changes: Mapping[str, str | None]) -> None:
        for name, text in changes.items():
            self._settings.check_change(name, text)
        wanted = {rows.setting_key(name): None if text is None else text.encode() for name, text in changes.items()}
        try:
            await self._follower.change(wanted, {key: self._revisions.get(key, ABSENT) for key in wanted})
        except RevisionConflict as error:
            raise Conflict(
                f"{', '.join(changes)}: somebody else changed the settings at the same time; look, then try again"
            ) from error

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return list(self._revisions)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            name = rows.setting_name(key)
            if self._revisions.get(key, ABSENT) >= update.revision:
                continue
            try:
                if value is not None:
                    self._settings.load({name: value.decode()})
                elif key in self._revisions:
                    self._settings.change(name, None)
            except InvalidSetting as error:  # of another version
                logger.warning("setting.unusable", "a setting of the catalog is not used: {error}", error=error)
            if value is None:
                self._revisions.pop(key, None)
            else:
                self._revisions[key] = update.revision
        self._on_change()
