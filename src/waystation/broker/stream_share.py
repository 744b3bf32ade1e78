"""One partition in the hands of a stream consumer: where it reads, and what it has not been told the end of.

Invariant: `settled` never passes a message that was delivered and not acknowledged, so a commit of it loses nothing.
Pure bookkeeping; owned by one `StreamFeed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from waystation.broker.reading import PartitionReader, Place
from waystation.message import Delivered

Woken = Callable[["Share"], None]


class Share(Place):
    """See the module. Until `begin`, it is ours but nobody knows yet from where it is to be read."""

    __slots__ = ("_done", "_pending", "_wakes", "begun", "committed", "deliveries", "dropped", "in_hand", "leaving")

    def __init__(self, reader: PartitionReader, woken: Woken) -> None:
        super().__init__(reader, 0)
        self._wakes = woken
        self._pending: deque[int] = deque()  # delivered offsets, in order, from the first that is not done
        self._done: set[int] = set()
        self.begun = False
        self.committed = -1
        self.deliveries: dict[int, int] = {}  # of messages that were delivered more than once
        self.in_hand = 0  # delivered to the consumer, and no verdict yet
        self.leaving = False
        self.dropped = False

    def begin(self, position: int, committed: int) -> None:
        self.move(position)
        self.committed = committed
        self.begun = True

    def woken(self) -> None:
        if self.behind:
            self._wakes(self)

    def delivered(self, messages: Sequence[Delivered]) -> None:
        """For the first time."""
        self._pending.extend([one.offset for one in messages])

    def done(self, offset: int) -> None:
        self._done.add(offset)
        self.deliveries.pop(offset, None)
        while self._pending and self._pending[0] in self._done:
            self._done.discard(self._pending.popleft())

    @property
    def settled(self) -> int:
        """Everything before this offset is done with."""
        return self._pending[0] if self._pending else self.position
