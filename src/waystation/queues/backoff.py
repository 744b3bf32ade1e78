"""When a message that failed is tried again."""

from __future__ import annotations

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
