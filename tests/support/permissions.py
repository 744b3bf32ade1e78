"""Permissions for tests of what is refused."""

from __future__ import annotations

from waystation.security.permissions import Operation, Permissions, Resource, refusal
from waystation.security.principals import Principal


class RefusesEverything(Permissions):
    """Nobody may do anything; `asked` is what somebody wanted."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, Resource, str]] = []

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        self.asked.append((operation, resource, name))
        raise refusal(principal, operation, resource, name)
