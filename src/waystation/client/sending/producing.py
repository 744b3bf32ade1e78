"""Messages on their way to one place, gathered into frames while earlier frames are being made durable.

A lane belongs to one queue or topic. What a caller gives at once (a group) stays together and is stored together;
groups that are waiting when a frame can leave go in it, so that many callers with one message each cost little more
than one caller with many. A frame that the broker refuses is sent again group by group, so that nobody fails for
another's mistake. Order is kept: a lane uses one connection. Groups that one call cut its messages into are a series:
when the broker refuses one, it stores none of those behind it. It belongs to the client's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from waystation.client.links.connection import Connection, Waiter, reject, resolve
from waystation.client.sending.budget import Budget
from waystation.client.sending.results import Published, Stored
from waystation.errors import AlreadyExists, ConnectionLost, Invalid, RequestTimeout, WaystationError
from waystation.message import Message
from waystation.protocol import Command, Publish, PublishAnswer, Put, PutAnswer

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
Acks = Literal["none", "written", "durable"]

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)

FRAME_MESSAGES = 1_000
FRAME_BYTES = 512 * 1024
ENOUGH_MESSAGES = 200
ENOUGH_BYTES = 64 * 1024
"""A frame of this size need not wait for company."""
FEW_FLYING = 2
MOST_FLYING = 8
MOST_ALONE = 500
"""Frames of one message each: the broker makes batches of those that come together."""
BUSY_S = 0.005
MESSAGE_OVERHEAD = 64
"""What a message takes beside its payload, roughly."""


def chosen(said: Guarantee | None, otherwise: Guarantee) -> Guarantee:
    """The guarantee that was asked for; raises Invalid if there is none of that name."""
    guarantee = said or otherwise
    if guarantee not in GUARANTEES:
        raise Invalid(f"guarantee: {guarantee!r} is not one of {', '.join(GUARANTEES)}")
    return guarantee


def size_of(message: Message) -> int:
    headers = message.headers
    return len(message.payload) + MESSAGE_OVERHEAD + (64 * len(headers) if headers else 0)


class Series:
    """Groups of one call, which the broker knows to belong together by `number`."""

    __slots__ = ("flying", "number", "refused")

    def __init__(self, number: int) -> None:
        self.number = number
        self.refused: WaystationError | None = None
        """What the first one that failed failed for: those behind it are not sent."""
        self.flying: list[_Frame] = []


class Group:
    """What one caller gave at once, and who waits for it. `single`: the waiter gets the id instead of a list."""

    __slots__ = ("alone", "messages", "series", "single", "size", "waiter")

    def __init__(
        self, messages: list[Message], size: int, waiter: Waiter, *, single: bool, series: Series | None = None
    ) -> None:
        self.messages = messages
        self.series = series
        """Then it has a frame of its own."""
        self.size = size
        self.waiter = waiter
        self.single = single
        self.alone = False
        """Whether it needs a frame of its own."""


class Lane:
    """Frames to one place. Subclasses say what a frame is, and what its answer means for each group."""

    kind: Any
    silent = False
    """Whether the broker does not answer."""
    wait_s = 0.0
    """How long the broker may wait by itself."""

    def __init__(self, connection: Connection, budget: Budget, *, resend: bool) -> None:
        self.connection = connection
        self._budget = budget
        self._resend = resend
        self._loop = connection.loop
        self._waiting: deque[Group] = deque()
        self._messages = 0
        self._bytes = 0
        self._flying = 0
        self._scheduled = False
        self._idle: list[Waiter] = []

    def command(self, messages: list[Message], series: int) -> Command:
        raise NotImplementedError

    def begin_series(self) -> Series | None:
        """For the groups of one call; None where the broker knows no such thing. On any thread."""
        return None

    def share(self, answer: Any, groups: list[Group], *, resent: bool) -> None:
        """Gives each group its part of the answer."""
        raise NotImplementedError

    def add(self, group: Group) -> None:
        if group.series is not None and group.series.refused is not None:
            self._budget.give(group.size)
            reject(group.waiter, group.series.refused)
            return
        self._waiting.append(group)
        self._messages += len(group.messages)
        self._bytes += group.size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and self._may_send():
            self.send(self._next())
        if self._idle and not self._waiting and not self._flying:
            idle, self._idle = self._idle, []
            for waiter in idle:
                resolve(waiter, None)

    def _may_send(self) -> bool:
        if self.silent:  # no answer holds it back, so the socket has to
            if self.connection.up and self.connection.busy:
                self._scheduled = True
                self._loop.call_later(BUSY_S, self._flush)
                return False
            return True
        if self._flying < FEW_FLYING:
            return True
        if self._waiting[0].alone:
            return self._flying < MOST_ALONE and not self.connection.busy
        enough = self._messages >= ENOUGH_MESSAGES or self._bytes >= ENOUGH_BYTES
        return enough and self._flying < MOST_FLYING and not self.connection.busy

    def _next(self) -> list[Group]:
        """At least one group, and as many as fit in a frame."""
        groups: list[Group] = []
        messages = size = 0
        while self._waiting:
            group = self._waiting[0]
            if groups and (
                group.alone
                or groups[0].alone
                or group.series is not None
                or groups[0].series is not None
                or messages + len(group.messages) > FRAME_MESSAGES
                or size + group.size > FRAME_BYTES
            ):
                break
            groups.append(self._waiting.popleft())
            messages += len(group.messages)
            size += group.size
        self._messages -= messages
        self._bytes -= size
        return groups

    def send(self, groups: list[Group]) -> None:
        messages = groups[0].messages if len(groups) == 1 else [m for group in groups for m in group.messages]
        self._flying += 1
        frame = _Frame(self, groups, self.connection.epoch)
        series = groups[0].series
        command = self.command(messages, 0 if series is None else series.number)
        if self.silent:
            self._send_silently(command, frame)
            return
        if series is not None:
            series.flying.append(frame)
        timeout_s = self.connection.timeout_s + self.wait_s
        self.connection.request(command, self.kind, frame, resend=self._resend, timeout_s=timeout_s)

    def _send_silently(self, command: Command, frame: _Frame) -> None:
        try:
            self.connection.tell(command)
        except WaystationError as error:
            frame.set_exception(error)
        else:
            frame.set_result(self.kind())

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._flying or self._scheduled)

    def when_idle(self, waiter: Waiter) -> None:
        """Done when everything given so far is answered."""
        self._idle.append(waiter)
        self._flush()

    def landed(self, groups: list[Group]) -> None:
        self._flying -= 1
        self._budget.give(sum(group.size for group in groups))
        self._flush()

    def end_series(self, series: Series, failed: _Frame, error: WaystationError) -> None:
        """One of them failed. Those behind it fail too, at once, so that none is sent again over another link: what
        the broker has of them it refuses. Those before it may still wait for the disk."""
        series.refused = error
        rest = [group for group in self._waiting if group.series is series]
        if rest:
            self._waiting = deque(group for group in self._waiting if group.series is not series)
            self._messages -= sum(len(group.messages) for group in rest)
            size = sum(group.size for group in rest)
            self._bytes -= size
            self._budget.give(size)
            for group in rest:
                reject(group.waiter, error)
        at = series.flying.index(failed)
        behind = series.flying[at + 1 :]
        del series.flying[at:]
        for frame in behind:
            frame.give_up(error)

    def again(self, groups: list[Group]) -> None:
        """Refused together: each for itself."""
        self._flying -= 1
        for group in groups:
            self.send([group])


class _Frame:
    """Waits for the answer to one frame."""

    __slots__ = ("_done", "_epoch", "_groups", "_lane")

    def __init__(self, lane: Lane, groups: list[Group], epoch: int) -> None:
        self._lane = lane
        self._groups = groups
        self._epoch = epoch
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, answer: Any) -> None:
        self._done = True
        series = self._groups[0].series
        if series is not None and self in series.flying:
            series.flying.remove(self)
        self._lane.share(answer, self._groups, resent=self._lane.connection.epoch != self._epoch)
        self._lane.landed(self._groups)

    def set_exception(self, error: WaystationError) -> None:
        self._done = True
        if len(self._groups) > 1 and not isinstance(error, ConnectionLost | RequestTimeout):
            self._lane.again(self._groups)
            return
        for group in self._groups:
            reject(group.waiter, error)
        series = self._groups[0].series
        if series is not None and self in series.flying:
            self._lane.end_series(series, self, error)
        self._lane.landed(self._groups)

    def give_up(self, error: WaystationError) -> None:
        """One before it in its series failed: whatever the answer will be, nobody waits for it."""
        if not self._done:
            self.set_exception(error)


class PutLane(Lane):
    """To a queue."""

    kind = PutAnswer

    def __init__(
        self, connection: Connection, budget: Budget, queue: str, *, wait_ms: int, guarantee: Guarantee
    ) -> None:
        super().__init__(connection, budget, resend=guarantee != "at-most-once")
        self.queue = queue
        self._wait_ms = wait_ms
        self.wait_s = wait_ms / 1000
        self._forgiving = guarantee == "exactly-once"

    def command(self, messages: list[Message], series: int) -> Command:
        return Put(queue=self.queue, messages=messages, wait_ms=self._wait_ms, series=series)

    def begin_series(self) -> Series:
        return Series(next(self.connection.series))

    def share(self, answer: PutAnswer, groups: list[Group], *, resent: bool) -> None:
        """Tags are dense over what was stored: whoever was left out took none."""
        tag = answer.first
        start = 0
        for group in groups:
            count = len(group.messages)
            left_out = [i - start for i in answer.duplicates if start <= i < start + count] if answer.duplicates else []
            self._tell(group, tag, left_out, resent)
            tag += count - len(left_out)
            start += count

    def _tell(self, group: Group, tag: int, left_out: list[int], resent: bool) -> None:
        if not group.single:
            resolve(group.waiter, Stored.of(self.queue, group.messages, tag, left_out))
            return
        message = group.messages[0]
        if left_out and not resent and not self._forgiving:
            reject(group.waiter, AlreadyExists(id_used(self.queue, message)))
            return
        resolve(group.waiter, message.id if message.id is not None else f"{self.queue}#{tag}")


class PublishLane(Lane):
    """To a topic or an exchange."""

    kind = PublishAnswer

    def __init__(self, connection: Connection, budget: Budget, shape: Publish, *, guarantee: Guarantee) -> None:
        super().__init__(connection, budget, resend=guarantee != "at-most-once")
        self._shape = shape
        self.silent = shape.acks == "none"

    def command(self, messages: list[Message], series: int) -> Command:
        shape = self._shape
        return Publish(
            messages=messages,
            topic=shape.topic,
            exchange=shape.exchange,
            routing_key=shape.routing_key,
            partition=shape.partition,
            acks=shape.acks,
            mandatory=shape.mandatory,
            once=shape.once,
            series=series,
        )

    def begin_series(self) -> Series | None:
        """Without answers nobody would know where it ended."""
        return None if self.silent else Series(next(self.connection.series))

    def add(self, group: Group) -> None:
        group.alone = self._shape.exchange is not None or not all(map(_plain, group.messages))
        super().add(group)

    def share(self, answer: PublishAnswer, groups: list[Group], *, resent: bool) -> None:
        """Several groups are in a frame only if all messages in it go to one partition, one after another."""
        before = 0
        for group in groups:
            published = Published.of(self._shape.topic or "", group.messages, answer, before=before)
            if resent:
                published.duplicates = ()  # they are our own
            resolve(group.waiter, published)
            before += len(group.messages)


def id_used(queue: str, message: Message) -> str:
    said = f"id: {message.id!r} was used within the deduplication window of queue {queue!r}"
    return f"{said}; nothing was stored"


def _plain(message: Message) -> bool:
    """Whether it surely goes where its neighbours go, now."""
    return message.key is None and message.id is None and not message.delay_ms and message.deliver_at_ms is None


class Portion(NamedTuple):
    """Some of many messages, which fit in a frame."""

    messages: list[Message]
    size: int
    more: bool
    """Whether others follow."""


def in_groups(messages: Iterable[Message]) -> Iterator[Portion]:
    """Cuts many messages into what fits in a frame each, reading no further than it has to."""
    group: list[Message] = []
    size = 0
    for message in messages:
        this = size_of(message)
        if group and (len(group) >= FRAME_MESSAGES or size + this > FRAME_BYTES):
            yield Portion(group, size, more=True)
            group, size = [], 0
        group.append(message)
        size += this
    if group:
        yield Portion(group, size, more=False)


def partly_stored(error: WaystationError, answers: Sequence[Stored | Published]) -> WaystationError:
    """What a call is told of whose messages only the first ones are stored; `answers` are those of its groups before
    the one that failed."""
    stored = sum(answer.given for answer in answers)
    unsure = isinstance(error, ConnectionLost | RequestTimeout)
    if stored:
        rest = "whether the others are is not known" if unsure else "none of the others is"
        error = type(error)(f"{error}; the first {stored} messages of this call are stored, {rest}")
    error.stored = stored
    return error
