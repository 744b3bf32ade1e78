"""The protocol engine: bytes in, events out, no sockets.

It knows frames, the states of a connection and its channels, and how content is put together from a method, a header
and bodies; it knows nothing of queues. What a peer may send in which state is `CONNECTION_MOVES` and `CHANNEL_MOVES`,
two tables that can be printed; what is not in them is refused as the specification says. A publish that lies in the
buffer as a whole, which is nearly every one, is read in one go.

Invariants: an event is given out only when all its bytes have come; after a `Broken` nothing more is read; bytes are
copied once, out of the receive buffer.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from struct import Struct

from pamqp import commands
from pamqp.base import Frame

from waystation.protocols.amqp.events import (
    CHANNEL_MOVES,
    CONNECTION_MOVES,
    Acked,
    Broken,
    ChannelOpened,
    ChannelPhase,
    ChannelState,
    Content,
    Event,
    Greeted,
    Method,
    Phase,
    PublishEvent,
    Target,
    WrongHeader,
)
from waystation.protocols.amqp.frames import (
    ACK,
    BASIC,
    BODY,
    END,
    HEAD_BYTES,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    PUBLISH,
    frame_head,
)
from waystation.wire.amqp.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
)
from waystation.wire.amqp.properties import Template, template_of
from waystation.wire.amqp.template import MAX_CACHED_BYTES
from waystation.world.large_buffers import Body

FRAME_MAX = 131_072
"""What we offer, and the longest frame before the peer has said what it wants. By the specification a frame's payload
is eight bytes shorter, and ours are; from a peer we take as much in the payload as RabbitMQ does, since some clients
(AMQPStorm) cut bodies there."""
FRAMES_PER_TURN = 2_048
"""Publishes that lie in the buffer as a whole, and acks: so many are read in one go, which takes some 10 ms. With more,
a publish costs no less."""
OTHERS_PER_TURN = 64
"""The same for frames that are not one of many of their kind: methods, and pieces of large messages. Each takes longer
(a consumer that is opened twenty microseconds), and what a socket gives at once has more of them only if they are
smaller than 4 KiB."""
SHORT_FRAMES, SHORT_OTHERS = 64, 16
"""The same for a short turn, for when other clients wait for answers: half a millisecond. Not always, since publishes
cost a third more in turns this short: what is done once a turn (a write, a confirm) is done for fewer."""
MOST_TARGETS = 1_024
MAX_CHANNELS = 2_047

_content_head = Struct(">HHQ")
_tag = Struct(">QB")
_method_id = Struct(">I")


class Engine:
    """One connection's. `max_body` says how large a message may be."""

    __slots__ = (
        "_at",
        "_limit",
        "_max_body",
        "_rest",
        "_targets",
        "assembling",
        "assembling_count",
        "channel_max",
        "channels",
        "frame_max",
        "more",
        "phase",
    )

    def __init__(self, max_body: Callable[[], int]) -> None:
        self.phase = Phase.HEADER
        self.frame_max = FRAME_MAX
        self.channel_max = MAX_CHANNELS
        self.channels: dict[int, ChannelState] = {}
        self._max_body = max_body
        self._limit = 0  # as it was when the present bytes came
        self._targets: dict[bytes, Target] = {}
        self._rest = b""
        self._at = 0  # what is before it in `_rest` has been read: a quarter of a megabyte is not copied every turn
        self.assembling = 0  # bytes of messages whose bodies have not come as a whole, as their headers say
        self.assembling_count = 0
        self.more = False  # there may be whole frames in `_rest`: `receive(b"")` goes on with them

    @property
    def unread(self) -> int:
        """Bytes of a frame that has not come as a whole, or of those for a later turn."""
        return len(self._rest) - self._at

    def receive(self, data: bytes, *, short: bool = False) -> list[Event]:
        """What these bytes, behind those before them, mean; those of one turn, if there is `more`."""
        if self.phase is Phase.CLOSED:
            return []
        position = 0
        if self._rest:
            if data:
                data = self._rest[self._at :] + data
            else:
                data, position = self._rest, self._at
            self._rest, self._at = b"", 0
        events: list[Event] = []
        self._limit = self._max_body()
        self.more = False
        if self.phase is Phase.HEADER:
            if len(data) < 8 and PROTOCOL_HEADER.startswith(data):
                self._rest = data
                return events
            if not data.startswith(PROTOCOL_HEADER):
                self.phase = Phase.CLOSED
                return [WrongHeader()]
            self.phase = Phase.START
            events.append(Greeted())
            position = 8
        try:
            position = self._frames(data, position, events, short)
        except AmqpError as error:
            self.phase = Phase.CLOSED
            events.append(Broken(None, error))
            return events
        if position < len(data):
            if self.more:
                self._rest, self._at = data, position
            else:
                self._rest = data[position:] if position else data
        return events

    def _frames(self, data: bytes, position: int, events: list[Event], short: bool) -> int:
        """Reads whole frames; returns how far it came."""
        end = len(data)
        longest = self.frame_max  # of a payload: see FRAME_MAX
        channels, targets = self.channels, self._targets
        # By these names, since a member of an enum takes ten times as long to look up as a name.
        unpack, expects_method, closed = frame_head.unpack_from, ChannelPhase.METHOD, Phase.CLOSED
        others = SHORT_OTHERS if short else OTHERS_PER_TURN
        for _ in range(SHORT_FRAMES if short else FRAMES_PER_TURN):
            if end - position < HEAD_BYTES:
                return position
            kind, number, size = unpack(data, position)
            if size > longest:
                raise AmqpError(FRAME_ERROR, f"type {kind}, {size} octets: its payload is longer than {longest}")
            start = position + HEAD_BYTES
            stop = start + size
            if stop >= end:
                return position
            if data[stop] != END:
                raise AmqpError(FRAME_ERROR, f"type {kind}, {size} octets: the frame has no end where it should have")
            if kind == METHOD and number:
                channel = channels.get(number)
                if channel is not None and channel.phase is expects_method:
                    if data.startswith(PUBLISH, start):
                        raw = data[start + 6 : stop]
                        target = targets.get(raw) or self._target(raw)
                        position = self._publish(data, stop + 1, end, channel, target, events)
                        continue
                    if size == 13 and data.startswith(ACK, start):
                        tag, multiple = _tag.unpack_from(data, start + 4)
                        events.append(Acked(channel, tag, multiple & 1 == 1))
                        position = stop + 1
                        continue
            position = stop + 1
            self._frame(kind, number, data[start:stop], events)
            longest = self.frame_max
            if self.phase is closed:
                return position
            others -= 1
            if not others:
                break
        self.more = position < end
        return position

    def _publish(
        self, data: bytes, position: int, end: int, channel: ChannelState, target: Target, events: list[Event]
    ) -> int:
        """Behind a publish: its header and body, if all of it is here; else they are awaited, frame by frame."""
        number = channel.number
        if end - position >= 22:
            kind, same, size = frame_head.unpack_from(data, position)
            stop = position + 7 + size
            # `stop + 1` is where the body's frame begins, and that needs eight bytes at least.
            if kind == HEADER and same == number and 14 <= size <= self.frame_max and stop + 8 < end:
                class_id, _, left = _content_head.unpack_from(data, position + 7)
                if class_id == BASIC and data[stop] == END and 0 < left <= self.frame_max:
                    body = stop + 8
                    kind, same, size = frame_head.unpack_from(data, stop + 1)
                    last: int = body + size
                    whole = kind == BODY and same == number and size == left and last < end and data[last] == END
                    if whole and left <= self._limit:
                        properties = data[position + 19 : stop]
                        if properties == channel.properties:
                            template = channel.template
                        else:
                            template = self._template(channel, properties, events)
                        if template is not None:
                            events.append(PublishEvent(channel, target, template, data[body:last]))
                        return last + 1
        channel.phase = ChannelPhase.CONTENT_HEADER
        channel.content = Content(target)
        return position

    def _target(self, raw: bytes) -> Target:
        """Where a publish goes, read from its method frame behind the two bytes that mean nothing."""
        try:
            cut = 1 + raw[0]
            exchange = raw[1:cut].decode()
            stop = cut + 1 + raw[cut]
            key = raw[cut + 1 : stop].decode()
            flags = raw[stop]
        except (IndexError, UnicodeDecodeError) as error:
            raise AmqpError(SYNTAX_ERROR, "basic.publish cannot be read") from error
        if stop + 1 != len(raw):
            raise AmqpError(SYNTAX_ERROR, "basic.publish has bytes behind its end")
        if len(self._targets) >= MOST_TARGETS:
            self._targets.clear()
        target = self._targets[raw] = Target(exchange, key, bool(flags & 1), bool(flags & 2))
        return target

    # -- frame by frame -----------------------------------------------------------------------------------------------

    def _frame(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        if kind == HEARTBEAT:
            if number:
                raise AmqpError(COMMAND_INVALID, f"a heartbeat on channel {number}: they belong on channel 0")
            return
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(FRAME_ERROR, f"there is no frame type {kind}")
        if number == 0:
            if kind != METHOD:
                raise AmqpError(UNEXPECTED_FRAME, "content on channel 0")
            self._connection_method(_method(payload), events)
            return
        if self.phase is Phase.CLOSING:
            return
        if self.phase is not Phase.OPEN:
            raise AmqpError(CHANNEL_ERROR, f"a frame on channel {number} before the connection is open")
        channel = self.channels.get(number)
        if channel is None:
            self._first_frame(kind, number, payload, events)
        elif (channel.phase, kind) not in CHANNEL_MOVES:
            raise AmqpError(UNEXPECTED_FRAME, f"channel {number} {channel.phase.value}, and got {_KINDS[kind]}")
        elif kind == METHOD:
            self._channel_method(channel, _method(payload), events)
        elif channel.phase is not ChannelPhase.CLOSING:
            self._content(channel, kind, payload, events)

    def _connection_method(self, method: Frame, events: list[Event]) -> None:
        after = CONNECTION_MOVES.get((self.phase, method.name))
        if after is None:
            if self.phase is Phase.CLOSING:
                return
            wrong_place = method.name.partition(".")[0] != "Connection"
            raise AmqpError(
                CHANNEL_ERROR if wrong_place else COMMAND_INVALID,
                f"{method.name} on channel 0 while the connection {self.phase.value}",
            )
        self.phase = after
        events.append(Method(None, method))

    def _first_frame(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        method = _method(payload) if kind == METHOD else None
        if isinstance(method, commands.Channel.CloseOk | commands.Channel.Close):
            # Both sides closed it at the same time, and this is the peer's half of it.
            if isinstance(method, commands.Channel.Close):
                raise AmqpError(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")
            return
        if not isinstance(method, commands.Channel.Open):
            raise AmqpError(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")
        count = len(self.channels)
        if count >= self.channel_max:  # how many there are, as with RabbitMQ: a number may be above it
            raise AmqpError(
                NOT_ALLOWED,
                f"number of channels opened ({count}) has reached the negotiated channel_max ({self.channel_max})",
            )
        channel = self.channels[number] = ChannelState(number)
        events.append(ChannelOpened(channel))

    def _channel_method(self, channel: ChannelState, method: Frame, events: list[Event]) -> None:
        if channel.phase is ChannelPhase.CLOSING:
            if isinstance(method, commands.Channel.CloseOk):
                del self.channels[channel.number]
            elif isinstance(method, commands.Channel.Close):
                events.append(Method(channel, method))
            return
        if isinstance(method, commands.Channel.Open):
            raise AmqpError(CHANNEL_ERROR, f"second 'channel.open' on channel {channel.number}")
        if method.name.startswith("Connection."):
            raise AmqpError(COMMAND_INVALID, f"{method.name} on channel {channel.number}: it belongs on channel 0")
        events.append(Method(channel, method))

    def _content(self, channel: ChannelState, kind: int, payload: bytes, events: list[Event]) -> None:
        content = channel.content
        if content is None:
            raise AmqpError(UNEXPECTED_FRAME, f"channel {channel.number} expects no content")
        if kind == HEADER:
            if len(payload) < 14:
                raise AmqpError(SYNTAX_ERROR, "a content header of less than 14 bytes")
            class_id, _, content.left = _content_head.unpack_from(payload)
            if class_id != BASIC:
                raise AmqpError(UNEXPECTED_FRAME, f"a content header of class {class_id} behind basic.publish")
            if content.left > self._limit:
                self._too_large(channel, content.left, events)
                return
            content.template = self._template(channel, payload[12:], events)
            if content.template is None:
                return
            channel.phase = ChannelPhase.CONTENT_BODY
            content.size = content.left
            content.body = Body(content.size)
            self.assembling += content.size
            self.assembling_count += 1
        else:
            if len(payload) > content.left:
                raise AmqpError(FRAME_ERROR, f"{len(payload) - content.left} bytes more of a body than its header said")
            content.left -= len(payload)
            content.body.add(payload)
        if not content.left and content.template is not None:
            self._forget_content(channel)
            channel.phase = ChannelPhase.METHOD
            events.append(PublishEvent(channel, content.target, content.template, content.body.whole()))

    def _forget_content(self, channel: ChannelState) -> None:
        content, channel.content = channel.content, None
        if content is not None and content.template is not None:
            self.assembling -= content.size
            self.assembling_count -= 1

    def _template(self, channel: ChannelState, data: bytes, events: list[Event]) -> Template | None:
        """The properties of a message; None if they make no sense, which ends the channel."""
        try:
            template = template_of(data)
        except AmqpError as error:
            if error.hard:
                raise
            events.append(Broken(channel, error))
            self.closing(channel)
            return None
        if len(data) <= MAX_CACHED_BYTES:
            channel.properties, channel.template = data, template
        return template

    def _too_large(self, channel: ChannelState, size: int, events: list[Event]) -> None:
        text = f"message size {size} is larger than configured max size {self._limit}"
        events.append(Broken(channel, AmqpError(PRECONDITION_FAILED, text)))
        self.closing(channel)

    # -- what the session says ----------------------------------------------------------------------------------------

    def closing(self, channel: ChannelState) -> None:
        """We have closed the channel: what comes on it is passed over until the peer agrees."""
        self._forget_content(channel)
        channel.phase = ChannelPhase.CLOSING

    def closed(self, channel: ChannelState) -> None:
        """The peer has closed it."""
        self._forget_content(channel)
        self.channels.pop(channel.number, None)

    def let_go(self) -> list[mmap.mmap]:
        """The connection is over; what is to be given back a part at a time."""
        return [one for channel in self.channels.values() if channel.content for one in channel.content.body.large]

    def tuned(self, frame_max: int, channel_max: int) -> None:
        self.frame_max, self.channel_max = frame_max, channel_max


_KINDS = {METHOD: "a method", HEADER: "a content header", BODY: "a content body"}


def _method(payload: bytes) -> Frame:
    """A method that is not read by hand. `pamqp` raises all sorts of errors for what it cannot read."""
    if len(payload) < 4:
        raise AmqpError(SYNTAX_ERROR, "a method frame of less than four bytes")
    (index,) = _method_id.unpack_from(payload)
    kind: type[Frame] | None = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise AmqpError(NOT_IMPLEMENTED, f"there is no method {index >> 16},{index & 0xFFFF}")
    try:
        method: Frame = kind()
        method.unmarshal(payload[4:])
    except Exception as error:
        raise AmqpError(SYNTAX_ERROR, f"{kind.name} cannot be read: {str(error)[:100]}") from error
    return method
