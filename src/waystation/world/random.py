"""Chance, as handed to the core, so that a simulated run repeats from its seed."""

from __future__ import annotations

import random
import secrets
from typing import Protocol
from uuid import UUID, uuid4


class Random(Protocol):
    """Unpredictable in production, repeatable in simulation."""

    def token(self, n: int) -> bytes:
        """`n` random bytes."""

    def uuid(self) -> UUID:
        """A random (version 4) UUID."""

    def below(self, n: int) -> int:
        """A whole number in `range(n)`."""

    def uniform(self) -> float:
        """A number in [0, 1)."""


class SystemRandom:
    """The operating system's randomness."""

    def token(self, n: int) -> bytes:
        return secrets.token_bytes(n)

    def uuid(self) -> UUID:
        return uuid4()

    def below(self, n: int) -> int:
        return secrets.randbelow(n)

    def uniform(self) -> float:
        return random.random()
