"""How long a client that could not log in has to wait: longer with every failure from the same address.

Who logs in after all has mistyped: the failures of that user are forgotten, and no others. Else whoever has a login of
its own could try other users' passwords, log in by itself in between, and wait no longer than for the first.

Bounded: of those that fail, the most recent `MAX_HOSTS` addresses are remembered, and for each of them how often
`MAX_USERS` users failed. On the loop's thread only.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_HOSTS = 10_000
MAX_USERS = 8
"""Of an address: failures of further ones are forgotten by time alone."""
MOST_DOUBLINGS = 5
FORGET_S = 300.0
"""After this time without a failure, an address starts over."""


class _Host:
    """What is remembered of an address."""

    __slots__ = ("count", "last_s", "users")

    def __init__(self, now_s: float) -> None:
        self.count = 0
        self.last_s = now_s
        self.users: dict[str, int] = {}  # failures of each


class LoginFailures:
    """One per broker."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    def failed(self, host: str, user: str, now_s: float, pause_s: float) -> float:
        """Notes a failure; returns how long to wait before it is told, from `pause_s` on. `user`: who somebody wanted
        to be."""
        known = self._hosts.pop(host, None)
        if known is None or now_s - known.last_s > FORGET_S:
            known = _Host(now_s)
        known.count += 1
        known.last_s = now_s
        if user in known.users or len(known.users) < MAX_USERS:
            known.users[user] = known.users.get(user, 0) + 1
        self._hosts[host] = known
        if len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return float(pause_s * 2 ** min(known.count - 1, MOST_DOUBLINGS))

    def succeeded(self, host: str, user: str) -> None:
        known = self._hosts.get(host)
        if known is None:
            return
        known.count -= known.users.pop(user, 0)
        if known.count <= 0:
            del self._hosts[host]

    def __len__(self) -> int:
        return len(self._hosts)
