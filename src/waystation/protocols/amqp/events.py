"""What the engine says (events), and the states of a connection and its channels as two tables that can be printed.

Plain data; the engine makes them, the session reads them.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp.base import Frame

from waystation.protocols.amqp.frames import BODY, HEADER, METHOD
from waystation.wire.amqp.errors import AmqpError
from waystation.world.large_buffers import Body

if TYPE_CHECKING:
    from waystation.wire.amqp.template import Template


class Phase(Enum):
    """Where a connection is."""

    HEADER = "expects the protocol header"
    START = "expects start-ok"
    SECURE = "expects secure-ok"
    TUNE = "expects tune-ok"
    OPENING = "expects open"
    OPEN = "open"
    CLOSING = "expects close-ok"
    CLOSED = "closed"


class ChannelPhase(Enum):
    """Where a channel is. One that is closed is not known."""

    METHOD = "open"
    CONTENT_HEADER = "expects a content header"
    CONTENT_BODY = "expects content bodies"
    CLOSING = "expects close-ok, passes over everything else"


CONNECTION_MOVES: dict[tuple[Phase, str], Phase] = {
    (Phase.START, "Connection.StartOk"): Phase.TUNE,
    (Phase.SECURE, "Connection.SecureOk"): Phase.TUNE,
    (Phase.TUNE, "Connection.TuneOk"): Phase.OPENING,
    (Phase.OPENING, "Connection.Open"): Phase.OPEN,
    (Phase.OPEN, "Connection.UpdateSecret"): Phase.OPEN,
    (Phase.OPEN, "Connection.Blocked"): Phase.OPEN,
    (Phase.OPEN, "Connection.Unblocked"): Phase.OPEN,
    (Phase.CLOSING, "Connection.CloseOk"): Phase.CLOSED,
    **{
        (phase, "Connection.Close"): Phase.CLOSED
        for phase in (Phase.START, Phase.SECURE, Phase.TUNE, Phase.OPENING, Phase.OPEN, Phase.CLOSING)
    },
}
"""On channel 0: which method in which phase, and the phase behind it. start-ok may lead to SECURE instead."""

CHANNEL_MOVES: dict[tuple[ChannelPhase, int], ChannelPhase] = {
    (ChannelPhase.METHOD, METHOD): ChannelPhase.METHOD,  # or CONTENT_HEADER, for a publish
    (ChannelPhase.CONTENT_HEADER, HEADER): ChannelPhase.CONTENT_BODY,  # or METHOD, where there is no body
    (ChannelPhase.CONTENT_BODY, BODY): ChannelPhase.CONTENT_BODY,  # or METHOD, when it is complete
    (ChannelPhase.CLOSING, METHOD): ChannelPhase.CLOSING,
    (ChannelPhase.CLOSING, HEADER): ChannelPhase.CLOSING,
    (ChannelPhase.CLOSING, BODY): ChannelPhase.CLOSING,
}
"""On a channel: which frame in which phase, and the phase behind it."""


class Target:
    """Where publishes with one exchange, routing key and flags go; the session keeps here what it found out of it."""

    __slots__ = ("exchange", "immediate", "inbox", "key", "mandatory", "queues", "reads", "topics", "version")

    def __init__(self, exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
        self.exchange = exchange
        self.key = key
        self.mandatory = mandatory
        self.immediate = immediate
        self.version = -1
        self.queues: tuple[str, ...] = ()
        self.topics: tuple[str, ...] = ()
        self.reads = False
        self.inbox = False


class Content:
    """A message that is coming, frame by frame."""

    __slots__ = ("body", "left", "size", "target", "template")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.template: Template | None = None
        self.body = Body(0)  # not its frames: one of a single byte would cost fifty
        self.left = 0
        self.size = 0  # of the whole body, as its header says


class ChannelState:
    """A channel, as the engine sees it. The session keeps its own channel in `owner`.

    `template` is of the last message whose properties were short, which are `properties`: mostly the next one's, too.
    """

    __slots__ = ("content", "number", "owner", "phase", "properties", "template")

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = ChannelPhase.METHOD
        self.content: Content | None = None
        self.owner: Any = None
        self.properties = b""
        self.template: Template | None = None


class PublishEvent(NamedTuple):
    """A whole message."""

    channel: ChannelState
    target: Target
    template: Template
    body: bytes


class Acked(NamedTuple):
    """basic.ack."""

    channel: ChannelState
    tag: int
    multiple: bool


class Method(NamedTuple):
    """Any other method, on an open channel or on channel 0 (None)."""

    channel: ChannelState | None
    method: Frame


class ChannelOpened(NamedTuple):
    """channel.open."""

    channel: ChannelState


class Greeted(NamedTuple):
    """The protocol header was right."""


class WrongHeader(NamedTuple):
    """The peer speaks something else: it is sent the header that we speak, and the connection ends."""


class Broken(NamedTuple):
    """The peer broke the protocol. `channel`: a soft error ends that one; else the connection ends."""

    channel: ChannelState | None
    error: AmqpError


Event = PublishEvent | Acked | Method | ChannelOpened | Greeted | WrongHeader | Broken
