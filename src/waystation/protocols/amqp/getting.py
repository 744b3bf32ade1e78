"""basic.get: one message, if there is one.

A channel keeps one getter for each queue that it gets from. A getter is no consumer: it is not counted, gets nothing by
itself and is in nobody's way; what was got is in flight to it until it is settled.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.access.types import SharedFeed, Verdict, count_of
from waystation.errors import WaystationError
from waystation.protocols.amqp.consuming import no_queue, of_queue
from waystation.protocols.amqp.frames import add_content, get_ok_head
from waystation.vhosts.consumer_terms import use_queues_timeout
from waystation.wire.amqp.errors import NOT_FOUND, AmqpError
from waystation.wire.amqp.properties import encode

if TYPE_CHECKING:
    from waystation.broker.access.types import Getter as QueueGetter
    from waystation.message import Delivered, Run
    from waystation.protocols.amqp.channel import Channel
    from waystation.protocols.amqp.session import AmqpSession
    from waystation.vhosts.sources import Source

MANY_GETTERS = 64


class Getter:
    """What a channel got from one queue by basic.get."""

    __slots__ = ("channel", "feed")

    def __init__(self, channel: Channel, feed: QueueGetter | SharedFeed) -> None:
        self.channel = channel
        self.feed = feed

    def ack(self, runs: list[Run]) -> None:
        self.settle(Verdict.ACK, runs)

    def settle(self, verdict: Verdict, runs: list[Run], delay_ms: int | None = None) -> None:
        settled = self.feed.settle(verdict, runs, delay_ms=delay_ms)
        session = self.channel.session
        session.meter.settled(verdict.value, count_of(runs) - count_of(settled.unknown))
        if settled.receipt is not None:
            session.access.durable_soon()

    def freed(self, count: int) -> None:
        """What was got counts against no prefetch."""

    def end(self, *, politely: bool) -> None:
        if politely:
            self.feed.leave()
        else:
            self.feed.close()


def get(session: AmqpSession, channel: Channel, method: commands.Basic.Get) -> Awaitable[Frame | None] | Frame | None:
    queue = method.queue or channel.last_queue
    if not queue:
        raise AmqpError(NOT_FOUND, "no previously declared queue")
    if not session.routes.holds(queue):
        raise no_queue(session, queue)
    source = session.sources.find(queue)
    if source is not None:
        return _get_from_source(session, channel, queue, method.no_ack, source)
    getter = channel.getters.get((queue, method.no_ack))
    if getter is None or getter.feed.closed:
        getter = channel.getters[queue, method.no_ack] = _getter(session, channel, queue, method.no_ack)
    feed = getter.feed
    if isinstance(feed, SharedFeed):
        raise no_queue(session, queue)
    found = feed.take(1)
    counted = feed.queue.settings.queue_type == "quorum"
    ready = feed.queue.open_ledger().ready
    return _give(session, getter, queue, method.no_ack, found, counted=counted, ready=ready)


async def _get_from_source(
    session: AmqpSession, channel: Channel, queue: str, no_ack: bool, source: Source
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
    session: AmqpSession,
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
    session.access.count_delivered(1, len(message.payload))
    session.wait_for_quota(session.starved_s())
    if no_ack:
        session.meter.acked += 1
    else:
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
    session.got(len(message.payload))
    return None


def _getter(session: AmqpSession, channel: Channel, queue: str, no_ack: bool) -> Getter:
    known = channel.getters
    if len(known) >= MANY_GETTERS and not len(known) & (len(known) - 1):  # now and then: queues may have been deleted
        channel.getters = {key: getter for key, getter in known.items() if not getter.feed.closed}
    try:
        feed = session.access.getter(session.names.full(queue), session.name, None, no_ack, silent=True)
    except WaystationError as error:
        raise of_queue(session, queue, error) from error
    use_queues_timeout(feed)
    return Getter(channel, feed)
