"""Delegation tokens (KIP-48): a short-lived login that a Kafka client gets from the broker and hands to its workers.

A token is an id and a secret. The secret is an HMAC of the id with `delegation.token.secret.key`, as in Kafka, so no
store of ours has it: the catalog has, as a definition of the kind `delegation-token` for each, who owns it and until
when it is valid, and SCRAM verifiers. A client logs in by SCRAM with the id as its name, the secret in base64 as its
password, and the extension `tokenauth=true`; it is then the owner.

Invariants: a token is valid until its expiry, which its owner and its renewers move, and never beyond its maximum
lifetime; who has logged in by a token gets no other one; a token goes with its owner, in the same change, also while
there is no secret key, or another one. A change of the secret key ends all tokens (`mark`): they are of use again if it
is changed back. Bounded: `MOST_OF_ONE` of an owner, `MAX_TOKENS` in all.

On the loop's thread only, but for what says otherwise.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from waystation.catalog import ABSENT, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import Conflict, Full, NotAllowed, RevisionConflict
from waystation.observe.events import event_logger
from waystation.security import credentials
from waystation.security.users import KIND as USER

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower
    from waystation.config import BrokerSettings
    from waystation.security.users import Users
    from waystation.wire.scram import ScramKeys
    from waystation.world import World

logger = event_logger("waystation.delegation")

KIND = "delegation-token"
ID_BYTES = 16
MOST_OF_ONE = 40
MAX_TOKENS = 10_000
MAX_RENEWERS = 20
MAX_NAME = 128
SWEPT_AT_ONCE = 40
"""Expired tokens that go when another one is made: the store of a cluster takes a hundred keys in one write."""
USUAL = -1
"""As a time that a client gives: what the broker's settings say."""


