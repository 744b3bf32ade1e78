"""The API of verdicts: ack, reject, release, touch, by ack id, for one queue's messages or for any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.broker.access.types import Verdict
from waystation.protocols.http.deliveries.ack_ids import Outcome as Settled
from waystation.protocols.http.deliveries.ack_ids import check_any
from waystation.protocols.http.transport.bodies import Reject, Release, Settle, SettleOut, Touch
from waystation.protocols.http.transport.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.world.clock import monotonic_ms

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "acknowledgements"
SAID = (
    "Answered when it is durable. Ack ids whose messages are no longer in flight are in `unknown`, and nothing is done"
    " to them; if none is in flight, it is a conflict (409)."
)


def _place(path: dict[str, str]) -> str | None:
    """The queue that the ids must be of, where the path names one."""
    return f"queue:{path['queue']}" if "queue" in path else None


async def _answer(dispatcher: RequestDispatcher, settled: Settled) -> Outcome:
    await dispatcher.access.durable(*settled.receipts)
    check_any(settled)
    return SettleOut(settled.settled, settled.unknown)


async def ack(dispatcher: RequestDispatcher, call: Call[Nothing, Settle]) -> Outcome:
    return await _answer(dispatcher, dispatcher.ack_ids.settle(call.body.ack_ids, Verdict.ACK, place=_place(call.path)))


async def reject(dispatcher: RequestDispatcher, call: Call[Nothing, Reject]) -> Outcome:
    said = call.body
    verdict = Verdict.KILL if said.dead else Verdict.REJECT
    settled = dispatcher.ack_ids.settle(
        said.ack_ids, verdict, place=_place(call.path), delay_ms=said.delay_ms, error=said.error
    )
    return await _answer(dispatcher, settled)


async def release(dispatcher: RequestDispatcher, call: Call[Nothing, Release]) -> Outcome:
    said = call.body
    settled = dispatcher.ack_ids.settle(said.ack_ids, Verdict.RELEASE, place=_place(call.path), delay_ms=said.delay_ms)
    return await _answer(dispatcher, settled)


async def touch(dispatcher: RequestDispatcher, call: Call[Nothing, Touch]) -> Outcome:
    now_ms = monotonic_ms(dispatcher.broker.world.clock)
    settled = dispatcher.ack_ids.touch(call.body.ack_ids, call.body.hold_ms, now_ms, place=_place(call.path))
    return await _answer(dispatcher, settled)


def _routes(prefix: str, what: str) -> tuple[AnyRoute, ...]:
    return (
        Route(
            "POST",
            f"{prefix}/ack",
            ack,
            f"Acknowledge messages {what}",
            tag=TAG,
            description=SAID,
            body=Settle,
            answer=SettleOut,
        ),
        Route(
            "POST",
            f"{prefix}/reject",
            reject,
            f"Reject messages {what}: retry as the retry policy says, or dead-letter them",
            tag=TAG,
            description=SAID,
            body=Reject,
            answer=SettleOut,
        ),
        Route(
            "POST",
            f"{prefix}/release",
            release,
            f"Give messages {what} back, at once or after a delay",
            tag=TAG,
            description=SAID,
            body=Release,
            answer=SettleOut,
        ),
        Route(
            "POST",
            f"{prefix}/touch",
            touch,
            f"Hold messages {what} for longer",
            tag=TAG,
            description=SAID,
            body=Touch,
            answer=SettleOut,
        ),
    )


ROUTES: tuple[AnyRoute, ...] = (*_routes("/v1/queues/{queue}", "of a queue"), *_routes("/v1", "of any consumer"))
