"""Users as every protocol shows them, and as they are added, changed and removed.

What is shown never has a verifier in it. A password comes as verifiers that the client has computed, or as it is, where
the client cannot compute them; it is turned into verifiers at once, and neither is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import Invalid
from waystation.paging import After, Limit, Next, Search, Total, page_of
from waystation.security import credentials
from waystation.security.users import User

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

Password = Annotated[str, Meta(description="instead of verifiers")] | None
Verifiers = Annotated[list[str], Meta(description="of the password: SCRAM-SHA-256$…, or RabbitMQ's salted hash")] | None


class UserOut(msgspec.Struct):
    """A user, without what it logs in by."""

    user: str
    superuser: bool
    mechanisms: Annotated[list[str], Meta(description="by which its password can be checked")]
    tags: list[str]
    groups: list[str]
    namespace: str
    created_ms: int


class UserList(msgspec.Struct):
    users: list[UserOut]
    next: Next
    total: Total
    required: Annotated[bool, Meta(description="whether every client has to log in")]


class UsersQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class UserQuery(msgspec.Struct):
    user: str


class AddUser(msgspec.Struct, kw_only=True):
    user: str
    password: Password = None
    verifiers: Verifiers = None
    superuser: bool = False
    groups: list[str] = []
    namespace: Annotated[str, Meta(description="its home: where its Kafka clients are, unless they say another")] = "/"


class NewPassword(msgspec.Struct, kw_only=True):
    password: Password = None
    verifiers: Verifiers = None


class SetPassword(NewPassword, kw_only=True):
    user: str


class UserAdded(msgspec.Struct):
    user: str
    closed: Annotated[bool, Meta(description="it is the first user: from now on every client has to log in")]


class UserRemoved(msgspec.Struct):
    user: str
    opened: Annotated[bool, Meta(description="it was the last user: clients need not log in any more")]


async def users_page(broker: ManagedBroker, query: UsersQuery) -> UserList:
    """In the order of their names."""
    page = await page_of(broker.users.names(), query.search, query.after or None, query.limit)
    shown = [_shown(broker, name) for name in page.names if name in broker.users]
    return UserList(shown, page.next, page.total, broker.authenticator.required)


async def add_user(broker: ManagedBroker, asked: AddUser) -> UserAdded:
    verifiers = await _verifiers(broker, asked.password, asked.verifiers)
    before = broker.authenticator.required
    broker.namespaces.get(asked.namespace)  # NotFound
    user = User(
        verifiers,
        superuser=asked.superuser,
        groups=tuple(asked.groups),
        namespace=asked.namespace,
        created_ms=broker.world.clock.now_ms(),
    )
    await broker.users.add(asked.user, user)
    return UserAdded(asked.user, broker.authenticator.required and not before)


async def set_password(broker: ManagedBroker, asked: SetPassword) -> None:
    user = broker.users.get(asked.user)
    verifiers = await _verifiers(broker, asked.password, asked.verifiers)
    await broker.users.save(asked.user, msgspec.structs.replace(user, verifiers=verifiers))


async def remove_user(broker: ManagedBroker, query: UserQuery) -> UserRemoved:
    before = broker.authenticator.required
    await broker.users.remove(query.user)
    return UserRemoved(query.user, before and not broker.authenticator.required)


async def _verifiers(broker: ManagedBroker, password: str | None, given: list[str] | None) -> tuple[str, ...]:
    if (password is None) == (given is None):
        raise Invalid("give either password or verifiers")
    if password is not None:
        return await broker.world.offload(credentials.verifiers_of, password, broker.world.random.token)
    return tuple(given or ())


def _shown(broker: ManagedBroker, name: str) -> UserOut:
    user = broker.users.get(name)
    principal = broker.authenticator.principal(name)
    return UserOut(
        name,
        principal is not None and principal.superuser,
        [verifier.partition("$")[0] for verifier in user.verifiers],
        list(user.tags),
        list(user.groups),
        user.namespace,
        user.created_ms,
    )
