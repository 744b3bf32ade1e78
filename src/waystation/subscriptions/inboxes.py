"""Inboxes: where replies go (direct reply-to). In memory, one per connection that asks; removed with it.

A reply to an inbox that is not there is told so and kept nowhere: whoever asked has stopped waiting. An inbox has no
credit and stores nothing; what comes is handed on at once, and its owner decides whether somebody waits for it.

On the loop's thread only.
"""

from __future__ import annotations

from waystation.errors import Full, Invalid
from waystation.message import Delivered, Message, check_message
from waystation.observe.events import event_logger
from waystation.queues.feed import Deliver
from waystation.world import World

logger = event_logger("waystation.inboxes")

PREFIX = "inbox:"
MAX_INBOXES = 100_000
"""Of one broker; each costs about 300 bytes."""


class Inboxes:
    """One per broker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[str, Deliver] = {}
        self._replies = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: object) -> bool:
        return name in self._open

    def open(self, deliver: Deliver) -> str:
        """A name that nobody can guess, for `reply_to`."""
        if len(self._open) >= MAX_INBOXES:
            raise Full(f"this broker has {MAX_INBOXES} open inboxes, which is its limit; close some")
        name = f"{PREFIX}{self._world.random.uuid().hex}"
        self._open[name] = deliver
        return name

    def close(self, name: str) -> None:
        """Fine if it is closed already."""
        self._open.pop(name, None)

    def reply(self, name: str, message: Message) -> bool:
        """Hands a message to the inbox's owner; False if there is no such inbox (any more)."""
        check_message(message)
        if message.delay_ms or message.deliver_at_ms is not None:
            raise Invalid("delay_ms: a reply is delivered at once or not at all")
        deliver = self._open.get(name)
        if deliver is None:
            return False
        self._replies += 1
        try:
            deliver([Delivered(self._replies, 1, self._world.clock.now_ms(), message)])
        except Exception:
            # A fault of the owner's connection must not reach the one who replies.
            logger.exception("inbox.failed", "an inbox could not take a reply and is closed")
            self.close(name)
            return False
        return True
