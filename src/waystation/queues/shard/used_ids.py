"""The ids that were used within a queue's window, with the time when each was.

They are let go of in the order of their use, some at a time. An id that is used again after its time is in the order
twice; then those behind it may have to wait for it, which costs memory for a while and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping


class UsedIds:
    """One queue's."""

    __slots__ = ("_order", "_times")

    def __init__(self, times: Mapping[str, int] | None = None) -> None:
        self._times = dict(times or {})
        self._order = deque(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def copy(self) -> dict[str, int]:
        """For a snapshot."""
        return self._times.copy()

    def add(self, message_id: str, taken_ms: int) -> None:
        """Where it was used before, the later time counts."""
        self._times[message_id] = max(taken_ms, self._times.get(message_id, 0))
        self._order.append(message_id)

    def add_all(self, message_ids: Iterable[str | None], taken_ms: int) -> None:
        for message_id in message_ids:
            if message_id is not None:
                self.add(message_id, taken_ms)

    def used_since(self, message_id: str, when_ms: int) -> bool:
        return self._times.get(message_id, when_ms) > when_ms

    def forget(self, before_ms: int, most: int) -> None:
        """Lets go of what was used last at this time or before: as many as that."""
        order, times = self._order, self._times
        while order and most > 0:
            used_ms = times.get(order[0])
            if used_ms is not None:
                if used_ms > before_ms:
                    return
                del times[order[0]]
            order.popleft()
            most -= 1
