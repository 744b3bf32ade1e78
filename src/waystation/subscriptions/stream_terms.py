"""What a stream consumer asks for, and what it needs of the rest of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol
from uuid import UUID

from waystation.errors import WaystationError
from waystation.groups.coordinator import GroupCoordinator
from waystation.message import Delivered
from waystation.routing.filtering.filters import Filter
from waystation.subscriptions.selection import Selection
from waystation.topics.partitions.partition import Receipt
from waystation.topics.reading import Readers
from waystation.topics.topics import Topics

if TYPE_CHECKING:
    from waystation.subscriptions.stream_feed import StreamFeed

MAX_IN_FLIGHT = 20_000
"""Messages that one consumer may have without an acknowledgement, whatever its credit."""

Start = Literal["earliest", "latest"]


class Hub(Protocol):
    """What a consumer needs of the rest (`Streams`)."""

    topics: Topics
    groups: GroupCoordinator
    readers: Readers

    def now_ms(self) -> int: ...

    def names_for(self, group: str, selection: Selection) -> tuple[str, ...]: ...

    def sizes(self) -> dict[UUID, int]: ...

    def receipt(self, group: str) -> Receipt: ...

    def bury(
        self, group: str, target: str, dead: Delivered, reason: str, error: str | None
    ) -> asyncio.Future[None]: ...

    def when_durable(self, receipt: Receipt, told: Callable[[WaystationError | None], None]) -> None: ...

    def closed(self, feed: StreamFeed) -> None: ...


class Terms:
    """What a stream consumer asked for. `max_deliveries`: 0: no limit. `dead_letter`: None: the queue that is named
    after topic and group; empty: the dead are passed over."""

    __slots__ = ("auto_ack", "dead_letter", "filter", "max_deliveries", "prefetch", "start", "start_ms")

    def __init__(
        self,
        *,
        filter: Filter | None = None,
        start: Start = "latest",
        start_ms: int | None = None,
        prefetch: int = 0,
        auto_ack: bool = False,
        max_deliveries: int = 0,
        dead_letter: str | None = None,
    ) -> None:
        self.filter = filter
        self.start = start
        self.start_ms = start_ms
        self.prefetch = min(prefetch, MAX_IN_FLIGHT) or MAX_IN_FLIGHT
        self.auto_ack = auto_ack
        self.max_deliveries = max_deliveries
        self.dead_letter = dead_letter
