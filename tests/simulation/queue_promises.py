"""What the clients of queues remember, and what a broker must show them after whatever happened to it.

Every message has a number in its payload, so that each can be followed wherever it goes: into another queue by
death, into a topic, or out by a transaction. The clients note what they *asked* before the broker sees it and what
they were *told* when it answers with the power still on. `check` looks at everything that a recovered broker has, and
compares: what was told is so, what was refused or never asked is not, and no message is in two places; but those that
an exchange sends to two queues are in both or in none, and a queue that is not durable is empty after every start.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

from tests.simulation.copies import CopyClients
from tests.simulation.encryption import SimKeys
from tests.simulation.promises import Broken, expect
from tests.simulation.world import SimClock
from waystation.broker.broker import Broker
from waystation.config import BrokerSettings
from waystation.message import Delivered, Message
from waystation.queues.delayed import QUEUE as WAITING
from waystation.queues.failure_history import failure_history_of
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.commands import Enqueue, decode_messages

DEAD_TOPIC = "dead.letters"
LATE_TOPIC = "later"
ONCE_TOPIC = "once.only"
"""A topic that deduplicates."""
WINDOW_MS = 3_600_000
TIGHT = 5
SPREADING = "spreading"
"""An exchange that sends everything to "left" and to "right"."""
SILENT = ("wiped", "auto", "left", "right")
"""Nobody consumes from these as from others."""
QUEUES = {
    "plain": QueueSettings(hold_ms=300),
    "work": QueueSettings(hold_ms=300, max_deliveries=3, retry_base_ms=20, retry_jitter=0.5, dead_letter="dead"),
    "aired": QueueSettings(max_deliveries=2, retry_base_ms=5, dead_letter=f"topic:{DEAD_TOPIC}"),
    "brief": QueueSettings(ttl_ms=250, hold_ms=150, dead_letter="dead", dedup_window_ms=WINDOW_MS),
    "once": QueueSettings(dedup_window_ms=WINDOW_MS),
    "small": QueueSettings(max_length=6, overflow="dead-letter", dead_letter="dead"),
    "tight": QueueSettings(max_length=TIGHT, hold_ms=200),
    "altered": QueueSettings(),
    "wiped": QueueSettings(),
    "auto": QueueSettings(),
    "fleeting": QueueSettings(dead_letter="dead"),
    "out": QueueSettings(),
    "spread": QueueSettings(hold_ms=200, max_deliveries=2, retry_base_ms=5, dead_letter_exchange=SPREADING),
    "proud": QueueSettings(max_length=4, overflow="reject-dead-letter", dead_letter_exchange=SPREADING, max_priority=3),
    "passing": QueueSettings(durable=False, hold_ms=100, max_deliveries=1, dead_letter="dead"),
    "left": QueueSettings(),
    "right": QueueSettings(),
    "ranked": QueueSettings(hold_ms=200, max_priority=255),
    "dead": QueueSettings(dedup_window_ms=WINDOW_MS),
}
VARIANTS = (
    QueueSettings(),
    QueueSettings(dead_letter="dead", max_deliveries=1),
    QueueSettings(max_length=50, overflow="drop-oldest", dedup_window_ms=WINDOW_MS),
    QueueSettings(ttl_ms=100, retry_base_ms=0, single_active=True),
    QueueSettings(dead_letter_exchange="", dead_letter_key="dead", max_deliveries=1, max_priority=200),
    QueueSettings(dead_letter_exchange=SPREADING, ttl_ms=200),
)
"""What "altered" is altered to."""


Place = tuple[str, int, int]
"""(queue, its number, which another of this name does not have, entry)."""


@dataclass
class Sent:
    """One message as its senders and receivers know it."""

    number: int
    queue: str
    stored: bool = False  # told that it is kept
    refused: bool = False  # told that nothing was stored
    may_go: bool = False  # an ack, a purge, … was asked for
    fragile: bool = False  # it may end by itself: it expires, or is pushed out, where that is the end
    gone: bool = False  # told, or seen, that it is done
    not_before_ms: int = 0
    expires: bool = False  # by the wall clock: if that is set back, and a crash forgot the end, it is there again
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

    keys: SimKeys | None = None

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.copies = CopyClients(rng)
        self.numbers = itertools.count(1)
        self.sent: dict[int, Sent] = {}
        self.retries: list[Sent] = []  # to "once", not told yet: sent again until they are
        self.republished: list[Sent] = []  # to the topic that deduplicates, in the same way
        self.transfers: list[Transfer] = []
        self.forgiven: Counter[Place] = Counter()  # given back, which is no failure
        self.counts: dict[Place, int] = {}  # how often each was delivered, as far as that may not be forgotten
        self.seen: dict[Place, tuple[int, int]] = {}  # the highest count of each ever, and `cuts` then
        self.troubled = False  # the disk has refused something at some time
        self.cuts = 0  # lives that ended in the middle of something
        self.broken: list[Broken] = []  # seen by a consumer, whose errors the broker survives
        self.jump_ms = 0  # how far the wall clock is from the time that has passed
        self.acknowledged = 0
        self.delivered = 0
        self.refused = 0
        self.dropped = 0  # shards that another broker led for a moment

    def settings(self) -> BrokerSettings:
        return BrokerSettings(
            {
                "waystation.checkpoint.interval.ms": self.rng.choice(("100", "300")),
                "waystation.queue.segment.bytes": "3000",
                "waystation.queue.shards": "3",  # then some dead letters stay on their shard, and some do not
                "waystation.queue.cache.bytes": self.rng.choice(("0", "2000", "1000000")),
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "1",
            }
        )

    def new(self, queue: str) -> Sent:
        sent = Sent(next(self.numbers), queue)
        self.sent[sent.number] = sent
        return sent

    def set_clock(self, clock: SimClock, jump_ms: int) -> None:
        """Somebody sets the machine's time. What was due before may be delivered when it is not due any more, and the
        delay of what is still on its way counts from the new time."""
        now_ms = clock.now_ms()
        for sent in self.sent.values():
            if sent.not_before_ms <= now_ms:
                sent.not_before_ms = 0
            elif not sent.stored:
                sent.not_before_ms = min(sent.not_before_ms, sent.not_before_ms + jump_ms - self.jump_ms)
        self.jump_ms = clock.jump_ms = jump_ms

    def life_ended(self, *, kept: bool, cut: bool) -> None:
        """`kept`: the page cache is, so what was delivered stays counted, in flight or not. `cut`: it ended in the
        middle of something."""
        self.cuts += cut
        if not kept or self.troubled:
            self.counts.clear()

    def complain(self) -> None:
        """Raises what consumers saw that was not as promised."""
        if self.broken:
            raise self.broken[0]

    def of(self, message: Message) -> Sent:
        return self.sent[number_of(message)]

    # -- what must be so ----------------------------------------------------------------------------------------------

    def check(self, broker: Broker, *, faults: bool = False) -> None:
        """Of a broker that has come to rest. `faults`: the disk may have refused to delete what should not last."""
        self.complain()
        expect(faults or not broker.queues.peek("passing", 1), "something survived in a queue that is not durable")
        found = everything(broker, self, faults=faults)
        for number, count in found.items():
            expect(number in self.sent, f"message {number} was never sent")
            expect(count == 1, f"message {number} is there {count} times: {self.sent[number]}")
        for sent in self.sent.values():
            self._check_one(sent, sent.number in found)
        for transfer in self.transfers:
            self._check_transfer(transfer, found)
        self.copies.check(broker)

    def _check_one(self, sent: Sent, there: bool) -> None:
        if sent.pair is not None:
            return  # its transaction decides
        expect(not (sent.refused and there), f"refused, but there: {sent}")
        expect(not (sent.gone and there), f"done, but there again: {sent}")
        expect(there or sent.may_go or sent.fragile or sent.gone or not sent.stored, f"lost: {sent}")
        # What a recovered broker shows is promised from now on: consumers may have seen it.
        if there:
            sent.stored, sent.may_go = True, False
        elif sent not in self.retries and sent not in self.republished and not sent.expires:
            sent.gone = True

    def _check_transfer(self, transfer: Transfer, found: Counter[int]) -> None:
        taken, put = transfer.taken.number in found, transfer.put.number in found
        what = f"{transfer}: what was taken is there: {taken}, what was put is there: {put}"
        if transfer.told and transfer.asked:
            expect(not taken, f"committed, but what was taken is back: {what}")
            expect(put or transfer.put.may_go, f"committed, but what was put is lost: {what}")
        elif transfer.told or transfer.asked is None:
            expect(not put, f"undone, but what was put is there: {what}")
        else:
            expect(not (taken and put), f"torn: {what}")
            ended = transfer.put.may_go or transfer.taken.may_go or transfer.taken.fragile
            expect(taken or put or ended, f"neither: {what}")
        if not transfer.told:  # what is there now stays so: consumers may have seen it
            self.transferred(transfer, committed=bool(transfer.asked and (put or transfer.put.may_go)))

    def transferred(self, transfer: Transfer, *, committed: bool) -> None:
        transfer.told, transfer.asked = True, committed
        transfer.taken.gone = committed
        transfer.put.stored = committed
        transfer.taken.pair = transfer.put.pair = None


def everything(broker: Broker, clients: QueueClients, *, faults: bool = False) -> Counter[int]:
    """Every message that is anywhere. `faults`: a log may take no more, and what is dead waits for the next start."""
    found: Counter[int] = Counter()
    twice: Counter[int] = Counter()
    for name in QUEUES if WAITING not in broker.queues else (*QUEUES, WAITING):
        size = 0
        for peeked in broker.queues.peek(name, 1_000_000):
            message = peeked.delivered.message
            size += len(message.payload)
            if name != "right":
                found[number_of(message)] += 1
            if name in ("left", "right"):
                twice[number_of(message)] += 1
            expect(faults or peeked.state != "leaving", f"{name}: {clients.of(message)} is stuck on its way out")
        expect(broker.queues.describe(name).bytes == size, f"{name}: has {size} bytes, but counts others")
    expect(len(broker.queues.peek("tight", 100)) <= TIGHT, "more in a queue than it may hold")
    for number, count in twice.items():
        expect(count == 2, f"of two letters, {count} arrived: {clients.sent[number]}")
    for topic in (DEAD_TOPIC, LATE_TOPIC, ONCE_TOPIC):
        for delivered in broker.messages.history(topic, 10_000) if topic in broker.topics else ():
            _check_in_topic(topic, clients.of(delivered.message), delivered)
            found[number_of(delivered.message)] += 1
    return found


def put_by_open_transactions(broker: Broker, queue: str) -> list[Message]:
    """What transactions have put to a queue whose shard does not know yet how they ended: it is deleted with the queue.
    It need not be anywhere else: where it was taken from, the commit may be known already, while the queue's own shard
    had no leader that could be told. Only what is in the shard's log counts, so what is lost before is not excused."""
    shard, known = broker.queues.get(queue)
    puts = [one for one in shard.open._commands() if isinstance(one, Enqueue) and one.queue == known.id]
    return [message for put in puts for message in decode_messages(put.messages)]


def _check_in_topic(topic: str, sent: Sent, delivered: Delivered) -> None:
    if topic == DEAD_TOPIC:
        expect(bool(failure_history_of(delivered.message)), f"a dead letter without its failure history: {sent}")
    elif topic == LATE_TOPIC:
        early_ms = sent.not_before_ms - delivered.taken_ms
        expect(early_ms <= 0, f"published {early_ms} ms early: {sent}")


def number_of(message: Message) -> int:
    return int(message.payload.partition(b":")[0])
