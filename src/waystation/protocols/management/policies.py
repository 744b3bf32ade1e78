"""RabbitMQ's management API: policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Policy
from waystation.errors import Invalid
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management.calls import (
    ApiCall,
    bad_request,
    body_of,
    not_found,
    number,
    route,
    table,
    text,
    vhost_of,
    vhost_to_change,
)
from waystation.protocols.management.paging import reply_list
from waystation.protocols.management.shapes import Shown

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


def show_policy(policy: Policy) -> Shown:
    return {
        "vhost": policy.namespace,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def read_policy(vhost: str, name: str, said: dict[str, Any]) -> Policy:
    return Policy(
        vhost,
        name,
        text(said["pattern"], "pattern"),
        table(said["definition"], "definition"),
        number(said.get("priority", 0), "priority"),
        text(said.get("apply-to", "all"), "apply-to"),
    )


async def list_policies(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, None)


async def list_policies_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, vhost_of(api, call).namespace)


async def _listed(api: Management, call: ApiCall, vhost: str | None) -> Reply:
    found = api.access.policies.listing(vhost)
    return await reply_list(call.query, found, lambda policy: policy.name, show_policy)


def _found(api: Management, call: ApiCall) -> Policy:
    policy = api.access.policies.find(vhost_of(api, call).namespace, call.path["policy"])
    if policy is None:
        raise not_found()
    return policy


async def describe(api: Management, call: ApiCall) -> Shown:
    return show_policy(_found(api, call))


async def put(api: Management, call: ApiCall) -> Reply:
    vhost = vhost_to_change(api, call).namespace
    policy = read_policy(vhost, call.path["policy"], body_of(call, "pattern", "definition"))
    try:
        made = await api.access.policies.set(policy)
    except Invalid as error:
        raise bad_request(f"Validation failed\n\n{error}\n") from error
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    policy = _found(api, call)
    await api.access.policies.delete(policy.namespace, policy.name)


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/policies", list_policies, "List policies"),
    route("GET", "/policies/{vhost}", list_policies_of_vhost, "List a virtual host's policies"),
    route("GET", "/policies/{vhost}/{policy}", describe, "Describe a policy"),
    route("PUT", "/policies/{vhost}/{policy}", put, "Make or replace a policy"),
    route("DELETE", "/policies/{vhost}/{policy}", delete, "Delete a policy"),
)
