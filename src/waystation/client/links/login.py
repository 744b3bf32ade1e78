"""A client's side of a login: what it says first, what it answers, and whether the broker has proved itself.

Pure. The connection sends what this says (`client/links/connection.py`); the broker's side is `security/sasl`.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from waystation.errors import NotAuthenticated
from waystation.wire import scram
from waystation.wire.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMalformed

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "EXTERNAL")
"""The first is the default: the password does not leave this process."""


class LoginSource(Protocol):
    """Where logins come from: one `exchange` for each connection. It may read a password again each time."""

    @property
    def mechanism(self) -> str: ...

    def exchange(self) -> Login: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """Whom to log in as. The password is not shown with it."""

    user: str
    password: str = field(repr=False)
    mechanism: str = MECHANISMS[0]

    def exchange(self) -> Login:
        return ScramLogin(self) if self.mechanism in scram.DIGESTS else Login(self)


class Login:
    """One login by a mechanism that has one message."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        user, password = self._credentials.user.encode(), self._credentials.password.encode()
        if self._credentials.mechanism == "OAUTHBEARER":
            return b"n,,\x01auth=Bearer %b\x01\x01" % password
        return b"" if self._credentials.mechanism == "EXTERNAL" else b"\0%b\0%b" % (user, password)

    def answer(self, challenge: bytes) -> bytes:
        """The broker is not content: it says why, and is told that this was heard."""
        return b"\x01"

    def finish(self, data: bytes) -> None:
        """Raises NotAuthenticated if the broker has not proved itself."""


class ScramLogin(Login):
    """SCRAM: the password is proved and not sent, and the broker has to know its verifier."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._nonce = base64.b64encode(secrets.token_bytes(24))
        self._bare = b"n=%b,r=%b" % (scram.name_to_wire(credentials.user), self._nonce)
        self._signature = b""

    def first(self) -> bytes:
        return b"n,," + self._bare

    def answer(self, challenge: bytes) -> bytes:
        mechanism = self._credentials.mechanism
        try:
            said = dict(scram.attributes(challenge))
            nonce, salt, rounds = said["r"], scram.from_base64(said["s"]), int(said["i"])
        except (ScramMalformed, KeyError, ValueError):
            raise NotAuthenticated("the broker's challenge cannot be read; is it one?") from None
        if not nonce.startswith(self._nonce) or not MIN_ITERATIONS <= rounds <= MAX_ITERATIONS:
            raise NotAuthenticated("the broker's challenge is not one of this login")
        salted = scram.salted_password(mechanism, self._credentials.password.encode(), salt, rounds)
        final = b"c=biws,r=" + nonce
        message = b",".join((self._bare, challenge, final))
        self._signature = scram.mac(mechanism, scram.mac(mechanism, salted, b"Server Key"), message)
        return final + b",p=" + base64.b64encode(scram.proof_of(mechanism, salted, message))

    def finish(self, data: bytes) -> None:
        if not self._signature or not hmac.compare_digest(data, b"v=" + base64.b64encode(self._signature)):
            raise NotAuthenticated("the broker has not proved that it knows this user; is it the right one?")
