"""Messages on their way to one place, gathered into frames while earlier frames are being made durable.

A lane belongs to one queue or topic. What a caller gives at once (a group) stays together and is stored together;
groups that are waiting when a frame can leave go in it, so that many callers with one message each cost little more
than one caller with many. A frame that the broker refuses is sent again group by group, so that nobody fails for
another's mistake. Order is kept: a lane uses one connection. It belongs to the client's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from waystation.client.budget import Budget
from waystation.client.connection import Connection, Waiter, reject, resolve
from waystation.client.results import Published, Stored
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


class Group:
    """What one caller gave at once, and who waits for it. `single`: the waiter gets the id instead of a list."""

    __slots__ = ("alone", "messages", "single", "size", "waiter")

    def __init__(self, messages: list[Message], size: int, waiter: Waiter, *, single: bool) -> None:
        self.messages = messages
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

    def command(self, messages: list[Message]) -> Command:
        raise NotImplementedError

    def share(self, answer: Any, groups: list[Group], *, resent: bool) -> None:
        """Gives each group its part of the answer."""
        raise NotImplementedError

    def add(self, group: Group) -> None:
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
        if self.silent:
            self._send_silently(self.command(messages), frame)
            return
        timeout_s = self.connection.timeout_s + self.wait_s
        self.connection.request(self.command(messages), self.kind, frame, resend=self._resend, timeout_s=timeout_s)

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
        self._lane.share(answer, self._groups, resent=self._lane.connection.epoch != self._epoch)
        self._lane.landed(self._groups)

    def set_exception(self, error: WaystationError) -> None:
        self._done = True
        if len(self._groups) > 1 and not isinstance(error, ConnectionLost | RequestTimeout):
            self._lane.again(self._groups)
            return
        for group in self._groups:
            reject(group.waiter, error)
        self._lane.landed(self._groups)


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

    def command(self, messages: list[Message]) -> Command:
        return Put(queue=self.queue, messages=messages, wait_ms=self._wait_ms)

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
            said = f"id: {message.id!r} was used within the deduplication window of queue {self.queue!r}"
            reject(group.waiter, AlreadyExists(f"{said}; nothing was stored"))
            return
        resolve(group.waiter, message.id if message.id is not None else f"{self.queue}#{tag}")


class PublishLane(Lane):
    """To a topic or an exchange."""

    kind = PublishAnswer

    def __init__(self, connection: Connection, budget: Budget, shape: Publish, *, guarantee: Guarantee) -> None:
        super().__init__(connection, budget, resend=guarantee != "at-most-once")
        self._shape = shape
        self.silent = shape.acks == "none"

    def command(self, messages: list[Message]) -> Command:
        shape = self._shape
        return Publish(
            messages=messages,
            topic=shape.topic,
            exchange=shape.exchange,
            routing_key=shape.routing_key,
            partition=shape.partition,
            acks=shape.acks,
            mandatory=shape.mandatory,
        )

    def add(self, group: Group) -> None:
        group.alone = self._shape.exchange is not None or not all(map(_plain, group.messages))
        super().add(group)

    def share(self, answer: PublishAnswer, groups: list[Group], *, resent: bool) -> None:
        """Several groups are in a frame only if all messages in it go to one partition, one after another."""
        places = answer.places
        offset = places[0][2] if len(places) == 1 else -1
        for group in groups:
            published = Published(
                len(group.messages),
                group.messages[0].id,
                topic=places[0][0] if places else self._shape.topic or "",
                partition=places[0][1] if len(places) == 1 else -1,
                offset=offset,
                places=places,
                queues=answer.queues,
                subscribers=answer.subscribers,
            )
            resolve(group.waiter, published)
            if offset >= 0:
                offset += len(group.messages)


def _plain(message: Message) -> bool:
    """Whether it surely goes where its neighbours go, now."""
    return message.key is None and message.id is None and not message.delay_ms and message.deliver_at_ms is None


def in_groups(messages: Iterable[Message]) -> Iterator[tuple[list[Message], int]]:
    """Cuts many messages into what fits in a frame each, with its size, reading no further than it has to."""
    group: list[Message] = []
    size = 0
    for message in messages:
        this = size_of(message)
        if group and (len(group) >= FRAME_MESSAGES or size + this > FRAME_BYTES):
            yield group, size
            group, size = [], 0
        group.append(message)
        size += this
    if group:
        yield group, size
