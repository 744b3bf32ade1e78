"""Names that no other test uses, so that one broker can serve a whole test session."""

from __future__ import annotations

import itertools
import os

_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    """A name no other call returned, also not one in another test process of the same broker."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"
