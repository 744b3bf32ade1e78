"""Who is connected: every door that has connections adds them here, and whoever shows or ends them finds them here.

The registry keeps the objects and asks them when somebody looks: a connection costs one entry and no bookkeeping of its
own. On the loop's thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer of a connection's channel."""

    tag: str
    queue: str  # by its full name
    channel: int
    prefetch: int
    acks: bool  # False: it acknowledges by being sent
    exclusive: bool
    priority: int = 0
    arguments: dict[str, Any] = {}


class ChannelInfo(msgspec.Struct, frozen=True):
    """A channel of a connection."""

    number: int
    prefetch: int
    global_prefetch: int
    confirms: bool
    transactional: bool
    unacked: int
    unconfirmed: int
    published: int
    delivered: int
    acked: int
    consumers: list[ConsumerInfo]


class ConnectionInfo(msgspec.Struct, frozen=True):
    """A connection as it is now."""

    name: str  # unique while it lasts
    door: str  # amqp, kafka, native, http
    user: str
    namespace: str
    peer: tuple[str, int]
    host: tuple[str, int]  # our end
    since_ms: int
    state: str  # starting, running, blocking, blocked, closing
    client: dict[str, Any]  # what the client says of itself
    channel_max: int = 0
    frame_max: int = 0
    heartbeat_s: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    channels: list[ChannelInfo] = []


class Connected(Protocol):
    """A connection, as the registry sees it."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    def info(self) -> ConnectionInfo: ...

    def end(self, reason: str) -> None:
        """Closes it, telling the client why as far as the protocol can."""


class Presence:
    """One per broker."""

    def __init__(self) -> None:
        self._here: dict[str, Connected] = {}
        self._counts: Counter[str] = Counter()  # by namespace

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Connected]:
        return iter(list(self._here.values()))

    def count(self, namespace: str) -> int:
        return self._counts[namespace]

    def get(self, name: str) -> Connected | None:
        return self._here.get(name)

    def add(self, connection: Connected) -> None:
        self._here[connection.name] = connection
        self._counts[connection.namespace] += 1

    def discard(self, connection: Connected) -> None:
        if self._here.get(connection.name) is connection:
            del self._here[connection.name]
            self._counts[connection.namespace] -= 1
