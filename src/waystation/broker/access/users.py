"""`UserAccess`: users, as those who administer the broker see and change them.

A user concerns the broker as a whole, so that is what is asked for. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from waystation.broker.access.family import Family
from waystation.security import credentials
from waystation.security.principals import Principal
from waystation.security.users import User


class UserAccess(Family):
    """One principal's."""

    __slots__ = ()

    def names(self) -> list[str]:
        """In order."""
        self._ask_cluster("describe")
        return self._broker.users.names()

    def find(self, name: str) -> User | None:
        self._ask_cluster("describe")
        return self._broker.users.find(name)

    def own(self) -> User | None:
        """What is known of the principal itself; nobody is asked for that."""
        return self._broker.users.find(self._principal.name)

    def may_everything(self) -> bool:
        """Whether the principal itself is never asked about."""
        return self._broker.permissions.is_superuser(self._principal)

    def is_superuser(self, name: str) -> bool:
        """By what is stored of the user, or by the settings."""
        self._ask_cluster("describe")
        return self._broker.permissions.is_superuser(Principal(name))

    def check_alter(self) -> None:
        """Raises if the principal may not change users."""
        self._ask_cluster("alter")

    def to_alter(self, name: str) -> User | None:
        """The same, for one who is about to change it."""
        self._ask_cluster("alter")
        return self._broker.users.find(name)

    async def save(self, name: str, user: User) -> None:
        """A new user, or in the place of the one there is; in force when this returns. The first one closes the
        broker."""
        self._ask_cluster("alter")
        await self._broker.users.save(name, user)

    async def remove(self, name: str) -> None:
        """NotFound if there is none. Its connections are ended, and its rules stay until they are removed."""
        self._ask_cluster("alter")
        await self._broker.users.remove(name)

    async def verifiers_of(self, password: str) -> tuple[str, ...]:
        """What is stored of a password; slow, and away from the loop."""
        self._ask_cluster("alter")
        return await self._broker.world.offload(credentials.verifiers_of, password, self._broker.world.random.token)
