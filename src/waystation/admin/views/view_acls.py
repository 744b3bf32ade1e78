"""Rules as every protocol shows them, and as they are added and removed: who may do what to what.

A rule is all of its fields: to add one that is there changes nothing, and so does removing one that is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.paging import After, Limit, Next, Search, Total, page_of
from waystation.security.permissions import describe
from waystation.security.rules import ANY, Match, Operation, Resource, Rule

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker


class Acl(msgspec.Struct, kw_only=True):
    """A rule. What no rule allows is not allowed; a rule that denies wins."""

    principal: Annotated[str, Meta(description="User:NAME, Group:NAME, or User:* for everybody")]
    operation: Operation | Literal["all"]
    resource: Resource
    name: Annotated[str, Meta(description="of the resource, in its namespace; * with match literal: every name")]
    match: Match = "literal"
    allow: bool = True
    host: Annotated[str, Meta(description="the address that it holds for; *: every address")] = ANY
    namespace: Annotated[str, Meta(description="the namespace that it holds in; *: every namespace")] = ANY


class AclList(msgspec.Struct):
    acls: list[Acl]
    next: Next
    total: Total
    enforced: Annotated[bool, Meta(description="false: there are no users, and everybody may do everything")]


class AclsQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class ChangeAcls(msgspec.Struct):
    acls: Annotated[list[Acl], Meta(max_length=1_000)]


class AclsChanged(msgspec.Struct):
    changed: Annotated[int, Meta(description="how many were not so before")]


async def acls_page(broker: ManagedBroker, query: AclsQuery) -> AclList:
    """In the order of their principals."""
    known = {describe(rule): rule for rule in broker.permissions.rules()}
    page = await page_of(sorted(known), query.search, query.after or None, query.limit)
    return AclList([_shown(known[text]) for text in page.names], page.next, page.total, broker.permissions.enforced)


async def add_acls(broker: ManagedBroker, asked: ChangeAcls) -> AclsChanged:
    there = len(broker.permissions.rules())
    await broker.permissions.add(map(_rule, asked.acls))
    return AclsChanged(len(broker.permissions.rules()) - there)


async def remove_acls(broker: ManagedBroker, asked: ChangeAcls) -> AclsChanged:
    there = len(broker.permissions.rules())
    await broker.permissions.remove(map(_rule, asked.acls))
    return AclsChanged(there - len(broker.permissions.rules()))


def described(asked: ChangeAcls) -> str:
    """For the audit log."""
    return "; ".join(describe(_rule(acl)) for acl in asked.acls[:20])


def _shown(rule: Rule) -> Acl:
    return msgspec.convert(rule, Acl, from_attributes=True)


def _rule(acl: Acl) -> Rule:
    return msgspec.convert(acl, Rule, from_attributes=True)
