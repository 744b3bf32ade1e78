"""How long a client that could not log in has to wait: longer with every failure from the same address.

Bounded: of those that fail, the most recent `MAX_HOSTS` addresses are remembered. On the loop's thread only.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_HOSTS = 10_000
MOST_DOUBLINGS = 5
FORGET_S = 300.0
"""After this time without a failure, an address starts over."""


class LoginFailures:
    """One per broker."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def failed(self, host: str, now_s: float, pause_s: float) -> float:
        """Notes a failure; returns how long to wait before it is told, from `pause_s` on."""
        count, last_s = self._hosts.pop(host, (0, now_s))
        count = 1 if now_s - last_s > FORGET_S else count + 1
        self._hosts[host] = (count, now_s)
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return float(pause_s * 2 ** min(count - 1, MOST_DOUBLINGS))

    def succeeded(self, host: str) -> None:
        self._hosts.pop(host, None)

    def __len__(self) -> int:
        return len(self._hosts)
