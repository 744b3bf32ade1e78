"""Users: who may log in, and by what they are recognized.

They are definitions of the kind `user` in the catalog, and this part follows it: whoever adds one writes it there, and
it is in force when the catalog tells it (`apply`). Of a password only verifiers are stored (`credentials.py`). The
catalog also has a secret that is made with the first user: what answers for users that do not exist is computed from
it, so that it does not change with a restart.

`edit_offline` is for a broker that does not run. On the loop's thread only, but for what says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from waystation.catalog import ABSENT, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import AlreadyExists, Conflict, Full, Invalid, NotFound, RevisionConflict
from waystation.observe.events import event_logger
from waystation.security import credentials
from waystation.security.credentials import Verifier

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower
    from waystation.world import World

logger = event_logger("waystation.users")

KIND = "user"
SECRET_KEY = rows.definition_key("secret", "login")
SECRET_BYTES = 32
MAX_USERS = 100_000
MAX_USER_BYTES = 16 * 1024
ROUNDS_SEEN = 1_000
"""Users whose verifiers are looked at for the rounds in use: a few milliseconds when a user has changed."""
NAME = re.compile(r"[^\x00-\x1f\x7f/]{1,128}")
USER_LIMITS = ("max-connections", "max-channels")
"""As RabbitMQ calls them."""
RESERVED = frozenset({"ANONYMOUS", "*", "broker", "local", "http-token"})


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of one."""

    verifiers: tuple[str, ...] = ()  # none: it can log in by certificate or token alone
    superuser: bool = False
    tags: tuple[str, ...] = ()  # RabbitMQ's: administrator, monitoring, …
    groups: tuple[str, ...] = ()
    namespace: str = "/"
    created_ms: int = 0
    limits: dict[str, int] = {}  # max-connections, max-channels


OnChange = Callable[[str, User | None], None]
"""Gets the name of a user that was added or changed, or, with None, removed."""

RowsOf = Callable[[str], Iterable[str]]
"""Keys of the catalog that have what belongs to a user."""


class Users:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND), SECRET_KEY)

    def __init__(self, catalog: Catalog, follower: CatalogFollower, world: World) -> None:
        self._catalog = catalog
        self._follower = follower
        self._world = world
        self._known: dict[str, User] = {}
        self._verifiers: dict[str, tuple[User, tuple[Verifier, ...]]] = {}
        self._revisions: dict[str, int] = {}
        self._changes = ChangeQueue()
        self._on_change: list[OnChange] = []
        self._along: list[RowsOf] = []
        self.leaving: set[str] = set()
        """Those that were removed just now: connections of theirs may still be there for a moment."""
        self._rounds: dict[str, list[int]] = {}  # by mechanism, until a user changes
        self._secret = b""

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            name = rows.definition_name(KIND, key)
            self._known[name] = _read(name, entry.value)
            self._revisions[name] = entry.revision
        secret = self._catalog.get(SECRET_KEY)
        if secret is not None:
            self._secret = secret.value

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    # -- finding ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def names(self) -> list[str]:
        return sorted(self._known)

    def find(self, name: str) -> User | None:
        return self._known.get(name)

    def split(self, login: str) -> tuple[str, str]:
        """(user, namespace) of a login name `USER@NAMESPACE`, if there is such a user and none is called that; else
        the name as it is, and no namespace. Any thread."""
        user, at, namespace = login.rpartition("@")
        return (
            (user, namespace) if at and namespace and login not in self._known and user in self._known else (login, "")
        )

    def unknown(self, login: str) -> str:
        """Whom to pretend to know, where there is no user of this login name. `NAME@NAMESPACE` is answered as NAME is:
        so it is where there is such a user, and whoever compares the answers would see whether there is. Any thread."""
        user, at, namespace = login.rpartition("@")
        return user if at and user and namespace and login not in self._known else login

    def get(self, name: str) -> User:
        found = self._known.get(name)
        if found is None:
            raise NotFound(f"there is no user {name[:128]!r}; `waystation users list` shows who there is")
        return found

    @property
    def secret(self) -> bytes:
        """What answers for users that do not exist are made from. The catalog has it as soon as there is a user."""
        if not self._secret:
            self._secret = self._world.random.token(SECRET_BYTES)
        return self._secret

    def revision(self, name: str) -> int:
        """Another one whenever what is known of the user has changed."""
        return self._revisions.get(name, ABSENT)

    def verifiers(self, name: str) -> tuple[Verifier, ...]:
        """Of a user's password; none if there is no such user, or it has no password. Any thread."""
        user = self._known.get(name)
        if user is None:
            return ()
        found = self._verifiers.get(name)
        if found is None or found[0] is not user:
            found = self._verifiers[name] = (user, _verifiers(name, user))
        return found[1]

    def rounds(self, mechanism: str) -> Sequence[int]:
        """Of the users' verifiers of this mechanism, in order: those of `ROUNDS_SEEN` users. What answers for others
        are made of."""
        found = self._rounds.get(mechanism)
        if found is None:
            some = islice(self._known.items(), ROUNDS_SEEN)
            keys = (credentials.scram_keys(_verifiers(name, user), mechanism) for name, user in some)
            found = self._rounds[mechanism] = sorted(one.iterations for one in keys if one is not None)
        return found

    # -- changes ----------------------------------------------------------------------------------------------------

    def subscribe_changes(self, callback: OnChange) -> None:
        """`callback` is called when a change is in force."""
        self._on_change.append(callback)

    def take_along(self, rows_of: RowsOf) -> None:
        """What belongs to a user is removed with it, in the same change."""
        self._along.append(rows_of)

    async def add(self, name: str, user: User) -> bool:
        """A new user; AlreadyExists if there is one of this name. True: it is the first."""
        return await self._changes.to_the_end(self._save(name, user, new=True))

    async def save(self, name: str, user: User) -> bool:
        """The same, or in the place of the one there is."""
        return await self._changes.to_the_end(self._save(name, user, new=False))

    async def remove(self, name: str) -> None:
        self.get(name)
        await self._changes.to_the_end(self._remove(name))
        logger.info("user.removed", "user {user} is removed", user=name)

    async def _remove(self, name: str) -> None:
        await self._write(name, None, self._rows_along(name))
        added = self._rows_along(name)  # while that was written; from now on nothing is: its owner is not there
        if added:
            await self._follower.change(added)

    def _rows_along(self, name: str) -> dict[str, bytes | None]:
        return {row: None for rows_of in self._along for row in rows_of(name)}

    async def _save(self, name: str, user: User, *, new: bool) -> bool:
        value = encoded(name, user)
        present = name in self._known
        if present and new:
            raise AlreadyExists(f"user {name!r} exists already; `waystation users passwd` changes the password")
        if not present and len(self._known) >= MAX_USERS:
            raise Full(f"there are {MAX_USERS} users already; remove one to make room for {name!r}")
        first = not self._known
        await self._write(name, value, {SECRET_KEY: self.secret})
        if present:
            logger.info("user.changed", "user {user} is changed", user=name)
        else:
            logger.info("user.added", "user {user} is added", user=name)
        return first

    async def _write(self, name: str, value: bytes | None, beside: Mapping[str, bytes | None]) -> None:
        key = rows.definition_key(KIND, name)
        try:
            await self._follower.change({key: value, **beside}, {key: self.revision(name)})
        except RevisionConflict as error:
            await self._follower.catch_up()
            raise Conflict(f"user {name!r}: somebody else changed it at the same time; look, then try again") from error

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [rows.definition_key(KIND, name) for name in self._revisions]

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            if key == SECRET_KEY:
                self._secret = value or self._secret
                continue
            name = rows.definition_name(KIND, key)
            self._verifiers.pop(name, None)
            self._rounds.clear()
            if value is None:
                self._revisions.pop(name, None)
                if self._known.pop(name, None) is not None:
                    self._tell(name, None)
            elif self.revision(name) < update.revision:
                self._known[name] = _read(name, value)
                self._revisions[name] = update.revision
                self._tell(name, self._known[name])

    def _tell(self, name: str, user: User | None) -> None:
        for callback in self._on_change:
            callback(name, user)


