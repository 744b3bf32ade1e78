"""What a coordinator sees of its log: ordered records in, durable when `committed()` returns, replayed at start.

A coordinator (groups, transactions) is a state machine. It applies a change in memory, appends it here at once, and
answers its client after `committed()`. At start it is handed every batch again, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec


class StateBatch(msgspec.Struct, frozen=True):
    """One batch of a coordinator's log. A marker batch has `control` set and no records."""

    base_offset: int
    end_offset: int
    """Of the batch behind it, if there is one."""
    producer_id: int
    producer_epoch: int
    transactional: bool
    control: Literal["commit", "abort"] | None
    records: tuple[tuple[bytes, bytes | None], ...]


class StateLog(Protocol):
    """One partition of an internal, compacted topic."""

    @property
    def partition(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The leader epoch: whoever leads the log writes in it, and may tell others so."""

    @property
    def end_offset(self) -> int:
        """Where what was appended last ends."""

    @property
    def replicated_offset(self) -> int:
        """What is before it is there whoever leads the log next. A broker alone leads it always."""

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        """Queues the records as one batch. Raises StorageFailed if the log cannot take it, NotCoordinator if another
        broker leads it by now."""

    async def committed(self) -> None:
        """Returns when all that was appended before the call is durable. Raises StorageFailed if it never will be, and
        NotCoordinator if nobody can tell any more."""

    def replay(self) -> Iterator[StateBatch]:
        """Every batch, oldest first."""
