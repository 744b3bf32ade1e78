"""Queues of a whole broker on a simulated disk, and clients that remember what they were told.

Every message has a number in its payload, so that each can be followed wherever it goes: into another queue by
death, into a topic, or out by a transaction. The clients note what they *asked* before the broker sees it and what
they were *told* when it answers with the power still on. `check` looks at everything that a recovered broker has, and
compares: what was told is so, what was never asked is not, and no message is in two places.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.simulation.disk import SimDisk
from tests.simulation.promises import expect
from waystation.broker.broker import Broker
from waystation.broker.dead_letters import story_of
from waystation.broker.delayed import QUEUE as WAITING
from waystation.catalog import Catalog
from waystation.config import BrokerSettings
from waystation.errors import Conflict, NotFound
from waystation.message import Delivered, Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.world import World

ROOT = "/data"
DEAD_TOPIC = "dead.letters"
LATE_TOPIC = "later"
WINDOW_MS = 3_600_000
QUEUES = {
    "plain": QueueSettings(hold_ms=300),
    "work": QueueSettings(hold_ms=300, max_deliveries=3, retry_base_ms=20, retry_jitter=0.5, dead_letter="dead"),
    "aired": QueueSettings(max_deliveries=2, retry_base_ms=5, dead_letter=f"topic:{DEAD_TOPIC}"),
    "once": QueueSettings(dedup_window_ms=WINDOW_MS),
    "small": QueueSettings(max_length=6, overflow="dead-letter", dead_letter="dead"),
    "out": QueueSettings(),
    "dead": QueueSettings(),
}
QUIET_S = 3.0
"""In virtual time: by then everything that is dead has been moved."""


@dataclass
class Sent:
    """One message as its senders and receivers know it."""

    number: int
    queue: str
    stored: bool = False  # told that it is kept
    may_go: bool = False  # an ack, a kill without target, a cancellation was asked for; or it may expire without target
    gone: bool = False  # told that it is done
    not_before_ms: int = 0
    id: str | None = None
    pair: Transfer | None = None  # the transaction that it takes part in


@dataclass
class Transfer:
    """A transaction that takes one message and puts another."""

    taken: Sent
    put: Sent
    asked: bool | None = None
    told: bool = False


class QueueClients:
    """Everything that is remembered outside the broker."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = itertools.count(1)
        self.sent: dict[int, Sent] = {}
        self.retries: list[Sent] = []  # to "once", not told yet: sent again until they are
        self.transfers: list[Transfer] = []
        self.acknowledged = 0
        self.delivered = 0

    def settings(self) -> BrokerSettings:
        return BrokerSettings(
            {
                "waystation.checkpoint.interval.ms": self.rng.choice(("100", "300")),
                "waystation.queue.segment.bytes": "3000",
                "waystation.queue.shards": "2",
                "waystation.queue.cache.bytes": self.rng.choice(("0", "2000", "1000000")),
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "1",
            }
        )

    def new(self, queue: str) -> Sent:
        sent = Sent(next(self.numbers), queue)
        self.sent[sent.number] = sent
        return sent


