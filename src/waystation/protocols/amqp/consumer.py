"""A consumer of a channel: what comes from a feed is put into frames, as far as prefetch and socket allow.

Its feed is given credit in portions: not more than the prefetch has room for, and not more than about a megabyte ahead
of the socket. So a client that does not read costs its prefetch or one portion, whichever is less, and a consumer
without a prefetch does not draw a whole queue into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import QueueFeed, SharedFeed, TailFeed, Verdict, count_of
from waystation.observe.connections import ConsumerInfo
from waystation.protocols.amqp.frames import Envelope
from waystation.protocols.budget import FREE_BYTES
from waystation.wire.amqp.properties import encode

if TYPE_CHECKING:
    from waystation.broker.access.types import Feed
    from waystation.errors import WaystationError
    from waystation.message import Delivered, Run
    from waystation.protocols.amqp.channel import Channel

FIRST_PORTION = 16
LARGEST_PORTION = 1_024
PORTION_BYTES = 1024 * 1024


class AmqpConsumer:
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
        meter = session.meter
        session.access.count_delivered(count, size)
        self._under_way -= count
        if acks:
            self.unacked += count
            channel.outstanding += count
            if channel.global_prefetch:
                self._take_from_others()
        else:
            if self.feed is not None and not self.stream:
                meter.acked += count
            session.access.durable_soon()  # what was sent is acknowledged with that
        self._portion = portion(count, size)
        session.hungry[self] = None
        session.to_flush()
        session.delivering(size)

    def reply(self, messages: list[Delivered]) -> None:
        """What its inbox calls. Nobody gives it credit: to a client that does not read, replies are lost."""
        if not self.channel.session.outside.congested:
            self.deliver(messages)

    def _extra(self, delivered: Delivered) -> dict[str, Any]:
        if self.stream:
            if not delivered.partition:
                return {"x-stream-offset": delivered.offset}
            return {"x-stream-offset": delivered.offset, "x-stream-partition": delivered.partition}
        return {"x-delivery-count": delivered.deliveries - 1}

    def _take_from_others(self) -> None:
        """The channel's prefetch is common to all: credit that others have not used yet may be too much by now."""
        left = self.channel.global_prefetch - self.channel.outstanding
        for other in self.channel.consumers.values():
            if other is not self and other._under_way > left and other.feed is not None and not other.ceased:
                other.feed.credit(left - other._under_way)
                other._under_way = left

    def pass_on(self, *, sparingly: bool = False) -> bool:
        """Gives the feed more credit, as far as there is room. Never from within a delivery: it would nest.
        `sparingly`: a small portion; False if its messages are too large for that."""
        channel = self.channel
        if self.feed is None or self.ceased or channel.closed or not channel.active:
            return True
        room = self._portion * FREE_BYTES // PORTION_BYTES if sparingly else self._portion
        if not room:
            return False
        if not self.no_ack:
            if self.limit:
                room = min(room, self.limit - self.unacked)
            if channel.global_prefetch:
                room = min(room, channel.global_prefetch - channel.outstanding)
        room -= self._under_way
        if room > 0:
            self._under_way += room
            self.feed.credit(room)
        return True

    def pause(self) -> None:
        """channel.flow: credit that was not used is void."""
        if self.feed is not None and not self.ceased and self._under_way > 0:
            self.feed.credit(-self._under_way)
            self._under_way = 0

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def ack(self, runs: list[Run]) -> None:
        self.settle(Verdict.ACK, runs)

    def settle(self, verdict: Verdict, runs: list[Run], delay_ms: int | None = None) -> None:
        count = sum([count for _, count in runs])
        if self.feed is not None:
            settled = self.feed.settle(verdict, runs, delay_ms=delay_ms)
            session = self.channel.session
            session.meter.settled(verdict.value, count - count_of(settled.unknown))
            if settled.receipt is not None:
                session.access.durable_soon()
        self.freed(count)

    def freed(self, count: int) -> None:
        """So many are unacked no more. A cancelled consumer goes with the last of them."""
        count = min(count, self.unacked)  # what a deleted queue took along was freed when it went
        self.unacked -= count
        self.channel.outstanding -= count
        session = self.channel.session
        if self.channel.global_prefetch:
            session.hungry.update(dict.fromkeys(self.channel.consumers.values()))
            session.to_flush()
        if self.ceased:
            if self.unacked <= 0 and self.feed is not None:
                self.channel.retired.pop(self, None)
                self.feed.leave()
            return
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
        """The channel goes; what is in flight to it is redelivered to others."""
        self.ceased = True
        if self.feed is not None:
            if politely:
                self.feed.leave()
            else:
                self.feed.close()

    def ended(self, error: WaystationError) -> None:
        """The broker ended it: its queue was deleted, and what it was sent counts no more, settled or not."""
        if not self.ceased:
            self.ceased = True
            self.freed(self.unacked)
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
