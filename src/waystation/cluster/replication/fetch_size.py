"""How much a follower asks its leader for at once.

An answer that takes long keeps everything back that is behind it: the high watermark, the promises of other
partitions, and the leader's belief that this follower is there. One that takes too long is given up, and what there was
of it is lost. So on a slow link a follower asks for less, down to a floor, and for more again as answers become fast.
"""

from __future__ import annotations

MOST_BYTES = 8 * 1024 * 1024
LEAST_BYTES = 64 * 1024
"""A leader gives at least one batch, however little it is asked for."""
SLOW_S = 1.0
"""Well above how long a leader waits for something to give, and below what a leader or follower takes for silence."""
FAST_S = 0.25


class FetchSize:
    """Of one follower, for one leader."""

    def __init__(self) -> None:
        self.bytes = MOST_BYTES

    def answered(self, received: int, seconds: float) -> None:
        if seconds > SLOW_S and received > LEAST_BYTES:
            self.bytes = max(LEAST_BYTES, min(self.bytes, received) // 2)
        elif seconds < FAST_S and 2 * received >= self.bytes:
            self.bytes = min(MOST_BYTES, 2 * self.bytes)

    def lost(self) -> None:
        """There was no answer in time, or the connection broke."""
        self.bytes = max(LEAST_BYTES, self.bytes // 2)
