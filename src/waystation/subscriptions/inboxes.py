"""Inboxes: where replies go (direct reply-to). In memory, one per connection that asks; removed with it.

A reply to an inbox that is not there is told so and kept nowhere: whoever asked has stopped waiting. An inbox has no
credit and stores nothing; what comes is handed on at once, and its owner decides whether somebody waits for it.

A principal may have as many as are left: whoever is alone gets half of all, and something is left for others.

On the loop's thread only.
"""

from __future__ import annotations

from collections import Counter

from waystation.errors import Full, Invalid
from waystation.message import Delivered, Message, check_message
from waystation.observe.events import event_logger
from waystation.queues.feed import Deliver
from waystation.world import World

logger = event_logger("waystation.inboxes")

PREFIX = "inbox:"
MAX_INBOXES = 200_000
"""Of one broker; each costs about 400 bytes."""


class Inboxes:
    """One per broker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[str, tuple[Deliver, str]] = {}  # with its owner
        self._owned: Counter[str] = Counter()  # by principal
        self._replies = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: object) -> bool:
        return name in self._open

    def open(self, deliver: Deliver, owner: str) -> str:
        """A name that nobody can guess, for `reply_to`. `owner`: the principal."""
        free = MAX_INBOXES - len(self._open)
        if self._owned[owner] >= free:
            raise Full(f"{owner} has {self._owned[owner]} open inboxes, and only {free} are left for all; close some")
        name = f"{PREFIX}{self._world.random.uuid().hex}"
        self._open[name] = deliver, owner
        self._owned[owner] += 1
        return name

    def close(self, name: str) -> None:
        """Fine if it is closed already."""
        _, owner = self._open.pop(name, (None, None))
        if owner is None:
            return
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def reply(self, name: str, message: Message) -> bool:
        """Hands a message to the inbox's owner; False if there is no such inbox (any more)."""
        check_message(message)
        if message.delay_ms or message.deliver_at_ms is not None:
            raise Invalid("delay_ms: a reply is delivered at once or not at all")
        found = self._open.get(name)
        if found is None:
            return False
        deliver = found[0]
        self._replies += 1
        try:
            deliver([Delivered(self._replies, 1, self._world.clock.now_ms(), message)])
        except Exception:
            # A fault of the owner's connection must not reach the one who replies.
            logger.exception("inbox.failed", "an inbox could not take a reply and is closed")
            self.close(name)
            return False
        return True