class QueueMachine:
    """One life."""

    def __init__(self, world: World, disk: SimDisk, catalog: Catalog, clients: QueueClients) -> None:
        self.world = world
        self.disk = disk
        self.clients = clients
        self.rng = clients.rng
        disk.make_folder(ROOT)
        self.broker = Broker(world, ROOT, clients.settings(), catalog)

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the broker, ends what clients left open, and checks every promise."""
        await self.broker.start()
        for name, settings in QUEUES.items():
            await self.broker.queues.declare(name, settings)
        for number in range(2):  # fences transactions that were left open: they are undone
            await self.broker.transacting.begin(f"mover-{number}")
        await asyncio.sleep(QUIET_S)
        self.check()

    def check(self) -> None:
        found = self._everything()
        for number, count in found.items():
            expect(number in self.clients.sent, f"message {number} was never sent")
            expect(count == 1, f"message {number} is there {count} times: {self.clients.sent[number]}")
        for sent in self.clients.sent.values():
            self._check_one(sent, sent.number in found)
        for transfer in self.clients.transfers:
            self._check_transfer(transfer, found)

    def _everything(self) -> Counter[int]:
        """Every message that is anywhere."""
        found: Counter[int] = Counter()
        for name in QUEUES:
            for peeked in self.broker.queues.peek(name, 1_000_000):
                number = _number(peeked.delivered.message)
                found[number] += 1
                expect(peeked.state != "leaving", f"{name}: message {number} is stuck on its way out")
        for peeked in self.broker.queues.peek(WAITING, 1_000_000) if WAITING in self.broker.queues else ():
            found[_number(peeked.delivered.message)] += 1
        for topic in (DEAD_TOPIC, LATE_TOPIC):
            for delivered in self.broker.messages.history(topic, 10_000) if topic in self.broker.topics else ():
                sent = self.clients.sent[_number(delivered.message)]
                found[sent.number] += 1
                expect(topic != DEAD_TOPIC or bool(story_of(delivered.message)), "a dead letter without its story")
                early_ms = sent.not_before_ms - delivered.taken_ms
                expect(topic != LATE_TOPIC or early_ms <= 0, f"published {early_ms} ms early: {sent}")
        return found

    def _check_one(self, sent: Sent, there: bool) -> None:
        if sent.pair is not None and sent.pair.asked is not False and not sent.pair.told:
            return  # its transaction decides
        expect(not (sent.gone and there), f"done, but there again: {sent}")
        expect(there or sent.may_go or sent.gone or not sent.stored, f"lost: {sent}")

    def _check_transfer(self, transfer: Transfer, found: Counter[int]) -> None:
        taken, put = transfer.taken.number in found, transfer.put.number in found
        what = f"{transfer}: taken is {taken and 'there' or 'gone'}, put is {put and 'there' or 'gone'}"
        if transfer.told and transfer.asked:
            expect(not taken, f"committed, but what was taken is back: {what}")
            expect(put or transfer.put.may_go, f"committed, but what was put is lost: {what}")
        elif transfer.told or transfer.asked is None:
            expect(not put, f"undone, but what was put is there: {what}")
        else:
            expect(not (taken and put), f"torn: {what}")
        if not transfer.told and transfer.asked is not None:
            # What is there now stays so: consumers may have seen it.
            transfer.told = True
            transfer.asked = put or transfer.put.may_go
            transfer.taken.gone = transfer.asked
            transfer.put.stored = transfer.asked
            transfer.taken.pair = transfer.put.pair = None

    # -- work ---------------------------------------------------------------------------------------------------------

    async def work(self, seconds: float) -> None:
        """All kinds of work at once, for so long in virtual time."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.put,
            self.put,
            self.put_once,
            self.consume,
            self.consume,
            self.consume,
            self.cancel,
            self.checkpoint,
            self.redrive,
            self.publish_late,
            lambda: self.transfer(0),
            lambda: self.transfer(1),
        ]
        until = self.world.clock.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                tasks.create_task(self._repeat(kind, until))

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            await kind()
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))

    def message(self, sent: Sent) -> Message:
        rng = self.rng
        fields: dict[str, object] = {}
        if rng.random() < 0.3:
            fields["priority"] = rng.randrange(10)
        if rng.random() < 0.3:
            fields["delay_ms"] = rng.choice((1, 40, 900, 60_000))
            sent.not_before_ms = self.world.clock.now_ms() + fields["delay_ms"]  # type: ignore[operator]
        if rng.random() < 0.15:
            fields["ttl_ms"] = rng.choice((1, 50, 2_000))
            # Where there is a target it is moved there; a message that is dead letter already has no expiry.
            sent.may_go = sent.may_go or QUEUES[sent.queue].dead_letter is None
        if sent.id is not None or rng.random() < 0.2:
            sent.id = fields["id"] = sent.id or f"id-{sent.number}"  # type: ignore[assignment]
        filler = rng.choice((b"", bytes(50), bytes(600), rng.randbytes(rng.choice((20, 900)))))
        return Message(b"%d:" % sent.number + filler, **fields)  # type: ignore[arg-type]

    def told(self) -> bool:
        """Whether the client has heard the answer: the power was on."""
        self.clients.acknowledged += self.disk.powered
        return self.disk.powered

    async def put(self) -> None:
        queue = self.rng.choice(("plain", "work", "aired", "small"))
        sent = [self.clients.new(queue) for _ in range(self.rng.choice((1, 1, 3, 20)))]
        if queue == "small":
            del sent[4:]
        await self.broker.queues.put_durable(queue, [self.message(one) for one in sent])
        if self.told():
            for one in sent:
                one.stored = True

    async def put_once(self) -> None:
        """As a client that sends again until it is told."""
        if self.clients.retries and self.rng.random() < 0.6:
            sent = self.clients.retries[0]
        else:
            sent = self.clients.new("once")
            sent.id = f"once-{sent.number}"
            self.clients.retries.append(sent)
        message = Message(b"%d:" % sent.number, id=sent.id)
        await self.broker.queues.put_durable("once", [message])
        if self.told():
            sent.stored = True
            if sent in self.clients.retries:
                self.clients.retries.remove(sent)

    async def consume(self) -> None:
        """A consumer that works for a moment, not always well, and goes."""
        queue = self.rng.choice(("plain", "work", "aired", "once", "small", "out", "dead"))
        got: list[Delivered] = []
        feed = self.broker.queues.open_feed(
            queue, "consumer", lambda messages: self._note(messages, got), on_end=lambda error: None,
            prefetch=self.rng.choice((0, 1, 5)),
        )  # fmt: skip
        feed.credit(self.rng.choice((1, 4, 30)))
        await asyncio.sleep(self.rng.choice((0, 0.01, 0.4)))
        for delivered in got:
            sent = self.clients.sent[_number(delivered.message)]
            verdict = self.rng.choice((Verdict.ACK, Verdict.ACK, Verdict.REJECT, Verdict.RELEASE, Verdict.KILL, None))
            if verdict is None or sent.pair is not None:
                continue
            final = verdict is Verdict.ACK or (verdict is Verdict.KILL and QUEUES[queue].dead_letter is None)
            before = sent.may_go
            sent.may_go = sent.may_go or final
            settled = feed.settle(verdict, [(delivered.tag, 1)], error="no")
            if settled.unknown:
                sent.may_go = before
                continue
            await self.broker.kept(settled.receipt)
            if self.told() and final:
                sent.gone = True
        feed.close()

    def _note(self, messages: list[Delivered], got: list[Delivered]) -> None:
        for delivered in messages:
            number = _number(delivered.message)
            sent = self.clients.sent[number]
            expect(not sent.gone, f"delivered after it was done: {sent}")
            died = bool(story_of(delivered.message))
            now_ms = self.world.clock.now_ms()
            expect(died or now_ms >= sent.not_before_ms, f"early by {sent.not_before_ms - now_ms} ms: {sent}")
            self.clients.delivered += 1
        got += messages

    async def cancel(self) -> None:
        candidates = [sent for sent in list(self.clients.sent.values())[-40:] if sent.id and sent.pair is None]
        if not candidates:
            return
        sent = self.rng.choice(candidates)
        before, sent.may_go = sent.may_go, True
        done = await self.broker.queues.cancel(sent.queue, sent.id or "")
        if done and self.told():
            sent.gone = True
        elif not done:
            sent.may_go = before
        await asyncio.sleep(0.02)

    async def checkpoint(self) -> None:
        for checkpointer in self.broker.shards.checkpointers:
            await checkpointer.run(force=True, forward=True)
        await asyncio.sleep(0.05)

    async def redrive(self) -> None:
        """Sends some of the dead back; where each is found afterwards does not matter, only that it is there once."""
        target = self.rng.choice(("work", "plain", None))
        await self.broker.queues.redrive("dead", to=target, limit=self.rng.choice((1, 5)))
        await asyncio.sleep(0.1)

    async def publish_late(self) -> None:
        """A message for a topic that is not to be there before its time."""
        sent = self.clients.new(LATE_TOPIC)
        delay_ms = self.rng.choice((1, 30, 500, 60_000))
        sent.not_before_ms = self.world.clock.now_ms() + delay_ms
        await self.broker.messages.ensure(LATE_TOPIC)
        published = self.broker.messages.publish(LATE_TOPIC, [Message(b"%d:" % sent.number, delay_ms=delay_ms)])
        await self.broker.kept(*published.receipts)
        if self.told():
            sent.stored = True

    async def transfer(self, number: int) -> None:
        """Takes one message of "plain" and puts another to "out", in one transaction."""
        getter = self.broker.queues.getter("plain", "mover")
        try:
            messages = await getter.get(1, 20)
            if not messages:
                return
            taken = self.clients.sent[_number(messages[0].message)]
            put = self.clients.new("out")
            transfer = taken.pair = put.pair = Transfer(taken, put)
            self.clients.transfers.append(transfer)
            tx = await self.broker.transacting.begin(f"mover-{number}", 5_000)
            try:
                await tx.settle(getter, [(messages[0].tag, 1)])
                await tx.put("out", [Message(b"%d:" % put.number)])
                await asyncio.sleep(self.rng.choice((0, 0.01, 0.5)))
                transfer.asked = self.rng.random() < 0.7
                await tx.end(transfer.asked)
            except (Conflict, NotFound):  # the hold ran out before
                transfer.asked = None
                await tx.end(False)
            self._transferred(transfer)
        finally:
            getter.close()

    def _transferred(self, transfer: Transfer) -> None:
        if not self.told():
            return
        transfer.told = True
        transfer.asked = bool(transfer.asked)
        transfer.taken.gone = transfer.put.stored = transfer.asked
        transfer.taken.pair = transfer.put.pair = None


def _number(message: Message) -> int:
    return int(message.payload.partition(b":")[0])
