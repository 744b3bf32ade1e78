"""How a native client shows who it is: in its hello, by a mechanism of SASL, or by a user and a password.

Before that, on a broker that asks for it, nothing but `hello`, `authenticate` and `ping` is done (`BEFORE_LOGIN`). A
failed login is answered after its pause, and then the connection ends. One `NativeLogin` per session that logs in.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.broker.access.types import Challenge, Entrance, LoggedIn, LoginPeer, Principal, SaslExchange
from waystation.errors import NotAuthenticated
from waystation.protocol import VERSION, Authenticate, Hello, HelloAnswer, Ping
from waystation.version import __version__

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

BEFORE_LOGIN: frozenset[type] = frozenset((Hello, Authenticate, Ping))
FRAME_BYTES = 512 * 1024
"""Of a client that has not logged in."""
LOG_IN = (
    "this broker requires a login: connect to waystation://USER:PASSWORD@HOST:PORT, or with JSON lines send a hello"
    " with user and password"
)
REFUSED = "the login was refused; the broker's log says why"
ANOTHER = "this connection has logged in as another user; open another connection"


def greeting(session: NativeSession) -> HelloAnswer:
    return HelloAnswer(session.name, VERSION, __version__)


class NativeLogin:
    """The exchange that is under way."""

    __slots__ = ("_entrance", "_exchange", "_peer", "_session")

    def __init__(self, session: NativeSession, entrance: Entrance, peer: LoginPeer) -> None:
        self._session = session
        self._entrance = entrance
        self._peer = peer
        self._exchange: SaslExchange | None = None

    async def begin(self, command: Hello) -> HelloAnswer:
        mechanism, data = command.mechanism, command.data
        if not mechanism:
            mechanism, data = "PLAIN", b"\0".join((b"", command.user.encode(), command.password.encode()))
        self._exchange = self._entrance.begin(mechanism, self._peer)
        if self._exchange is None:
            offered = ", ".join(self._entrance.mechanisms("native"))
            raise self._over(f"mechanism: {mechanism[:40]!r} is not offered; there are {offered}")
        return await self.go_on(data)

    async def go_on(self, data: bytes) -> HelloAnswer:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            raise self._over("there is no login to go on with: hello comes first")
        session = self._session
        outcome = await self._entrance.authenticator.step(exchange, data, self._peer)
        answer = greeting(session)
        if isinstance(outcome, Challenge):
            self._exchange = exchange
            answer.challenge = outcome.data
            return answer
        if not isinstance(outcome, LoggedIn):
            raise self._over(REFUSED)
        if not self._same(outcome.principal):
            raise self._over(ANOTHER)
        session.enter(outcome.principal, outcome.expires_ms)
        answer.data = outcome.data
        return answer

    def _same(self, principal: Principal) -> bool:
        """Nobody becomes somebody else on the way: what was opened before would not end with whom it was opened as. But
        what a certificate says gives way to the first login."""
        before, certificate = self._session.access.principal, self._peer.certificate
        certified = certificate is not None and before == certificate.inside(before.within)
        return before.anonymous or certified or before.name == principal.name

    def _over(self, why: str) -> NotAuthenticated:
        """The connection ends when the failure is told."""
        if self._session.wire is not None:
            asyncio.get_running_loop().call_soon(self._session.wire.end, "the login has failed")
        return NotAuthenticated(why)
