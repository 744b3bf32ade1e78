"""The requests about consumers: opening them, giving them credit, asking for messages, ending them.

Called by the session, through `requests.HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import QueueFeed
from waystation.errors import Conflict, Invalid, NotFound, WaystationError
from waystation.protocol import (
    Cease,
    Consume,
    Credit,
    Get,
    Got,
    OpenInbox,
    SettleAnswer,
    Subscribe,
    SubscribeAnswer,
    Touch,
)
from waystation.protocols.native.commands.consumers import INBOX_KEPT, PORTION_BYTES, NativeConsumer
from waystation.protocols.native.commands.settling import check_deliveries, check_runs

if TYPE_CHECKING:
    from waystation.message import Delivered
    from waystation.protocols.native.session import NativeSession

MAX_GET = 100_000
FIRST_TAKEN = 8
"""Taken before their size is known; the rest follows as it fits."""

ANSWER_BYTES = 8 * 1024 * 1024
"""Payloads in one answer: enough to be worth the way, far from the longest frame."""

SHORT_GET = 1_024
SHORT_GET_BYTES = 256 * 1024
"""The same while others wait: about a millisecond. 8 MiB in messages of 1 KiB are 20, in messages of 80 bytes 160."""

MAX_GETTERS = 10_000
"""Queues that one connection gets from at a time."""


def consume(session: NativeSession, command: Consume) -> None:
    _check_counts(command.credit, command.prefetch)
    consumer = session.new_consumer(command.consumer, command.queue)
    consumer.prefetch, consumer.acks = command.prefetch, not command.auto_ack
    try:
        consumer.feed = session.access.consume(
            command.queue,
            f"{session.name}/{command.consumer}",
            lambda messages: session.delivered(consumer, messages),
            on_end=lambda error: session.feed_ended(consumer, error),
            prefetch=command.prefetch,
            visibility_timeout_ms=command.hold_ms,
            auto_ack=command.auto_ack,
            exclusive=command.exclusive,
            owner=session.name,
        )
    except BaseException:
        session.consumers.pop(command.consumer, None)
        raise
    consumer.feed.portion_bytes = PORTION_BYTES
    consumer.allow(command.credit)
    session.credited(consumer)


def subscribe(session: NativeSession, command: Subscribe) -> Awaitable[SubscribeAnswer]:
    """The number is taken at once: credit for it may be in the next frame."""
    _check_counts(command.credit, command.prefetch)
    consumer = session.new_consumer(command.consumer, live=command.mode == "live")
    consumer.subject = ", ".join(command.topics) + (f" as group {command.group}" if command.group else "")
    consumer.prefetch = command.prefetch
    consumer.acks = consumer.acks and not command.auto_ack
    consumer.allow(command.credit)
    return _open_subscription(session, command, consumer)


async def _open_subscription(session: NativeSession, command: Subscribe, consumer: NativeConsumer) -> SubscribeAnswer:
    try:
        feed, answer = await session.access.subscriptions.open(
            command,
            f"{session.name}/{command.consumer}",
            lambda messages: session.delivered(consumer, messages),
            lambda error: session.feed_ended(consumer, error),
        )
    except BaseException:
        if session.consumers.get(command.consumer) is consumer:
            del session.consumers[command.consumer]
        raise
    if consumer.ceased or session.closed:
        feed.close()
        raise Conflict(f"consumer {command.consumer} was ceased before it was open")
    consumer.feed = feed
    session.credited(consumer)
    return answer


def credit(session: NativeSession, command: Credit) -> None:
    if command.count < 0:
        raise Invalid(f"count: {command.count} is below zero")
    consumer = session.consumers.get(command.consumer)
    if consumer is not None:  # one that the broker ended a moment ago is no mistake of the client
        consumer.allow(command.count)
        session.credited(consumer)


def touch(session: NativeSession, command: Touch) -> SettleAnswer:
    check_runs(command.runs)
    if command.hold_ms is not None and command.hold_ms < 1:
        raise Invalid(f"hold_ms: {command.hold_ms} is below 1")
    check_deliveries(command.deliveries)
    feed = session.consumer(command.consumer).feed
    if isinstance(feed, QueueFeed):
        return SettleAnswer(feed.touch(command.runs, command.hold_ms, command.deliveries))
    return SettleAnswer(feed.touch(command.runs, command.hold_ms))  # type: ignore[union-attr]


def cease(session: NativeSession, command: Cease) -> None:
    consumer = session.consumers.pop(command.consumer, None)
    if consumer is None:
        raise NotFound(f"consumer: this connection has no consumer {command.consumer}")
    for key, getter in list(session.getters.items()):
        if getter is consumer:
            del session.getters[key]
    consumer.end(politely=True)


def open_inbox(session: NativeSession, command: OpenInbox) -> str:
    consumer = session.new_consumer(command.consumer)

    def deliver(messages: list[Delivered]) -> None:
        session.delivered(consumer, messages)
        del consumer.pending[:-INBOX_KEPT]

    try:
        inboxes = session.access.inboxes
        name = inboxes.open(deliver)
    except BaseException:
        session.consumers.pop(command.consumer, None)
        raise
    consumer.feed = _Inbox(partial(inboxes.close, name))
    return name


class _Inbox:
    """An inbox as a feed: there is nothing to credit or settle."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close

    def credit(self, count: int) -> None:
        pass

    def pause(self) -> None:
        """Replies wait in the session; see `INBOX_KEPT`."""

    def resume(self) -> None:
        pass

    def settle(self, verdict: Any, runs: Any, *, delay_ms: int | None = None, error: str | None = None) -> Any:
        raise Invalid("consumer: replies in an inbox are not acknowledged, so there is nothing to settle")

    def touch(self, runs: Any, visibility_timeout_ms: int | None = None) -> Any:
        raise Invalid("consumer: replies in an inbox are not acknowledged, so there is nothing to touch")

    def leave(self) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return False

    def end(self, error: WaystationError) -> None:
        self.close()


