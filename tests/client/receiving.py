"""What a subscription gives, waited for."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import wait_for


def read(subscription: Any, count: int) -> list[Any]:
    """So many messages, in the order in which they come."""
    got: list[Any] = []

    def enough() -> bool:
        got.extend(subscription.poll(timeout=0.5, max=count - len(got)))
        return len(got) >= count

    wait_for(enough, f"{count} messages come")
    return got
