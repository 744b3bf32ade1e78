"""Who sends a request: by password (Basic), by token or API key (Bearer), by a session's cookie, or by a client
certificate.

While a broker has no users, nobody is asked but for the token of `waystation.http.token` (`token.py`). That token
works beside users, too: those who have it may do everything. A cookie is sent by browsers of their own accord, so what
changes something by it has to come from a page of ours as well (`guard.py`); it is never shown to scripts, and never
sent with a request of another site.

Sessions are in memory: a restart ends them, and so does a new password, or the end of the user. One that began with an
API key may what the key may, and ends with it. One per listener.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from waystation.broker.access.types import (
    ANONYMOUS,
    HTTP_TOKEN,
    Entrance,
    Failed,
    LoggedIn,
    LoginPeer,
    Outcome,
    Principal,
)
from waystation.protocols.http.auth.fair_share import oldest_of_most
from waystation.protocols.http.auth.guard import VOUCHER, Guard
from waystation.protocols.http.auth.token import check_token, has_password, is_free
from waystation.protocols.http.transport.problems import Unauthorized

if TYPE_CHECKING:
    from waystation.broker.access.node import Node

COOKIE = "waystation_session"
SESSION_S = 12 * 3600.0
"""After the last request."""
MOST_SESSIONS = 10_000
"""With more, whoever has most of them loses the oldest."""
LOG_IN = "log in: send `Authorization: Basic` with a name and a password, or `Authorization: Bearer TOKEN`"
REFUSED = "the login was refused; the broker's log says why"
WRONG_TOKEN = "it does not have the token of waystation.http.token"
BASIC_TOO = 'Basic realm="Waystation", Bearer'


class Shown(msgspec.Struct, frozen=True):
    """Who sends a request."""

    principal: Principal
    expires_ms: int | None = None
    """When what it has shown is no longer valid: a stream ends then."""


NOBODY = Shown(ANONYMOUS)


class Session(msgspec.Struct):
    """A browser that has logged in: as which user, by which credential, and to what that restricts it."""

    user: str  # as it has logged in
    name: str  # of the user, in whichever namespace
    revision: int
    until_s: float
    credential: str
    role: str
    expires_ms: int | None


class HttpLogin:
    """One per listener."""

    def __init__(self, broker: Node, entrance: Entrance) -> None:
        self._broker = broker
        self._entrance = entrance
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    async def principal(self, headers: dict[str, str], parts: Sequence[str], peer: LoginPeer, *, own: bool) -> Shown:
        """Who sends this; Unauthorized if it has to be somebody. `own`: it is for our own API, which asks for the token
        itself where there are no users."""
        token = self._broker.settings.text("waystation.http.token")
        free = own and is_free(parts)
        if not self._entrance.offered:
            if token and headers.get("authorization") and not has_password(token, headers):
                # Free paths, too: some tell those who have the token more.
                await self._broker.authenticator.refuse(Failed(WRONG_TOKEN), "TOKEN", peer)
            if own:
                check_token(token, headers, parts)
            return NOBODY
        if token and has_password(token, headers):
            return Shown(HTTP_TOKEN.at(peer.host, peer.protocol))
        found = await self._shown(headers, peer, free=free)
        if found is not None:
            return found
        if free:
            return NOBODY
        if self._entrance.required:
            raise Unauthorized(LOG_IN, _challenge(headers))
        if token:
            raise Unauthorized(LOG_IN, _challenge(headers))
        return NOBODY

    async def _shown(self, headers: dict[str, str], peer: LoginPeer, *, free: bool) -> Shown | None:
        """By what the request carries; None: it carries nothing that would do."""
        if headers.get("authorization"):
            found = await self._authorized(headers["authorization"], peer)
            if found is None and not free:
                raise Unauthorized(REFUSED, _challenge(headers))
            return found
        known = self._session(headers) or (None if peer.certificate is None else Shown(peer.certificate))
        return None if known is None else Shown(known.principal.at(peer.host, peer.protocol), known.expires_ms)

    async def _authorized(self, said: str, peer: LoginPeer) -> Shown | None:
        authenticator = self._broker.authenticator
        kind, _, value = said.partition(" ")
        if kind.lower() == "bearer":
            outcome = await authenticator.bearer(value.strip(), peer)
            return _shown(outcome)
        if kind.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(value.strip(), validate=True).partition(b":")
            outcome = await authenticator.password(name.decode(), password, peer)
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        return _shown(outcome)

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def log_in(self, user: str, password: str, peer: LoginPeer, *, secure: bool) -> str:
        """Begins a session; returns the cookie. Unauthorized after its pause."""
        outcome = await self._broker.authenticator.password(user, password.encode(), peer)
        if not isinstance(outcome, LoggedIn):
            raise Unauthorized("wrong name or password")
        secret = base64.urlsafe_b64encode(self._broker.world.random.token(32)).decode()
        revision = self._broker.authenticator.revision(user)
        who = outcome.principal
        self._sessions[_mark(secret)] = Session(
            user, who.name, revision, self._now_s() + SESSION_S, who.credential, who.role, outcome.expires_ms
        )
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[oldest_of_most(self._sessions, lambda mark: self._sessions[mark].name)]
        return f"{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={int(SESSION_S)}" + (
            "; Secure" if secure else ""
        )

    def log_out(self, headers: dict[str, str]) -> str:
        """Ends the session, if there is one; returns the cookie that takes it back."""
        self._sessions.pop(_mark(_cookie(headers)), None)
        return f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    def by_cookie(self, headers: dict[str, str]) -> bool:
        """Whether it is the cookie alone that shows who sends this."""
        return not headers.get("authorization") and _mark(_cookie(headers)) in self._sessions

    def check_change(self, headers: dict[str, str]) -> None:
        """Raises Foreign if a page of another origin could have caused a change by a session's cookie."""
        if self.by_cookie(headers):
            Guard.check_read(headers, "this", "a page of this broker", lenient=False)

    def _session(self, headers: dict[str, str]) -> Shown | None:
        mark = _mark(_cookie(headers))
        session = self._sessions.get(mark)
        if session is None:
            return None
        authenticator = self._broker.authenticator
        principal = authenticator.principal(session.user)
        now_s = self._now_s()
        expired = session.expires_ms is not None and session.expires_ms <= self._broker.world.clock.now_ms()
        over = session.until_s < now_s or authenticator.revision(session.user) != session.revision
        if principal is None or expired or over or not authenticator.holds(session.credential):
            del self._sessions[mark]
            return None
        session.until_s = now_s + SESSION_S
        self._sessions.move_to_end(mark)
        if session.credential:
            principal = principal.by(session.credential, session.role)
        return Shown(principal, session.expires_ms)

    def _now_s(self) -> float:
        return self._broker.world.clock.monotonic()


def _shown(outcome: Outcome) -> Shown | None:
    return Shown(outcome.principal, outcome.expires_ms) if isinstance(outcome, LoggedIn) else None


def _challenge(headers: dict[str, str]) -> str:
    """What is offered to who has to log in. A browser that is offered Basic asks for a password in a window of its own:
    that is for who has typed an address, and not for what a page fetches, the dashboard's above all."""
    fetched = VOUCHER in headers or headers.get("sec-fetch-mode", "navigate") != "navigate"
    return "Bearer" if fetched else BASIC_TOO


def _cookie(headers: dict[str, str]) -> str:
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _mark(secret: str) -> bytes:
    """What a session is found by: looking it up tells nothing of the secret by how long it takes."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
