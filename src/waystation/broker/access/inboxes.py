"""`InboxAccess`: inboxes for replies (AMQP calls it direct reply-to), as a principal opens them and replies to them.

An inbox is its owner's, who knows its name; nobody can guess it. So what is asked is whether the principal may use
inboxes, and to reply is asked for that inbox. A facet of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.message import Message
from waystation.queues.feed import Deliver
from waystation.security.principals import Principal

if TYPE_CHECKING:
    from waystation.broker.broker import Broker


class InboxAccess:
    """One principal's."""

    __slots__ = ("_broker", "_principal")

    def __init__(self, broker: Broker, principal: Principal) -> None:
        self._broker = broker
        self._principal = principal

    def open(self, deliver: Deliver) -> str:
        """A new inbox; returns its name, for `reply_to`. `deliver` gets each reply at once."""
        self._broker.permissions.check(self._principal, "create", "inbox", "*")
        return self._broker.inboxes.open(deliver)

    def is_open(self, inbox: str) -> bool:
        """Whether somebody still waits for a reply there."""
        self._broker.permissions.check(self._principal, "describe", "inbox", inbox)
        return inbox in self._broker.inboxes

    def reply(self, inbox: str, message: Message) -> bool:
        """Hands the message to the inbox's owner; False if there is no such inbox (any more)."""
        self._broker.permissions.check(self._principal, "write", "inbox", inbox)
        return self._broker.inboxes.reply(inbox, message)

    def close(self, inbox: str) -> None:
        """By its owner. Fine if it is closed already."""
        self._broker.inboxes.close(inbox)
