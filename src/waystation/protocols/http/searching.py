"""The API of searching a topic: by key, id, text, header and time (`admin/searching.py` does it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin.search_terms import SearchQuery, SearchTerms
from waystation.admin.searching import search
from waystation.protocols.http.bodies import MessageOut
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "topics"


class SearchOut(msgspec.Struct):
    """What was found so far. A message without a value (a tombstone) has the type `tombstone`."""

    messages: list[MessageOut]
    scanned: Annotated[int, Meta(description="messages that this call looked at")]
    cursor: Annotated[str, Meta(description="to continue with; null: everything was searched")] | None
    done: bool


async def find_in(desk: Desk, call: Call[SearchTerms, Nothing]) -> Outcome:
    asked = SearchQuery(topic=call.path["topic"], **msgspec.structs.asdict(call.query))
    return await search(desk.broker, asked)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/topics/{topic}/search",
        find_in,
        "Search a topic by key, id, text, header and time",
        description="All conditions have to match; without any, every message is found. A call reads a"
        " limited number of messages and may find none: ask again with its `cursor`, until it is `done`.",
        query=SearchTerms,
        answer=SearchOut,
        waits=True,
        tag=TAG,
    ),
)
