"""What a client says of a consumer when it opens one, whatever kind of queue it consumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from waystation.broker.access.types import Deliver, OnEnd
from waystation.message import MAX_HORIZON_MS
from waystation.wire.amqp.errors import PRECONDITION_FAILED, AmqpError

TIMEOUT = "x-consumer-timeout"
PRIORITY = "x-priority"


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
    def visibility_timeout_ms(self) -> int:
        """The visibility timeout; AMQP's consumers have none that would end before they do, unless they ask for it."""
        timeout = self.arguments.get(TIMEOUT)
        return timeout if isinstance(timeout, int) and timeout > 0 else MAX_HORIZON_MS

    @property
    def priority(self) -> int:
        priority = self.arguments.get(PRIORITY, 0)
        if not isinstance(priority, int):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{PRIORITY}': {priority!r} is no number")
        return priority
