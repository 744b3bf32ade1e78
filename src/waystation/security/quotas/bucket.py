"""A token bucket: how much may be taken a second, and for how long whoever took more has to wait.

One number is enough for it: the moment at which everything that was taken is paid for. It is never further back than
the burst, which is what somebody who was quiet may take at once. Pure: the time is handed in, in seconds of a monotonic
clock.
"""

from __future__ import annotations


class Bucket:
    """Shared by everybody that a quota is for. `rate` is above zero."""

    __slots__ = ("burst_s", "paid_at", "rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        self.rate = rate
        self.burst_s = burst_s
        self.paid_at = now_s - burst_s

    def take(self, amount: float, now_s: float) -> None:
        """So much was taken: it is taken whatever there is, and waited for afterwards."""
        self.paid_at = max(self.paid_at, now_s - self.burst_s) + amount / self.rate

    def wait_s(self, now_s: float) -> float:
        """Until everything that was taken is paid for; 0.0: there is nothing to wait for."""
        return max(0.0, self.paid_at - now_s)

    def is_full(self, now_s: float) -> bool:
        """Nothing was taken for so long that it need not be remembered."""
        return self.paid_at <= now_s - self.burst_s
