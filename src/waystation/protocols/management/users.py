"""RabbitMQ's management API: its one user, who may do everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.broker.access.types import ANONYMOUS
from waystation.protocols.http.calls import AnyRoute
from waystation.protocols.management.calls import USER, ApiCall, not_found, route, vhost_of
from waystation.protocols.management.shapes import Shown

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


async def whoami(api: Management, call: ApiCall) -> Shown:
    name = USER if api.principal is ANONYMOUS else api.principal.name
    return {"name": name, "tags": ["administrator"]}


def _user() -> Shown:
    return {"name": USER, "tags": ["administrator"], "limits": {}}


async def users(api: Management, call: ApiCall) -> list[Shown]:
    return [_user()]


async def user(api: Management, call: ApiCall) -> Shown:
    if call.path["user"] != USER:
        raise not_found()
    return _user()


def _permission(vhost: str) -> Shown:
    return {"user": USER, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}


async def permissions(api: Management, call: ApiCall) -> list[Shown]:
    return [_permission(vhost) for vhost in api.access.namespaces.names()]


async def permissions_of_user(api: Management, call: ApiCall) -> list[Shown]:
    await user(api, call)
    return await permissions(api, call)


async def permissions_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    return [_permission(vhost_of(api, call).namespace)]


async def permission(api: Management, call: ApiCall) -> Shown:
    await user(api, call)
    return _permission(vhost_of(api, call).namespace)


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/whoami", whoami, "Who asks"),
    route("GET", "/users", users, "List users"),
    route("GET", "/users/{user}", user, "Describe a user"),
    route("GET", "/users/{user}/permissions", permissions_of_user, "List a user's permissions"),
    route("GET", "/permissions", permissions, "List permissions"),
    route("GET", "/permissions/{vhost}/{user}", permission, "Describe a permission"),
    route("GET", "/vhosts/{vhost}/permissions", permissions_of_vhost, "List a virtual host's permissions"),
)
