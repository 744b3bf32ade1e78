"""Rates: how fast counters grow, from one look at them to the next.

RabbitMQ samples every counter every five seconds. Here nobody samples what nobody looks at: a rate is the growth since
the last look at the same thing that is at least a second old, and there is none at the first look. At most `MAX_KNOWN`
things are remembered. One per management API, on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

MAX_KNOWN = 20_000
LEAST_S = 1.0

_Look = tuple[float, Mapping[str, int]]


class MessageRates:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._looks: dict[Hashable, tuple[_Look, _Look]] = {}  # the two last ones

    def details(self, thing: Hashable, counts: Mapping[str, int]) -> dict[str, Any]:
        """The counts, each with its `NAME_details` where a rate is known."""
        now_s = self._now_s()
        before, last = self._looks.get(thing) or ((now_s, counts), (now_s, counts))
        if now_s - last[0] >= LEAST_S:
            before, last = last, (now_s, counts)
        self._looks.pop(thing, None)
        if len(self._looks) >= MAX_KNOWN:
            del self._looks[next(iter(self._looks))]  # the one that was not looked at for the longest time
        self._looks[thing] = (before, last)
        shown: dict[str, Any] = {}
        elapsed_s = last[0] - before[0]
        for name, count in counts.items():
            shown[name] = count
            if elapsed_s > 0:
                shown[f"{name}_details"] = {
                    "rate": round((last[1].get(name, 0) - before[1].get(name, 0)) / elapsed_s, 3)
                }
        return shown