class TokenRefused(NotAllowed):
    """What a client asks about delegation tokens cannot be done. `kafka_code`: how Kafka calls the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.kafka_code = code  # type: ignore[misc]  # of this one: there is a code for each reason


class DelegationToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of one."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    verifiers: tuple[str, ...]
    mark: str  # of the secret: whether it is the one that the present key makes

    def concerns(self, user: str) -> bool:
        """Whether the user may see it, and move its expiry."""
        return user in (self.owner, self.requester) or user in self.renewers


class MadeToken(msgspec.Struct, frozen=True):
    """A token and its secret, for those that it concerns."""

    id: str
    token: DelegationToken
    secret: bytes


OnRemoved = Callable[[str], None]
"""Gets the id of a token whose sessions end."""


class DelegationTokens:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(
        self, catalog: Catalog, follower: CatalogFollower, users: Users, settings: BrokerSettings, world: World
    ) -> None:
        self._catalog = catalog
        self._follower = follower
        self._users = users
        self._settings = settings
        self._world = world
        self._known: dict[str, DelegationToken] = {}
        self._unusable: dict[str, DelegationToken] = {}  # made with another secret key
        self._by_secret: dict[bytes, str] = {}
        self._verifiers: dict[str, tuple[credentials.Verifier, ...]] = {}
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

    def subscribe_removed(self, callback: OnRemoved) -> None:
        """`callback` is called when a token is not valid any more, but for its expiry, or for less long than it was."""
        self._on_removed.append(callback)

    # -- finding ----------------------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        return bool(self._settings.text("delegation.token.secret.key"))

    def valid(self, token_id: str) -> DelegationToken | None:
        """By its id, as a client that logs in says it. Any thread."""
        found = self._known.get(token_id)
        return None if found is None or found.expires_ms <= self._world.clock.now_ms() else found

    def scram_keys(self, token_id: str, mechanism: str) -> ScramKeys | None:
        """Any thread."""
        if self.valid(token_id) is None:
            return None
        return credentials.scram_keys(self._verifiers.get(token_id, ()), mechanism)

    def listing(self) -> list[MadeToken]:
        """All that are valid, in the order of their making."""
        now_ms = self._world.clock.now_ms()
        found = [
            MadeToken(token_id, token, self.secret_of(token_id))
            for token_id, token in self._known.items()
            if token.expires_ms > now_ms
        ]
        return sorted(found, key=lambda one: (one.token.issued_ms, one.id))

    def rows_of(self, owner: str) -> list[str]:
        """Keys of the catalog under which an owner's are."""
        stored = {**self._unusable, **self._known}
        return [rows.definition_key(KIND, token_id) for token_id, token in stored.items() if token.owner == owner]

    def secret_of(self, token_id: str) -> bytes:
        """What the owner's workers prove to have, in base64."""
        key = self._settings.text("delegation.token.secret.key").encode()
        return hmac.digest(key, f"delegation-token\0{token_id}".encode(), "sha512")

    # -- changes ----------------------------------------------------------------------------------------------------

    async def create(self, owner: str, requester: str, renewers: Iterable[str], max_life_ms: int) -> MadeToken:
        """In force when this returns. Conflict: the owner was changed, or removed, meanwhile."""
        self._check_enabled()
        owner_revision = self._users.revision(owner)
        named = tuple(dict.fromkeys(renewers))
        if len(named) > MAX_RENEWERS or any(not 0 < len(name) <= MAX_NAME for name in (*named, owner)):
            raise TokenRefused(
                "INVALID_REQUEST",
                f"a token has at most {MAX_RENEWERS} renewers, with names of 1 to {MAX_NAME} characters",
            )
        longest_ms = self._settings.integer("delegation.token.max.lifetime.ms")
        life_ms = longest_ms if max_life_ms <= 0 else min(max_life_ms, longest_ms)
        now_ms = self._world.clock.now_ms()
        expires_ms = min(now_ms + self._settings.integer("delegation.token.expiry.time.ms"), now_ms + life_ms)
        token_id = base64.urlsafe_b64encode(self._world.random.token(ID_BYTES)).decode().rstrip("=")
        secret = self.secret_of(token_id)
        password = base64.b64encode(secret).decode()
        verifiers = await self._world.offload(credentials.verifiers_of, password, self._world.random.token)
        token = DelegationToken(owner, requester, named, now_ms, expires_ms, now_ms + life_ms, verifiers, _mark(secret))
        await self._changes.to_the_end(self._add(token_id, token, owner_revision))
        logger.info("token.created", "a delegation token of {user} is created", user=owner, token=token_id)
        return MadeToken(token_id, token, secret)

    async def _add(self, token_id: str, token: DelegationToken, owner_revision: int) -> None:
        now_ms = self._world.clock.now_ms()
        valid = [one for one in self._known.values() if one.expires_ms > now_ms]
        if sum(one.owner == token.owner for one in valid) >= MOST_OF_ONE:
            raise Full(f"{token.owner} has {MOST_OF_ONE} delegation tokens, which is the most: expire one first")
        if len(valid) >= MAX_TOKENS:
            raise Full(f"there are {MAX_TOKENS} delegation tokens, which is the most")
        stored = {**self._unusable, **self._known}
        expired = [one for one, known in stored.items() if known.expires_ms <= now_ms][:SWEPT_AT_ONCE]
        changes: dict[str, bytes | None] = {rows.definition_key(KIND, one): None for one in expired}
        changes[rows.definition_key(KIND, token_id)] = msgspec.json.encode(token)
        owner_row = rows.definition_key(USER, token.owner)
        expected = {rows.definition_key(KIND, token_id): ABSENT, owner_row: owner_revision}
        await self._write(changes, expected)

    async def renew(self, secret: bytes, user: str, period_ms: int) -> int:
        """Moves the expiry, as far as the token's lifetime allows; returns it."""
        token_id, token = self._found(secret, user)
        now_ms = self._world.clock.now_ms()
        if token.max_ms < now_ms or token.expires_ms < now_ms:
            raise TokenRefused("DELEGATION_TOKEN_EXPIRED", "the token has expired: create another one")
        if period_ms < 0:
            period_ms = self._settings.integer("delegation.token.expiry.time.ms")
        return await self._move(token_id, token, min(token.max_ms, now_ms + period_ms))

    async def expire(self, secret: bytes, user: str, period_ms: int) -> int:
        """Ends it at once (a period below zero), or after a while; returns when."""
        token_id, token = self._found(secret, user)
        now_ms = self._world.clock.now_ms()
        if period_ms >= 0:
            if token.max_ms < now_ms or token.expires_ms < now_ms:
                raise TokenRefused("DELEGATION_TOKEN_EXPIRED", "the token has expired already")
            return await self._move(token_id, token, min(token.max_ms, now_ms + period_ms))
        row = rows.definition_key(KIND, token_id)
        await self._changes.to_the_end(self._write({row: None}, {row: self._revisions.get(token_id, ABSENT)}))
        logger.info("token.expired", "a delegation token of {user} is ended", user=token.owner, token=token_id)
        return now_ms

    async def _move(self, token_id: str, token: DelegationToken, expires_ms: int) -> int:
        row = rows.definition_key(KIND, token_id)
        value = msgspec.json.encode(replace(token, expires_ms=expires_ms))
        await self._changes.to_the_end(self._write({row: value}, {row: self._revisions.get(token_id, ABSENT)}))
        return expires_ms

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise TokenRefused(
                "DELEGATION_TOKEN_AUTH_DISABLED", "delegation tokens are off: set delegation.token.secret.key"
            )

    def _found(self, secret: bytes, user: str) -> tuple[str, DelegationToken]:
        """By its secret, for one whom it concerns."""
        self._check_enabled()
        token_id = self._by_secret.get(_key(secret), "")
        token = self._known.get(token_id)
        if token is None:
            raise TokenRefused("DELEGATION_TOKEN_NOT_FOUND", "there is no such delegation token")
        if not token.concerns(user):
            raise TokenRefused("DELEGATION_TOKEN_OWNER_MISMATCH", f"{user} neither owns the token nor may renew it")
        return token_id, token

    async def _write(self, changes: dict[str, bytes | None], expected: dict[str, int]) -> None:
        try:
            await self._follower.change(changes, expected)
        except RevisionConflict as error:
            await self._follower.catch_up()
            raise Conflict("the token or its owner was changed at the same time; try again") from error

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [rows.definition_key(KIND, token_id) for token_id in self._revisions]

    async def apply(self, update: Update) -> None:
        for row, value in update.changes:
            token_id = rows.definition_name(KIND, row)
            if value is not None:
                before = self._known.get(token_id)
                self._take(token_id, value, update.revision)
                after = self._known.get(token_id)
                if before is not None and after is not None and after.expires_ms < before.expires_ms:
                    self._tell(token_id)  # sessions last until the end that they were told at the login
                continue
            self._revisions.pop(token_id, None)
            self._verifiers.pop(token_id, None)
            self._unusable.pop(token_id, None)
            if self._known.pop(token_id, None) is not None:
                self._by_secret.pop(_key(self.secret_of(token_id)), None)
                self._tell(token_id)

    def _tell(self, token_id: str) -> None:
        for callback in self._on_removed:
            callback(token_id)

    def _take(self, token_id: str, value: bytes, revision: int) -> None:
        self._revisions[token_id] = revision
        try:
            token = msgspec.json.decode(value, type=DelegationToken)
            verifiers = tuple(credentials.read(text) for text in token.verifiers)
        except (msgspec.DecodeError, ValueError, NotAllowed) as error:
            logger.warning(
                "token.unreadable", "a delegation token cannot be read: {error}", token=token_id, error=error
            )
            return
        secret = self.secret_of(token_id) if self.enabled else b""
        if not secret or _mark(secret) != token.mark:
            self._unusable[token_id] = token  # it was made with another key, and nobody can log in by it
            return
        self._known[token_id] = token
        self._verifiers[token_id] = verifiers
        self._by_secret[_key(secret)] = token_id


def _key(secret: bytes) -> bytes:
    """What a token is found by: looking it up tells nothing of the secret by how long it takes."""
    return hashlib.sha256(secret).digest()


def _mark(secret: bytes) -> str:
    return hashlib.sha256(b"mark" + secret).hexdigest()


def stored_rows(catalog: Catalog, owner: str) -> list[str]:
    """Keys of the catalog under which an owner's are, of one that no broker uses. Blocks."""
    found = []
    for token_id, value in catalog.definitions(KIND).items():
        try:
            token = msgspec.json.decode(value, type=DelegationToken)
        except msgspec.DecodeError:
            continue
        if token.owner == owner:
            found.append(rows.definition_key(KIND, token_id))
    return found