def encoded(name: str, user: User) -> bytes:
    """As the catalog has it; Invalid if there can be no such user."""
    if not NAME.fullmatch(name) or name in RESERVED or name != name.strip():
        raise Invalid(
            f"{name[:80]!r} cannot be a user's name: use 1 to 128 characters, no slash, no control characters"
        )
    for limit, most in user.limits.items():
        if limit not in USER_LIMITS or most < 0:
            raise Invalid(f"{limit[:60]!r} = {most}: a user's limits are {', '.join(USER_LIMITS)}, from 0 on")
    for verifier in user.verifiers:
        credentials.read(verifier)
    value = msgspec.json.encode(user)
    if len(value) > MAX_USER_BYTES:
        raise Invalid(f"user {name!r}: what is to be remembered has {len(value)} bytes; the most is {MAX_USER_BYTES}")
    return value


def edit_offline(
    catalog: Catalog, name: str, user: User | None, token: Callable[[int], bytes], along: Iterable[str] = ()
) -> None:
    """Writes a user into a catalog that no broker uses; None removes it, and `along`, which belongs to it. Blocks."""
    key = rows.definition_key(KIND, name)
    changes: dict[str, bytes | None] = {key: None if user is None else encoded(name, user), **dict.fromkeys(along)}
    if user is not None and catalog.get(SECRET_KEY) is None:
        changes[SECRET_KEY] = token(SECRET_BYTES)
    catalog.write(changes)


def stored_users(catalog: Catalog) -> dict[str, User]:
    """All of a catalog, by name. Blocks."""
    return {name: _read(name, value) for name, value in sorted(catalog.definitions(KIND).items())}


def _read(name: str, value: bytes) -> User:
    try:
        return msgspec.json.decode(value, type=User)
    except msgspec.DecodeError as error:
        logger.warning(
            "user.unreadable", "what is known of user {user} cannot be read: {error}", user=name, error=error
        )
        return User()  # nobody can log in as this one, and its name is not free


def _verifiers(name: str, user: User) -> tuple[Verifier, ...]:
    found = []
    for text in user.verifiers:
        try:
            found.append(credentials.read(text))
        except Invalid as error:
            logger.warning("user.unreadable", "user {user}: {error}", user=name, error=error)
    return tuple(found)
