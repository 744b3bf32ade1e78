"""RabbitMQ's management API: users, their tags, and their permissions in virtual hosts.

Permissions are rules of the broker (`security/rabbitmq_permissions.py`): what is set here holds for every protocol, and
what Kafka's tools or the command line have allowed is told here where expressions can say it. A superuser is shown as
an administrator who may do everything. While the broker has no users, it shows RabbitMQ's own one, guest.

Password hashes are shown to those alone who may change users.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.access.types import (
    USER_LIMITS,
    RabbitHash,
    Rule,
    TopicPermission,
    User,
    VhostPermission,
    belongs_to_permission,
    permission_of,
    read_verifier,
    rules_of_permission,
)
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management.calls import (
    USER,
    ApiCall,
    bad_request,
    body_of,
    not_found,
    number,
    route,
    text,
    vhost_of,
    vhost_to_change,
)
from waystation.protocols.management.shapes import Shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.protocols.management.api import Management

ADMINISTRATOR = "administrator"
SHA256 = "rabbit_password_hashing_sha256"
EVERYTHING = ".*"


# -- who ---------------------------------------------------------------------------------------------------------------


async def whoami(api: Management, call: ApiCall) -> Shown:
    if api.principal.anonymous:
        return {"name": USER, "tags": [ADMINISTRATOR]}
    user = api.access.users.own()
    tags = [] if user is None else list(user.tags)
    return {"name": api.principal.name, "tags": _with_superuser(tags, superuser=api.access.users.may_everything())}


def _with_superuser(tags: list[str], *, superuser: bool) -> list[str]:
    return [*tags, ADMINISTRATOR] if superuser and ADMINISTRATOR not in tags else tags


def _none_yet(api: Management) -> bool:
    """Whether RabbitMQ's own user is all there is."""
    return not api.access.users.names()


def show_user(api: Management, name: str, user: User, *, hashes: bool) -> Shown:
    shown: Shown = {"name": name}
    if hashes:
        found = next((one for one in map(read_verifier, user.verifiers) if isinstance(one, RabbitHash)), None)
        shown["password_hash"] = "" if found is None else user.verifiers[0].partition("$")[2]
        shown["hashing_algorithm"] = SHA256 if found is None else found.algorithm
    superuser = user.superuser or api.access.users.is_superuser(name)
    return {**shown, "tags": _with_superuser(list(user.tags), superuser=superuser), "limits": user.limits}


def _shows_hashes(api: Management) -> bool:
    return api.access.users.may_alter()


async def users(api: Management, call: ApiCall) -> list[Shown]:
    return list_users(api)


def list_users(api: Management) -> list[Shown]:
    found = api.access.users
    if _none_yet(api):
        return [{"name": USER, "tags": [ADMINISTRATOR], "limits": {}}]
    hashes = _shows_hashes(api)
    known = ((name, found.find(name)) for name in found.names())
    return [show_user(api, name, user, hashes=hashes) for name, user in known if user is not None]


async def users_without_permissions(api: Management, call: ApiCall) -> list[Shown]:
    some = {shown["user"] for shown in list_permissions(api)}
    return [shown for shown in list_users(api) if shown["name"] not in some]


async def user(api: Management, call: ApiCall) -> Shown:
    name = call.path["user"]
    if name == USER and _none_yet(api):
        return list_users(api)[0]
    return show_user(api, name, _known(api, name), hashes=_shows_hashes(api))


def _known(api: Management, name: str) -> User:
    found = api.access.users.find(name)
    if found is None:
        raise not_found()
    return found


async def put_user(api: Management, call: ApiCall) -> Reply:
    said = body_of(call, "tags")
    return Reply(201 if await set_user(api, call.path["user"], said) else 204)


async def set_user(api: Management, name: str, said: dict[str, Any]) -> bool:
    """True if it is new."""
    there = api.access.users.to_alter(name)
    await api.access.users.save(name, await user_of(api, name, said))
    return there is None


async def user_of(api: Management, name: str, said: dict[str, Any]) -> User:
    """What the user would be with this. Nothing is changed."""
    there = api.access.users.to_alter(name)
    tags = said.get("tags", [])
    tags = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(tags, list):
        raise bad_request("tags: they have to be a text or a list of texts")
    verifiers = await _verifiers(api, said)
    known = there or User(created_ms=api.node.world.clock.now_ms())
    return msgspec.structs.replace(
        known,
        tags=tuple(tag for one in tags if (tag := text(one, "tags").strip())),
        verifiers=known.verifiers if verifiers is None else verifiers,
        limits=known.limits if "limits" not in said else _limits(said["limits"]),
    )


