"""The API of dead letters: where they are, their stories, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker import overview
from waystation.broker.deaths import story_of
from waystation.doors.http.bodies import MessageOut
from waystation.doors.http.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.doors.http.problems import TimedOut
from waystation.doors.http.queues import MAX_COUNT, peeked, peeked_out
from waystation.protocol import RedriveAnswer

if TYPE_CHECKING:
    from waystation.doors.http.desk import Desk

TAG = "dead letters"


class DeadLetterPlace(msgspec.Struct):
    """Where dead letters go."""

    target: Annotated[str, Meta(description="a queue's name, or `topic:` and a topic's")]
    sources: Annotated[list[str], Meta(description="the queues whose dead letters go there")]
    messages: Annotated[int, Meta(description="how many are there now; null for a topic")] | None


class DeadLetterPlaces(msgspec.Struct):
    dead_letters: list[DeadLetterPlace]


class DeadLetter(MessageOut, omit_defaults=True):
    """A message with the story of its deaths, the latest first."""

    deaths: list[dict[str, Any]] = msgspec.field(default_factory=list)


class DeadLetterList(msgspec.Struct):
    messages: list[DeadLetter]


class PeekQuery(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 10
    after: Annotated[int, Meta(description="tag to go on behind")] = -1


class Redrive(msgspec.Struct, omit_defaults=True):
    """Which of them, where to, and how fast."""

    to: Annotated[str, Meta(description="instead of where each one died")] | None = None
    filter: Annotated[str, Meta(description="only those that this filter expression matches")] | None = None
    message_ids: list[str] = []
    rate: Annotated[float, Meta(ge=0, description="messages per second; 0: as fast as can be")] = 0.0
    limit: Annotated[int, Meta(ge=0, description="the most to send; 0: all")] = 0
    dry_run: Annotated[bool, Meta(description="say how many match, send none")] = False


async def places(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    found = await overview.dead_letter_places(desk.broker)
    return DeadLetterPlaces([DeadLetterPlace(*place) for place in found])


async def look(desk: Desk, call: Call[PeekQuery, Nothing]) -> Outcome:
    queue = call.path["queue"]
    messages = []
    for one in peeked(desk, queue, call.query.count, call.query.after, "any"):
        messages.append({**peeked_out(one, queue), "deaths": story_of(one.delivered.message)})
    return {"messages": messages}


async def redrive(desk: Desk, call: Call[Nothing, Redrive]) -> Outcome:
    asked = call.body or Redrive()

    def progress(answer: RedriveAnswer) -> None:
        if call.peer.gone:  # between two transactions: nothing is left half-way
            raise TimedOut("whoever asked for this has gone")

    answer = await desk.broker.dead_letters.redrive(
        call.path["queue"],
        to=asked.to,
        filter=asked.filter,
        rate=asked.rate,
        limit=asked.limit,
        dry_run=asked.dry_run,
        message_ids=asked.message_ids,
        progress=progress,
    )
    return {"matched": answer.matched, "moved": answer.moved, "skipped": answer.skipped}


def _redrive(path: str) -> AnyRoute:
    return Route(
        "POST",
        path,
        redrive,
        "Send dead letters back to where they died, oldest first",
        tag=TAG,
        description="Each is moved by a transaction. It stops when the client goes away.",
        body=Redrive,
        optional_body=True,
        answer=RedriveAnswer,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/dead-letters",
        places,
        "Where dead letters go, from which queues, and how many are there",
        tag=TAG,
        answer=DeadLetterPlaces,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{queue}",
        look,
        "Look at dead letters and their stories",
        tag=TAG,
        query=PeekQuery,
        answer=DeadLetterList,
    ),
    _redrive("/v1/dead-letters/{queue}/redrive"),
    _redrive("/v1/queues/{queue}/redrive"),
)
