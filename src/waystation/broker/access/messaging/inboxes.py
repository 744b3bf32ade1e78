"""`InboxAccess`: inboxes for replies (AMQP calls it direct reply-to), as a principal opens them and replies to them.

An inbox is its owner's, who knows its name; nobody can guess it. So what is asked is whether the principal may use
inboxes, and to reply is asked for that inbox. A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from waystation.broker.access.messaging.family import Family
from waystation.message import Message
from waystation.queues.feed import Deliver


class InboxAccess(Family):
    """One principal's."""

    __slots__ = ()

    def open(self, deliver: Deliver) -> str:
        """A new inbox; returns its name, for `reply_to`. `deliver` gets each reply at once."""
        self._ask("create", "inbox", "*")
        return self._broker.inboxes.open(deliver, str(self._principal))

    def is_open(self, inbox: str) -> bool:
        """Whether somebody still waits for a reply there."""
        self._ask("describe", "inbox", inbox)
        return inbox in self._broker.inboxes

    def reply(self, inbox: str, message: Message) -> bool:
        """Hands the message to the inbox's owner; False if there is no such inbox (any more)."""
        self._ask("write", "inbox", inbox)
        return self._broker.inboxes.reply(inbox, message)

    def close(self, inbox: str) -> None:
        """By its owner. Fine if it is closed already."""
        self._broker.inboxes.close(inbox)
