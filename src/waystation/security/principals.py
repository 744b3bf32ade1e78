"""Principals: whom a client has shown itself to be. Until it has, it is `ANONYMOUS`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """As Kafka writes it: a kind and a name, `User:alice`."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
BROKER = Principal("broker", "Broker")
"""The broker itself: what it moves for its users, such as dead letters, was permitted when they asked for it."""
