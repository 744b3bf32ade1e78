"""A feed: one consumer's stream of messages, whatever they come from. Protocols know feeds and nothing behind them.

A queue's consumer, a member of a shared subscription and a live listener are all feeds. Messages come by the callback
that the feed was opened with, as far as its credit goes; nobody polls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from waystation.errors import WaystationError
from waystation.message import Delivered, Run
from waystation.topics.partitions.partition import Receipt

Deliver = Callable[[list[Delivered]], None]


class Verdict(Enum):
    """What a consumer says of messages in flight to it."""

    ACK = "ack"  # done
    REJECT = "reject"  # failed: tried again as the retry policy says, until it is dead
    RELEASE = "release"  # requeued, to be redelivered at once or after a delay; counts towards no limit
    KILL = "kill"  # dead now: no retry


class Settled(NamedTuple):
    """What became of a verdict. What is not in flight to the consumer was not touched."""

    receipt: Receipt | None  # None: nothing had to be written
    unknown: list[Run]


class Feed(Protocol):
    """All calls are for the loop's thread."""

    def credit(self, count: int) -> None:
        """The consumer can take this many more messages; below zero takes back what was not used."""

    def pause(self) -> None:
        """Its client does not read: nothing is delivered, whatever credit there is. Also from within a delivery."""

    def resume(self) -> None:
        """It reads again."""

    def settle(
        self, verdict: Verdict, runs: Sequence[Run], *, delay_ms: int | None = None, error: str | None = None
    ) -> Settled:
        """A verdict on messages in flight. `error`: why it was rejected, kept with the dead letter."""

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None) -> list[Run]:
        """More time for messages in flight; returns what is not."""

    def leave(self) -> None:
        """The consumer goes as it should; what is in flight to it is redelivered to others and counts as no failure."""

    def close(self) -> None:
        """The consumer is gone; what is in flight to it is redelivered to others, and perhaps it was what the consumer
        died of."""

    @property
    def closed(self) -> bool: ...

    def end(self, error: WaystationError) -> None:
        """The broker ends it, and its owner is told why."""
