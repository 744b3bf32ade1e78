"""How fast topics and queues are used, by name, as the last sample found it. Filled by the broker's sampling.

Only what was used between the last two samples is remembered, as the counts by which it grew; a rate is made when
somebody asks for it. So a hundred thousand idle queues cost nothing, and busy ones little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest

import msgspec

SHOWN = 8
"""Of the busiest."""


class TopicRates(msgspec.Struct, frozen=True, gc=False):
    """Per second."""

    publish: float = 0.0
    publish_bytes: float = 0.0
    deliver: float = 0.0


class QueueRates(msgspec.Struct, frozen=True, gc=False):
    """Per second."""

    put: float = 0.0
    deliver: float = 0.0
    ack: float = 0.0


class ProtocolRates(msgspec.Struct, frozen=True, gc=False):
    """All protocols together, per second."""

    publish: float = 0.0
    deliver: float = 0.0
    ack: float = 0.0
    publish_bytes: float = 0.0
    deliver_bytes: float = 0.0
    requests: float = 0.0
    errors: float = 0.0


class Grown:
    """What things of one kind have grown by in so many seconds."""

    __slots__ = ("busiest", "counts", "elapsed_s")

    def __init__(
        self, counts: Mapping[str, Sequence[int]], elapsed_s: float, busy: Callable[[Sequence[int]], int]
    ) -> None:
        self.counts = counts
        self.elapsed_s = elapsed_s
        self.busiest = nlargest(SHOWN, counts, key=lambda name: busy(counts[name]))

    def rates(self, name: str, width: int) -> list[float]:
        counts = self.counts.get(name)
        return [0.0] * width if counts is None else [per_second(count, self.elapsed_s) for count in counts[:width]]


class Rates:
    """Replaced with every sample. None: not known yet."""

    def __init__(self) -> None:
        self.protocols = ProtocolRates()
        self.topics: Grown | None = None
        self.queues: Grown | None = None

    def topic(self, name: str) -> TopicRates | None:
        return None if self.topics is None else TopicRates(*self.topics.rates(name, 3))

    def queue(self, name: str) -> QueueRates | None:
        return None if self.queues is None else QueueRates(*self.queues.rates(name, 3))


def per_second(count: int, elapsed_s: float) -> float:
    return round(count / elapsed_s, 2)
