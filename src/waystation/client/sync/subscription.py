# Generated from src/waystation/client/aio/subscription.py by `python -m tests.client.sync_client`; do not edit.
"""A consumer for threads: of a queue, or of topics."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from waystation.client.consuming.feeding import ConsumerRequest
from waystation.client.consuming.given import UnsettledMessages
from waystation.client.consuming.resequencing import Reason, Resequencer
from waystation.client.core import Core
from waystation.client.options.values import wait_s, whole_number
from waystation.client.sync.bridge import Bridge
from waystation.client.sync.deliveries import Deliveries
from waystation.client.sync.message import Message, settle_many
from waystation.client.sync.workers import Workers
from waystation.errors import Conflict, Invalid
from waystation.protocol import Command


class Subscription:
    """Messages as they arrive. Iterate over it, or call `get_message` or `poll`, or give it a handler.

    Iterating acks a message when the next one is asked for, unless there was a verdict on it already or `manual=True`
    was said: leave the loop by an exception and the message is redelivered. `get_message` and `poll` ack nothing by
    themselves; `commit` acks everything that they gave so far. After a lost connection it goes on by itself. Several
    threads may ask at once; each message goes to one of them.
    """

    def __init__(
        self,
        core: Core,
        bridge: Bridge,
        wanted: ConsumerRequest,
        *,
        before: Command | None = None,
        visibility_timeout_ms: int | None = None,
    ) -> None:
        self._bridge = bridge
        self._manual = wanted.manual or not wanted.settles
        self._transactional = wanted.transactional
        self._given: UnsettledMessages[Message] = UnsettledMessages(wanted.window)
        self._working: dict[int, Message] = {}  # by loop: what it was given last
        self._loops = itertools.count()
        self._workers: Workers | None = None
        self._deliveries = Deliveries(core, bridge, wanted, before, visibility_timeout_ms)
        self._feed = self._deliveries.feed

    @property
    def topics(self) -> list[str]:
        """The topics that matched when it began; topics that are created later are added automatically."""
        return self._feed.answer.topics if self._feed.answer is not None else []

    @property
    def closed(self) -> bool:
        return self._feed.over

    # -- one by one ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """Each loop acks its own messages, so several threads may have a loop each."""
        return _Loop(self, next(self._loops))

    def next_in(self, loop: int) -> Message | None:
        """For a loop: acks what it had, and gives it the next."""
        self._done_with(loop)
        for unsettled in self._deliveries.take(1, None):
            message = self._working[loop] = Message(unsettled)
            return message
        return None

    def in_order(self, resequencer: Resequencer[Message] | None = None) -> InOrder:
        """A loop over the messages in the order of the sequence numbers that their sender gave them, in the header
        `x-sequence` or wherever the `resequencer` finds them.

            for message in subscription.in_order(Resequencer(first=1, timeout=10)):
                ...

        It acks as iterating does. A duplicate is acked and not delivered. A message that came too late, after the gap
        was skipped, or that has no number, is dead-lettered with the reason; a live subscription drops it. Messages
        that wait for a missing one are in flight: `timeout` must be below the visibility timeout.
        """
        if self._transactional:
            raise Conflict("exactly-once acks in transactions only, and in_order acks duplicates; use a Resequencer")
        return InOrder(self, next(self._loops), resequencer if resequencer is not None else Resequencer())

    def _done_with(self, loop: int) -> None:
        """Acks what a loop had, now that it asks for the next."""
        last = self._working.pop(loop, None)
        if last is not None and last._verdict is None and not self._manual:
            last.ack(wait=False)

    def get_message(self, timeout: float | None = 1.0) -> Message | None:
        """The next message, or None if none arrived within `timeout` seconds (None: wait forever)."""
        for message in self.poll(timeout, 1):
            return message
        return None

    def get_message_nowait(self) -> Message | None:
        """A message that has already arrived, or None."""
        for unsettled in self._deliveries.take_nowait(1):
            message = Message(unsettled)
            self._given.extend([message])
            return message
        return None

    def poll(self, timeout: float | None = 1.0, max: int = 500) -> list[Message]:
        """Messages that have arrived, at most `max`; waits up to `timeout` seconds for the first."""
        if whole_number("max", max) < 1:
            raise Invalid(f"max: {max} is below 1")
        taken = self._deliveries.take(max, wait_s("timeout", timeout))
        messages = [Message(unsettled) for unsettled in taken]
        self._given.extend(messages)
        return messages

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Acks all that `get_message`, `poll` and iterating returned so far and that is not settled; durable on
        return."""
        messages = self._given.unsettled()
        messages += [message for message in list(self._working.values()) if message.settled is None]
        settle_many(messages, "ack")
        self._bridge.run(self._feed.settled())

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Acks many at once; returns when it is durable."""
        settle_many(messages, "ack")

    def reject_many(self, messages: Iterable[Message], error: str | BaseException | None = None) -> None:
        settle_many(messages, "reject", error)

    # -- handlers ------------------------------------------------------------------------------------------------------

    def start_consuming(self, handler: Callable[[Message], Any], *, concurrency: int = 1) -> None:
        """Calls `handler` for every message from now on, on `concurrency` threads, and acks each that it returns from.

        If the handler raises or returns False, the message is rejected, with the error's text.
        """
        if self._workers is not None:
            raise Conflict("this subscription has a handler already; stop_consuming comes first")
        self._workers = Workers(self._deliveries, handler, concurrency)

    def stop_consuming(self, timeout: float | None = None) -> None:
        """Stops handlers: each finishes its message. Waits for them up to `timeout` seconds."""
        workers, self._workers = self._workers, None
        if workers is None:
            return
        workers.stop(timeout)
        if not self._feed.over:
            self._bridge.run(self._feed.settled())

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes it. Acknowledgements that were sent stay; other messages in flight are redelivered to other
        consumers."""
        self.stop_consuming()
        if not self._feed.closed:
            self._bridge.run(self._feed.close())

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None and not self._manual and not self.closed:
            for message in list(self._working.values()):
                if message.settled is None:
                    message.ack(wait=False)  # its loop was left on purpose, and it was worked on
        self.close()


class _Loop:
    """One `for` over a subscription."""

    def __init__(self, subscription: Subscription, number: int) -> None:
        self._subscription = subscription
        self._number = number

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self._subscription.next_in(self._number)
        if message is None:
            raise StopIteration
        return message


class InOrder:
    """One `for` over a subscription, in the order of sequence numbers. Made by `Subscription.in_order`."""

    def __init__(self, subscription: Subscription, number: int, resequencer: Resequencer[Message]) -> None:
        self._subscription = subscription
        self._number = number
        self._resequencer = resequencer
        self._released: deque[Message] = deque()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        subscription, resequencer = self._subscription, self._resequencer
        subscription._done_with(self._number)
        while not self._released:
            wait_s = resequencer.wait
            taken = subscription._deliveries.take(resequencer.room, wait_s)
            if not taken and (wait_s is None or subscription.closed):
                raise StopIteration
            for unsettled in taken:
                step = resequencer.add(Message(unsettled))
                self._released.extend(step.released)
                for message, reason in step.discarded:
                    _discard(message, reason)
            self._released.extend(resequencer.due())
        message = self._released.popleft()
        subscription._working[self._number] = message
        return message


def _discard(message: Message, reason: Reason) -> None:
    """A duplicate is done; what cannot be put in order is kept where somebody can look at it."""
    if not message._settler.settles:
        return
    if reason == "duplicate":
        message.ack(wait=False)
    else:
        message.kill(f"in_order: {reason}", wait=False)
