"""Messages that one exchange sends to several queues: every queue has its own copy, whatever becomes of the others.

Part of the queue machine. The clients remember for each queue what they were told; the queues have different settings,
so that a copy may wait, expire or be pushed out in one of them while it is delivered from another. In a transaction,
either all queues get a message or none does.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable

from tests.simulation.promises import Broken, expect
from waystation.broker.broker import Broker
from waystation.errors import Full, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings

EXCHANGE = "copying"
BOUNDED = "copy-bounded"
COPIES = {
    "copy-plain": QueueSettings(hold_ms=200),
    "copy-slow": QueueSettings(hold_ms=200),
    "copy-ranked": QueueSettings(hold_ms=200, max_priority=5),
    "copy-brief": QueueSettings(ttl_ms=300),
    "copy-once": QueueSettings(dedup_window_ms=3_600_000, hold_ms=200),
    BOUNDED: QueueSettings(max_length=25, overflow="reject"),
}
"""Queues that get a copy of everything that is published to the exchange. Nobody consumes from "copy-slow" for long."""
FRAGILE = ("copy-brief",)
"""What is in these may end by itself."""


class CopyClients:
    """What is remembered of all lives."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = itertools.count(1)
        self.sent: dict[int, Message] = {}
        self.stored: dict[str, set[int]] = defaultdict(set)  # told so
        self.acked: dict[str, set[int]] = defaultdict(set)  # asked for: they may be done
        self.gone: dict[str, set[int]] = defaultdict(set)  # told, or seen, that they are done
        self.together: list[set[int]] = []  # transactions whose end nobody was told

    def new(self) -> Message:
        number = next(self.numbers)
        filler = self.rng.choice((b"", bytes(40), self.rng.randbytes(700)))
        fields: dict[str, object] = {"id": f"copy-{number}"} if self.rng.random() < 0.4 else {}
        if self.rng.random() < 0.3:
            fields["priority"] = self.rng.randrange(8)
        if self.rng.random() < 0.2:
            fields["delay_ms"] = self.rng.choice((1, 50))
        message = self.sent[number] = Message(b"%d:" % number + filler, **fields)  # type: ignore[arg-type]
        return message

    def check(self, broker: Broker) -> None:
        """Of a broker that has come to rest after its start."""
        held = {name: self._held(broker, name) for name in COPIES}
        for numbers in self.together:
            self._check_together(numbers, held)
        self.together.clear()
        for name, there in held.items():
            missing = self.stored[name] - there - self.acked[name] - self.gone[name]
            expect(name in FRAGILE or not missing, f"{name}: lost copies {sorted(missing)[:10]}")
            back = there & self.gone[name]
            expect(not back, f"{name}: copies that were done are there again: {sorted(back)[:10]}")
            # What a recovered broker shows is promised from now on, and what it does not show stays away.
            self.stored[name] |= there
            self.gone[name] |= self.acked[name] - there
            self.acked[name].clear()

    def _held(self, broker: Broker, name: str) -> set[int]:
        size, numbers = 0, []
        for peeked in broker.queues.peek(name, 1_000_000):
            message = peeked.delivered.message
            numbers.append(self.number_of(name, message))
            size += len(message.payload)
        expect(len(numbers) == len(set(numbers)), f"{name}: a copy is there twice: {sorted(numbers)}")
        expect(broker.queues.describe(name).bytes == size, f"{name}: has {size} bytes, but counts others")
        return set(numbers)

    def _check_together(self, numbers: set[int], held: dict[str, set[int]]) -> None:
        """All of it in every queue that keeps what it has, or none of it in any."""
        there = {
            number in held[name] or number in self.acked[name] or number in self.gone[name]
            for number in numbers
            for name in COPIES
            if name not in FRAGILE
        }
        expect(len(there) == 1, f"half of a transaction happened: {sorted(numbers)}")
        for name in COPIES:
            if there == {True}:
                self.stored[name] |= numbers
            else:
                expect(not numbers & held[name], f"{name}: has copies of a transaction that was undone")
                self.gone[name] |= numbers

    def number_of(self, name: str, message: Message) -> int:
        number = int(message.payload.partition(b":")[0])
        sent = self.sent.get(number)
        if sent is None:
            raise Broken(f"{name}: message {number} was never sent")
        same = (sent.payload, sent.id, sent.priority) == (message.payload, message.id, message.priority)
        expect(same, f"{name}: message {number} is not as it was sent")
        return number