async def _verifiers(api: Management, said: dict[str, Any]) -> tuple[str, ...] | None:
    """None: nothing is said of the password."""
    ours = said.get("waystation_verifiers")
    if isinstance(ours, list) and ours:
        return tuple(text(one, "waystation_verifiers") for one in ours)
    if said.get("password"):
        return await api.access.users.verifiers_of(text(said["password"], "password"))
    if "password_hash" in said:
        digest = text(said["password_hash"], "password_hash")
        return (f"{text(said.get('hashing_algorithm', SHA256), 'hashing_algorithm')}${digest}",) if digest else ()
    return None


async def delete_user(api: Management, call: ApiCall) -> None:
    await _delete(api, [call.path["user"]])


async def delete_users(api: Management, call: ApiCall) -> None:
    names = body_of(call, "users")["users"]
    if not isinstance(names, list):
        raise bad_request("users: it has to be a list of names")
    await _delete(api, [text(name, "users") for name in names])


async def _delete(api: Management, names: list[str]) -> None:
    """With their permissions, as in RabbitMQ: a new user of this name has none of them."""
    for name in names:
        if api.access.users.to_alter(name) is None:
            raise not_found()
        await api.access.users.remove(name)
        await api.access.users.remove_topic_permissions(api.access.users.topic_permissions(name))
        await api.access.rules.remove([one for one in api.access.rules.to_alter() if one.principal == f"User:{name}"])


# -- permissions -------------------------------------------------------------------------------------------------------


def _show(permission: VhostPermission) -> Shown:
    return permission._asdict()


def _permission(api: Management, rules: list[Rule], name: str, vhost: str) -> VhostPermission | None:
    if api.access.users.is_superuser(name):
        return VhostPermission(name, vhost, EVERYTHING, EVERYTHING, EVERYTHING)
    return permission_of(rules, name, vhost)


def list_permissions(api: Management, names: Iterable[str] | None = None, vhost: str | None = None) -> list[Shown]:
    vhosts = api.access.namespaces.names() if vhost is None else [vhost]
    if _none_yet(api):
        return [_show(VhostPermission(USER, one, EVERYTHING, EVERYTHING, EVERYTHING)) for one in vhosts]
    rules = api.access.rules.listing()
    found = (_permission(api, rules, name, one) for name in names or api.access.users.names() for one in vhosts)
    return [_show(one) for one in found if one is not None]


async def permissions(api: Management, call: ApiCall) -> list[Shown]:
    return list_permissions(api)


async def permissions_of_user(api: Management, call: ApiCall) -> list[Shown]:
    await user(api, call)
    return list_permissions(api, [call.path["user"]])


async def permissions_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    return list_permissions(api, None, vhost_of(api, call).namespace)


async def permission(api: Management, call: ApiCall) -> Shown:
    vhost = vhost_of(api, call).namespace
    await user(api, call)
    found = list_permissions(api, [call.path["user"]], vhost)
    if not found:
        raise not_found()
    return found[0]


async def put_permission(api: Management, call: ApiCall) -> Reply:
    said = body_of(call, "configure", "write", "read")
    vhost = vhost_to_change(api, call).namespace
    new = await set_permission(api, call.path["user"], vhost, said)
    return Reply(201 if new else 204)


async def set_permission(
    api: Management, name: str, vhost: str, said: dict[str, Any], coming: Container[str] = ()
) -> bool:
    """True if it had none. `coming`: users that are about to be added."""
    if api.access.users.to_alter(name) is None and name not in coming:
        raise bad_request(f"user '{name[:60]}' does not exist")
    expressions = (text(said.get(kind), kind) for kind in ("configure", "write", "read"))
    new = rules_of_permission(VhostPermission(name, vhost, *expressions))
    for rule in new:
        api.access.rules.check(rule)
    old = [rule for rule in api.access.rules.to_alter() if belongs_to_permission(rule, name, vhost)]
    await api.access.rules.replace(old, new)
    return not old


async def delete_permission(api: Management, call: ApiCall) -> None:
    vhost, name = vhost_to_change(api, call).namespace, call.path["user"]
    old = [rule for rule in api.access.rules.to_alter() if belongs_to_permission(rule, name, vhost)]
    if not old:
        raise not_found()
    await api.access.rules.remove(old)


# -- topic permissions -------------------------------------------------------------------------------------------------


def list_topic_permissions(api: Management, user: str | None = None, vhost: str | None = None) -> list[Shown]:
    return [msgspec.structs.asdict(one) for one in api.access.users.topic_permissions(user, vhost)]


async def topic_permissions(api: Management, call: ApiCall) -> list[Shown]:
    return list_topic_permissions(api)


async def topic_permissions_of_user(api: Management, call: ApiCall) -> list[Shown]:
    await user(api, call)
    return list_topic_permissions(api, call.path["user"])


async def topic_permissions_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    return list_topic_permissions(api, None, vhost_of(api, call).namespace)


async def topic_permission(api: Management, call: ApiCall) -> list[Shown]:
    vhost = vhost_of(api, call).namespace
    await user(api, call)
    return list_topic_permissions(api, call.path["user"], vhost)


