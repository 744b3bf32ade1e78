"""GSSAPI (RFC 4752): a Kerberos ticket for the broker's service, without a security layer, as Kafka uses it.

The client sends tokens until both sides have a context; then the broker says, in a message that is signed by it, that
it offers no layer, and the client answers that it takes that. What Kerberos computes is behind
`GssContext`, which `security/kerberos.py` makes of the `gssapi` package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, Outcome

OVER = "the exchange is over"
NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))
"""No security layer, and so no size of its messages."""
MOST_TOKENS = 10
"""Of a client until there is a context; Kerberos needs one or two."""


class GssFailed(Exception):
    """The library does not take what the client has sent; the text is for the log."""


class GssContext(Protocol):
    """The broker's side of one context. Each method may raise GssFailed, and may read files."""

    def step(self, token: bytes) -> bytes:
        """What the client has to be sent."""

    @property
    def complete(self) -> bool: ...

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes: ...

    @property
    def initiator(self) -> str:
        """The client's principal, once it is complete: `PRIMARY[/INSTANCE]@REALM`."""


class GssapiExchange:
    """Tokens of the client, an empty message where Kerberos's last word was ours, and its answer to the offer."""

    mechanism = "GSSAPI"
    blocking = True

    def __init__(self, begin: Callable[[], GssContext], identify: Callable[[GssContext], LoggedIn | Failed]) -> None:
        self._begin = begin
        self._identify = identify
        self._context: GssContext | None = None
        self._next: Callable[[bytes], Outcome] | None = self._token
        self._tokens = 0

    def step(self, data: bytes) -> Outcome:
        now, self._next = self._next, None
        if now is None:
            return Failed(OVER)
        try:
            return now(data)
        except GssFailed as error:
            return Failed(f"Kerberos: {error}")

    def _token(self, data: bytes) -> Outcome:
        if self._context is None:
            self._context = self._begin()
        self._tokens += 1
        if self._tokens > MOST_TOKENS:
            return Failed("Kerberos: too many messages")
        answer = self._context.step(data)
        if not self._context.complete:
            self._next = self._token
            return Challenge(answer)
        if answer:
            self._next = self._empty
            return Challenge(answer)
        return self._offer()

    def _empty(self, data: bytes) -> Outcome:
        return Failed("Kerberos: a message that ought to be empty") if data else self._offer()

    def _offer(self) -> Outcome:
        if self._context is None:
            return Failed(OVER)
        self._next = self._answer
        return Challenge(self._context.wrap(OFFER))

    def _answer(self, data: bytes) -> Outcome:
        if self._context is None:
            return Failed(OVER)
        said = self._context.unwrap(data)
        if len(said) < len(OFFER) or said[0] != NO_LAYER:
            return Failed("Kerberos: the client wants a security layer, and there is none")
        # Whom it wants to act as comes next, and is not looked at, as in Kafka: it is whom its ticket names. Some
        # clients write the name of the service there.
        return self._identify(self._context)
