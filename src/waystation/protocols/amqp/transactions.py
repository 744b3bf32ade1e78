"""tx.select, commit and rollback: publishes and verdicts of a channel that happen together, or not at all.

They are collected in memory, of which there is only so much (`room.py`), and on commit become one transaction of the
broker's (`transactions/transacting.py`), over as many queues and topics as it takes. Verdicts other than acks (nack,
reject) follow the commit: a transaction can take a message out of a queue, but what becomes of a rejected one is the
queue's own affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.access.types import OWN_TRANSACTIONS, QueueFeed, Tx, Verdict, alike
from waystation.errors import Full, NotFound
from waystation.protocols.amqp.settling import grouped
from waystation.wire.amqp.errors import PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from waystation.message import Message
    from waystation.protocols.amqp.channel import Channel, Receiver
    from waystation.protocols.amqp.events import Target
    from waystation.protocols.amqp.session import AmqpSession

TX_PREFIX = f"{OWN_TRANSACTIONS}amqp-"


class Transaction:
    """What waits for the commit, on one channel."""

    __slots__ = ("queues", "replies", "returned", "settled", "size", "topics")

    def __init__(self) -> None:
        self.queues: dict[str, list[Message]] = {}
        self.topics: dict[str, list[Message]] = {}
        self.replies: list[tuple[Target, Message]] = []
        self.returned: list[Message] = []
        self.settled: dict[int, tuple[Verdict, tuple[Receiver, int]]] = {}  # by delivery tag
        self.size = 0  # that its publishes have taken of the connection's room

    def publish(
        self, message: Message, target: Target, queues: tuple[str, ...], topics: tuple[str, ...], size: int
    ) -> None:
        """The caller has taken `size` bytes of the connection's room; whoever ends the transaction gives them back."""
        self.size += size
        if target.inbox:
            self.replies.append((target, message))
            return
        for name in queues:
            self.queues.setdefault(name, []).append(message)
        for name in topics:
            self.topics.setdefault(name, []).append(message)
        if target.mandatory and not (queues or topics):
            self.returned.append(message)

    def settle(self, taken: Iterable[tuple[int, tuple[Receiver, int]]], verdict: Verdict) -> None:
        """By delivery tag, what is unacked no more: a second verdict on it is as wrong as without a transaction."""
        for tag, unacked in taken:
            self.settled[tag] = verdict, unacked


def select(session: AmqpSession, channel: Channel, method: commands.Tx.Select) -> Frame:
    if channel.confirming:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction()
    return commands.Tx.SelectOk()


def confirm_select(session: AmqpSession, channel: Channel, method: commands.Confirm.Select) -> Frame:
    if channel.tx is not None:
        raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.confirming = True
    return commands.Confirm.SelectOk()


def commit(session: AmqpSession, channel: Channel, method: commands.Tx.Commit) -> Awaitable[Frame]:
    work = _of(channel)
    channel.tx = Transaction()
    return _commit(session, channel, work)


async def _commit(session: AmqpSession, channel: Channel, work: Transaction) -> Frame:
    try:
        return await _carry_out(session, channel, work)
    finally:
        session.room.give(work.size)


async def _carry_out(session: AmqpSession, channel: Channel, work: Transaction) -> Frame:
    verdicts: dict[Verdict, list[tuple[Receiver, int]]] = {}
    for verdict, unacked in work.settled.values():
        verdicts.setdefault(verdict, []).append(unacked)
    acked = grouped(verdicts.pop(Verdict.ACK, ()))
    inside = {receiver: runs for receiver, runs in acked.items() if isinstance(receiver.feed, QueueFeed)}
    if work.queues or work.topics or inside:
        transactional_id = session.tx_ids.pop() if session.tx_ids else f"{TX_PREFIX}{session.token()}"
        tx = await session.access.begin_routed(transactional_id)
        try:
            await _fill(session, tx, work, inside)
            await tx.end(commit=True)
        except BaseException:
            await tx.end(commit=False)
            raise
        finally:
            session.tx_ids.append(transactional_id)
    for receiver, runs in acked.items():
        if receiver in inside:
            count = sum(count for _, count in runs)
            session.meter.acked += count
            receiver.freed(count)
        else:
            receiver.ack(runs)
    for verdict, taken in verdicts.items():
        for receiver, runs in grouped(taken).items():
            receiver.settle(verdict, runs, 0 if verdict is Verdict.REJECT else None)
    for target, message in work.replies:
        if not session.access.inboxes.reply(target.key, message) and target.mandatory:
            work.returned.append(message)
    for message in work.returned:
        session.give_back(channel, message)
    return commands.Tx.CommitOk()


async def _fill(session: AmqpSession, tx: Tx, work: Transaction, acked: dict[Receiver, list[tuple[int, int]]]) -> None:
    have: set[str] = set()
    for names in alike(work.queues):
        have |= await tx.put_same(names, work.queues[names[0]])
        await asyncio.sleep(0)
    for name, messages in work.queues.items():
        if name in have:
            continue
        try:
            await _put(tx, name, messages)
        except NotFound:
            continue  # deleted since it was published to
    for name, messages in work.topics.items():
        await tx.publish(name, messages)
    for receiver, runs in acked.items():
        if isinstance(receiver.feed, QueueFeed) and not receiver.feed.closed:
            await tx.settle(receiver.feed, runs)


async def _put(tx: Tx, name: str, messages: list[Message]) -> None:
    """A queue whose oldest messages give way takes any number, but not at once."""
    try:
        await tx.put(name, messages)
    except Full:
        if len(messages) == 1:
            raise
        for message in messages:
            await tx.put(name, [message])


def rollback(session: AmqpSession, channel: Channel, method: commands.Tx.Rollback) -> Frame:
    """Publishes and verdicts are forgotten; what was settled is as unacked as it was."""
    work = _of(channel)
    channel.tx = Transaction()
    session.room.give(work.size)
    channel.restore({tag: unacked for tag, (_, unacked) in work.settled.items()})
    return commands.Tx.RollbackOk()


def _of(channel: Channel) -> Transaction:
    if channel.tx is None:
        raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")
    return channel.tx
