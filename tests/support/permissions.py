"""Permissions for tests: of what is refused, and of what does not depend on them."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.errors import NotAllowed
from waystation.security.permissions import Operation, Permissions, Resource, refusal
from waystation.security.principals import Principal
from waystation.security.rules import Rule


class OpenPermissions(Permissions):
    """Everybody may do everything, unless `check` says otherwise."""

    def __init__(self) -> None:
        self.version = 0

    def refresh(self) -> None:
        self.version += 1

    async def settle(self) -> None:
        pass

    @property
    def enforced(self) -> bool:
        return False

    def tell_refusal(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        pass

    def is_superuser(self, principal: Principal) -> bool:
        return False

    def rules(self) -> list[Rule]:
        return []

    async def add(self, rules: Iterable[Rule]) -> None:
        pass

    async def remove(self, rules: Iterable[Rule]) -> None:
        pass

    async def replace(self, old: Iterable[Rule], new: Iterable[Rule]) -> None:
        pass

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        pass

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        try:
            self.check(principal, operation, resource, name)
        except NotAllowed:
            return False
        return True

    def check_under(
        self, principal: Principal, operation: Operation, resource: Resource, prefix: str, *, beneath: bool = True
    ) -> None:
        self.check(principal, operation, resource, f"{prefix}*")

    def allows_under(
        self, principal: Principal, operation: Operation, resource: Resource, prefix: str, *, beneath: bool = True
    ) -> bool:
        return self.allows(principal, operation, resource, f"{prefix}*")

    def extent(self, principal: Principal, operation: Operation, resource: Resource) -> bool | None:
        return None

    def allows_some(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return self.allows(principal, operation, resource, "*")


class RefusesEverything(OpenPermissions):
    """Nobody may do anything; `asked` is what somebody wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Operation, Resource, str]] = []

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        self.asked.append((operation, resource, name))
        raise refusal(principal, operation, resource, name)
