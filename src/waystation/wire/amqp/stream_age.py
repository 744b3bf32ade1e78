"""How old what is in a stream may become, as RabbitMQ writes it: `7D`, `1h`. Pure."""

from __future__ import annotations

import re

UNITS_MS = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
_AGE = re.compile(r"(\d{1,9})([YMDhms])")


def age_ms(text: str) -> int | None:
    """None if it is no such thing."""
    found = _AGE.fullmatch(text)
    return None if found is None else int(found[1]) * UNITS_MS[found[2]]