# -- asking for messages -----------------------------------------------------------------------------------------------


def get(session: NativeSession, command: Get) -> Got | Awaitable[Got]:
    """Answered at once, without a task, where something is there or nobody wants to wait."""
    if not 1 <= command.count <= MAX_GET:
        raise Invalid(f"count: {command.count} is not between 1 and {MAX_GET}")
    consumer = _getter(session, command)
    messages: list[Delivered] = []
    size, more = _take(session, consumer, command.count, messages)
    if messages or command.wait_ms <= 0:
        session.count_delivered(consumer, len(messages), size)
        return Got(consumer.number, messages, more)
    return _wait(session, consumer, command)


async def _wait(session: NativeSession, consumer: NativeConsumer, command: Get) -> Got:
    try:
        messages = await consumer.feed.get(min(command.count, FIRST_TAKEN), command.wait_ms)  # type: ignore[union-attr]
    except WaystationError:
        _forget(session, consumer)
        raise
    wanted = command.count if messages and not getattr(consumer.feed, "closed", False) else 0
    size, more = _take(session, consumer, wanted, messages)
    session.count_delivered(consumer, len(messages), size)
    return Got(consumer.number, messages, more)


def _take(session: NativeSession, consumer: NativeConsumer, count: int, messages: list[Delivered]) -> tuple[int, bool]:
    """Adds what is there to `messages`, until there are `count` or as many as one answer should carry; returns the
    size of all of them, and whether they are fewer because others wait."""
    short = session.others_wait
    most, most_bytes = (SHORT_GET, SHORT_GET_BYTES) if short else (MAX_GET, ANSWER_BYTES)
    size = sum([len(delivered.message.payload) for delivered in messages])
    while len(messages) < min(count, most) and size < most_bytes:
        fits = (most_bytes - size) * len(messages) // size if size else most if messages else FIRST_TAKEN
        try:
            taken = _now(consumer.feed.get(max(1, min(fits, min(count, most) - len(messages))), 0))  # type: ignore[union-attr]
        except WaystationError:
            _forget(session, consumer)
            if messages:
                return size, False
            raise
        if not taken:
            return size, False
        messages += taken
        size += sum([len(delivered.message.payload) for delivered in taken])
    return size, short and len(messages) < count


def _getter(session: NativeSession, command: Get) -> NativeConsumer:
    """One per queue and way of getting: its number is below zero, so it is never one of the client's."""
    key = (command.queue, command.hold_ms, command.auto_ack)
    consumer = session.getters.get(key)
    if consumer is not None and not getattr(consumer.feed, "closed", False):
        return consumer
    if consumer is not None:
        _forget(session, consumer)
    if len(session.getters) >= MAX_GETTERS:
        raise Invalid(f"queue: this connection gets from {MAX_GETTERS} queues already; open another one")
    feed = session.access.getter(command.queue, session.name, command.hold_ms, command.auto_ack)
    consumer = NativeConsumer(-session.next_number(), command.queue)
    consumer.acks = not command.auto_ack
    consumer.feed = feed
    session.getters[key] = session.consumers[consumer.number] = consumer
    return consumer


def _forget(session: NativeSession, consumer: NativeConsumer) -> None:
    """A getter whose queue was deleted."""
    if not getattr(consumer.feed, "closed", False):
        return
    session.consumers.pop(consumer.number, None)
    for key, getter in list(session.getters.items()):
        if getter is consumer:
            del session.getters[key]


def _now(work: Any) -> Any:
    """The result of a coroutine that has no reason to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("a get that was not to wait waits")


def _check_counts(credit: int, prefetch: int) -> None:
    if credit < 0:
        raise Invalid(f"credit: {credit} is below zero")
    if prefetch < 0:
        raise Invalid(f"prefetch: {prefetch} is below zero")
