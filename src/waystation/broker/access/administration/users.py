"""`UserAccess`: users, as those who administer the broker see and change them.

A user concerns the broker as a whole, so that is what is asked for. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystation.broker.access.messaging.family import Family
from waystation.errors import NotAllowed
from waystation.security import credentials
from waystation.security.principals import Principal
from waystation.security.topic_permissions import TopicPermission
from waystation.security.users import User


def described(user: User) -> str:
    """For the audit log: nothing of a password."""
    groups, tags = ", ".join(user.groups), ", ".join(user.tags)
    return f"{'superuser; ' if user.superuser else ''}groups: {groups or 'none'}; tags: {tags or 'none'}"


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

    def check_connections(self) -> None:
        """Asked before a connection of the principal is one: NotAllowed if it has as many as it may have."""
        limit = self.own_limit("max-connections")
        if limit is None:
            return
        name = self._principal.name
        there = sum(1 for one in self._broker.connections if one.login == name)
        if there >= limit:
            raise NotAllowed(f"user {name!r} has {there} connections, which is its limit")

    def own_limit(self, limit: str) -> int | None:
        """Of the principal itself; nobody is asked for that. None: there is none."""
        user = self._broker.users.find(self._principal.name)
        return None if user is None else user.limits.get(limit)

    # -- topic permissions ------------------------------------------------------------------------------------------

    def topic_permissions(self, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """Those of a user, of a virtual host, or all."""
        self._ask_cluster("describe")
        return self._broker.topic_permissions.listing(user, vhost)

    async def set_topic_permission(self, permission: TopicPermission) -> bool:
        """In the place of what there is for this exchange; True: there was none. In force when this returns."""
        self._ask_cluster("alter")
        work = self._broker.topic_permissions.set(permission)
        detail = f"{permission.user}: exchange {permission.exchange}, {permission.write!r}, {permission.read!r}"
        return await self._changing("alter", "topic-permission", permission.vhost, work, detail)

    async def remove_topic_permissions(self, permissions: Sequence[TopicPermission]) -> None:
        """Fine if they are not there."""
        self._ask_cluster("alter")
        for one in permissions:
            work = self._broker.topic_permissions.remove([one])
            await self._changing("delete", "topic-permission", one.vhost, work, f"{one.user}: {one.exchange}")

    # -- changing ---------------------------------------------------------------------------------------------------

    def check_alter(self) -> None:
        """Raises if the principal may not change users."""
        self._ask_cluster("alter")

    def may_alter(self) -> bool:
        """Whether the principal may change users; it is not refused anything by being asked."""
        return self._broker.permissions.allows(self._principal, "alter", "cluster", "*")

    def to_alter(self, name: str) -> User | None:
        """The same, for one who is about to change it."""
        self._ask_cluster("alter")
        return self._broker.users.find(name)

    async def save(self, name: str, user: User) -> None:
        """A new user, or in the place of the one there is; in force when this returns. The first one closes the
        broker."""
        self._ask_cluster("alter")
        await self._changing("alter", "user", name, self._broker.users.save(name, user), described(user))

    async def save_all(self, users: Mapping[str, User]) -> None:
        """The same for several, by one who may do it at the beginning: the first user may close the broker to who adds
        them."""
        self._ask_cluster("alter")
        for name, user in users.items():
            await self._changing("alter", "user", name, self._broker.users.save(name, user), described(user))

    async def remove(self, name: str) -> None:
        """NotFound if there is none. Its connections are ended, and its rules stay until they are removed."""
        self._ask_cluster("alter")
        await self._changing("delete", "user", name, self._broker.users.remove(name))

    async def verifiers_of(self, password: str) -> tuple[str, ...]:
        """What is stored of a password; slow, and away from the loop."""
        self._ask_cluster("alter")
        return await self._broker.world.offload(credentials.verifiers_of, password, self._broker.world.random.token)
