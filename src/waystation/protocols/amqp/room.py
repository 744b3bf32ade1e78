"""Memory for what clients have sent and the broker cannot store yet: publishes of open transactions.

Nothing slows such a client down by itself: what it sends is of no use before the commit. So all connections of the
listener share one room, of which a connection may take a part. Who wants more loses the channel that asked, and with
it what that channel had taken.

Invariant: `Room.used` is the sum of what its shares have; a share that has ended has nothing. Loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.wire.amqp.errors import PRECONDITION_FAILED, AmqpError

SETTING = "waystation.amqp.uncommitted.max.bytes"
LARGEST_SETTING = "waystation.queue.message.max.bytes"
"""The room has space for one message of any size that is allowed."""
PART = 4
"""A connection may take a quarter of the room: one that is greedy leaves some to the others."""


class Room:
    """One per listener. `limit` says how many bytes all connections may take, `largest` how large a message may be."""

    __slots__ = ("_limit", "largest", "used")

    def __init__(self, limit: Callable[[], int], largest: Callable[[], int]) -> None:
        self._limit = limit
        self.largest = largest
        self.used = 0

    @property
    def whole(self) -> int:
        return max(self._limit(), self.largest())

    @property
    def part(self) -> int:
        """What one connection may take: at least a message of any size that is allowed."""
        return max(self._limit() // PART, self.largest())


class RoomShare:
    """What one connection has taken."""

    __slots__ = ("_ended", "_room", "used")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._ended = False
        self.used = 0

    def take(self, size: int) -> None:
        """Raises a channel's error, and takes nothing, if there is no room."""
        room = self._room
        if self.used + size > room.part:
            self._refuse(f"this connection has {self.used} bytes of them, and may have {room.part}")
        if room.used + size > room.whole:
            self._refuse(f"all connections together have {room.used} bytes of them, and may have {room.whole}")
        if not self._ended:
            self.used += size
            room.used += size

    def _refuse(self, why: str) -> None:
        raise AmqpError(
            PRECONDITION_FAILED,
            f"too many bytes in uncommitted transactions: {why} ({SETTING})",
        )

    def give(self, size: int) -> None:
        """Gives back what was taken."""
        if not self._ended:
            self.used -= size
            self._room.used -= size

    def end(self) -> None:
        """The connection is over, and gives back everything."""
        self.give(self.used)
        self._ended = True
