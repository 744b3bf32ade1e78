"""An exchange: one login by one mechanism, from the client's first bytes to its end.

    step(bytes) -> Challenge | Done | Failed

Invariant: whatever a client sends, `step` raises nothing and ends after at most a few steps; once it has ended, every
further step fails. What `Failed` says is for the log: a client is told the same for every reason, so that it does not
learn which users exist. `Authenticator` makes exchanges and calls them; `blocking` ones away from the loop.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from waystation.security.principals import Principal

MAX_MESSAGE_BYTES = 512 * 1024
"""Of one message of a client; Kafka's default for `sasl.server.max.receive.size`."""


class Challenge(msgspec.Struct, frozen=True):
    """The client has to answer this."""

    data: bytes


class LoggedIn(msgspec.Struct, frozen=True):
    """The client is this principal."""

    principal: Principal
    data: bytes = b""
    expires_ms: int | None = None  # when what it has shown is no longer valid, as time of the clock


class Failed(msgspec.Struct, frozen=True):
    """It is not. `user`: whom it claimed to be, as far as that was said."""

    reason: str
    user: str = ""
    data: bytes = b""  # what the mechanism itself says of it, if anything


Outcome = Challenge | LoggedIn | Failed


class SaslExchange(Protocol):
    """One login."""

    mechanism: str
    blocking: bool
    """Whether a step takes milliseconds."""

    def step(self, data: bytes) -> Outcome: ...


class Directory(Protocol):
    """What mechanisms ask about users. Any thread."""

    def check(self, name: str, password: bytes) -> LoggedIn | Failed:
        """Whether this is the user's password. Takes the same time whether the user exists or not."""
