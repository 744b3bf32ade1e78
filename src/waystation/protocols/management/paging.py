"""Lists of RabbitMQ's management API: filtered, sorted and paged as there, whatever their length.

A broker may have a million queues. Names are looked through in slices, between which the loop has its turn; what is
answered is made for the page that was asked for alone. Without a page, the first `MAX_LISTED` are answered, and the
header `x-waystation-truncated` says that there are more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from waystation.broker.access.types import Regex, anywhere
from waystation.errors import InvalidPattern
from waystation.protocols.http.transport.calls import AnyQuery
from waystation.protocols.http.transport.replies import Reply, encode_json
from waystation.protocols.management.calls import Refused, bad_request

MAX_LISTED = 10_000
"""Without a page, and with an order other than the list's own."""
MAX_PAGE = 500
TURN_S = 0.005
"""Then the loop has its turn."""
SHOWN_AT_ONCE = 100
TRUNCATED = "x-waystation-truncated"

T = TypeVar("T")
Shown = dict[str, Any]


class Page(NamedTuple):
    number: int
    size: int


class ListQuery(NamedTuple):
    """What the query asks for."""

    page: Page | None
    matches: Callable[[str], bool] | None
    sort: str
    descending: bool
    columns: list[list[str]]


def wanted(query: AnyQuery) -> ListQuery:
    asked = query.values
    page = None
    if "page" in asked:
        try:
            page = Page(int(asked["page"]), int(asked.get("page_size", "100")))
        except ValueError:
            raise bad_request("Pagination parameters are invalid") from None
        if page.number < 1 or not 0 < page.size <= MAX_PAGE:
            raise Refused(
                400,
                "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {page.number}, page size {page.size}",
            )
    # As in RabbitMQ, only pages are filtered.
    matches = _filter(asked.get("name", ""), asked.get("use_regex") == "true") if page is not None else None
    descending = asked.get("sort_reverse") == "true"
    return ListQuery(page, matches, asked.get("sort", ""), descending, columns_of(query))


def columns_of(query: AnyQuery) -> list[list[str]]:
    return [column.split(".") for column in query.values.get("columns", "").split(",") if column]


def _filter(name: str, use_regex: bool) -> Callable[[str], bool] | None:
    if not name:
        return None
    if not use_regex:
        folded = name.lower()
        return lambda known: folded in known.lower()
    try:
        return Regex(anywhere(name)).matches
    except InvalidPattern as error:
        raise bad_request(f"Pagination parameters are invalid: {error}") from None


async def reply_list(
    query: AnyQuery, things: Iterable[T], name_of: Callable[[T], str], show: Callable[[T], Shown | None]
) -> Reply:
    """The list, or the page of it that was asked for. `things` come in order and are safe to go through in slices;
    `show` says None of what was deleted meanwhile."""
    asked = wanted(query)
    if asked.page is None and not asked.sort:
        return await _whole(asked, things, show)
    found, total = await _matching(asked, things, name_of)
    if asked.sort and len(found) > MAX_LISTED and asked.sort != "name":
        raise bad_request(f"{len(found)} are too many to sort by {asked.sort!r}; filter by name, or sort by name")
    if asked.sort == "name":
        found.sort(key=name_of, reverse=asked.descending)
        asked = asked._replace(sort="")
    if asked.page is None:
        return await _whole(asked, found, show)
    return await _one_page(asked, asked.page, found, total, show)


async def _matching(asked: ListQuery, things: Iterable[T], name_of: Callable[[T], str]) -> tuple[list[T], int]:
    """Those that the filter lets through, and how many were looked at."""
    now_s = asyncio.get_running_loop().time
    matches = asked.matches
    found: list[T] = []
    total = 0
    began_s = now_s()
    for thing in things:
        total += 1
        if matches is None or matches(name_of(thing)):
            found.append(thing)
        if now_s() - began_s > TURN_S:
            await asyncio.sleep(0)
            began_s = now_s()
    return found, total


async def _whole(asked: ListQuery, things: Iterable[T], show: Callable[[T], Shown | None]) -> Reply:
    rest = iter(things)
    shown = await _shown(islice(rest, MAX_LISTED), show)
    shown = _sorted(asked, shown)
    headers = {TRUNCATED: str(MAX_LISTED)} if next(rest, None) is not None else {}
    return Reply(200, await encode_list([only(one, asked.columns) for one in shown]), headers=headers)


async def _one_page(
    asked: ListQuery, page: Page, found: list[T], total: int, show: Callable[[T], Shown | None]
) -> Reply:
    pages = max(1, -(-len(found) // page.size))
    if page.number > pages:
        raise Refused(
            400,
            "page_out_of_range",
            f"Page out of range, page: {page.number} page size: {page.size}, len: {len(found)}",
        )
    begin = (page.number - 1) * page.size
    if asked.sort:
        items = _sorted(asked, await _shown(found, show))[begin : begin + page.size]
    else:
        items = await _shown(found[begin : begin + page.size], show)
    head = {
        "filtered_count": len(found),
        "item_count": len(items),
        "page": page.number,
        "page_count": pages,
        "page_size": page.size,
        "total_count": total,
    }
    listed = await encode_list([only(item, asked.columns) for item in items])
    return Reply(200, encode_json(head)[:-1] + b',"items":' + listed + b"}")


async def _shown(things: Iterable[T], show: Callable[[T], Shown | None]) -> list[Shown]:
    found: list[Shown] = []
    rest = iter(things)
    while some := list(islice(rest, SHOWN_AT_ONCE)):
        found += [shown for thing in some if (shown := show(thing)) is not None]
        await asyncio.sleep(0)
    return found


def _sorted(asked: ListQuery, shown: list[Shown]) -> list[Shown]:
    if not asked.sort:
        return shown
    path = asked.sort.split(".")
    return sorted(shown, key=lambda one: _sort_key(one, path), reverse=asked.descending)


def _sort_key(shown: Shown, path: list[str]) -> tuple[int, float, str]:
    """What is missing comes first, then numbers, then texts."""
    value: Any = shown
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


async def encode_list(shown: list[Shown]) -> bytes:
    """A JSON array, made in slices."""
    pieces: list[bytes] = []
    for some in _slices(shown):
        pieces.append(encode_json(some)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(pieces) + b"]"


def _slices(shown: list[Shown]) -> Iterator[list[Shown]]:
    for begin in range(0, len(shown), SHOWN_AT_ONCE):
        yield shown[begin : begin + SHOWN_AT_ONCE]


def only(shown: Shown, columns: list[list[str]]) -> Shown:
    """These columns of it; all of them if none are named."""
    if not columns:
        return shown
    found: Shown = {}
    for path in columns:
        _copy(shown, found, path)
    return found


def _copy(source: Mapping[str, Any], target: Shown, path: list[str]) -> None:
    name, *rest = path
    if name not in source:
        return
    if not rest:
        target[name] = source[name]
    elif isinstance(source[name], Mapping):
        _copy(source[name], target.setdefault(name, {}), rest)
