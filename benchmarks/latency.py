"""Paced sending and what is made of the latencies: shared by the Kafka clients and the queue generator.

The clock is CLOCK_MONOTONIC, the same in every process of the machine. Called by the client processes.
"""

import time
from collections.abc import Iterator
from struct import Struct

from benchmarks import jobs

STAMP = Struct("<QQ")  # CLOCK_MONOTONIC in ns just before it is sent, sequence number


class Pace:
    """A fixed rate; the first `warm` of `total` messages are not recorded."""

    def __init__(self, rate_per_s: int, warm_s: float, measure_s: float) -> None:
        self.warm, self.total = int(warm_s * rate_per_s), int((warm_s + measure_s) * rate_per_s)
        self._step_ns = 10**9 // rate_per_s

    def ticks(self) -> Iterator[tuple[int, int, int]]:
        """(number, clock now, how late we are), each when it is due; a late one does not move the others."""
        start = time.monotonic_ns()
        for number in range(self.total):
            due = start + number * self._step_ns
            while (ahead := due - time.monotonic_ns()) > 0:
                time.sleep(ahead / 1e9)
            now = time.monotonic_ns()
            yield number, now, now - due


def summary(latencies_ns: list[int], lag_ns: list[int] | None = None) -> jobs.Latencies:
    def at(values: list[int], quantile: float) -> float:
        return values[round(quantile * (len(values) - 1))] / 1e6

    if not latencies_ns:
        raise ValueError("no latency was measured")
    values, lag = sorted(latencies_ns), sorted(lag_ns or [0])
    return jobs.Latencies(
        len(values), at(values, 0.5), at(values, 0.99), at(values, 0.999), values[-1] / 1e6, at(lag, 0.99)
    )
