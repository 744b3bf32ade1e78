"""The API of redriving dead letters. What shows them is a view (`views.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import JobStarted, RedriveQueue
from waystation.broker.access.types import Redrive
from waystation.protocol import RedriveAnswer
from waystation.protocols.http.transport.calls import AnyRoute, Call, Outcome, Route
from waystation.protocols.http.transport.problems import TimedOut
from waystation.protocols.http.transport.replies import json_reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "dead letters"


class RedriveQuery(msgspec.Struct):
    background: Annotated[bool, Meta(description="answer at once, with the id of a job that does it")] = False


async def redrive(dispatcher: RequestDispatcher, call: Call[RedriveQuery, Redrive]) -> Outcome:
    asked = call.body or Redrive()
    wanted = msgspec.structs.asdict(asked)
    if call.query.background:
        return json_reply(
            await dispatcher.access.views.act("redrive", RedriveQueue(queue=call.path["queue"], **wanted)), 202
        )

    def progress(answer: RedriveAnswer) -> None:
        if call.peer.disconnected:  # between two transactions: nothing is left half-way
            raise TimedOut("the client that asked for this has disconnected")

    answer = await dispatcher.access.redrive(call.path["queue"], **wanted, progress=progress)
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
    _redrive("/v1/dead-letters/{queue}/redrive"),
    _redrive("/v1/queues/{queue}/redrive"),
)
