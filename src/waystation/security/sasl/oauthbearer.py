"""OAUTHBEARER (RFC 7628): a signed token in one message, `n,,^Aauth=Bearer TOKEN^A^A`.

On failure the mechanism says what is wrong in a JSON object, which the client acknowledges with one byte; Kafka's
protocol carries it in its own error instead.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, Outcome

OVER = "the exchange is over"
SEPARATOR = b"\x01"
INVALID_TOKEN = b'{"status":"invalid_token"}'

CheckToken = Callable[[str], LoggedIn | Failed]
"""Whom a token names. May block."""


class OAuthBearerExchange:
    """One message, and one more where the client has to acknowledge the error."""

    mechanism = "OAUTHBEARER"
    blocking = True  # the provider's keys may have to be fetched

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._over = False
        self._failure: Failed | None = None

    def step(self, data: bytes) -> Outcome:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            return failure
        if self._over:
            return Failed(OVER)
        self._over = True
        token = token_in(data)
        if token is None:
            return Failed("the message is not n,,^Aauth=Bearer TOKEN^A^A", data=INVALID_TOKEN)
        outcome = self._check(token)
        if isinstance(outcome, LoggedIn):
            return outcome
        self._failure = outcome
        return Challenge(INVALID_TOKEN)


def token_in(data: bytes) -> str | None:
    header, *pairs = data.split(SEPARATOR)
    if not header.startswith((b"n,", b"y,")) or not header.endswith(b",") or data[-2:] != SEPARATOR * 2:
        return None
    for pair in pairs:
        key, _, value = pair.partition(b"=")
        if key.lower() == b"auth":
            kind, _, token = value.strip().partition(b" ")
            if kind.lower() == b"bearer" and token.isascii() and token.strip():
                return token.strip().decode()
    return None
