"""EXTERNAL (RFC 4422): the connection itself has shown who the client is, by a certificate."""

from __future__ import annotations

from waystation.security.principals import Principal
from waystation.security.sasl.exchange import Failed, LoggedIn, Outcome


class ExternalExchange:
    """One message, which may name the user again. Some of AMQP's clients send a name that means nothing."""

    mechanism = "EXTERNAL"
    blocking = False

    def __init__(self, principal: Principal | None) -> None:
        self._principal = principal

    def step(self, data: bytes) -> Outcome:
        principal, self._principal = self._principal, None
        if principal is None:
            return Failed("the connection has no client certificate")
        return LoggedIn(principal)
