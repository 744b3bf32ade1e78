"""RabbitMQ's management API: definitions, exported and imported. Virtual hosts, policies, queues, exchanges, bindings.

An import makes what is missing. A queue or exchange that is there already stays as it is, whatever the import says of
it, as in RabbitMQ; what is said of virtual hosts, policies, users and their permissions is replaced. A user's password
is its hash, so that the old one works. Parameters are passed over, but for limits of virtual hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply, encode_json
from waystation.protocols.management import declaring
from waystation.protocols.management.bindings import Ends, bind_ends
from waystation.protocols.management.calls import (
    ApiCall,
    bad_request,
    body_of,
    route,
    table,
    text,
    vhost_of,
    vhost_to_change,
)
from waystation.protocols.management.policies import read_policy, show_policy
from waystation.protocols.management.shapes import (
    Shown,
    exchange_names,
    queue_names,
    show_binding,
    show_exchange,
    show_queue,
)
from waystation.protocols.management.users import (
    list_permissions,
    list_topic_permissions,
    list_users,
    set_permission,
    set_topic_permission,
    user_of,
)
from waystation.protocols.management.vhosts import exported_vhost, import_vhost, limits_parameter, set_limits
from waystation.version import RABBITMQ_VERSION, __version__
from waystation.vhosts.arguments import CLASSIC, QUEUE_TYPE, QUORUM
from waystation.vhosts.sources import X_TOPIC
from waystation.vhosts.streams import STREAM

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management


MAX_EXPORTED = 100_000
"""Of queues, and of bindings. More than that is a database, not a document."""
AT_ONCE = 200
_QUEUE = ("name", "vhost", "type", "durable", "auto_delete", "arguments")
_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")

T = TypeVar("T")


# -- export ------------------------------------------------------------------------------------------------------------


async def export(api: Management, call: ApiCall) -> Reply:
    api.access.cluster.check_describe()  # an export that silently lacks something is no backup
    api.access.users.check_alter()  # and it has what users log in by
    no_users = not api.access.users.names()
    vhosts = api.access.namespaces.names()
    head = {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Waystation",
        "product_version": __version__,
        "users": [] if no_users else [_exported_user(api, one) for one in list_users(api)],
        "vhosts": [exported_vhost(api, vhost) for vhost in vhosts],
        "permissions": [] if no_users else list_permissions(api),
        "topic_permissions": [] if no_users else list_topic_permissions(api),
        "parameters": [one for vhost in vhosts if (one := limits_parameter(api, vhost)) is not None],
        "global_parameters": [],
        "policies": [show_policy(policy) for policy in api.access.policies.listing()],
    }
    return await _exported(api, head, vhosts, with_vhost=True)


def _exported_user(api: Management, shown: Shown) -> Shown:
    """With our own verifiers, which RabbitMQ passes over: the password works again where this is imported here."""
    known = api.access.users.find(shown["name"])
    ours = [] if known is None else [one for one in known.verifiers if one.startswith("SCRAM-")]
    return {**shown, "waystation_verifiers": ours} if ours else shown


async def export_vhost(api: Management, call: ApiCall) -> Reply:
    vhost = vhost_of(api, call).namespace
    policies = [show_policy(policy) for policy in api.access.policies.listing(vhost)]
    head = {"rabbit_version": RABBITMQ_VERSION, "parameters": [], "policies": policies}
    return await _exported(api, head, [vhost], with_vhost=False)


async def _exported(api: Management, head: dict[str, Any], vhosts: list[str], *, with_vhost: bool) -> Reply:
    parts = [encode_json(head)[:-1]]
    lists: tuple[tuple[str, tuple[str, ...], Iterator[Shown | None]], ...] = (
        ("queues", _QUEUE, _queues(api, vhosts)),
        ("exchanges", _EXCHANGE, _exchanges(api, vhosts)),
        ("bindings", _BINDING, _bindings(api, vhosts)),
    )
    for name, fields, things in lists:
        wanted = [field for field in fields if with_vhost or field != "vhost"]
        pieces: list[bytes] = []
        count = 0
        while some := list(islice(things, AT_ONCE)):
            shown = [{field: one[field] for field in wanted} for one in some if one is not None]
            count += len(shown)
            if count > MAX_EXPORTED:
                raise bad_request(f"there are more than {MAX_EXPORTED} {name}; export virtual hosts one by one")
            if shown:
                pieces.append(encode_json(shown)[1:-1])
            await asyncio.sleep(0)
        parts.append(f',"{name}":['.encode() + b",".join(pieces) + b"]")
    return Reply(200, b"".join(parts) + b"}")


def _queues(api: Management, vhosts: list[str]) -> Iterator[Shown | None]:
    """Exclusive ones go with their connections: they are not defined, they happen."""
    for access in map(api.within, vhosts):
        for full in queue_names(access):
            shown = show_queue(api, access, full, basic=True)
            yield None if shown is None or shown["exclusive"] else shown


def _exchanges(api: Management, vhosts: list[str]) -> Iterator[Shown | None]:
    for access in map(api.within, vhosts):
        for full in exchange_names(access):
            if full and not access.names.local(full).startswith("amq."):
                yield show_exchange(access, full)


def _bindings(api: Management, vhosts: list[str]) -> Iterator[Shown | None]:
    for access in map(api.within, vhosts):
        for full in exchange_names(access)[1:]:
            yield from (show_binding(access.names, binding) for binding in access.exchanges.bindings_of(full))


# -- import ------------------------------------------------------------------------------------------------------------


async def import_all(api: Management, call: ApiCall) -> None:
    said = body_of(call)
    if any(said.get(part) for part in ("users", "permissions", "topic_permissions")):
        api.access.users.check_alter()  # before anything is made
    for vhost in _objects(said, "vhosts"):
        await import_vhost(api, vhost)
    users = [(text(one.get("name"), "users.name"), one) for one in _objects(said, "users")]
    permissions = [(text(one.get("user"), "permissions.user"), one) for one in _objects(said, "permissions")]
    topics = [(text(one.get("user"), "topic_permissions.user"), one) for one in _objects(said, "topic_permissions")]
    limits = _limits(said)
    for name, one in limits:
        await set_limits(api, name, one)
    new = {name: await user_of(api, name, one) for name, one in users}
    await _import(api, said, None)
    # Users come last, and all together: the first one closes the broker to a caller who has not logged in.
    for name, one in permissions:
        await set_permission(api, name, text(one.get("vhost"), "permissions.vhost"), one, new)
    for name, one in topics:
        await set_topic_permission(api, name, text(one.get("vhost"), "topic_permissions.vhost"), one, new)
    if new:
        await api.access.users.save_all(new)


def _limits(said: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Limits of virtual hosts; other parameters are of plugins that are not here."""
    found = []
    for one in _objects(said, "parameters"):
        if one.get("component") == "vhost-limits":
            value = one.get("value")
            if not isinstance(value, dict):
                raise bad_request("parameters.value: it has to be a JSON object")
            found.append((text(one.get("vhost"), "parameters.vhost"), value))
    return found


