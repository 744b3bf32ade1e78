"""How fast replicas that are being moved are copied: bytes per second of one node, to all of them or from all of them.

Replicas in sync, and those that only were away, are never held back: acknowledgements wait for them. What was copied is
a debt that is paid off with time, so that a rate which is changed holds at once. On the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.cluster.decisions.state import PartitionState
from waystation.world.clock import Clock

UNLIMITED = 2**63 - 1
LOOK_S = 1.0
"""After so long at most, whoever waits looks again: the rate may be another."""


class Throttle:
    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self._clock = clock
        self._rate = rate
        self._debt = 0.0
        self._at = clock.monotonic()

    def wait_s(self) -> float:
        """How long nothing more may be copied; 0: something may."""
        rate = self._rate()
        if rate >= UNLIMITED or not self._debt:
            self._debt = 0.0
            return 0.0
        now = self._clock.monotonic()
        self._debt = max(0.0, self._debt - (now - self._at) * rate)
        self._at = now
        return min(LOOK_S, self._debt / rate)

    def spend(self, size: int) -> None:
        if self._rate() < UNLIMITED:
            self.wait_s()
            if not self._debt:
                self._at = self._clock.monotonic()
            self._debt += size


def moves(state: PartitionState, node_id: int) -> bool:
    """Whether this node is getting a replica that it did not have."""
    return node_id in state.adding and node_id not in state.in_sync
