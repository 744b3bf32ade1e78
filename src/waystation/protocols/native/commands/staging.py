"""Staged transactions and batches that clients built themselves: the requests of bulk writers.

A staged transaction is complete and open, and belongs to no connection: whoever knows its names commits it together
with others (`commit_staged`), or aborts it. There is no rule here; `Access` and the coordinator have them. Called by
the session, through `requests.HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from waystation.errors import Invalid
from waystation.protocol import (
    AbortStaged,
    CommitStaged,
    CommitStagedAnswer,
    PublishAnswer,
    PublishBatches,
    Stage,
    StagedPosition,
    StagedTransaction,
)
from waystation.protocols.native.commands.durability import keep_all
from waystation.protocols.native.commands.turns import UNANSWERED

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession


def publish_batches(session: NativeSession, command: PublishBatches) -> object:
    if not command.batches:
        raise Invalid("batches: there is none")
    timing = session.timing
    if command.tx:
        transaction = session.transaction(command.tx)

        async def in_transaction() -> PublishAnswer:
            await session.access.topic_to_publish(command.topic)
            places = await transaction.publish_batches(command.topic, command.batches)
            session.access.count_batches(command.batches)
            return PublishAnswer(places)

        session.in_turn(("tx", command.tx), command.id, in_transaction, _size(command))
        return UNANSWERED

    async def alone() -> object:
        published = await session.access.publish_batches(command.topic, command.batches)
        subscribers = session.access.subscriptions.count(command.topic)
        answer = PublishAnswer(published.places, subscribers=subscribers)
        keep_all(session, published.receipts, [(command.id, answer)], timing)
        return UNANSWERED

    session.in_turn(("topic", command.topic), command.id, alone, _size(command))
    return UNANSWERED


def _size(command: PublishBatches) -> int:
    return sum(len(batch) for _, batch in command.batches)


def stage(session: NativeSession, command: Stage) -> object:
    transaction = session.transaction(command.tx)

    async def work() -> StagedTransaction | None:
        staged = await transaction.stage()
        session.transactions.pop(command.tx, None)
        return None if staged is None else StagedTransaction(*staged)

    session.in_turn(("tx", command.tx), command.id, work)
    return UNANSWERED


def commit_staged(session: NativeSession, command: CommitStaged) -> Awaitable[CommitStagedAnswer]:
    return session.access.staged.commit(command.name, command.sequence, command.staged, abandon=command.abandon)


def abort_staged(session: NativeSession, command: AbortStaged) -> Awaitable[int]:
    return session.access.staged.abort(command.staged, prefix=command.prefix, fence=command.fence)


def staged_position(session: NativeSession, command: StagedPosition) -> Awaitable[int | None]:
    return session.access.staged.position(command.name)