class Copying:
    """What the clients of one life do."""

    def __init__(self, broker: Broker, clients: CopyClients, powered: Callable[[], bool]) -> None:
        self.broker = broker
        self.clients = clients
        self.rng = clients.rng
        self.powered = powered

    async def start(self) -> None:
        for name, settings in COPIES.items():
            await self.broker.queues.declare(name, settings)
        await self.broker.routing.declare_exchange(EXCHANGE, "fanout")
        for name in COPIES:
            await self.broker.routing.bind(EXCHANGE, f"queue:{name}")
        await self.broker.transacting.begin("copier")  # fences a transaction that was left open: it is undone

    async def publish(self) -> None:
        """Every queue takes it, but for one that has no room; then the publisher is told so."""
        messages = [self.clients.new() for _ in range(self.rng.choice((1, 1, 3)))]
        full = False
        try:
            await self.broker.routing.publish(EXCHANGE, "", messages)
        except Full:
            full = True
        if self.powered():
            numbers = {self.clients.number_of(EXCHANGE, message) for message in messages}
            for name in COPIES:
                if not full:
                    self.clients.stored[name] |= numbers
        await asyncio.sleep(self.rng.choice((0, 0.05)))

    async def publish_together(self) -> None:
        """In a transaction, which may be undone, or left open by a power cut."""
        messages = [self.clients.new() for _ in range(self.rng.choice((1, 2)))]
        numbers = {self.clients.number_of(EXCHANGE, message) for message in messages}
        tx = await self.broker.transacting.begin("copier", 5_000)
        try:
            taken = await tx.put_same(list(COPIES), messages)
            for name in [name for name in COPIES if name not in taken]:
                await tx.put(name, messages)
        except Full:
            await tx.end(False)
            self._undone(numbers)
            return
        except WaystationError:
            self.clients.together.append(numbers)
            raise
        await asyncio.sleep(self.rng.choice((0, 0.02, 0.05)))
        commits = self.rng.random() < 0.7
        self.clients.together.append(numbers)
        await tx.end(commits)
        if self.powered():
            self.clients.together.remove(numbers)
            if commits:
                for name in COPIES:
                    self.clients.stored[name] |= numbers
            else:
                self._undone(numbers)

    def _undone(self, numbers: set[int]) -> None:
        for name in COPIES:
            self.clients.gone[name] |= numbers

    async def consume(self) -> None:
        """Takes some copies out of one queue. The other queues keep theirs."""
        name = self.rng.choice([*COPIES, "copy-plain", "copy-ranked", BOUNDED, BOUNDED])
        if name == "copy-slow" and self.rng.random() < 0.7:
            return
        getter = self.broker.queues.getter(name, "copier")
        try:
            got = getter.take(self.rng.choice((1, 5, 20)))
            numbers = {one.tag: self._seen(name, one) for one in got}
            done = {tag for tag in numbers if self.rng.random() < 0.8}
            asked = {numbers[tag] for tag in done}
            self.clients.acked[name] |= asked
            try:
                settled = getter.settle(Verdict.ACK, [(tag, 1) for tag in sorted(done)])
            except WaystationError:
                self.clients.acked[name] -= asked  # nothing has happened
                raise
            unknown = {numbers[tag] for first, count in settled.unknown for tag in range(first, first + count)}
            self.clients.acked[name] -= unknown
            await self.broker.durable(settled.receipt)
            if self.powered():
                self.clients.gone[name] |= asked - unknown
        finally:
            getter.close()
        await asyncio.sleep(self.rng.choice((0, 0.05)))

    def _seen(self, name: str, delivered: Delivered) -> int:
        number = self.clients.number_of(name, delivered.message)
        expect(number not in self.clients.gone[name], f"{name}: {number} was done, and is delivered")
        return number
