"""API keys: what a program shows instead of a user's password. It has a role and an expiry, and can be revoked alone.

A key is text, `wsk_ID_SECRET`. The catalog has a definition of the kind `api-key` for each, by its id, with the hash of
the whole text: the secret is random, so that a plain hash is as good as a slow one, and no store of ours has the key.
What is shown of a key, and logged, is its beginning, `wsk_ID`.

Invariants: a key is its owner's, and goes with it: removing a user removes its keys in the same change, and a key is
added under the condition that its owner is as it was; so no key outlives its owner and serves another one of the same
name. There are few of each owner (`MOST_OF_ONE`), which is what one change of a cluster's store can hold.

`edit_offline` is for a broker that does not run. On the loop's thread only, but for `check`, which reads.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from waystation.catalog import ABSENT, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import Conflict, Full, Invalid, NotFound, RevisionConflict
from waystation.observe.events import event_logger
from waystation.security import credentials
from waystation.security.principals import FULL, READ_ONLY
from waystation.security.users import KIND as USER

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower
    from waystation.security.users import Users
    from waystation.world import World

logger = event_logger("waystation.keys")

KIND = "api-key"
BEGIN = credentials.KEY_BEGIN.decode()
ID_BYTES = 5
SECRET_BYTES = 30
MOST_OF_ONE = 40
MAX_NOTE = 200
DEFAULT_LIFE_MS = 90 * 24 * 3600 * 1000
MIN_LIFE_MS = 1000
MAX_LIFE_MS = 10 * 365 * 24 * 3600 * 1000

Role = Literal["full", "read-only"]
ROLES: tuple[Role, ...] = get_args(Role)

if ROLES != (FULL, READ_ONLY):
    raise RuntimeError("the roles of keys are those of principals")


class ApiKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of one."""

    owner: str
    hash: str  # SHA-256 of the whole key, as hex
    role: Role = "full"
    created_ms: int = 0
    expires_ms: int = 0
    note: str = ""


class NewKey(msgspec.Struct, frozen=True):
    """A key that was made just now; `text` is known here and nowhere else."""

    id: str
    text: str
    key: ApiKey


OnRemoved = Callable[[str], None]
"""Gets the id of a key that is not valid any more."""


def looks_like_key(text: str) -> bool:
    return text.startswith(BEGIN)


def shown(key_id: str) -> str:
    """The beginning of a key, by which people know it."""
    return BEGIN + key_id


def id_in(text: str) -> str:
    """Of a key, or of its beginning."""
    return text.removeprefix(BEGIN).partition("_")[0]


def make_key(owner: str, role: str, life_ms: int, note: str, *, now_ms: int, token: Callable[[int], bytes]) -> NewKey:
    """Invalid if there can be no such key. `token` gives random bytes."""
    if role not in ROLES:
        raise Invalid(f"role: {role[:40]!r} is none; there are {', '.join(ROLES)}")
    if not MIN_LIFE_MS <= life_ms <= MAX_LIFE_MS:
        raise Invalid("expires_in_ms: a key is valid for a second at least, and for ten years at most")
    if len(note) > MAX_NOTE or not note.isprintable():
        raise Invalid(f"note: one line of at most {MAX_NOTE} characters")
    key_id = token(ID_BYTES).hex()
    secret = base64.b32encode(token(SECRET_BYTES)).decode().lower()
    text = f"{BEGIN}{key_id}_{secret}"
    return NewKey(key_id, text, ApiKey(owner, _hash(text), role, now_ms, now_ms + life_ms, note))


