"""Staged transactions and batches that clients built themselves: the requests of bulk writers.

A staged transaction is complete and open, and belongs to no connection: whoever knows its names commits it together
with others (`commit_staged`), or aborts it. There is no rule here; the coordinator has them. Called by the session,
through `requests.HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.errors import Invalid
from waystation.log.batch import read_header
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
from waystation.protocols.native.durability import keep_all
from waystation.protocols.native.turns import UNANSWERED
from waystation.transactions.decision_records import Staged
from waystation.transactions.transacting import OWN_PREFIX, check_not_own

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
            session.access.count(sum(read_header(batch).record_count for _, batch in command.batches), _size(command))
            return PublishAnswer(places)

        session.in_turn(("tx", command.tx), command.id, in_transaction, _size(command))
        return UNANSWERED

    async def alone() -> object:
        published = await session.access.publish_batches(command.topic, command.batches)
        subscribers = session.broker.subscriptions.count(command.topic)
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


async def commit_staged(session: NativeSession, command: CommitStaged) -> CommitStagedAnswer:
    transactions = session.broker.transactions
    if command.abandon:
        _check_prefix("abandon", command.abandon)
    committed = await transactions.commit_all(
        command.name, command.sequence, _checked(command.staged), abandon=command.abandon
    )
    last = transactions.decided(command.name)
    return CommitStagedAnswer(committed, command.sequence if last is None else last.sequence)


async def abort_staged(session: NativeSession, command: AbortStaged) -> int:
    if command.prefix:
        _check_prefix("prefix", command.prefix)
    transactions = session.broker.transactions
    aborted = await transactions.abort_all(_checked(command.staged))
    return aborted + (await transactions.abort_prefix(command.prefix) if command.prefix else 0)


def staged_position(session: NativeSession, command: StagedPosition) -> int | None:
    last = session.broker.transactions.decided(command.name)
    return None if last is None else last.sequence


def _checked(staged: Sequence[StagedTransaction]) -> list[Staged]:
    for one in staged:
        check_not_own(one.transactional_id)
    return [Staged(one.transactional_id, one.producer_id, one.epoch) for one in staged]


def _check_prefix(field: str, prefix: str) -> None:
    if OWN_PREFIX.startswith(prefix) or prefix.startswith(OWN_PREFIX):
        raise Invalid(f"{field}: {prefix!r} would name transactions of the broker's own")
