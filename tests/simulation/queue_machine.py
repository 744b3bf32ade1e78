"""Queues of a whole broker on a simulated disk, and clients that put, consume, purge, move and complain.

`queue_promises.py` has what the clients remember, and the check. A machine is one life of the broker: it starts, is
checked, works, and ends by itself or because the power goes. In a life with `faults`, the disk refuses now and then;
then any answer may be an error, and what was asked may have happened or not.

Somebody sets the wall clock now and then, by minutes, also while the broker is down. What is delayed must not be early
by that clock; what is in flight is not delivered to another one before its visibility timeout has passed by the
monotonic clock.

In some lives, another broker leads a shard for a moment, now and then. That is a crash for its queues alone: consumers
and whoever waits are told NotLeader, what was acknowledged stays so, and what was in flight is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tests.simulation.copies import Copying
from tests.simulation.disk import SimDisk
from tests.simulation.promises import Broken, expect, insist, of_another_leader
from tests.simulation.queue_promises import (
    LATE_TOPIC,
    ONCE_TOPIC,
    QUEUES,
    SILENT,
    SPREADING,
    VARIANTS,
    WINDOW_MS,
    Place,
    QueueClients,
    Sent,
    Transfer,
    number_of,
    put_by_open_transactions,
)
from tests.simulation.queue_trouble import Trouble
from tests.simulation.world import SimClock
from waystation.admin.views.view_delayed import cancel_delayed
from waystation.broker.broker import Broker
from waystation.catalog import Catalog
from waystation.errors import Conflict, Full, NotFound, NotLeader, StorageFailed, Unavailable, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.queues.shard.shard import PutResult
from waystation.topics.dedup import DEDUP_SETTING
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import World

ROOT = "/data"
JUMPS_MS = (-600_000, 0, 600_000)
"""Where the wall clock may be: far from any visibility timeout, near to the windows in which ids are remembered."""
PUT_TO = [name for name in QUEUES if name not in ("once", "out", "dead", "left", "right")]
QUIET_S = 3.0
"""In virtual time: by then everything that is dead has been moved."""


class QueueMachine:
    """One life."""

    def __init__(
        self, world: World, disk: SimDisk, catalog: Catalog, clients: QueueClients, *, faults: bool = False
    ) -> None:
        self.world = world
        self.disk = disk
        self.clients = clients
        self.rng = clients.rng
        self.trouble = Trouble(disk, clients.rng) if faults else None
        clients.troubled = clients.troubled or faults
        self._handed_out: set[int] = set()  # at most once, in this life
        self._in_flight: dict[Place, tuple[int, float]] = {}  # who has it (its inbox), and until when at least
        self._leadership_moves = clients.rng.random() < 0.5
        clock = world.clock
        if not isinstance(clock, SimClock):
            raise TypeError("not a simulated clock")
        self.clock = clock
        clock.jump_ms = clients.jump_ms
        clients.set_clock(clock, self.rng.choice(JUMPS_MS) if self.rng.random() < 0.3 else clients.jump_ms)
        disk.make_folder(ROOT)
        self.broker = Broker(world, ROOT, clients.settings(), catalog)
        self.copying = Copying(self.broker, clients.copies, self.told)

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the broker, ends what clients left open, and checks every promise."""
        await self.broker.start()
        if self.trouble is None:  # else the disk may have refused to delete it; the next start does
            expect("passing" not in self.broker.queues, "a queue that is not durable survived")
        for name, settings in QUEUES.items():
            await self.broker.queues.declare(name, settings, alter=name == "altered")
        await self.broker.routing.declare_exchange(SPREADING, "fanout")
        for name in ("left", "right"):
            await self.broker.routing.bind(SPREADING, f"queue:{name}")
        await self.copying.start()
        if ONCE_TOPIC not in self.broker.topics:
            await self.broker.topics.create(ONCE_TOPIC, 1, {DEDUP_SETTING: str(WINDOW_MS)})
        for number in range(4):  # fences transactions that were left open: they are undone
            await self.broker.transacting.begin(f"mover-{number}")
            await self.broker.transacting.begin(f"once-{number}")
        await asyncio.sleep(QUIET_S)
        self.check()

    def check(self) -> None:
        self.clients.check(self.broker, faults=self.trouble is not None)

    # -- work ---------------------------------------------------------------------------------------------------------

    async def work(self, seconds: float) -> None:
        """All kinds of work at once, for so long in virtual time."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.put,
            self.put,
            self.put_several,
            lambda: self.put_once(0),
            lambda: self.put_once(1),
            lambda: self.publish_once(2),
            lambda: self.publish_once(3),
            *[self.consume] * 5,
            self.consume_auto,
            self.consume_at_most_once,
            self.cancel,
            self.checkpoint,
            self.redrive,
            self.publish_late,
            self.purge,
            self.delete,
            self.alter,
            lambda: self.transfer(0),
            lambda: self.transfer(1),
            self.set_clock,
            self.copying.publish,
            self.copying.publish_together,
            *[self.copying.consume] * 2,
        ]
        until = self.world.clock.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                tasks.create_task(self._repeat(kind, until))
            if self.trouble is not None:
                tasks.create_task(self._repeat(self.trouble.make, until))
            if self._leadership_moves:
                tasks.create_task(self._repeat(self.move_leadership, until))

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            self.clients.complain()
            try:
                await kind()
            except WaystationError as error:
                excused = self._leadership_moves and of_another_leader(error)
                if not excused and (self.trouble is None or isinstance(error, Conflict)):
                    raise
                self.clients.refused += 1
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))

    async def heal(self) -> None:
        """Everything works again, without a restart, soon after the disk does."""
        kinds = (self.put, self.consume, self.checkpoint, self.redrive, self.publish_late, self.purge, self.delete)
        await insist((*kinds, lambda: self.put_once(0), lambda: self.transfer(1), self.copying.publish_together))

    def message(self, sent: Sent) -> Message:
        rng = self.rng
        fields: dict[str, object] = {}
        if rng.random() < 0.3 or sent.queue == "ranked":
            fields["priority"] = rng.choice((rng.randrange(10), rng.randrange(256), 255))
        if rng.random() < 0.3:
            fields["delay_ms"] = rng.choice((1, 40, 900, 60_000))
            sent.not_before_ms = self.world.clock.now_ms() + fields["delay_ms"]  # type: ignore[operator]
        if rng.random() < 0.15:
            fields["ttl_ms"] = rng.choice((1, 50, 2_000))
            sent.expires = True
            # Where there is a target it is moved there; a message that is dead letter already has no expiry.
            sent.fragile = sent.fragile or not QUEUES[sent.queue].keeps_dead
        if sent.id is not None or rng.random() < 0.2:
            sent.id = fields["id"] = sent.id or f"id-{sent.number}"
        filler = rng.choice((b"", bytes(50), bytes(600), rng.randbytes(rng.choice((20, 900)))))
        return Message(b"%d:" % sent.number + filler, **fields)  # type: ignore[arg-type]

    def told(self) -> bool:
        """Whether the client has heard the answer: the power was on."""
        self.clients.acknowledged += self.disk.powered
        return self.disk.powered

    async def put(self) -> None:
        queue = self.rng.choice(PUT_TO)
        sent = self._new(queue, self.rng.choice((1, 1, 3, 20)))
        if queue == "proud":
            await self._put_each(queue, sent)
            return
        wait_ms = self.rng.choice((0, 30))
        try:
            await self.broker.queues.put_durable(queue, [self.message(one) for one in sent], wait_ms=wait_ms)
        except (Full, NotFound, NotLeader):
            for one in sent:
                one.refused = self.disk.powered
            return
        if self.told():
            for one in sent:
                one.stored = True

    def _new(self, queue: str, count: int) -> list[Sent]:
        """Messages that are about to be put."""
        sent = [self.clients.new(queue) for _ in range(count)]
        if queue in ("small", "tight"):
            del sent[self.rng.choice((1, 4)) :]
        for one in sent:
            one.fragile = queue in ("altered", "auto", "passing")
        return sent

    async def put_several(self) -> None:
        """Puts to several queues that come together. Each is taken or refused by itself."""
        queues = self.rng.choices(PUT_TO, k=self.rng.choice((2, 2, 4)))  # one may come again
        sent = [self._new(queue, self.rng.choice((1, 1, 2))) for queue in queues]
        puts = [(own[0].queue, [self.message(one) for one in own]) for own in sent]
        if self.rng.random() < 0.3:
            again = self._to_send_once()
            sent.append([again])
            puts.append((again.queue, [_once(again)]))
        receipts: list[Receipt] = []
        stored: list[Sent] = []
        failures: list[WaystationError] = []
        for step in self.broker.queues.put_several(puts):
            for index, outcome in step.items():
                if isinstance(outcome, PutResult):
                    receipts.append(outcome.receipt)
                    stored += sent[index]
                elif isinstance(outcome, Full | NotFound | NotLeader):
                    for one in sent[index]:
                        one.refused = self.disk.powered and one not in self.clients.retries
                else:
                    failures.append(outcome)
        await self.broker.durable(*receipts)
        if self.told():
            for one in stored:
                self._stored_once(one)
        if failures:
            raise failures[0]

    async def _put_each(self, queue: str, sent: list[Sent]) -> None:
        """Some may be refused: they become dead letters, but nobody promises that."""
        result = self.broker.queues.put_each(queue, [self.message(one) for one in sent])
        for i in result.refused:
            sent[i].fragile = True
        await self.broker.durable(result.receipt)
        if self.told():
            for i, one in enumerate(sent):
                one.stored = i not in result.refused

    async def put_once(self, number: int) -> None:
        """As a client that sends again until it is told, in a transaction or without."""
        sent = self._to_send_once()
        message = _once(sent)
        if self.rng.random() < 0.5:
            await self.broker.queues.put_durable("once", [message])
        else:
            tx = await self.broker.transacting.begin(f"once-{number}")
            await tx.put("once", [message])
            await asyncio.sleep(self.rng.choice((0, 0.02)))
            commits = self.rng.random() < 0.7
            await tx.end(commits)
            if not commits:
                return
        if self.told():
            self._stored_once(sent)

    def _to_send_once(self) -> Sent:
        """One that was sent before, if the client does not know what became of it, or a new one."""
        if self.clients.retries and self.rng.random() < 0.6:
            return self.clients.retries[0]
        sent = self.clients.new("once")
        sent.id = f"once-{sent.number}"
        self.clients.retries.append(sent)
        return sent

    def _stored_once(self, sent: Sent) -> None:
        sent.stored = True
        if sent in self.clients.retries:
            self.clients.retries.remove(sent)

    async def publish_once(self, number: int) -> None:
        """The same to a topic that deduplicates. Whoever is told that it is there already is told that it is stored."""
        if self.clients.republished and self.rng.random() < 0.6:
            sent = self.clients.republished[0]
        else:
            sent = self.clients.new(ONCE_TOPIC)
            self.clients.republished.append(sent)
        message = Message(b"%d:" % sent.number, id=f"only-{sent.number}")
        try:
            if self.rng.random() < 0.5:
                published = self.broker.messages.publish(ONCE_TOPIC, [message])
                await self.broker.durable(*published.receipts)
            else:
                tx = await self.broker.transacting.begin(f"once-{number}")
                await tx.publish(ONCE_TOPIC, [message])
                await asyncio.sleep(self.rng.choice((0, 0.02)))
                commits = self.rng.random() < 0.5
                await tx.end(commits)
                if not commits:
                    return
        except (NotLeader, StorageFailed):
            raise
        except Unavailable:  # it is in the other one's transaction, which has not ended
            return
        if self.told():
            sent.stored = True
            if sent in self.clients.republished:
                self.clients.republished.remove(sent)

    # -- consumers ----------------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        """A consumer that works for a moment, not always well, and goes."""
        queue = self.rng.choice(tuple(QUEUES))
        if queue in SILENT:
            return
        got: list[Delivered] = []
        if self.rng.random() < 0.2:
            feed = self._take(queue, got)
        else:
            feed = self._open(queue, got, prefetch=self.rng.choice((0, 1, 5)), priority=self.rng.choice((0, 0, 3)))
        if feed is None:
            return
        try:
            feed.credit(self.rng.choice((1, 4, 30)))
            await asyncio.sleep(self.rng.choice((0, 0.01, 0.4)))
            if self.rng.random() < 0.2:
                feed.retire()
            if self.rng.random() < 0.3:
                self._touch(feed, got, self.rng.choice((None, 5, 1_000)))
                await asyncio.sleep(0.2)
            if self.rng.random() < 0.5:
                await self._settle_one_by_one(feed, got)
            else:
                await self._settle_together(feed, got)
        finally:
            self._let_go(feed.queue, got, [one.tag for one in got])
            feed.close()

    def _touch(self, feed: QueueFeed, got: list[Delivered], visibility_timeout_ms: int | None) -> None:
        tags = [one.tag for one in got]
        self._let_go(feed.queue, got, tags)
        unknown = feed.touch([(tag, 1) for tag in tags], visibility_timeout_ms)
        lost = {tag for first, count in unknown for tag in range(first, first + count)}
        self._has(feed.queue, got, set(tags) - lost, visibility_timeout_ms)

    def _has(self, queue: Queue, got: list[Delivered], tags: Iterable[int], visibility_timeout_ms: int | None) -> None:
        """A consumer has these for so long."""
        until = (
            self.world.clock.monotonic()
            + (queue.settings.hold_ms if visibility_timeout_ms is None else visibility_timeout_ms) / 1000
        )
        for tag in tags:
            self._in_flight[queue.name, queue.id, tag] = id(got), until - 0.002  # milliseconds are cut

    def _let_go(self, queue: Queue, got: list[Delivered], tags: Iterable[int]) -> None:
        """These may be delivered to others."""
        for tag in tags:
            place = (queue.name, queue.id, tag)
            if self._in_flight.get(place, (0, 0.0))[0] == id(got):
                del self._in_flight[place]

    def _open(self, queue: str, got: list[Delivered], **options: int) -> QueueFeed | None:
        try:
            return self.broker.queues.open_feed(
                queue,
                "consumer",
                lambda messages: self._note(queue, messages, got),
                on_end=lambda error: None,
                **options,  # type: ignore[arg-type]
            )
        except NotFound:  # deleted
            return None

    def _take(self, queue: str, got: list[Delivered]) -> QueueFeed | None:
        """As one that asks for what is there, and counts as no consumer."""
        if queue not in self.broker.queues:
            return None
        getter = self.broker.queues.getter(queue, "getter", silent=True)
        self._note(queue, getter.take(self.rng.choice((1, 9))), got)
        return getter

    async def _settle_one_by_one(self, feed: QueueFeed, got: list[Delivered]) -> None:
        for delivered in got:
            verdict = self.rng.choice((Verdict.ACK, Verdict.ACK, Verdict.REJECT, Verdict.RELEASE, Verdict.KILL, None))
            if verdict is not None:
                await self._settle(feed, verdict, got, [delivered], receipt=delivered.deliveries)

    async def _settle_together(self, feed: QueueFeed, got: list[Delivered]) -> None:
        """Everything in one go, in runs that may span what is not held."""
        verdict = self.rng.choice((Verdict.ACK, Verdict.ACK, Verdict.REJECT, Verdict.RELEASE, Verdict.KILL))
        await self._settle(feed, verdict, got, list(got))

    async def _settle(
        self, feed: QueueFeed, verdict: Verdict, got: list[Delivered], messages: list[Delivered], receipt: int = 0
    ) -> None:
        """`receipt`: of the delivery that is meant; a later one of the same message, to whomever, stays as it is."""
        ours = [one for one in messages if self.clients.of(one.message).pair is None]
        sent = {one.tag: self.clients.of(one.message) for one in ours}
        final = verdict is Verdict.ACK or (verdict is Verdict.KILL and not feed.queue.settings.keeps_dead)
        before = {tag: one.may_go for tag, one in sent.items()}
        for one in sent.values():
            one.may_go = one.may_go or final
        if verdict is Verdict.RELEASE:
            self.clients.forgiven.update((feed.queue.name, feed.queue.id, tag) for tag in sent)
        try:
            settled = feed.settle(verdict, [(tag, 1) for tag in sent], error="no", deliveries=receipt)
        except StorageFailed:  # nothing has happened
            for tag, one in sent.items():
                one.may_go = before[tag]
            raise
        latest = {tag: self.clients.counts.get((feed.queue.name, feed.queue.id, tag), 0) for tag in sent}
        stale = {tag for tag, count in latest.items() if receipt and receipt < count}
        self._let_go(feed.queue, got, set(sent) - stale)
        unknown = {tag for first, count in settled.unknown for tag in range(first, first + count)}
        for tag in unknown & set(sent):
            sent[tag].may_go = before[tag]
        for tag in stale:
            expect(tag in unknown, f"settled by the receipt of an earlier delivery: {sent[tag]}")
        await self.broker.durable(settled.receipt)
        if self.told() and final:
            for tag in set(sent) - unknown:
                sent[tag].gone = True

    async def consume_at_most_once(self) -> None:
        """A consumer that is sent more than it hands out, and acks each before it does: it never comes again while the
        power is on, and what was not handed out is given back when the consumer goes."""
        got: list[Delivered] = []
        feed = self._open(self.rng.choice(("plain", "once", "out")), got)
        if feed is None:
            return
        feed.credit(8)
        await asyncio.sleep(self.rng.choice((0, 0.01, 0.4)))
        for delivered in got[: self.rng.choice((0, 1, 3))]:
            sent = self.clients.of(delivered.message)
            if sent.pair is not None:
                continue
            before, sent.may_go = sent.may_go, True
            try:
                settled = feed.settle(Verdict.ACK, [(delivered.tag, 1)], deliveries=delivered.deliveries)
            except StorageFailed:
                sent.may_go = before
                break
            if settled.unknown:
                sent.may_go = before
            elif self.trouble is None:
                self._handed_out.add(sent.number)
        self._let_go(feed.queue, got, [one.tag for one in got])
        feed.leave()
        await asyncio.sleep(0.02)

    async def consume_auto(self) -> None:
        """A consumer whose messages are acknowledged before it has them."""
        got: list[Delivered] = []
        feed = self._open("auto", got, auto_ack=True)
        if feed is None:
            return
        feed.credit(self.rng.choice((1, 4)))
        await asyncio.sleep(0.01)
        feed.close()
        sent = [self.clients.of(one.message) for one in got]
        partition = feed.shard.log.partition
        for one in sent:
            one.may_go = True
        await self.broker.durable(Receipt(partition, partition.end_offset))
        if self.told():
            for one in sent:
                one.gone = one.gone or one.pair is None
        await asyncio.sleep(0.1)

    def _note(self, queue: str, messages: list[Delivered], got: list[Delivered]) -> None:
        try:
            self._look_at(queue, messages, got)
        except Broken as broken:
            self.clients.broken.append(broken)
            raise

    def _look_at(self, queue: str, messages: list[Delivered], got: list[Delivered]) -> None:
        known = self.broker.queues.get(queue)[1]
        if queue != "altered":  # there, what was put before a change keeps the priority that it had
            ranks = [(-min(one.message.priority, QUEUES[queue].max_priority), one.tag) for one in messages]
            expect(ranks == sorted(ranks), f"{queue}: a lower priority was delivered before a higher one: {ranks}")
        for delivered in messages:
            sent = self.clients.of(delivered.message)
            expect(not sent.gone, f"delivered after it was done: {sent}")
            expect(not sent.refused, f"delivered though it was refused: {sent}")
            expect(sent.number not in self._handed_out, f"delivered again to one who wants it at most once: {sent}")
            died = bool(failure_history_of(delivered.message))
            now_ms = self.world.clock.now_ms()
            expect(died or now_ms >= sent.not_before_ms, f"early by {sent.not_before_ms - now_ms} ms: {sent}")
            place = (queue, known.id, delivered.tag)
            until = self._in_flight.get(place, (0, 0.0))[1]
            expect(self.world.clock.monotonic() >= until, f"delivered again while it is in flight: {sent}")
            self._count(place, delivered)
            most = QUEUES[queue].max_deliveries
            failed = delivered.deliveries - self.clients.forgiven[place]
            expect(not most or failed <= most, f"handed out {delivered.deliveries} times: {sent}")
            self.clients.delivered += 1
        self._has(known, got, [one.tag for one in messages], None)
        got += messages

    def _count(self, place: Place, delivered: Delivered) -> None:
        """A delivery is counted once: also if the broker was killed while it was in flight."""
        count, before = delivered.deliveries, self.clients.counts.get(place, 0)
        expect(count > before, f"delivery {count} after {before}: {self.clients.of(delivered.message)}")
        seen, cuts = self.clients.seen.get(place, (0, 0))
        on_their_way = self.clients.cuts - cuts  # noted, and the power went before anybody had it
        if self.trouble is None and not self.clients.troubled:
            what = f"delivery {count} after {seen}, or {seen + on_their_way}: {self.clients.of(delivered.message)}"
            expect(count <= seen + on_their_way + 1, what)
        self.clients.counts[place] = count
        self.clients.seen[place] = max(seen, count), self.clients.cuts

    # -- whoever else comes by ----------------------------------------------------------------------------------------

    async def set_clock(self) -> None:
        await asyncio.sleep(self.rng.choice((0.05, 0.1, 0.3)))
        self.clients.set_clock(self.clock, self.rng.choice(JUMPS_MS))

    async def move_leadership(self) -> None:
        """Another broker leads a shard, and this one again: at once, or after a while."""
        await asyncio.sleep(self.rng.choice((0.02, 0.1)))
        shards = self.broker.shards
        partition = self.rng.choice(self.broker.topics.get(QUEUES_TOPIC).partitions)
        names = {queue.name for queue in shards[partition.index].queues.values()}
        shards.drop(partition.index)
        self.clients.dropped += 1
        for place in [place for place in self._in_flight if place[0] in names]:
            del self._in_flight[place]
        if self.trouble is not None:  # the disk may have refused to note the last deliveries
            for place in [place for place in self.clients.counts if place[0] in names]:
                del self.clients.counts[place]
        away_s = self.rng.choice((None, 0.0, 0.01, 0.2))
        try:
            if away_s is not None:
                partition.follow(partition.epoch)
                await asyncio.sleep(away_s)
        finally:
            partition.lead(partition.epoch)
            await self._lead(partition)
        if "passing" in names:  # it is not durable, so it went with the broker that led it
            await self.broker.queues.declare("passing", QUEUES["passing"])

    async def _lead(self, partition: Partition) -> None:
        """Where the disk refuses, nothing has happened, and it is tried again."""
        while True:
            try:
                self.broker.shards.lead(partition)
                return
            except (OSError, StorageFailed):
                if self.trouble is None:
                    raise
                await asyncio.sleep(0.02)

    async def cancel(self) -> None:
        candidates = [sent for sent in list(self.clients.sent.values())[-60:] if sent.id and sent.pair is None]
        if not candidates:
            return
        sent = self.rng.choice(candidates)
        before, sent.may_go = sent.may_go, True
        if await self._cancel(sent.queue, sent.id or ""):
            sent.gone = sent.gone or self.told()
        else:
            sent.may_go = before
        await asyncio.sleep(0.02)

    async def _cancel(self, queue: str, message_id: str) -> bool:
        """Whether it was taken out; what is delayed to a topic is cancelled by the topic's name."""
        if queue != LATE_TOPIC:
            return queue in self.broker.queues and await self.broker.queues.cancel(queue, message_id)
        try:
            await cancel_delayed(self.broker, queue, message_id)
        except (NotFound, Conflict):
            return False
        return True

    async def purge(self) -> None:
        """What waits in a queue that nobody consumes from is gone afterwards."""
        await asyncio.sleep(self.rng.choice((0.05, 0.2)))
        sent = [self.clients.of(one.delivered.message) for one in self.broker.queues.peek("wiped", 10_000)]
        self._may_go("wiped", sent)
        await self.broker.queues.purge("wiped")
        if self.told():
            for one in sent:
                one.gone = True

    def _may_go(self, queue: str, seen: list[Sent]) -> None:
        """What is in the queue, as far as the disk lets us see it; else everything that may be."""
        for one in seen if self.trouble is None else self.clients.sent.values():
            one.may_go = one.may_go or one.queue == queue

    async def delete(self) -> None:
        """A queue goes with what is in it, but for the dead who may be on their way; and comes again."""
        await asyncio.sleep(self.rng.choice((0.05, 0.3)))
        if "fleeting" in self.broker.queues:
            peeked = self.broker.queues.peek("fleeting", 10_000)
            sent = [self.clients.of(one.delivered.message) for one in peeked]
            on_their_way = put_by_open_transactions(self.broker, "fleeting")  # a redrive is bringing them back
            self._may_go("fleeting", [*sent, *(self.clients.of(message) for message in on_their_way)])
            await self.broker.queues.delete("fleeting")
            if self.told():
                for one, seen in zip(sent, peeked, strict=True):
                    one.gone = one.gone or seen.state != "leaving"
        await asyncio.sleep(self.rng.choice((0, 0.05)))
        await self.broker.queues.declare("fleeting", QUEUES["fleeting"])

    async def alter(self) -> None:
        await asyncio.sleep(self.rng.choice((0.02, 0.1)))
        await self.broker.queues.declare("altered", self.rng.choice(VARIANTS), alter=True)

    async def checkpoint(self) -> None:
        for checkpointer in self.broker.shards.checkpointers:
            try:
                if self.rng.random() < 0.3:
                    await checkpointer.cut_back()
                else:
                    await checkpointer.run(force=True, forward=True)
            except OSError:
                if self.trouble is None:
                    raise
        await asyncio.sleep(0.05)

    async def redrive(self) -> None:
        """Sends some of the dead back; where each is found afterwards does not matter, only that it is there once."""
        target = self.rng.choice(("work", "plain", "tight", None))
        try:
            await self.broker.queues.redrive("dead", to=target, limit=self.rng.choice((1, 5)))
        except (Full, NotFound):
            self.clients.refused += 1
        await asyncio.sleep(0.1)

    async def publish_late(self) -> None:
        """A message for a topic that is not to be there before its time."""
        sent = self.clients.new(LATE_TOPIC)
        sent.id = f"late-{sent.number}"
        delay_ms = self.rng.choice((1, 30, 500, 60_000))
        sent.not_before_ms = self.world.clock.now_ms() + delay_ms
        await self.broker.messages.ensure(LATE_TOPIC)
        message = Message(b"%d:" % sent.number, id=sent.id, delay_ms=delay_ms, max_deliveries=1)
        published = self.broker.messages.publish(LATE_TOPIC, [message])
        await self.broker.durable(*published.receipts)
        if self.told():
            sent.stored = True

    async def transfer(self, number: int) -> None:
        """Takes one message of "plain" and puts another to a queue, in one transaction."""
        getter = self.broker.queues.getter("plain", "mover")
        try:
            messages = await getter.get(1, 20)
            for delivered in messages:
                self._count(("plain", getter.queue.id, delivered.tag), delivered)
            taken = self.clients.of(messages[0].message) if messages else None
            if taken is None or taken.pair is not None:
                return
            put = self.clients.new(self.rng.choice(("out", "tight")))
            transfer = taken.pair = put.pair = Transfer(taken, put)
            self.clients.transfers.append(transfer)
            tx = await self.broker.transacting.begin(f"mover-{number}", 5_000)
            try:
                await tx.settle(getter, [(messages[0].tag, 1)])
                await tx.put(put.queue, [Message(b"%d:" % put.number)])
                await asyncio.sleep(self.rng.choice((0, 0.01, 0.5)))
                transfer.asked = self.rng.random() < 0.7
                await tx.end(transfer.asked)
            except (Conflict, NotFound, Full, NotLeader):  # the hold ran out before, or there is no room
                if transfer.asked is not None:
                    raise
                await tx.end(False)
            if self.told():
                self.clients.transferred(transfer, committed=bool(transfer.asked))
        finally:
            getter.close()


def _once(sent: Sent) -> Message:
    """The same each time that it is sent."""
    return Message(b"%d:" % sent.number, id=sent.id)


__all__ = ["QueueClients", "QueueMachine", "number_of"]
