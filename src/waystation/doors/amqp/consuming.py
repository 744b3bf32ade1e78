"""Consumers of a channel: what comes from a feed is put into frames, as far as prefetch and socket allow.

A consumer's feed is given credit in portions: not more than the prefetch has room for, and not more than about a
megabyte ahead of the socket. So a client that does not read costs its prefetch or one portion, whichever is less, and a
consumer without a prefetch does not draw a whole queue into memory.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.presence import ConsumerInfo
from waystation.broker.queue_names import INTERNAL_PREFIX
from waystation.broker.shared_feed import SharedFeed
from waystation.broker.tailing import TailFeed
from waystation.doors.amqp.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
)
from waystation.doors.amqp.frames import Envelope, add_content, get_ok_head
from waystation.doors.amqp.properties import encode
from waystation.doors.amqp.streams import STREAM
from waystation.errors import Conflict, NotAllowed, NotFound, WaystationError
from waystation.message import MAX_HORIZON_MS
from waystation.queues.feed import Verdict
from waystation.queues.queue_feed import QueueFeed

if TYPE_CHECKING:
    from waystation.doors.amqp.channel import Channel
    from waystation.doors.amqp.session import Session
    from waystation.doors.amqp.sources import Source
    from waystation.message import Delivered
    from waystation.queues.feed import Feed
    from waystation.queues.queue_feed import Getter as QueueGetter
    from waystation.queues.runs import Run

REPLY_TO = "amq.rabbitmq.reply-to"
FIRST_PORTION = 16
LARGEST_PORTION = 1_024
PORTION_BYTES = 1024 * 1024
UNLIMITED = 1 << 40


class Consumer:
    """One consumer, by its tag."""

    __slots__ = (
        "_envelope", "_portion", "_under_way", "arguments", "ceased", "channel", "counts", "exclusive", "feed", "limit",
        "no_ack", "priority", "queue", "stream", "tag", "unacked",
    )  # fmt: skip

    def __init__(self, channel: Channel, tag: str, queue: str, no_ack: bool, arguments: dict[str, Any]) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.arguments = arguments
        self.exclusive = False
        self.priority = 0
        self.counts = False  # deliveries of its queue are counted in a header, as quorum queues have it
        self.stream = False
        self.limit = channel.prefetch
        self.feed: Feed | None = None
        self.ceased = False
        self.unacked = 0
        self._under_way = 0  # credit that the feed has not used
        self._portion = FIRST_PORTION
        self._envelope = Envelope(channel.number, tag, channel.session.engine.frame_max)

    def expect(self, count: int, size: int) -> None:
        """Messages will be about as large as these."""
        self._portion = portion(count, size)

    # -- messages out -------------------------------------------------------------------------------------------------

    def deliver(self, messages: list[Delivered]) -> None:
        """What the feed calls."""
        channel = self.channel
        session = channel.session
        out, add, names, queue = session.out, self._envelope.add, session.names, self.queue
        acks = not self.no_ack
        unacked, tag = channel.unacked, channel.tag
        size = 0
        for delivered in messages:
            message = delivered.message
            payload = message.payload
            size += len(payload)
            tag += 1
            again = delivered.deliveries > 1
            extra = self._extra(delivered) if self.stream or (again and self.counts) else None
            add(
                out,
                tag,
                again and not self.stream,
                message.exchange,
                message.routing_key,
                queue,
                encode(message, names, extra),
                payload,
            )
            if acks:
                unacked[tag] = (self, delivered.tag)
        count = len(messages)
        channel.tag = tag
        channel.delivered += count
        self._under_way -= count
        if acks:
            self.unacked += count
            if channel.global_prefetch:
                self._take_from_others(count)
        else:
            session.broker.keeping.soon()  # what was sent is acknowledged with that
        self._portion = portion(count, size)
        session.hungry[self] = None
        session.to_flush()

    def _extra(self, delivered: Delivered) -> dict[str, Any]:
        if self.stream:
            if not delivered.partition:
                return {"x-stream-offset": delivered.offset}
            return {"x-stream-offset": delivered.offset, "x-stream-partition": delivered.partition}
        return {"x-delivery-count": delivered.deliveries - 1}

    def _take_from_others(self, count: int) -> None:
        """The channel's prefetch is common to all: credit that others have not used yet may be too much by now."""
        left = self.channel.global_prefetch - unacked_of(self.channel)
        for other in self.channel.consumers.values():
            if other is not self and other._under_way > left and other.feed is not None and not other.ceased:
                other.feed.credit(left - other._under_way)
                other._under_way = left

    def pass_on(self) -> None:
        """Gives the feed more credit, as far as there is room. Never from within a delivery: it would nest."""
        channel = self.channel
        if self.feed is None or self.ceased or channel.closed or not channel.active:
            return
        room = self._portion
        if not self.no_ack:
            if self.limit:
                room = min(room, self.limit - self.unacked)
            if channel.global_prefetch:
                room = min(room, channel.global_prefetch - unacked_of(channel))
        room -= self._under_way
        if room > 0:
            self._under_way += room
            self.feed.credit(room)

    def pause(self) -> None:
        """channel.flow: credit that was not used is void."""
        if self.feed is not None and not self.ceased and self._under_way > 0:
            self.feed.credit(-self._under_way)
            self._under_way = 0

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def ack(self, runs: list[Run]) -> None:
        self.settle(Verdict.ACK, runs)

    def settle(self, verdict: Verdict, runs: list[Run], delay_ms: int | None = None) -> None:
        if self.feed is not None and self.feed.settle(verdict, runs, delay_ms=delay_ms).receipt is not None:
            self.channel.session.broker.keeping.soon()
        self.freed(sum([count for _, count in runs]))

    def freed(self, count: int) -> None:
        """So many are unacked no more. A cancelled consumer goes with the last of them."""
        self.unacked -= count
        session = self.channel.session
        if self.ceased:
            if self.unacked <= 0 and self.feed is not None:
                self.channel.retired.pop(self, None)
                self.feed.leave()
            return
        if self.channel.global_prefetch:
            session.hungry.update(dict.fromkeys(self.channel.consumers.values()))
        session.hungry[self] = None
        session.to_flush()

    # -- the end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """The client cancelled it: nothing more comes, but what it was sent can still be settled."""
        self.ceased = True
        if self.feed is None:
            return
        if not self.unacked:
            self.feed.leave()
            return
        self.channel.retired[self] = None
        if isinstance(self.feed, QueueFeed | SharedFeed | TailFeed):
            self.feed.retire()
        else:
            self.feed.credit(-self._under_way)

    def end(self, *, politely: bool) -> None:
        """The channel goes; what it holds is delivered to others."""
        self.ceased = True
        if self.feed is not None:
            if politely:
                self.feed.leave()
            else:
                self.feed.close()

    def ended(self, error: WaystationError) -> None:
        """The broker ended it: its queue is gone."""
        if not self.ceased:
            self.ceased = True
            self.channel.session.consumer_ended(self)

    def info(self) -> ConsumerInfo:
        return ConsumerInfo(
            self.tag,
            self.channel.session.names.full(self.queue),
            self.channel.number,
            self.limit,
            not self.no_ack,
            self.exclusive,
            self.priority,
            self.arguments,
        )