class ApiKeys:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(self, catalog: Catalog, follower: CatalogFollower, users: Users, world: World) -> None:
        self._catalog = catalog
        self._follower = follower
        self._users = users
        self._world = world
        self._known: dict[str, ApiKey] = {}
        self._revisions: dict[str, int] = {}
        self._changes = ChangeQueue()
        self._on_removed: list[OnRemoved] = []
        users.take_along(self.rows_of)

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            self._take(rows.definition_name(KIND, key), entry.value, entry.revision)

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    # -- finding ----------------------------------------------------------------------------------------------------

    def listing(self, owner: str = "") -> list[tuple[str, ApiKey]]:
        """Of one owner, or all; the oldest first."""
        found = ((key_id, key) for key_id, key in self._known.items() if not owner or key.owner == owner)
        return sorted(found, key=lambda pair: (pair[1].owner, pair[1].created_ms, pair[0]))

    def find(self, key_id: str) -> ApiKey | None:
        return self._known.get(key_id)

    def get(self, key_id: str) -> ApiKey:
        found = self._known.get(key_id)
        if found is None:
            raise NotFound(f"there is no key {shown(key_id[:40])}; `waystation keys list` shows which there are")
        return found

    def rows_of(self, owner: str) -> list[str]:
        """Keys of the catalog under which an owner's are."""
        return [rows.definition_key(KIND, key_id) for key_id, _ in self.listing(owner)]

    def check(self, text: str) -> tuple[str, ApiKey] | str:
        """The key's id and what is known of it; or why it is not taken. Any thread."""
        key_id = id_in(text)
        known = self._known.get(key_id)
        right = hmac.compare_digest(_hash(text), known.hash if known is not None else _hash(""))
        if known is None or not right:
            return "there is no such API key"
        if known.expires_ms <= self._world.clock.now_ms():
            return f"the API key {shown(key_id)} has expired"
        return key_id, known

    # -- changes ----------------------------------------------------------------------------------------------------

    def subscribe_removed(self, callback: OnRemoved) -> None:
        """`callback` is called when a key is not valid any more, but for its expiry."""
        self._on_removed.append(callback)

    async def add(self, owner: str, role: str, life_ms: int, note: str = "") -> NewKey:
        """A new key of a user that there is. In force when this returns; its text is nowhere else."""
        self._users.get(owner)
        owner_revision = self._users.revision(owner)
        clock, random = self._world.clock, self._world.random
        made = make_key(owner, role, life_ms, note, now_ms=clock.now_ms(), token=random.token)
        await self._changes.to_the_end(self._add(made, owner_revision))
        logger.info("key.added", "API key {key} of user {user} is added", key=shown(made.id), user=owner)
        return made

    async def _add(self, made: NewKey, owner_revision: int) -> None:
        now_ms = self._world.clock.now_ms()
        mine = self.listing(made.key.owner)
        old = [key_id for key_id, key in mine if key.expires_ms <= now_ms] if len(mine) >= MOST_OF_ONE else []
        if len(mine) - len(old) >= MOST_OF_ONE:
            raise Full(f"user {made.key.owner!r} has {len(mine)} keys, and can have {MOST_OF_ONE}: remove one first")
        changes: dict[str, bytes | None] = {rows.definition_key(KIND, key_id): None for key_id in old}
        changes[rows.definition_key(KIND, made.id)] = msgspec.json.encode(made.key)
        owner_row = rows.definition_key(USER, made.key.owner)
        expected = {rows.definition_key(KIND, made.id): ABSENT, owner_row: owner_revision}
        await self._write(changes, expected)

    async def remove(self, key_id: str) -> None:
        """NotFound if there is none. In force when this returns."""
        owner = self.get(key_id).owner
        row = rows.definition_key(KIND, key_id)
        await self._changes.to_the_end(self._write({row: None}, {row: self._revisions.get(key_id, ABSENT)}))
        logger.info("key.removed", "API key {key} of user {user} is removed", key=shown(key_id), user=owner)

    async def _write(self, changes: dict[str, bytes | None], expected: dict[str, int]) -> None:
        try:
            await self._follower.change(changes, expected)
        except RevisionConflict as error:
            await self._follower.catch_up()
            raise Conflict("the key or its owner was changed at the same time; look, then try again") from error

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [rows.definition_key(KIND, key_id) for key_id in self._revisions]

    async def apply(self, update: Update) -> None:
        for row, value in update.changes:
            key_id = rows.definition_name(KIND, row)
            if value is not None:
                self._take(key_id, value, update.revision)
                continue
            self._revisions.pop(key_id, None)
            if self._known.pop(key_id, None) is not None:
                for callback in self._on_removed:
                    callback(key_id)

    def _take(self, key_id: str, value: bytes, revision: int) -> None:
        self._revisions[key_id] = revision
        found = _read(key_id, value)
        if found is not None:
            self._known[key_id] = found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _read(key_id: str, value: bytes) -> ApiKey | None:
    try:
        return msgspec.json.decode(value, type=ApiKey)
    except msgspec.DecodeError as error:
        logger.warning("key.unreadable", "API key {key} cannot be read: {error}", key=shown(key_id), error=error)
        return None


def edit_offline(catalog: Catalog, key_id: str, key: ApiKey | None) -> None:
    """Writes a key into a catalog that no broker uses; None removes it. Blocks."""
    catalog.write({rows.definition_key(KIND, key_id): None if key is None else msgspec.json.encode(key)})


def stored_keys(catalog: Catalog, owner: str = "") -> dict[str, ApiKey]:
    """All of a catalog, or those of one owner, by id. Blocks."""
    read = ((name, _read(name, value)) for name, value in sorted(catalog.definitions(KIND).items()))
    return {name: key for name, key in read if key is not None and (not owner or key.owner == owner)}


def stored_rows(catalog: Catalog, owner: str) -> list[str]:
    """Keys of the catalog under which an owner's are. Blocks."""
    return [rows.definition_key(KIND, key_id) for key_id in stored_keys(catalog, owner)]
