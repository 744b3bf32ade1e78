"""Topic permissions, as RabbitMQ has them: routing keys with which a user may publish to a topic exchange, or bind.

They only take away: who has none for an exchange may use every key, if permissions allow the exchange at all. They are
definitions of the kind `topic-permission` in the catalog, and this part follows it. A publisher that remembers where
its messages go asks again when they have changed (`subscribe_changes`). On the loop's thread only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.catalog import Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import Full, Invalid
from waystation.observe.events import event_logger
from waystation.routing.matching.regex import Regex
from waystation.security.rules import searching

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower

logger = event_logger("waystation.permissions")

KIND = "topic-permission"
MOST = 100_000
MAX_PATTERN = 1_000


class TopicPermission(msgspec.Struct, frozen=True):
    """Of a user in a virtual host, for an exchange. `{username}` and `{vhost}` in an expression are what they say."""

    user: str
    vhost: str
    exchange: str  # in the virtual host
    write: str
    read: str


_decode = msgspec.json.Decoder(TopicPermission).decode


class TopicPermissions:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(self, catalog: Catalog, follower: CatalogFollower) -> None:
        self._catalog = catalog
        self._follower = follower
        self._known: dict[str, TopicPermission] = {}  # by key of the catalog
        self._compiled: dict[tuple[str, str, str], tuple[Regex, Regex]] = {}
        self._changes = ChangeQueue()
        self._on_change: list[Callable[[], None]] = []

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            self._take(key, entry.value)

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called when answers may be others than before."""
        self._on_change.append(callback)

    async def settle(self) -> None:
        await self._changes.settle()

    def __bool__(self) -> bool:
        """Whether there are any: while there are none, nobody has to ask."""
        return bool(self._known)

    def listing(self, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """In an order that stays."""
        found = (one for one in self._known.values() if user in (None, one.user) and vhost in (None, one.vhost))
        return sorted(found, key=lambda one: (one.vhost, one.user, one.exchange))

    def allows(self, user: str, vhost: str, exchange: str, way: Literal["write", "read"], key: str) -> bool:
        """Whether the user may use this routing key. `exchange`: its name in the virtual host."""
        found = self._compiled.get((user, vhost, exchange))
        return found is None or found[way == "read"].matches(key)

    # -- changing ---------------------------------------------------------------------------------------------------

    async def set(self, permission: TopicPermission) -> bool:
        """In force when this returns. True: there was none."""
        _compile(permission)
        key = _key(permission)
        new = key not in self._known
        if new and len(self._known) >= MOST:
            raise Full(f"there are {MOST} topic permissions already; delete some first")
        await self._changes.to_the_end(self._follower.change({key: msgspec.json.encode(permission)}))
        return new

    async def remove(self, permissions: Iterable[TopicPermission]) -> None:
        """Fine if they are not there."""
        removed: dict[str, bytes | None] = dict.fromkeys(
            key for one in permissions if (key := _key(one)) in self._known
        )
        if removed:
            await self._changes.to_the_end(self._follower.change(removed))

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return list(self._known)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            old = self._known.pop(key, None)
            if old is not None:
                self._compiled.pop((old.user, old.vhost, old.exchange), None)
            if value is not None:
                self._take(key, value)
        for callback in self._on_change:
            callback()

    def _take(self, key: str, value: bytes) -> None:
        try:
            found = _decode(value)
            compiled = _compile(found)
        except (msgspec.DecodeError, Invalid) as error:
            logger.warning(
                "topic_permission.unreadable", "topic permission {key} cannot be read: {error}", key=key, error=error
            )
            return
        self._known[key] = found
        self._compiled[found.user, found.vhost, found.exchange] = compiled


def _compile(permission: TopicPermission) -> tuple[Regex, Regex]:
    """Invalid says which expression cannot be one."""
    return _regex(permission, "write"), _regex(permission, "read")


def _regex(permission: TopicPermission, way: str) -> Regex:
    text: str = getattr(permission, way)
    if len(text) > MAX_PATTERN:
        raise Invalid(f"{way}: an expression of {len(text)} characters; the most is {MAX_PATTERN}")
    text = text.replace("{username}", _quoted(permission.user)).replace("{vhost}", _quoted(permission.vhost))
    try:
        return searching(text)
    except Invalid as error:
        raise Invalid(f"{way}: {error}") from None


def _quoted(text: str) -> str:
    return "".join(each if each.isalnum() or each in "_-/" else f"\\{each}" for each in text)


def _key(permission: TopicPermission) -> str:
    place = "\0".join((permission.vhost, permission.user, permission.exchange))
    return rows.definition_key(KIND, hashlib.sha256(place.encode()).hexdigest()[:40])
