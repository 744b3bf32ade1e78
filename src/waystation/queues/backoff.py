"""When messages that failed are tried again."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.message import Run
from waystation.queues.ledger.ledger import Ledger
from waystation.queues.ledger.runs import add_run
from waystation.queues.ledger.states import State
from waystation.queues.settings import QueueSettings
from waystation.world.random import Random


def retry_at_ms(settings: QueueSettings, deliveries: int, now_ms: int, random: Random) -> int:
    """base * factor ** (deliveries - 1), at most max, more or less by the jitter."""
    try:
        wait = settings.retry_base_ms * settings.retry_factor ** max(0, deliveries - 1)
    except OverflowError:
        wait = settings.retry_max_ms
    wait = min(wait, settings.retry_max_ms)
    if settings.retry_jitter:
        wait *= 1 + settings.retry_jitter * (2 * random.uniform() - 1)
    return now_ms + max(1, int(wait))


def retries(
    ledger: Ledger, runs: Iterable[Run], settings: QueueSettings, now_ms: int, random: Random
) -> dict[int, list[Run]]:
    """Until when each of these that is held waits; those that failed equally often wait together, unless by chance."""
    waits: dict[int, list[Run]] = {}
    for first, count in runs:
        for _, start, length in ledger.alive_runs(State.HELD, first - 1):
            if start >= first + count:
                break
            for entry in range(start, min(start + length, first + count)):
                until_ms = retry_at_ms(settings, ledger.deliveries_of(entry), now_ms, random)
                add_run(waits.setdefault(until_ms, []), entry, 1)
    return waits
