"""Exchanges and bindings as every protocol shows them, in pages.

`routing_page(broker, RoutingQuery) -> RoutingPage` for a picture of all of it, `exchanges_page(broker, ExchangesQuery)
-> ExchangeList`, `bindings_page(broker, BindingsQuery) -> BindingList`. Nothing here changes anything.

A page ends after so many bindings, in the middle of an exchange if need be. Bindings of an exchange are in the order in
which they were made; one that is removed between two pages may make the next page leave out another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import Invalid
from waystation.paging import Limit, Next, Pace, Search, Total, page_of, sort_in_steps
from waystation.routing.exchanges import binding as bindings
from waystation.routing.exchanges.exchange import Exchange
from waystation.security.rules import Resource

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

COUNTED = 200_000
"""Among more bindings, nobody counts how many match a search."""
NUMBER_DIGITS = 9
TARGETS: tuple[Resource, ...] = ("queue", "topic", "exchange")
"""What bindings lead to."""


class ExchangeView(msgspec.Struct):
    name: str
    kind: str
    alternate: str | None
    internal: Annotated[bool, Meta(description="it gets messages from other exchanges alone")]
    durable: bool
    auto_delete: bool
    policy: str | None
    bindings: Annotated[int, Meta(description="how many it has in all")]


class BindingView(msgspec.Struct):
    exchange: str
    target: Annotated[str, Meta(description="`queue:NAME`, `topic:NAME` or `exchange:NAME`")]
    key: str
    arguments: dict[str, Any]


class RoutingPage(msgspec.Struct):
    """Exchanges, and bindings of theirs, in the order of the exchanges' names."""

    exchanges: Annotated[list[ExchangeView], Meta(description="those of this page; the last may continue on the next")]
    bindings: list[BindingView]
    next: Next
    total: Annotated[int, Meta(description="how many bindings match in all; null: too many to count")] | None
    total_exchanges: Annotated[int, Meta(description="how many exchanges match; null: not counted")] | None


class RoutingQuery(msgspec.Struct):
    search: Annotated[str, Meta(description="a part of an exchange's name, or of a binding's target or key")] = ""
    exchange: Annotated[str, Meta(description="this one alone")] | None = None
    after: Annotated[str, Meta(description="`next` of the page before")] = ""
    limit: Limit = 100


class ExchangeSummary(msgspec.Struct):
    exchange: str
    kind: str
    alternate: str | None
    bindings: Annotated[int, Meta(description="how many")]


class ExchangeList(msgspec.Struct):
    exchanges: list[ExchangeSummary]
    next: Next
    total: Total


class ExchangesQuery(msgspec.Struct):
    search: Search = ""
    after: Annotated[str, Meta(description="names behind this one: `next` of the page before")] | None = None
    limit: Limit = 100


class Binding(msgspec.Struct, omit_defaults=True):
    """Where an exchange sends what matches."""

    target: Annotated[str, Meta(description="`queue:NAME`, `topic:NAME` or `exchange:NAME`")]
    key: Annotated[str, Meta(description="a routing key; a pattern, for topic exchanges")] = ""
    arguments: Annotated[
        dict[str, Any], Meta(description="headers exchanges: `x-match` and the headers; filter exchanges: `filter`")
    ] = {}


class BindingList(msgspec.Struct):
    bindings: list[Binding]
    next: Annotated[int, Meta(description="`after` for the next page; null: this is the last")] | None
    total: Total


class BindingsTerms(msgspec.Struct):
    after: Annotated[int, Meta(ge=0, description="number of bindings to skip")] = 0
    limit: Limit = 1_000


class BindingsQuery(BindingsTerms, kw_only=True):
    exchange: str


async def exchanges_page(broker: ManagedBroker, query: ExchangesQuery, sight: Sight = EVERYTHING) -> ExchangeList:
    """Exchanges in the order of their names; the first is the default exchange, whose name is empty."""
    names = await sight.names("exchange", await sort_in_steps(broker.routing.exchange_names()), query.search)
    page = await page_of(names, "", query.after, query.limit)
    shown = []
    for name in page.names:
        exchange = broker.routing.find(name)
        if exchange is not None:  # it may have been deleted a moment ago
            settings = exchange.settings
            shown.append(ExchangeSummary(name, settings.kind, settings.alternate, len(exchange.bindings)))
    return ExchangeList(shown, page.next, page.total)


