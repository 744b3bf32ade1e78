"""What a publish through an exchange does: every target that matches gets the messages.

A message says from then on which exchange it was published to, and with which routing key, unless it says so already.
Constructed and called by routing/routing.py; on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from waystation.errors import NotFound, WaystationError
from waystation.message import Message
from waystation.protocol import PublishAnswer, QueueInfo
from waystation.queues.putting import alike
from waystation.routing.exchanges.binding import QUEUE, TOPIC
from waystation.routing.resolving import Resolver
from waystation.topics.partitions.partition import Receipt


class Put(Protocol):
    @property
    def receipt(self) -> Receipt | None: ...


class Queues(Protocol):
    """What routing asks of the queues."""

    def __contains__(self, name: object) -> bool: ...

    def describe(self, name: str) -> QueueInfo: ...

    def put(self, name: str, messages: Sequence[Message]) -> Put: ...

    def put_same(
        self, names: Iterable[str], messages: Sequence[Message]
    ) -> Iterator[tuple[Sequence[str], Receipt]]: ...


class PublishOutcome(Protocol):
    @property
    def places(self) -> list[tuple[str, int, int]]: ...

    @property
    def receipts(self) -> list[Receipt]: ...


class Messages(Protocol):
    """What routing asks of the topics' messages."""

    async def ensure(self, topic: str) -> object: ...

    def publish(self, topic: str, messages: Sequence[Message]) -> PublishOutcome: ...


class AwaitDurable(Protocol):
    def __call__(self, *receipts: Receipt | None) -> Awaitable[None]: ...


class Routed(NamedTuple):
    """Where messages went, and what to wait for until they are durable."""

    places: list[tuple[str, int, int]]  # (topic, partition, first offset)
    queues: list[str]
    receipts: list[Receipt]


TURN_BYTES = 4 * 1024 * 1024
"""So much is written in one turn of the loop, about 30 ms; a fan-out of large messages to many queues takes more."""

_Shares = dict[tuple[str, str], Sequence[Message]]
"""By kind and name of the target."""


class _Line:
    """Publishes through one exchange, while there is one that takes several turns."""

    __slots__ = ("length", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


class Distributor:
    """One per broker."""

    def __init__(self, resolver: Resolver, queues: Queues, messages: Messages, kept: AwaitDurable) -> None:
        self._resolver = resolver
        self._queues = queues
        self._messages = messages
        self._kept = kept
        self._lines: dict[str, _Line] = {}  # by exchanges through which something large is being published
        self.local: Callable[[str], str] = str
        """What an exchange or queue is called inside its namespace."""

    async def publish(
        self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False
    ) -> PublishAnswer:
        """To every target that matches; returns when all of them have it durably. See `put`."""
        stamped = self._stamped(exchange, routing_key, messages)
        shares, unroutable = self._shares(exchange, routing_key, stamped, mandatory)
        routed = Routed([], [], [])
        line = self._lines.get(exchange)
        if line is None and _is_wide(shares):
            line = self._lines[exchange] = _Line()
        if line is not None:
            line.length += 1
            await asyncio.shield(self._put_in_turns(exchange, line, shares, routed))  # to all, even if who asked goes
        else:
            for _ in self._put_all(shares, routed):
                pass
        await self._kept(*routed.receipts)
        return PublishAnswer(routed.places, routed.queues, unroutable=unroutable)

    async def _put_in_turns(self, exchange: str, line: _Line, shares: _Shares, routed: Routed) -> None:
        """With turns for everybody else in between; later publishes through the exchange wait, and stay later."""
        try:
            async with line.lock:
                size = 0
                for written in self._put_all(shares, routed):
                    size += written
                    if size >= TURN_BYTES:
                        size = 0
                        await asyncio.sleep(0)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[exchange]

    def put(self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False) -> Routed:
        """The same without the wait: what was put is durable when the receipts are.

        `mandatory`: NotFound, and nothing is stored, if one of the messages matches no binding. A target that refuses
        (a full queue, for instance) keeps no other target from taking its messages; then the first refusal is raised.
        """
        shares, _ = self._shares(exchange, routing_key, self._stamped(exchange, routing_key, messages), mandatory)
        routed = Routed([], [], [])
        for _ in self._put_all(shares, routed):
            pass
        return routed

    def _put_all(self, shares: _Shares, routed: Routed) -> Iterator[int]:
        """Step by step; says after each how many bytes were written. Raises the first refusal at the end."""
        refusal: WaystationError | None = None
        have: set[str] = set()
        for names in alike({name: share for (kind, name), share in shares.items() if kind == QUEUE}):
            share = shares[QUEUE, names[0]]
            for taken, receipt in self._queues.put_same(names, share):
                have.update(taken)
                routed.receipts.append(receipt)
                yield _bytes_of(share)
        for (kind, name), share in shares.items():
            if kind == QUEUE and name in have:
                routed.queues.append(name)
                continue
            try:
                self._put(kind, name, share, routed)
            except NotFound:
                continue  # deleted a moment ago; its bindings are about to go
            except WaystationError as error:
                refusal = refusal or error
            yield _bytes_of(share)
        if refusal is not None:
            raise refusal

    def _stamped(self, exchange: str, routing_key: str, messages: Sequence[Message]) -> Sequence[Message]:
        if all(message.exchange is not None for message in messages):
            return messages
        name = self.local(exchange)
        key = routing_key if exchange else self.local(routing_key)
        return [
            replace(message, exchange=name, routing_key=key) if message.exchange is None else message
            for message in messages
        ]

    def _shares(self, name: str, routing_key: str, messages: Sequence[Message], mandatory: bool) -> tuple[_Shares, int]:
        """Which messages go to which target, and how many go to none."""
        route = self._resolver.resolve(name, routing_key)
        if not route.reads_messages:  # then they all go the same way
            if mandatory and messages and not route.queues and not route.topics:
                raise _no_way(name, routing_key)
            if not messages:
                return {}, 0
            same = dict.fromkeys(_targets(route.queues, route.topics), messages)
            return same, 0 if same else len(messages)
        shares: dict[tuple[str, str], list[Message]] = {}
        unroutable = 0
        for message in messages:
            queues, topics = self._resolver.route_all(name, (routing_key,), message)
            if mandatory and not queues and not topics:
                raise _no_way(name, routing_key)
            unroutable += not queues and not topics
            for target in _targets(queues, topics):
                shares.setdefault(target, []).append(message)
        return dict(shares), unroutable

    def _put(self, kind: str, name: str, messages: Sequence[Message], routed: Routed) -> None:
        if kind == QUEUE:
            receipt = self._queues.put(name, messages).receipt
            routed.queues.append(name)
            if receipt is not None:
                routed.receipts.append(receipt)
            return
        published = self._messages.publish(name, messages)
        routed.places.extend(published.places)
        routed.receipts.extend(published.receipts)


def _bytes_of(messages: Sequence[Message]) -> int:
    return sum(len(message.payload) for message in messages)


def _is_wide(shares: _Shares) -> bool:
    """Whether it is too much to be written in one turn: large messages to many targets."""
    return len(shares) > 1 and sum(map(_bytes_of, shares.values())) > TURN_BYTES


def _targets(queues: tuple[str, ...], topics: tuple[str, ...]) -> list[tuple[str, str]]:
    return [*((QUEUE, name) for name in queues), *((TOPIC, name) for name in topics)]


def _no_way(exchange: str, routing_key: str) -> NotFound:
    return NotFound(f"no binding of exchange {exchange!r} matches the routing key {routing_key!r}; nothing was stored")
