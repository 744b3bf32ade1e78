"""The API of dead letters: where they are, what they died of, their stories, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.admin.view_dead_letters import (
    DeadLetterPlaces,
    DeadLettersQuery,
    DeadLettersTerms,
    DeadLetterSummary,
    JobStarted,
    PlacesQuery,
    SummaryQuery,
    dead_letter_places,
    dead_letter_summary,
    dead_letters,
    redrive_in_background,
)
from waystation.protocol import RedriveAnswer
from waystation.protocols.http.bodies import MessageOut
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.protocols.http.problems import TimedOut
from waystation.protocols.http.replies import json_reply
from waystation.queues.redriving import Redrive

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "dead letters"


class DeadLetter(MessageOut, omit_defaults=True):
    """A message with the story of its deaths, the latest first."""

    deaths: list[dict[str, Any]] = msgspec.field(default_factory=list)


class DeadLetterList(msgspec.Struct):
    messages: list[DeadLetter]
    looked_at: int
    next: Annotated[int, Meta(description="`after` to continue with; null: all were read")] | None


class RedriveQuery(msgspec.Struct):
    background: Annotated[bool, Meta(description="answer at once, with the id of a job that does it")] = False


async def places(desk: Desk, call: Call[PlacesQuery, Nothing]) -> Outcome:
    return await dead_letter_places(desk.broker, call.query)


async def summary(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return await dead_letter_summary(desk.broker, SummaryQuery(call.path["queue"]))


async def look(desk: Desk, call: Call[DeadLettersTerms, Nothing]) -> Outcome:
    asked = DeadLettersQuery(queue=call.path["queue"], **msgspec.structs.asdict(call.query))
    return await dead_letters(desk.broker, asked)


async def redrive(desk: Desk, call: Call[RedriveQuery, Redrive]) -> Outcome:
    asked = call.body or Redrive()
    if call.query.background:
        return json_reply(redrive_in_background(desk.broker, call.path["queue"], asked), 202)

    def progress(answer: RedriveAnswer) -> None:
        if call.peer.gone:  # between two transactions: nothing is left half-way
            raise TimedOut("the client that asked for this has disconnected")

    answer = await desk.broker.dead_letters.redrive(call.path["queue"], asked, progress)
    said: dict[str, Any] = {"matched": answer.matched, "moved": answer.moved, "skipped": answer.skipped}
    return {**said, "targets": answer.targets} if asked.dry_run else said


def _redrive(path: str) -> AnyRoute:
    return Route(
        "POST",
        path,
        redrive,
        "Send dead letters back to where they died, oldest first",
        tag=TAG,
        description="Each is moved by a transaction. It stops when the client disconnects, unless it is done in the"
        " background: then it is a job (`/v1/jobs/{job}`).",
        query=RedriveQuery,
        body=Redrive,
        optional_body=True,
        answer=RedriveAnswer,
        later=JobStarted,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/dead-letters",
        places,
        "Dead-letter queues and topics, their source queues, and how many messages they have",
        tag=TAG,
        query=PlacesQuery,
        answer=DeadLetterPlaces,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{queue}",
        look,
        "List dead letters with their failure history, oldest first",
        tag=TAG,
        description="A call reads a limited number; with a filter it may find none and still have a `next`.",
        query=DeadLettersTerms,
        answer=DeadLetterList,
    ),
    Route(
        "GET",
        "/v1/dead-letters/{queue}/summary",
        summary,
        "What the latest dead letters died of, and where",
        tag=TAG,
        answer=DeadLetterSummary,
    ),
    _redrive("/v1/dead-letters/{queue}/redrive"),
    _redrive("/v1/queues/{queue}/redrive"),
)
