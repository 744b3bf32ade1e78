"""Principals: whom a client has shown itself to be. Until it has, it is `ANONYMOUS`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

FULL, READ_ONLY = "full", "read-only"
"""Roles: all that the user may do; of that, to look and to read topics."""


class Principal(msgspec.Struct, frozen=True):
    """As Kafka writes it: a kind and a name, `User:alice`. What else is known of it was true at the login."""

    name: str
    kind: str = "User"
    groups: tuple[str, ...] = ()
    superuser: bool = False
    namespace: str = "/"
    """Its home: where it is when its connection does not say."""
    host: str = "*"
    """The address that it logged in from; `*`: not known, or of no matter."""

    protocol: str = ""
    """By which it logged in."""
    role: str = FULL
    """To what the credential that it logged in by restricts its rights."""
    credential: str = ""
    """Which one, where a user has several: `key:ID` of an API key, `token:ID` of a delegation token."""

    def by(self, credential: str, role: str = FULL) -> Principal:
        """The same, as this credential shows it."""
        return replace(self, credential=credential, role=role, superuser=self.superuser and role == FULL)

    within: str = ""
    """The namespace outside of which it sees and reaches nothing, on the connection that it is on; empty: rules alone
    say what it may."""

    @property
    def anonymous(self) -> bool:
        """Whether nobody has shown who it is."""
        return self.name == "ANONYMOUS" and self.kind == "User"

    def inside(self, namespace: str) -> Principal:
        """The same, on a connection that is in this namespace."""
        within = "" if namespace == "/" else namespace
        return self if within == self.within else replace(self, within=within)

    def at(self, host: str, protocol: str = "") -> Principal:
        """The same, at this address, by this protocol."""
        return replace(self, host=host, protocol=protocol)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def key_credential(key_id: str) -> str:
    """As `Principal.credential` has it."""
    return f"key:{key_id}"


def token_credential(token_id: str) -> str:
    """The same, of a delegation token."""
    return f"token:{token_id}"


ANONYMOUS = Principal("ANONYMOUS")
BROKER = Principal("broker", "Broker", superuser=True)
"""The broker itself: what it moves for its users, such as dead letters, was permitted when they asked for it."""
LOCAL = Principal("local", "Process", superuser=True)
"""A client in the broker's own process: whoever runs there can read the files as well."""
HTTP_TOKEN = Principal("http-token", "Token", superuser=True)
"""Who sends the token of `waystation.http.token`, which is given to those who may do everything."""
