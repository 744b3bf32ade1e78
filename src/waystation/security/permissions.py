"""Permissions: whether a principal may do something to something. Asked in one place (`broker/access`).

There are no rules yet: everything is allowed. What has to stay true when there are some: `check` raises before anything
has happened, and it answers at once.
"""

from __future__ import annotations

from typing import Literal

from waystation.errors import NotAllowed
from waystation.security.principals import Principal

Operation = Literal["read", "write", "create", "delete", "alter", "describe"]
Resource = Literal["topic", "queue", "exchange", "transactional-id", "group", "inbox", "namespace", "cluster"]


def refusal(principal: Principal, operation: Operation, resource: Resource, name: str) -> NotAllowed:
    """What `check` raises: each protocol has its own word for a kind of resource."""
    return NotAllowed(f"{principal} may not {operation} {resource} {name!r}", resource)


class Permissions:
    """One per broker; for the loop's thread."""

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Raises a `refusal` if the principal may not."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        """The same as an answer: lists leave out what the principal may not see."""
        try:
            self.check(principal, operation, resource, name)
        except NotAllowed:
            return False
        return True