async def import_into_vhost(api: Management, call: ApiCall) -> None:
    await _import(api, body_of(call), vhost_to_change(api, call).namespace)


async def _import(api: Management, said: dict[str, Any], vhost: str | None) -> None:
    """Everything is looked at before anything is made, as far as one can see it."""

    accesses: dict[str, Access] = {}

    def access_to(thing: dict[str, Any]) -> Access:
        name = vhost if vhost is not None else text(thing.get("vhost"), "vhost")
        if name not in accesses:
            if not api.access.namespaces.exists(name):
                raise bad_request(["no_such_vhost", name])
            accesses[name] = api.within(name)
        return accesses[name]

    policies = []
    for one in _objects(said, "policies"):
        if "pattern" not in one or "definition" not in one:
            raise bad_request("policies: each has a pattern and a definition")
        policies.append(read_policy(access_to(one).namespace, text(one.get("name"), "policies.name"), one))
    queues = [(access_to(one), one) for one in _objects(said, "queues")]
    exchanges = [(access_to(one), one) for one in _objects(said, "exchanges")]
    bindings = [(access_to(one), one) for one in _objects(said, "bindings")]
    await api.access.policies.set_all(policies)
    await _each(queues, lambda access, one: _make_queue(api, access, one))
    await _each(exchanges, lambda access, one: _make_exchange(api, access, one))
    await _each(bindings, lambda access, one: _make_binding(api, access, one))


async def _each(things: list[tuple[Access, dict[str, Any]]], make: Callable[[Access, dict[str, Any]], Any]) -> None:
    """Many at once share a write to the disk; the first refusal ends it."""
    for some in _slices(things):
        for outcome in await asyncio.gather(*(make(*thing) for thing in some), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _slices(things: list[T]) -> Iterator[list[T]]:
    for begin in range(0, len(things), AT_ONCE):
        yield things[begin : begin + AT_ONCE]


async def _make_queue(api: Management, access: Access, one: dict[str, Any]) -> None:
    name = text(one.get("name"), "queues.name")
    if not declaring.has_queue(api, access, name) or not access.holds(name):
        await declaring.declare_queue(api, access, name, {**one, "arguments": _with_type(one)})


def _with_type(one: dict[str, Any]) -> dict[str, Any]:
    """A queue's arguments with its type, which may stand beside them: else it gets the virtual host's usual one."""
    arguments = table(one.get("arguments"), "arguments")
    if one.get("type") not in (CLASSIC, QUORUM, STREAM) or X_TOPIC in arguments:
        return arguments
    return {QUEUE_TYPE: one["type"], **arguments}


async def _make_exchange(api: Management, access: Access, one: dict[str, Any]) -> None:
    name = text(one.get("name"), "exchanges.name")
    if not name or name.startswith("amq."):
        return  # they are always there
    there = access.exchanges.find(access.names.full(name)) is not None
    if not there or not access.holds(name):
        await declaring.declare_exchange(api, access, name, one)


async def _make_binding(api: Management, access: Access, one: dict[str, Any]) -> None:
    source = text(one.get("source"), "bindings.source")
    if not source:
        return  # every queue is bound to the default exchange
    ends = Ends(source, text(one.get("destination"), "destination"), one.get("destination_type") == "exchange")
    key = text(one.get("routing_key", ""), "routing_key")
    await bind_ends(api, access, ends, key, table(one.get("arguments"), "arguments"))


def _objects(said: dict[str, Any], name: str) -> Iterable[dict[str, Any]]:
    found = said.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise bad_request(f"{name}: it has to be a list of JSON objects")
    return found


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/definitions", export, "Export definitions"),
    route("POST", "/definitions", import_all, "Import definitions"),
    route("GET", "/definitions/{vhost}", export_vhost, "Export a virtual host's definitions"),
    route("POST", "/definitions/{vhost}", import_into_vhost, "Import a virtual host's definitions"),
)
