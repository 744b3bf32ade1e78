"""A channel: its consumers, what they were sent and have not settled, what was published on it and is not confirmed.

Delivery tags ascend and are the channel's; behind each stands who received the message and by which tag the heart knows
it. Confirms go out in the order of the publishes, as one `ack` for all that are durable; those of transient messages
may go before.

Invariants: what is in `unacked` is in flight to this channel in the heart, but for what a deleted queue took along;
`outstanding`, the sum of its consumers' `unacked`, cancelled ones' too, is what counts against the channel's prefetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from waystation.broker.access.types import add_run
from waystation.errors import WaystationError
from waystation.message import Run
from waystation.observe.connections import ChannelInfo
from waystation.observe.events import event_logger
from waystation.protocols.amqp.frames import ack_frame, nack_frame

if TYPE_CHECKING:
    from waystation.message import Message
    from waystation.protocols.amqp.consumer import AmqpConsumer
    from waystation.protocols.amqp.events import ChannelState
    from waystation.protocols.amqp.getting import Getter
    from waystation.protocols.amqp.session import AmqpSession
    from waystation.protocols.amqp.transactions import Transaction

    Receiver: TypeAlias = AmqpConsumer | Getter


logger = event_logger("waystation.amqp")


class Batch:
    """What was published to one queue or topic in this turn."""

    __slots__ = ("messages", "sequences")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sequences: list[int] = []


class Turn:
    """Publishes that were written together, until they are kept."""

    __slots__ = ("began", "channel", "count", "done", "failed", "last", "size")

    def __init__(self, channel: Channel, last: int, size: int, count: int, began: float) -> None:
        self.channel = channel
        self.count = count
        self.began = began
        self.last = last  # the highest sequence number; 0: nobody wants confirms
        self.size = size
        self.done = False
        self.failed = False

    def __call__(self, error: WaystationError | None) -> None:
        """What `when_durable` calls."""
        self.done = True
        self.failed = error is not None
        session = self.channel.session
        session.publish_times.add(session.node.world.clock.monotonic() - self.began, self.count)
        self.channel.kept(self, error)


NO_TURNS: deque[Turn] = deque(maxlen=0)
"""Nothing waits to be kept. One for all channels: an empty deque takes 760 bytes. A list would take less, but a flush
that hangs leaves 40,000 turns, and to take them out of a list one by one took 0.16 s of one turn of the loop."""


class Channel:
    """One of a session's. Whoever closes it calls `end`."""

    __slots__ = (
        "acked", "active", "closed", "confirming", "consumers", "delivered", "fresh", "getters", "global_prefetch",
        "inbox", "last_queue", "lowest", "metered", "outstanding",
        "pending", "pending_bytes", "pending_topics", "prefetch", "published",
        "retired", "sequence", "session", "settled", "state", "tag", "turns", "tx", "unacked", "written",
    )  # fmt: skip

    def __init__(self, session: AmqpSession, state: ChannelState) -> None:
        self.session = session
        self.state = state
        self.closed = False
        self.consumers: dict[str, AmqpConsumer] = {}
        self.getters: dict[tuple[str, bool], Getter] = {}
        self.retired: dict[AmqpConsumer, None] = {}  # cancelled, with something unacked
        self.inbox: str | None = None  # of direct reply-to
        self.unacked: dict[int, tuple[Receiver, int]] = {}
        self.tag = 0  # the last delivery tag
        self.lowest = 1  # no delivery tag below is unacked
        self.outstanding = 0
        self.prefetch = 0
        self.global_prefetch = 0
        self.active = True  # channel.flow
        self.confirming = False
        self.sequence = 0  # of the last publish since confirms were asked for
        self.written = 0  # of the last one that was written
        self.turns = NO_TURNS
        self.tx: Transaction | None = None
        self.last_queue = ""
        self.pending: dict[str, Batch] = {}
        self.pending_topics: dict[str, Batch] = {}
        self.pending_bytes = 0
        self.settled: dict[Receiver, list[Run]] = {}  # acknowledged in this turn
        self.published = self.delivered = self.acked = 0
        self.metered = 0  # of those that were published, how many the meters know
        self.fresh = 0  # published in this turn

    @property
    def number(self) -> int:
        return self.state.number

    # -- what is not settled ------------------------------------------------------------------------------------------

    def take(self, tag: int, multiple: bool) -> Iterator[tuple[Receiver, int]]:
        """What a verdict is about; it is unacked no more. The caller has checked that the tag is known."""
        unacked = self.unacked
        if not multiple:
            found = unacked.pop(tag, None)
            if found is not None:
                yield found
            return
        last = self.tag if tag == 0 else tag
        low, self.lowest = self.lowest, max(self.lowest, last + 1)
        for each in range(low, last + 1):
            found = unacked.pop(each, None)
            if found is not None:
                yield found

    def knows(self, tag: int, multiple: bool) -> bool:
        """Whether a verdict on this tag makes sense."""
        if multiple:
            return tag == 0 or self.lowest <= tag <= self.tag or tag in self.unacked
        return tag in self.unacked

    def restore(self, unacked: dict[int, tuple[Receiver, int]]) -> None:
        """Verdicts were rolled back: these are unacked again."""
        self.unacked |= unacked
        self.lowest = min((self.lowest, *unacked))

    def take_by_tag(self, tag: int, multiple: bool) -> list[tuple[int, tuple[Receiver, int]]]:
        """As `take`, with the delivery tags, so that it can be restored."""
        if not multiple:
            return [(tag, self.unacked.pop(tag))]
        last = self.tag if tag == 0 else tag
        low, self.lowest = self.lowest, max(self.lowest, last + 1)
        taken = ((each, self.unacked.pop(each, None)) for each in range(low, last + 1))
        return [(each, found) for each, found in taken if found is not None]

    def settle_acked(self) -> None:
        """The acknowledgements of this turn, all at once."""
        settled, self.settled = self.settled, {}
        for receiver, runs in settled.items():
            receiver.ack(runs)

    def acknowledge(self, tag: int, multiple: bool) -> bool:
        """Notes an acknowledgement; False if there is no such delivery."""
        if not multiple:
            found = self.unacked.pop(tag, None)
            if found is None:
                return False
            receiver, entry = found
            runs = self.settled.get(receiver)
            if runs is None:
                self.settled[receiver] = [(entry, 1)]
            else:
                add_run(runs, entry, 1)
            self.acked += 1
            return True
        if not self.knows(tag, True):
            return False
        latest, start, end = None, 0, 0
        for receiver, entry in self.take(tag, True):
            if entry == end and receiver is latest:
                end += 1
                continue
            if latest is not None:
                self._note(latest, start, end - start)
            latest, start, end = receiver, entry, entry + 1
        if latest is not None:
            self._note(latest, start, end - start)
        return True

    def _note(self, receiver: Receiver, first: int, count: int) -> None:
        add_run(self.settled.setdefault(receiver, []), first, count)
        self.acked += count

    # -- confirms -----------------------------------------------------------------------------------------------------

    def begin_turn(self, last: int, size: int) -> Turn:
        turn = Turn(self, last, size, self.fresh, self.session.node.world.clock.monotonic())
        if self.turns:
            self.turns.append(turn)
        else:
            self.turns = deque((turn,))
        return turn

    @property
    def confirmed(self) -> int:
        """About how far confirms have gone out."""
        return self.written if not self.turns else max(0, self.turns[0].last - 1)

    def confirm_at_once(self, first: int, last: int, refused: set[int]) -> None:
        """Transient messages do not wait for the disk, nor for those before them that do."""
        session = self.session
        if not self.turns:
            session.send(ack_frame(self.number, last, True))
        else:
            for sequence in range(first, last + 1):
                if sequence not in refused:
                    session.send(ack_frame(self.number, sequence, False))
        session.publish_times.add(0.0, self.fresh)

    def kept(self, turn: Turn, error: WaystationError | None) -> None:
        """What was written in a turn is durable, or never will be."""
        turns, session = self.turns, self.session
        session.landed(turn.size)
        if self.closed:
            turns.clear()
            return
        last = 0
        while turns and turns[0].done:
            first = turns.popleft()
            if first.failed and first.last:
                if last:
                    session.send(ack_frame(self.number, last, True))
                session.send(nack_frame(self.number, first.last, True))
                last = 0
            elif first.last:
                last = first.last
        if not self.turns:
            self.turns = NO_TURNS
        if last:
            session.send(ack_frame(self.number, last, True))
        if error is not None and not turn.last:
            session.publish_failed(self, error)

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self, *, politely: bool) -> None:
        """It is closed; what is in flight to its consumers is redelivered to others."""
        if self.closed:
            return
        if self.settled:
            self._settle_last()
        self.closed = True
        self.unacked.clear()
        self.turns.clear()
        receivers: list[Receiver] = [*self.consumers.values(), *self.retired, *self.getters.values()]
        for receiver in receivers:
            receiver.end(politely=politely)
        self.consumers.clear()
        self.retired.clear()
        self.getters.clear()
        if self.inbox is not None:
            self.session.access.inboxes.close(self.inbox)
            self.inbox = None
        if self.tx is not None:
            self.session.room.give(self.tx.size)
            self.tx = None

    def _settle_last(self) -> None:
        """What was acknowledged before whatever ends the channel came."""
        try:
            self.settle_acked()
        except WaystationError as error:
            logger.warning(
                "acks.lost", "acknowledgements are lost, and their messages are redelivered: {error}", error=error
            )

    def info(self) -> ChannelInfo:
        return ChannelInfo(
            self.number,
            self.prefetch,
            self.global_prefetch,
            self.confirming,
            self.tx is not None,
            len(self.unacked),
            self.sequence - self.confirmed,
            self.published,
            self.delivered,
            self.acked,
            [consumer.info() for consumer in self.consumers.values()],
        )
