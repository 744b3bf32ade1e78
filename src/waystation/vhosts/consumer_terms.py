"""What a client says of a consumer when it opens one, whatever kind of queue it consumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.access.types import Deliver, OnEnd
from waystation.message import MAX_HORIZON_MS
from waystation.wire.amqp.errors import PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from waystation.broker.access.types import QueueFeed

TIMEOUT = "x-consumer-timeout"
PRIORITY = "x-priority"


def use_queues_timeout(feed: QueueFeed) -> None:
    """What AMQP's clients get of a queue is theirs as long as they are there, unless the queue was declared by one of
    them, with a timeout: the usual one of other protocols is for those."""
    feed.visibility_timeout_ms = MAX_HORIZON_MS if feed.queue.settings.queue_type is None else None


class ConsumerTerms(msgspec.Struct, frozen=True):
    """Made by the protocol; handed to what is consumed as it is."""

    consumer: str
    """Its name, which nobody else has."""
    owner: str
    """The connection's: who may use its exclusive queues."""
    deliver: Deliver
    on_end: OnEnd
    arguments: Mapping[str, Any]
    prefetch: int
    no_ack: bool
    exclusive: bool

    @property
    def visibility_timeout_ms(self) -> int | None:
        """The visibility timeout that the client asks for; None: as the queue has it (`use_queues_timeout`)."""
        timeout = self.arguments.get(TIMEOUT)
        return timeout if isinstance(timeout, int) and timeout > 0 else None

    @property
    def priority(self) -> int:
        priority = self.arguments.get(PRIORITY, 0)
        if not isinstance(priority, int):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{PRIORITY}': {priority!r} is no number")
        return priority
