"""When messages that failed are tried again: one rule for queues, shared subscriptions and streams."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.message import Run
from waystation.queues.ledger.ledger import Ledger
from waystation.queues.ledger.runs import add_run
from waystation.queues.ledger.states import State
from waystation.queues.settings import QueueSettings
from waystation.world.random import Random


class RetryRule(msgspec.Struct, frozen=True):
    """base * factor ** (failures - 1), at most the longest, more or less by the jitter (0.2: by a fifth)."""

    base_ms: int = 1_000
    factor: float = 2.0
    longest_ms: int = 3_600_000
    jitter: float = 0.0

    @classmethod
    def of(cls, settings: QueueSettings) -> RetryRule:
        return cls(settings.retry_base_ms, settings.retry_factor, settings.retry_max_ms, settings.retry_jitter)

    def wait_ms(self, failures: int, random: Random | None = None) -> int:
        """How long a message waits that has failed so often; without `random`, exactly."""
        try:
            wait = self.base_ms * self.factor ** max(0, failures - 1)
        except OverflowError:
            wait = self.longest_ms
        wait = min(wait, self.longest_ms)
        if self.jitter and random is not None:
            wait *= 1 + self.jitter * (2 * random.uniform() - 1)
        return max(1, int(wait))


def retries(
    ledger: Ledger, runs: Iterable[Run], rule: RetryRule, now_ms: int, random: Random | None = None
) -> dict[int, list[Run]]:
    """Until when each of these that is in flight waits; those that failed equally often wait together, unless by
    chance."""
    waits: dict[int, list[Run]] = {}
    for first, count in runs:
        for _, start, length in ledger.alive_runs(State.IN_FLIGHT, first - 1):
            if start >= first + count:
                break
            for entry in range(start, min(start + length, first + count)):
                until_ms = now_ms + rule.wait_ms(ledger.deliveries_of(entry), random)
                add_run(waits.setdefault(until_ms, []), entry, 1)
    return waits
