"""The methods about consumers: consume, cancel, qos. What a consumer does is in `consumer.py`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pamqp import commands
from pamqp.base import Frame

from waystation.errors import Conflict, NotAllowed, NotFound, WaystationError
from waystation.protocols.amqp.consumer import AmqpConsumer
from waystation.vhosts.consumer_terms import ConsumerTerms, use_queues_timeout
from waystation.vhosts.streams import STREAM
from waystation.wire.amqp.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
)

if TYPE_CHECKING:
    from waystation.protocols.amqp.channel import Channel
    from waystation.protocols.amqp.session import AmqpSession
    from waystation.vhosts.sources import Source

REPLY_TO = "amq.rabbitmq.reply-to"
MAX_CONSUMERS = 10_000
"""Of one connection, on all of its channels: about a kilobyte each."""
MAX_ARGUMENTS = 4_096
"""Characters of a consumer's arguments, which are kept and shown: priorities, offsets, timeouts."""


def consume(session: AmqpSession, channel: Channel, method: commands.Basic.Consume) -> Awaitable[Frame] | Frame:
    tag = method.consumer_tag or f"amq.ctag-{session.token()}"
    if tag in channel.consumers:
        raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if sum(len(one.consumers) for one in session.channels.values()) >= MAX_CONSUMERS:
        raise AmqpError(NOT_ALLOWED, f"this connection has {MAX_CONSUMERS} consumers, the most there may be")
    if method.arguments and len(repr(method.arguments)) > MAX_ARGUMENTS:
        raise AmqpError(PRECONDITION_FAILED, f"the consumer's arguments have more than {MAX_ARGUMENTS} characters")
    queue = method.queue or channel.last_queue
    if not queue:
        raise AmqpError(NOT_FOUND, "no previously declared queue")
    consumer = AmqpConsumer(channel, tag, queue, method.no_ack, dict(method.arguments or {}))
    consumer.exclusive = method.exclusive
    if queue == REPLY_TO:
        _consume_replies(session, channel, consumer)
        return _consuming(session, consumer)
    if not session.routes.holds(queue):
        raise no_queue(session, queue)
    source = session.sources.find(queue)
    if source is not None:
        return _consume_source(session, consumer, source)
    _open(session, consumer)
    return _consuming(session, consumer)


def _terms(session: AmqpSession, consumer: AmqpConsumer) -> ConsumerTerms:
    return ConsumerTerms(
        consumer=f"{session.name}/{consumer.channel.number}/{consumer.tag}",
        owner=session.name,
        deliver=consumer.deliver,
        on_end=consumer.ended,
        arguments=consumer.arguments,
        prefetch=consumer.limit,
        no_ack=consumer.no_ack,
        exclusive=consumer.exclusive,
    )


def _consuming(session: AmqpSession, consumer: AmqpConsumer) -> Frame:
    consumer.channel.consumers[consumer.tag] = consumer
    session.hungry[consumer] = None
    return commands.Basic.ConsumeOk(consumer.tag)


def _open(session: AmqpSession, consumer: AmqpConsumer) -> None:
    terms = _terms(session, consumer)
    consumer.priority = priority = terms.priority
    try:
        feed = session.access.consume(
            session.names.full(consumer.queue),
            terms.consumer,
            terms.deliver,
            on_end=terms.on_end,
            visibility_timeout_ms=terms.visibility_timeout_ms,
            auto_ack=terms.no_ack,
            exclusive=terms.exclusive,
            owner=terms.owner,
            priority=priority,
        )
    except WaystationError as error:
        raise of_queue(session, consumer.queue, error) from error
    if terms.visibility_timeout_ms is None:
        use_queues_timeout(feed)
    queue = feed.queue
    if len(queue):
        consumer.expect(len(queue), queue.bytes)
    elif priority > 0:
        consumer.expect(1, 0)  # others shall not get what it has room for, from the first message on
    consumer.counts = queue.settings.queue_type == "quorum"
    consumer.feed = feed


async def _consume_source(session: AmqpSession, consumer: AmqpConsumer, source: Source) -> Frame:
    consumer.stream = source.kind == STREAM
    consumer.counts = not consumer.stream
    feed = await source.open(_terms(session, consumer))
    if consumer.channel.closed or session.closed:
        feed.close()
        raise AmqpError(NOT_FOUND, "the channel was closed meanwhile")
    consumer.feed = feed
    return _consuming(session, consumer)


def _consume_replies(session: AmqpSession, channel: Channel, consumer: AmqpConsumer) -> None:
    if not consumer.no_ack:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.inbox is not None:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
    channel.inbox = session.access.inboxes.open(consumer.reply)


def no_queue(session: AmqpSession, queue: str) -> AmqpError:
    return AmqpError(NOT_FOUND, f"no queue '{queue}' in vhost '{session.names.vhost}'")


def of_queue(session: AmqpSession, queue: str, error: WaystationError) -> AmqpError:
    """What the broker says of a queue, in the words that clients know."""
    where = f"queue '{queue}' in vhost '{session.names.vhost}'"
    if isinstance(error, NotFound):
        return no_queue(session, queue)
    if isinstance(error, NotAllowed) and _is_locked(session, queue):
        return AmqpError(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {where}. It could be originally declared on another connection"
            " or the exclusive property value does not match that of the original declaration.",
        )
    if isinstance(error, Conflict):
        return AmqpError(ACCESS_REFUSED, f"{where} in exclusive use")
    return session.translated(error)


def _is_locked(session: AmqpSession, queue: str) -> bool:
    """Whether it is exclusive to another connection; else it is the client who may not."""
    try:
        return session.access.look_up_queue(session.names.full(queue), session.name).locked
    except WaystationError:
        return False


def cancel(session: AmqpSession, channel: Channel, method: commands.Basic.Cancel) -> Frame:
    tag = method.consumer_tag or ""
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        if consumer.queue == REPLY_TO and channel.inbox is not None:
            session.access.inboxes.close(channel.inbox)
            channel.inbox = None
        consumer.retire()
    return commands.Basic.CancelOk(tag)


def qos(session: AmqpSession, channel: Channel, method: commands.Basic.Qos) -> Frame:
    if method.prefetch_size:
        raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if not method.global_:
        channel.prefetch = method.prefetch_count  # of consumers that come after this
    if method.global_ or channel.global_prefetch:
        # As with RabbitMQ, a prefetch for each consumer ends the one that they had in common.
        channel.global_prefetch = method.prefetch_count if method.global_ else 0
        for consumer in channel.consumers.values():
            consumer.pause()
            session.hungry[consumer] = None
    return commands.Basic.QosOk()
