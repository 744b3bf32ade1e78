"""SaslHandshake and SaslAuthenticate: how a Kafka client shows who it is, and what it may ask before it has.

One `KafkaLogin` per connection. Before the login only ApiVersions and SASL's own requests are answered; anything else
ends the connection, as with Kafka. A failed login is answered after its pause, and then the connection ends. A client
may log in again on the same connection (KIP-368), as the same principal; it has to, when its session has a lifetime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import Challenge, Failed, LoggedIn, LoginPeer, Principal, SaslExchange

if TYPE_CHECKING:
    from waystation.broker.access.types import Entrance
    from waystation.protocols.kafka.requests.registry import Call

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
FRAMED = 1
"""The version of SaslHandshake behind which messages of the mechanism are requests. Behind version 0, which clients
from before Kafka 1.0 use, they are bare; it is refused. It is told as offered all the same: librdkafka up to 2.0 looks
for it before it logs in, and then uses version 1."""
BEFORE_LOGIN = frozenset((SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE))
MAX_REQUEST_BYTES = 512 * 1024
"""Of a client that has not logged in: Kafka's default for `sasl.server.max.receive.size`."""

REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
"""Kafka's own words, whatever the reason was."""


class KafkaLogin:
    """One connection's."""

    __slots__ = ("_entrance", "_exchange", "_now_s", "entered", "expires_s", "over", "peer", "principal")

    def __init__(
        self,
        entrance: Entrance,
        peer: LoginPeer,
        now_s: Callable[[], float],
        entered: Callable[[Principal], None],
    ) -> None:
        self._entrance = entrance
        self._now_s = now_s
        self._exchange: SaslExchange | None = None
        self.peer = peer
        self.entered = entered  # called when the client has shown who it is
        self.principal: Principal | None = peer.certificate
        self.expires_s: float | None = None  # when it has to log in again
        self.over = False  # the connection ends with the next answer

    def refuses(self, api_key: int) -> str | None:
        """Why a request of this API is not answered; None: it is."""
        if self.over:
            return "the login has failed"
        if api_key in BEFORE_LOGIN:
            return None
        if self.principal is None:
            return None if not self._entrance.required else "the client has not logged in (SASL)"
        if self.expires_s is not None and self._now_s() > self.expires_s:
            return "the session has expired, and the client has not logged in again"
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing has to be asked any more before requests."""
        return self.principal is not None and self.expires_s is None

    def handshake(self, mechanism: str, version: int) -> tuple[ErrorCode, tuple[str, ...]]:
        """The answer to a client that names its mechanism: whether it is offered, and which are."""
        offered = self._entrance.mechanisms("kafka") if self._entrance.offered else ()
        if version < FRAMED:
            self.over = True
            return ErrorCode.unsupported_version, offered
        self._exchange = self._entrance.begin(mechanism, self.peer) if offered else None
        if self._exchange is None:
            self.over = True
            return ErrorCode.unsupported_sasl_mechanism, offered
        return ErrorCode.none, offered

    async def authenticate(self, data: bytes) -> tuple[ErrorCode, str, bytes, int]:
        """(error, message, bytes for the client, lifetime of the session in ms)"""
        exchange = self._exchange
        if exchange is None:
            self.over = True
            return ErrorCode.illegal_sasl_state, "SaslHandshake comes before SaslAuthenticate", b"", 0
        outcome = await self._entrance.authenticator.step(exchange, data, self.peer)
        if isinstance(outcome, Challenge):
            return ErrorCode.none, "", outcome.data, 0
        self._exchange = None
        if isinstance(outcome, Failed) or not self._same(outcome.principal):
            self.over = True
            return ErrorCode.sasl_authentication_failed, REFUSED.format(exchange.mechanism), b"", 0
        return ErrorCode.none, "", outcome.data, self._enter(outcome)

    def _same(self, principal: Principal) -> bool:
        """Nobody becomes somebody else on the way; but what a certificate says gives way to the first login."""
        before = self.principal
        return (
            before is None
            or before is self.peer.certificate
            or (before.name, before.namespace) == (principal.name, principal.namespace)
        )

    def _enter(self, done: LoggedIn) -> int:
        session_ms = self._entrance.authenticator.session_ms(done)
        self.principal = done.principal
        self.expires_s = self._now_s() + session_ms / 1000 if session_ms else None
        self.entered(done.principal)
        return session_ms


def sasl_handshake(call: Call) -> Any:
    error, offered = _login(call).handshake(call.request.mechanism, call.version)
    return call.make("SaslHandshakeResponse", error_code=error, mechanisms=offered)


async def sasl_authenticate(call: Call) -> Any:
    error, message, data, session_ms = await _login(call).authenticate(call.request.auth_bytes)
    return call.make(
        "SaslAuthenticateResponse",
        error_code=error,
        error_message=message or None,
        auth_bytes=data,
        session_lifetime=session_ms,
    )


def _login(call: Call) -> KafkaLogin:
    if call.login is None:
        raise RuntimeError("a call of a connection has its login")
    return call.login()