async def put_topic_permission(api: Management, call: ApiCall) -> Reply:
    said = body_of(call, "exchange", "write", "read")
    vhost = vhost_to_change(api, call).namespace
    return Reply(201 if await set_topic_permission(api, call.path["user"], vhost, said) else 204)


async def set_topic_permission(
    api: Management, name: str, vhost: str, said: dict[str, Any], coming: Container[str] = ()
) -> bool:
    """True if it had none for the exchange. `coming`: users that are about to be added."""
    if api.access.users.to_alter(name) is None and name not in coming:
        raise bad_request(f"user '{name[:60]}' does not exist")
    exchange, write, read = (text(said.get(field), field) for field in ("exchange", "write", "read"))
    return await api.access.users.set_topic_permission(TopicPermission(name, vhost, exchange, write, read))


async def delete_topic_permission(api: Management, call: ApiCall) -> None:
    api.access.users.check_alter()
    vhost = vhost_to_change(api, call).namespace
    found = api.access.users.topic_permissions(call.path["user"], vhost)
    if not found:
        raise not_found()
    await api.access.users.remove_topic_permissions(found)


# -- limits of users ---------------------------------------------------------------------------------------------------


def _limits(said: object) -> dict[str, int]:
    if not isinstance(said, dict):
        raise bad_request("limits: they have to be a JSON object")
    return {text(name, "limits"): number(value, "limits") for name, value in said.items()}


def _list_limits(api: Management, names: Iterable[str]) -> list[Shown]:
    found = ((name, api.access.users.find(name)) for name in names)
    return [{"user": name, "value": one.limits} for name, one in found if one is not None and one.limits]


async def user_limits(api: Management, call: ApiCall) -> list[Shown]:
    return _list_limits(api, api.access.users.names())


async def limits_of_user(api: Management, call: ApiCall) -> list[Shown]:
    await user(api, call)
    return _list_limits(api, [call.path["user"]])


async def put_user_limit(api: Management, call: ApiCall) -> None:
    value = number(body_of(call, "value")["value"], "value")
    await _set_user_limit(api, call, value if value >= 0 else None)


async def delete_user_limit(api: Management, call: ApiCall) -> None:
    await _set_user_limit(api, call, None)


async def _set_user_limit(api: Management, call: ApiCall, value: int | None) -> None:
    name, limit = call.path["user"], call.path["limit"]
    known = api.access.users.to_alter(name)
    if known is None:
        raise not_found()
    if limit not in USER_LIMITS:
        raise bad_request(f"Unrecognised limit '{limit[:60]}'; there are {', '.join(USER_LIMITS)}")
    limits = {one: there for one, there in known.limits.items() if one != limit}
    if value is not None:
        limits[limit] = value
    await api.access.users.save(name, msgspec.structs.replace(known, limits=limits))


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/whoami", whoami, "Who asks"),
    route("GET", "/users", users, "List users"),
    route("GET", "/users/without-permissions", users_without_permissions, "List users who may enter no virtual host"),
    route("POST", "/users/bulk-delete", delete_users, "Delete several users"),
    route("GET", "/users/{user}", user, "Describe a user"),
    route("PUT", "/users/{user}", put_user, "Make or change a user"),
    route("DELETE", "/users/{user}", delete_user, "Delete a user and its permissions"),
    route("GET", "/users/{user}/permissions", permissions_of_user, "List a user's permissions"),
    route("GET", "/users/{user}/topic-permissions", topic_permissions_of_user, "List a user's topic permissions"),
    route("GET", "/permissions", permissions, "List permissions"),
    route("GET", "/permissions/{vhost}/{user}", permission, "Describe a permission"),
    route("PUT", "/permissions/{vhost}/{user}", put_permission, "Set a user's permissions in a virtual host"),
    route("DELETE", "/permissions/{vhost}/{user}", delete_permission, "Remove them"),
    route("GET", "/vhosts/{vhost}/permissions", permissions_of_vhost, "List a virtual host's permissions"),
    route("GET", "/vhosts/{vhost}/topic-permissions", topic_permissions_of_vhost, "List them of a virtual host"),
    route("GET", "/topic-permissions", topic_permissions, "List topic permissions"),
    route("GET", "/topic-permissions/{vhost}/{user}", topic_permission, "List them of a user in a virtual host"),
    route("PUT", "/topic-permissions/{vhost}/{user}", put_topic_permission, "Set them for an exchange"),
    route("DELETE", "/topic-permissions/{vhost}/{user}", delete_topic_permission, "Remove them"),
    route("GET", "/user-limits", user_limits, "List limits of users"),
    route("GET", "/user-limits/{user}", limits_of_user, "List a user's limits"),
    route("PUT", "/user-limits/{user}/{limit}", put_user_limit, "Set a user's limit"),
    route("DELETE", "/user-limits/{user}/{limit}", delete_user_limit, "Remove it"),
)
