"""Who is connected: every protocol that has connections adds them here, and whoever shows or ends them finds them here.

The registry keeps the objects and asks them when somebody looks: a connection costs one entry and no bookkeeping of its
own. On the loop's thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    protocol: str = msgspec.field(name="door")  # amqp, kafka, native, http; `door` is its name in JSON
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
    doing: str = ""  # what it is at, in a few words


class Connected(Protocol):
    """A connection, as the registry sees it."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str:
        """amqp, kafka, native or http."""

    @property
    def namespace(self) -> str:
        """The virtual host that it has opened; empty where the protocol has none."""

    @property
    def login(self) -> str:
        """The name that it has logged in by; empty: by none."""

    @property
    def asked_with_users(self) -> bool:
        """Whether clients have to log in where it came in as soon as the broker says so; else the listener says."""

    @property
    def credential(self) -> str:
        """Of those that a user has several of, the one that it has logged in by: `Principal.credential`."""

    def info(self) -> ConnectionInfo: ...

    def check_entry(self) -> None:
        """Asks again what its client was asked when it entered its namespace: NotAllowed if it may no longer be in it,
        NotFound if there is none any more. Where nothing was asked, nothing is."""

    def texts(self) -> Iterable[str]:
        """What a search may find it by; made without much ado, since thousands are asked."""

    def end(self, reason: str) -> None:
        """Closes it, telling the client why as far as the protocol can."""


def doing_at(channels: Sequence[ChannelInfo], *further: str) -> str:
    """What a connection with these channels is at, and what else its protocol knows, in a few words."""
    places = list(dict.fromkeys(consumer.queue for channel in channels for consumer in channel.consumers))
    parts = [f"consumes {spell_some(places)}"] if places else []
    published = sum(channel.published for channel in channels)
    if published:
        parts.append(f"has published {published}")
    return ", ".join([*parts, *(part for part in further if part)]) or "idle"


def spell_some(names: Sequence[str]) -> str:
    """The first of several names, and how many more."""
    shown = names[0] if len(names[0]) <= LONGEST_NAME else f"{names[0][: LONGEST_NAME - 1]}…"
    return shown if len(names) == 1 else f"{shown} and {len(names) - 1} more"


LONGEST_NAME = 60
PROTOCOLS = ("kafka", "native", "amqp", "http")


class Connections:
    """One per broker."""

    def __init__(self) -> None:
        self._here: dict[str, Connected] = {}
        self._counts: Counter[str] = Counter()  # by namespace
        self._counted: dict[str, str] = {}  # in which namespace a connection is counted, by its name
        self._by_protocol: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()  # by protocol, since the start

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Connected]:
        return iter(list(self._here.values()))

    def names(self) -> list[str]:
        """All of them, in no order."""
        return list(self._here)

    def count(self, namespace: str) -> int:
        return self._counts[namespace]

    def at(self, protocol: str) -> int:
        """How many came by this protocol."""
        return self._by_protocol[protocol]

    def by_protocol(self) -> dict[str, int]:
        """How many came by each protocol."""
        return {protocol: self._by_protocol[protocol] for protocol in PROTOCOLS}

    def get(self, name: str) -> Connected | None:
        return self._here.get(name)

    def add(self, connection: Connected) -> None:
        """One of the same name makes way: its end has not been seen yet. Clients that have disconnected before they are
        looked at have no address, so all of them have the same name."""
        before = self._here.get(connection.name)
        if before is not None:
            self.discard(before)
        self._here[connection.name] = connection
        self._count(connection.name, connection.namespace)
        self._by_protocol[connection.protocol] += 1
        self.opened[connection.protocol] += 1

    def discard(self, connection: Connected) -> None:
        if self._here.get(connection.name) is connection:
            del self._here[connection.name]
            self._count(connection.name, None)
            self._by_protocol[connection.protocol] -= 1

    def entered(self, connection: Connected) -> None:
        """It is in a namespace, or in another one, since its client has logged in."""
        if self._here.get(connection.name) is connection:
            self._count(connection.name, connection.namespace)

    def _count(self, name: str, namespace: str | None) -> None:
        before = self._counted.pop(name, None)
        if before is not None:
            self._counts[before] -= 1
        if namespace is not None:
            self._counts[namespace] += 1
            self._counted[name] = namespace