def portion(count: int, size: int) -> int:
    """How many messages are a portion, if so many have so many bytes."""
    return max(1, min(LARGEST_PORTION, PORTION_BYTES * count // size)) if size else LARGEST_PORTION


def unacked_of(channel: Channel) -> int:
    """What counts against the channel's own prefetch."""
    return sum(consumer.unacked for consumer in channel.consumers.values())


class Getter:
    """What a channel got from one queue by basic.get."""

    __slots__ = ("channel", "feed")

    def __init__(self, channel: Channel, feed: QueueGetter | SharedFeed) -> None:
        self.channel = channel
        self.feed = feed

    def ack(self, runs: list[Run]) -> None:
        self.settle(Verdict.ACK, runs)

    def settle(self, verdict: Verdict, runs: list[Run], delay_ms: int | None = None) -> None:
        if self.feed.settle(verdict, runs, delay_ms=delay_ms).receipt is not None:
            self.channel.session.broker.keeping.soon()

    def freed(self, count: int) -> None:
        """What was got counts against no prefetch."""

    def end(self, *, politely: bool) -> None:
        if politely:
            self.feed.leave()
        else:
            self.feed.close()


# -- methods -----------------------------------------------------------------------------------------------------------


def consume(session: Session, channel: Channel, method: commands.Basic.Consume) -> Awaitable[Frame] | Frame:
    tag = method.consumer_tag or f"amq.ctag-{session.token()}"
    if tag in channel.consumers:
        raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    queue = method.queue or channel.last_queue
    if not queue:
        raise AmqpError(NOT_FOUND, "no previously declared queue")
    consumer = Consumer(channel, tag, queue, method.no_ack, dict(method.arguments or {}))
    consumer.exclusive = method.exclusive
    if queue == REPLY_TO:
        _consume_replies(session, channel, consumer)
        return _consuming(session, consumer)
    source = session.sources.find(queue)
    if source is not None:
        return _consume_source(session, consumer, source)
    _open(session, consumer)
    return _consuming(session, consumer)


def _consuming(session: Session, consumer: Consumer) -> Frame:
    consumer.channel.consumers[consumer.tag] = consumer
    session.hungry[consumer] = None
    return commands.Basic.ConsumeOk(consumer.tag)


def _open(session: Session, consumer: Consumer) -> None:
    arguments = consumer.arguments
    priority = arguments.get("x-priority", 0)
    if not isinstance(priority, int):
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg 'x-priority': {priority!r} is no number")
    consumer.priority = priority
    timeout = arguments.get("x-consumer-timeout")
    full = session.names.full(consumer.queue)
    try:
        feed = session.broker.queues.open_feed(
            full,
            f"{session.name}/{consumer.channel.number}/{consumer.tag}",
            consumer.deliver,
            on_end=consumer.ended,
            hold_ms=timeout if isinstance(timeout, int) and timeout > 0 else MAX_HORIZON_MS,
            auto_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            owner=session.name,
            priority=priority,
        )
    except WaystationError as error:
        raise of_queue(session, consumer.queue, error) from error
    queue = feed.queue
    if len(queue):
        consumer.expect(len(queue), queue.bytes)
    consumer.counts = queue.settings.queue_type == "quorum"
    consumer.feed = feed


async def _consume_source(session: Session, consumer: Consumer, source: Source) -> Frame:
    consumer.stream = source.kind == STREAM
    consumer.counts = not consumer.stream
    feed = await source.open(
        f"{session.name}/{consumer.channel.number}/{consumer.tag}",
        consumer.deliver,
        consumer.ended,
        arguments=consumer.arguments,
        prefetch=consumer.limit,
        no_ack=consumer.no_ack,
        exclusive=consumer.exclusive,
        owner=session.name,
    )
    if consumer.channel.closed or session.closed:
        feed.close()
        raise AmqpError(NOT_FOUND, "the channel was closed meanwhile")
    consumer.feed = feed
    return _consuming(session, consumer)


def _consume_replies(session: Session, channel: Channel, consumer: Consumer) -> None:
    if not consumer.no_ack:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.inbox is not None:
        raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
    channel.inbox = session.broker.inboxes.open(consumer.deliver)


def of_queue(session: Session, queue: str, error: WaystationError) -> AmqpError:
    """What the heart says of a queue, in the words that clients know."""
    where = f"queue '{queue}' in vhost '{session.names.vhost}'"
    if isinstance(error, NotFound):
        return AmqpError(NOT_FOUND, f"no {where}")
    if isinstance(error, NotAllowed) and not queue.startswith(INTERNAL_PREFIX):
        return AmqpError(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {where}. It could be originally declared on another connection"
            " or the exclusive property value does not match that of the original declaration.",
        )
    if isinstance(error, Conflict):
        return AmqpError(ACCESS_REFUSED, f"{where} in exclusive use")
    return session.translated(error)


def cancel(session: Session, channel: Channel, method: commands.Basic.Cancel) -> Frame:
    tag = method.consumer_tag or ""
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        if consumer.queue == REPLY_TO and channel.inbox is not None:
            session.broker.inboxes.close(channel.inbox)
            channel.inbox = None
        consumer.retire()
    return commands.Basic.CancelOk(tag)


def get(session: Session, channel: Channel, method: commands.Basic.Get) -> Awaitable[Frame | None] | Frame | None:
    queue = method.queue or channel.last_queue
    source = session.sources.find(queue)
    if source is not None:
        return _get_from_source(session, channel, queue, method.no_ack, source)
    getter = channel.getters.get((queue, method.no_ack))
    if getter is None or getter.feed.closed:
        getter = channel.getters[queue, method.no_ack] = _getter(session, channel, queue, method.no_ack)
    feed = getter.feed
    if isinstance(feed, SharedFeed):
        raise AmqpError(NOT_FOUND, f"no queue '{queue}' in vhost '{session.names.vhost}'")
    found = feed.take(1)
    counted = feed.queue.settings.queue_type == "quorum"
    ready = feed.queue.open_ledger().ready
    return _give(session, getter, queue, method.no_ack, found, counted=counted, ready=ready)


async def _get_from_source(
    session: Session, channel: Channel, queue: str, no_ack: bool, source: Source
) -> Frame | None:
    getter = channel.getters.get((queue, no_ack))
    if getter is None or getter.feed.closed or not isinstance(getter.feed, SharedFeed):
        feed = await source.getter(f"{session.name}/{channel.number}/get", no_ack=no_ack)
        if channel.closed or session.closed:
            feed.close()
            raise AmqpError(NOT_FOUND, "the channel was closed meanwhile")
        getter = channel.getters[queue, no_ack] = Getter(channel, feed)
    found = getter.feed.take(1)
    return _give(session, getter, queue, no_ack, found, counted=True, ready=source.counts()[0])


def _give(
    session: Session,
    getter: Getter,
    queue: str,
    no_ack: bool,
    found: list[Delivered],
    *,
    counted: bool,
    ready: int,
) -> Frame | None:
    """The answer to basic.get."""
    if not found:
        return commands.Basic.GetEmpty()
    channel = getter.channel
    delivered = found[0]
    message = delivered.message
    channel.tag += 1
    channel.delivered += 1
    if not no_ack:
        channel.unacked[channel.tag] = (getter, delivered.tag)
    again = delivered.deliveries > 1
    counted = counted and again
    out = session.out
    out.append(
        get_ok_head(
            channel.number,
            channel.tag,
            again,
            message.exchange or "",
            message.routing_key if message.routing_key is not None else queue,
            ready,
        )
    )
    properties = encode(message, session.names, {"x-delivery-count": delivered.deliveries - 1} if counted else None)
    add_content(out, channel.number, properties, message.payload, session.engine.frame_max)
    session.to_flush()
    return None


def _getter(session: Session, channel: Channel, queue: str, no_ack: bool) -> Getter:
    try:
        feed = session.broker.queues.getter(
            session.names.full(queue), session.name, MAX_HORIZON_MS, no_ack, silent=True
        )
    except WaystationError as error:
        raise of_queue(session, queue, error) from error
    return Getter(channel, feed)


def qos(session: Session, channel: Channel, method: commands.Basic.Qos) -> Frame:
    if method.prefetch_size:
        raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.global_prefetch = method.prefetch_count
        for consumer in channel.consumers.values():
            consumer.pause()
            session.hungry[consumer] = None
    else:
        channel.prefetch = method.prefetch_count  # of consumers that come after this
    return commands.Basic.QosOk()
