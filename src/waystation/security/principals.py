"""Principals: whom a client has shown itself to be. Until it has, it is `ANONYMOUS`."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace


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

    def at(self, host: str, protocol: str = "") -> Principal:
        """The same, at this address, by this protocol."""
        return replace(self, host=host, protocol=protocol)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
BROKER = Principal("broker", "Broker", superuser=True)
"""The broker itself: what it moves for its users, such as dead letters, was permitted when they asked for it."""
LOCAL = Principal("local", "Process", superuser=True)
"""A client in the broker's own process: whoever runs there can read the files as well."""
HTTP_TOKEN = Principal("http-token", "Token", superuser=True)
"""Who sends the token of `waystation.http.token`, which is given to those who may do everything."""
