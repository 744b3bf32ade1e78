"""Publishes: from the event to the queues and topics, and back as confirms and returns.

Messages of one turn of the loop are collected by queue and written at its end (or before anything else happens on the
connection that could tell the difference): a thousand messages are a few writes. A confirm is sent when what was
written is durable, or at once where all of a turn is transient and in queues. The room that a publish takes on its
connection is given back when it is durable, with or without confirms, transient or not, which is how a publisher is
slowed that is faster than the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from waystation.broker.access.types import INBOX_PREFIX, alike
from waystation.errors import NotAllowed, NotFound, WaystationError, without_frames
from waystation.message import size_of
from waystation.protocols.amqp.channel import Batch
from waystation.protocols.amqp.consuming import REPLY_TO
from waystation.protocols.amqp.frames import add_content, nack_frame, return_head
from waystation.wire.amqp.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
)
from waystation.wire.amqp.properties import encode

if TYPE_CHECKING:
    from waystation.broker.access.types import PutEach, Receipt
    from waystation.message import Message
    from waystation.protocols.amqp.channel import Channel
    from waystation.protocols.amqp.events import PublishEvent, Target
    from waystation.protocols.amqp.session import AmqpSession

NO_ROUTE = 312
NACKED = "NACK"
TURN_BYTES = 4 * 1024 * 1024
"""So much is written in one turn of the loop, about 30 ms; a fan-out of large messages to many queues takes more."""
TRANSIENT = 1
"""The delivery mode of a message that need not survive a crash. One that says none is taken for persistent."""
OVERHEAD_BYTES = 200
"""Of a message on its way to the disk, beside its body."""


def publish(session: AmqpSession, channel: Channel, event: PublishEvent) -> None:
    """Takes in one message. It is written with the others of this turn."""
    _, target, template, body = event
    if target.version != session.routing.version:
        resolve(session, target)
    message = template.make(body, target.exchange, target.key)
    sequence = 0
    if channel.confirming:
        sequence = channel.sequence = channel.sequence + 1
    channel.published += 1
    channel.pending_bytes += len(body) + OVERHEAD_BYTES
    queues, topics = target.queues, target.topics
    if message.reply_to is not None or message.user_id is not None:
        message = _checked(session, channel, message)
    if target.reads or template.keys:
        queues, topics = session.routes.route_all(target, template.keys, message)
    if channel.tx is not None:
        size = size_of(message) + OVERHEAD_BYTES * (1 + len(queues) + len(topics))
        session.room.take(size)
        channel.tx.publish(message, target, queues, topics, size)
        return
    if target.inbox:
        if session.access.inboxes.reply(target.key, message):
            return
    elif queues or topics:
        for name in queues:
            _add(channel.pending, name, message, sequence)
        for name in topics:
            _add(channel.pending_topics, name, message, sequence)
        return
    if target.mandatory:
        give_back(session, channel, message)


def _add(pending: dict[str, Batch], name: str, message: Message, sequence: int) -> None:
    batch = pending.get(name)
    if batch is None:
        batch = pending[name] = Batch()
    batch.messages.append(message)
    batch.sequences.append(sequence)


def _checked(session: AmqpSession, channel: Channel, message: Message) -> Message:
    if message.user_id is not None and message.user_id != session.user:
        raise AmqpError(
            PRECONDITION_FAILED,
            f"user_id property set to '{message.user_id}' but authenticated user was '{session.user}'",
        )
    if message.reply_to == REPLY_TO:
        if channel.inbox is None:
            raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return msgspec.structs.replace(message, reply_to=channel.inbox)
    return message


def resolve(session: AmqpSession, target: Target) -> None:
    """Looks up where a target leads now."""
    if target.immediate:
        raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
    version = session.routing.version
    target.inbox = not target.exchange and target.key.startswith(INBOX_PREFIX)
    try:
        target.queues, target.topics, target.reads = session.routes.resolve(target.exchange, target.key)
    except NotFound as error:
        raise AmqpError(NOT_FOUND, f"no exchange '{target.exchange}' in vhost '{session.names.vhost}'") from error
    except NotAllowed as error:
        if not target.exchange or error.resource is not None:  # it is this client who may not
            raise
        raise AmqpError(
            ACCESS_REFUSED,
            f"cannot publish to internal exchange '{target.exchange}' in vhost '{session.names.vhost}'",
        ) from error
    target.version = version


def give_back(session: AmqpSession, channel: Channel, message: Message) -> None:
    """basic.return: nobody wants it, and the publisher wants to know."""
    out = session.out
    out.append(return_head(channel.number, NO_ROUTE, "NO_ROUTE", message.exchange or "", message.routing_key or ""))
    add_content(out, channel.number, encode(message, session.names), message.payload, session.engine.frame_max)
    session.to_flush()


def count(session: AmqpSession, channel: Channel) -> None:
    """Tells the meters what was published on the channel in this turn. Before it is written."""
    channel.fresh = fresh = channel.published - channel.metered
    channel.metered = channel.published
    session.access.count(fresh, channel.pending_bytes - fresh * OVERHEAD_BYTES)


def is_wide(channel: Channel) -> bool:
    """Whether what was published in this turn is too much to be written in one: large messages to many queues."""
    copies = len(channel.pending) + len(channel.pending_topics)
    return copies > 1 and copies * channel.pending_bytes > TURN_BYTES


def write(session: AmqpSession, channel: Channel) -> None:
    """Writes what was published on the channel in this turn."""
    for _ in _write(session, channel):
        pass


async def write_in_turns(session: AmqpSession, channel: Channel) -> None:
    """The same, with turns for everybody else in between. Nothing else may happen on the connection meanwhile."""
    size = 0
    for written in _write(session, channel):
        size += written
        if size >= TURN_BYTES:
            size = 0
            await asyncio.sleep(0)


def _write(session: AmqpSession, channel: Channel) -> Iterator[int]:
    """Step by step; says after each how many bytes it has written."""
    receipts: list[Receipt] = []
    failures: list[WaystationError] = []
    refused: set[int] = set()
    pending, channel.pending = channel.pending, {}
    at_once = channel.confirming and not channel.pending_topics and _all_transient(pending)
    if len(pending) > 1:
        for names in alike({name: batch.messages for name, batch in pending.items()}):
            for taken, receipt in session.access.put_same_routed(names, pending[names[0]].messages):
                receipts.append(receipt)
                for name in taken:
                    del pending[name]
                yield channel.pending_bytes
    for batch, result in _put(session, pending):
        if isinstance(result, NotFound):
            continue  # deleted a moment ago: as if it had not been bound
        if isinstance(result, WaystationError):
            failures.append(result)
            refused.update(batch.sequences)
            continue
        if result.receipt is not None and (not receipts or receipts[-1] is not result.receipt):
            receipts.append(result.receipt)
        for index in result.refused:
            refused.add(batch.sequences[index])
        yield channel.pending_bytes
    if channel.pending_topics:
        yield from _write_topics(session, channel, receipts, failures, refused)
    size, channel.pending_bytes = channel.pending_bytes, 0
    if failures and not channel.confirming:
        session.publish_failed(channel, failures[0])
        return
    last, before = 0, channel.written
    if channel.confirming and not channel.closed:
        last = _nack(session, channel, refused)
    if at_once and last:
        session.took_off(size)
        session.access.when_durable(receipts, lambda error: session.landed(size))
        channel.confirm_at_once(before + 1, last, refused)
    elif receipts or last:
        session.took_off(size)
        session.access.when_durable(receipts, channel.begin_turn(last, size))


def _put(session: AmqpSession, pending: dict[str, Batch]) -> Iterator[tuple[Batch, PutEach | WaystationError]]:
    """What became of each queue's messages, step by step: several queues' are written together."""
    if len(pending) > 1:
        batches = list(pending.values())
        puts = [(name, batch.messages) for name, batch in pending.items()]
        for step in session.access.put_several_routed(puts):
            for index, result in step.items():
                yield batches[index], result
        return
    for name, batch in pending.items():
        try:
            yield batch, session.access.put_routed(name, batch.messages)
        except WaystationError as error:
            yield batch, without_frames(error)


def _all_transient(pending: dict[str, Batch]) -> bool:
    """Of a turn with persistent messages, mostly the first one is looked at, and no other."""
    return all(message.delivery_mode == TRANSIENT for batch in pending.values() for message in batch.messages)


def _nack(session: AmqpSession, channel: Channel, refused: set[int]) -> int:
    """Tells of what was refused; returns the highest number of this turn that was not, 0 if all were."""
    for sequence in sorted(refused):
        session.meter.failed(NACKED)
        session.send(nack_frame(channel.number, sequence, False))
    first, last = channel.written + 1, channel.sequence
    channel.written = last
    while last in refused:
        last -= 1
    return last if last >= first else 0


def _write_topics(
    session: AmqpSession,
    channel: Channel,
    receipts: list[Receipt],
    failures: list[WaystationError],
    refused: set[int],
) -> Iterator[int]:
    pending, channel.pending_topics = channel.pending_topics, {}
    for name, batch in pending.items():
        try:
            receipts += session.access.publish_routed(name, batch.messages, promised=channel.confirming).receipts
        except NotFound:
            continue
        except WaystationError as error:
            failures.append(without_frames(error))
            refused.update(batch.sequences)
        yield channel.pending_bytes