async def bindings_page(broker: ManagedBroker, query: BindingsQuery, sight: Sight = EVERYTHING) -> BindingList:
    """The bindings of an exchange in the order in which they were made."""
    every = broker.routing.exchange(query.exchange).bindings.values()
    known = every if sight.sees_all(*TARGETS) else await _seen(list(every), sight)
    found = list(islice(known, query.after, query.after + query.limit))
    end = query.after + len(found)
    shown = [Binding(binding.target, binding.key, binding.arguments) for binding in found]
    return BindingList(shown, end if end < len(known) else None, len(known))


async def _seen(known: Sequence[bindings.Binding], sight: Sight) -> Sequence[bindings.Binding]:
    return await sight.sifted(known, lambda each: sight.sees_target(each.target))


async def routing_page(broker: ManagedBroker, query: RoutingQuery, sight: Sight = EVERYTHING) -> RoutingPage:
    """Exchanges with their bindings, as many as fit on a page."""
    routing = broker.routing
    names: Sequence[str]
    if query.exchange is not None:
        names = [routing.exchange(query.exchange).name]
    else:
        names = await sight.names("exchange", await sort_in_steps(routing.exchange_names()))
    first, skip = _read_after(query.after)
    wanted = query.search.casefold()
    sees_all = sight.sees_all(*TARGETS)
    counts = query.exchange is not None or ((bool(wanted) or not sees_all) and routing.binding_count <= COUNTED)
    bindings_in_all = routing.binding_count if sees_all else None
    page = RoutingPage([], [], None, *((None, None) if wanted else (bindings_in_all, len(names))))
    matched = exchanges = rows = 0
    pace = Pace(broker.world.clock)
    for name in names:
        if not counts and (page.next is not None or name < first):
            continue
        exchange = routing.find(name)
        found = None if exchange is None else await _matching(exchange, wanted, sight, sees_all)
        if exchange is not None and found is not None:
            matched += len(found)
            exchanges += 1
            if page.next is None and name >= first:
                rows = _add(page, exchange, found, skip if name == first else 0, rows, query.limit)
        await pace.breathe()
    if counts:
        page.total, page.total_exchanges = matched, exchanges
    return page


async def _matching(exchange: Exchange, wanted: str, sight: Sight, sees_all: bool) -> Sequence[bindings.Binding] | None:
    """The bindings of an exchange that match, all of them if its name does; None if neither does."""
    every: Sequence[bindings.Binding] = list(exchange.bindings.values())
    if not sees_all:
        every = await _seen(every, sight)
    if not wanted or wanted in sight.local("exchange", exchange.name).casefold():
        return every
    found = [
        each for each in every if wanted in sight.local_target(each.target).casefold() or wanted in each.key.casefold()
    ]
    return found or None


def _add(
    page: RoutingPage, exchange: Exchange, found: Sequence[bindings.Binding], skip: int, rows: int, limit: int
) -> int:
    """Puts an exchange on the page, with as many of its bindings as there is room for; returns the rows that it has
    then. An exchange without bindings is a row, too."""
    if rows >= limit:
        page.next = _written(exchange.name, 0)
        return rows
    settings = exchange.settings
    page.exchanges.append(
        ExchangeView(
            exchange.name,
            settings.kind,
            exchange.alternate,
            settings.internal,
            settings.durable,
            settings.auto_delete,
            exchange.policy,
            len(exchange.bindings),
        )
    )
    part = found[skip : skip + limit - rows]
    page.bindings += [BindingView(each.exchange, each.target, each.key, each.arguments) for each in part]
    if skip + len(part) < len(found):
        page.next = _written(exchange.name, skip + len(part))
    return rows + max(1, len(part))


def _written(exchange: str, skip: int) -> str:
    return f"{skip}:{exchange}"


def _read_after(text: str) -> tuple[str, int]:
    """(the exchange to go on with, how many of its bindings were on pages before)."""
    if not text:
        return "", 0
    skip, colon, exchange = text.partition(":")
    if not (colon and skip.isascii() and skip.isdecimal() and len(skip) <= NUMBER_DIGITS):
        raise Invalid(f"after: {text[:60]!r} is no `next` of a page of the routing")
    return exchange, int(skip)
